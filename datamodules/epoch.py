"""Where in its epoch a run is, so that a run that was stopped there goes on with the rest of it.

Lightning 2.6.6 counts an epoch that ``trainer.should_stop`` cut short as a whole one, and begins the next one at full
length: evaluations would stand elsewhere than in a run that was never stopped. There is no public way to say that an
epoch goes on, so the counter of ``trainer.fit_loop`` is put back here, and the loader is asked for once more behind the
rest of the epoch, as with ``reload_dataloaders_every_n_epochs``. A run that Lightning itself sets back into an epoch
(``max_steps``, a checkpoint of an evaluation) is left to it, and with ``val_check_interval``, or with a share of the
batches as limit, a new epoch begins.
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Trainer


class EpochPosition:
    """Counts the rounds of an epoch."""

    def __init__(self) -> None:
        self.round = 0
        """Rounds of the epoch that are done."""
        self._length = 0
        self._is_resumed = False
        self._reload_every: int | None = None

    def resume(self, rounds: int) -> None:
        """Go on where a run was stopped, ``rounds`` >= 0 into an epoch."""
        self.round = rounds
        self._is_resumed = rounds > 0

    def begin(self, trainer: Trainer, length: int) -> int:
        """Return how many rounds the loader gives that Lightning asks for now.

        Args:
            trainer: Its counters are put back if an epoch goes on.
            length: Rounds of a whole epoch, >= 1.
        """
        limit = trainer.limit_train_batches
        self._length = min(length, limit) if isinstance(limit, int) else length
        fit_loop: Any = trainer.fit_loop
        evaluates_at_end = getattr(trainer, "val_check_interval", None) == 1.0  # not there if it is a time
        can_resume = evaluates_at_end and (limit == 1.0 or isinstance(limit, int))
        if fit_loop.restarting or not can_resume or self.round >= self._length:
            self.round = 0
        if self._reload_every is not None and not self.round:
            self._set_reload(trainer, self._reload_every)
            self._reload_every = None
        if not self.round:
            self._is_resumed = False
            return length
        if self._is_resumed:
            self._is_resumed = False
            self._reload_every = trainer.reload_dataloaders_every_n_epochs  # type: ignore[attr-defined]
            self._set_reload(trainer, 1)
            epoch = fit_loop.epoch_progress.current
            epoch.ready, epoch.started, epoch.processed = epoch.ready - 1, epoch.started - 1, epoch.processed - 1
        return self._length - self.round

    def count(self) -> None:
        """Note that a round begins."""
        self.round = (self.round + 1) % self._length if self._length else 0

    def _set_reload(self, trainer: Any, every: int) -> None:
        trainer.reload_dataloaders_every_n_epochs = every
