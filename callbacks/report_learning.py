"""Tell the coordinator how far the learner is, and what priorities it gave."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from lightning.pytorch import Callback, Trainer
from typing_extensions import override

from lightning_ding.config import require

logger = logging.getLogger(__name__)


class LearningReporter(Callback):
    """Hands a round's report to a function: ``learner_step``, ``learner_done``, ``priority_info``, scores.

    ``priority_info`` holds the priorities of all minibatches of the round, or is None; every rank sends its own, behind
    each round that has some. Without them, only rank zero reports, every so many rounds. If there is no room for
    priorities (``OSError``), an error is logged, and the transitions keep those that they have.

    Args:
        send_learn_info: The function, such as ``comm_learner.send_learn_info``.
        every_n_rounds: Rounds between two reports without priorities, >= 1.
    """

    def __init__(self, send_learn_info: Callable[[Mapping[str, Any]], None], every_n_rounds: int = 1) -> None:
        require(every_n_rounds >= 1, "every_n_rounds", ">= 1", every_n_rounds)
        self.send_learn_info = send_learn_info
        self.every_n_rounds = every_n_rounds
        self._rounds = 0

    @override
    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Begin to count rounds."""
        self._rounds = 0

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Report the round."""
        if batch is None:  # there were no more data
            return
        self._rounds += 1
        priorities = batch.priorities()
        is_due = trainer.is_global_zero and self._rounds % self.every_n_rounds == 0
        if not is_due and priorities is None:
            return
        metrics = trainer.callback_metrics
        scores = {name: float(value) for name, value in metrics.items() if name.startswith("eval/")}
        about = {"learner_step": pl_module.progress.train_iter, "learner_done": False}
        try:
            self.send_learn_info({**scores, **about, "priority_info": priorities})
        except OSError as error:
            logger.error("the priorities of a round could not be sent: %s", error)
