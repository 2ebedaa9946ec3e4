"""Callbacks of a distributed learner: publish the weights for collectors, and report progress and priorities."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from lightning.pytorch import Callback, Trainer
from typing_extensions import override

from lightning_ding.config import require
from lightning_ding.utils.protocols import run_data

logger = logging.getLogger(__name__)


FIRST = 60.0  # seconds for which a publication is tried that collecting waits for, such as the first one
PAUSE = 1.0  # seconds between two of these attempts
PARTS = ("model", "normaliser", "return_statistics")
"""Entries of the collect mode's state that are published if there are any: the network and two kinds of statistics."""


class WeightPublisher(Callback):
    """Pass the weights that collecting needs to a function: at the start, at regular intervals, and at the end.

    The function gets a mapping with the keys ``"model"`` (CPU tensors by name), ``"iter"`` (updates made so far) and,
    if observations are normalised, ``"normaliser"`` (CPU tensors by name); for a policy that computes values when data
    are collected also ``"return_statistics"``, the scale of its critic; and if envs were set, ``"env_settings"``, see
    :meth:`~lightning_ding.utils.protocols.RunData.env_settings`. If the policy is trained on the CPU, these are the
    tensors that are trained, so the function must copy or write them before it returns.

    Only rank zero publishes. It publishes each version once, and again if envs were set since. If the function raises
    ``OSError``, for example because the disk is full, an error is logged and the weights of the next round are
    published instead. At the start of a run, and after each round of an on-policy algorithm, publishing is tried for a
    minute before the error is raised.

    Args:
        send_policy: Function that gets the weights, such as ``comm_learner.send_policy``.
        every_n_rounds: Rounds between two publications, >= 1.
    """

    def __init__(self, send_policy: Callable[[Mapping[str, Any]], None], every_n_rounds: int = 1) -> None:
        require(every_n_rounds >= 1, "every_n_rounds", ">= 1", every_n_rounds)
        self.send_policy = send_policy
        self.every_n_rounds = every_n_rounds
        self._rounds = 0
        self._policy_version = -1
        self._env_settings = ""

    @override
    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Publish the first weights of the run, unless pretraining has to change them first."""
        self._rounds, self._policy_version = 0, -1
        if pl_module.progress.train_iter >= pl_module.pretraining_updates:
            self._publish_surely(trainer, pl_module)

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Publish the weights if a publication is due."""
        if batch is None:  # the run ends: a checkpoint is saved first, and the coordinator may have exited
            return
        if pl_module.progress.train_iter < pl_module.pretraining_updates:
            return
        self._rounds += 1
        is_first = self._policy_version < 0
        if pl_module.on_policy or is_first:  # nothing is collected for it with other weights
            self._publish_surely(trainer, pl_module)
        elif self._rounds % self.every_n_rounds == 0:
            self._publish(trainer, pl_module)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Publish the last weights of the run."""
        self._publish(trainer, pl_module, is_last=True)

    def _publish_surely(self, trainer: Trainer, policy: Any) -> None:
        deadline = time.monotonic() + FIRST
        while not self._publish(trainer, policy, raises=time.monotonic() > deadline):
            time.sleep(PAUSE)

    def _publish(self, trainer: Trainer, policy: Any, raises: bool = False, is_last: bool = False) -> bool:
        """Publish the weights if they or the settings of envs are new; return False if that failed."""
        policy_version, env_settings = policy.progress.train_iter, run_data(trainer).env_settings()
        is_known = policy_version == self._policy_version and (is_last or env_settings == self._env_settings)
        if not trainer.is_global_zero or is_known:
            return True
        state = policy.collect_mode.state_dict()
        parts = {part: state[part] for part in PARTS if part in state}
        flat = {part: {name: x.detach().cpu() for name, x in tensors.items()} for part, tensors in parts.items()}
        try:
            settings = {"env_settings": env_settings} if env_settings else {}
            self.send_policy({**flat, **settings, "iter": policy_version})
        except OSError as error:
            if raises:
                raise
            logger.error("the weights of update %d could not be published: %s", policy_version, error)
            return False
        self._policy_version, self._env_settings = policy_version, env_settings
        return True


class LearningReporter(Callback):
    """Pass a report of each round to a function: ``learner_step``, ``learner_done``, ``priority_info`` and scores.

    ``priority_info`` holds the priorities of all minibatches of the round, or is None. After each
    round with priorities, every rank reports its own. Without priorities, only rank zero reports, every
    ``every_n_rounds`` rounds. If the function raises ``OSError``, an error is logged and the transitions keep their
    old priorities.

    Args:
        send_learn_info: Function that gets the report, such as ``comm_learner.send_learn_info``.
        every_n_rounds: Rounds between two reports without priorities, >= 1.
    """

    def __init__(self, send_learn_info: Callable[[Mapping[str, Any]], None], every_n_rounds: int = 1) -> None:
        require(every_n_rounds >= 1, "every_n_rounds", ">= 1", every_n_rounds)
        self.send_learn_info = send_learn_info
        self.every_n_rounds = every_n_rounds
        self._rounds = 0

    @override
    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Start counting rounds."""
        self._rounds = 0

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Report the round."""
        if batch is None:  # no more data arrived
            return
        self._rounds += 1
        priorities = batch.priorities() if hasattr(batch, "priorities") else None  # only rounds that were fetched
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
