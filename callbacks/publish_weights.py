"""Let those who collect have the weights of the policy that learns."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from lightning.pytorch import Callback, Trainer
from typing_extensions import override

from lightning_ding.config import require

logger = logging.getLogger(__name__)

FIRST = 60.0  # seconds for which the first publication is tried: without it nobody collects
PAUSE = 1.0  # seconds between two of these attempts


class WeightPublisher(Callback):
    """Hands the weights that collecting needs to a function: at the start, every so many rounds, and at the end.

    The function gets ``{"model": flat tensors by name, on the CPU, "iter": updates that they have seen}``, and where
    observations are normalised ``"normaliser"``, flat tensors as well. The tensors are those that are trained on, where
    that is on the CPU, so they have to be copied or written before it returns.
    Only rank zero publishes, and nothing that was published already. If there is no room for them (``OSError``), an
    error is logged, and the next round's take their place; at the start of a run it is tried for a minute before it
    raises.

    Args:
        send_policy: The function, such as ``comm_learner.send_policy``.
        every_n_rounds: Rounds between two publications, >= 1.
    """

    def __init__(self, send_policy: Callable[[Mapping[str, Any]], None], every_n_rounds: int = 1) -> None:
        require(every_n_rounds >= 1, "every_n_rounds", ">= 1", every_n_rounds)
        self.send_policy = send_policy
        self.every_n_rounds = every_n_rounds
        self._rounds = 0
        self._version = -1

    @override
    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Publish what the run begins with."""
        self._rounds, self._version = 0, -1
        deadline = time.monotonic() + FIRST
        while not self._publish(trainer, pl_module, raises=time.monotonic() > deadline):
            time.sleep(PAUSE)

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Publish when it is due."""
        if batch is None:  # the run ends: first comes its checkpoint, and the coordinator may be gone
            return
        self._rounds += 1
        if self._rounds % self.every_n_rounds == 0:
            self._publish(trainer, pl_module)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Publish what the run ends with."""
        self._publish(trainer, pl_module)

    def _publish(self, trainer: Trainer, policy: Any, raises: bool = False) -> bool:
        """Publish what is new, and return whether it worked."""
        version = policy.progress.train_iter
        if not trainer.is_global_zero or version == self._version:
            return True
        state = policy.collect_mode.state_dict()
        parts = {part: state[part] for part in ("model", "normaliser") if part in state}
        flat = {part: {name: x.detach().cpu() for name, x in tensors.items()} for part, tensors in parts.items()}
        try:
            self.send_policy({**flat, "iter": version})
        except OSError as error:
            if raises:
                raise
            logger.error("the weights of update %d could not be published: %s", version, error)
            return False
        self._version = version
        return True
