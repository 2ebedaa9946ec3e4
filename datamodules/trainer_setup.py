"""Prepare a Trainer for a run with a datamodule, and count the rounds of its epochs.

Lightning 2.6.6 counts an epoch that ``trainer.should_stop`` cut short as complete, and starts the next one at full
length. Evaluations would then take place at different env steps than in a run that was never stopped. There is no
public way to continue an epoch, so :class:`EpochPosition` decrements the counter of ``trainer.fit_loop``. Lightning
then requests a new loader after the rest of the epoch, as with ``reload_dataloaders_every_n_epochs``. A run that
Lightning itself restores in the middle of an epoch (``max_steps``, a checkpoint of an evaluation) is left to Lightning.
With ``val_check_interval``, or with a fraction of the batches as limit, a new epoch starts.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch.utils.data import IterableDataset
from typing_extensions import override

from lightning_ding.callbacks import Limits
from lightning_ding.callbacks.defaults import add_checkpoint_callbacks


def set_up_trainer(trainer: Trainer, limits: Limits) -> None:
    """Prepare a Trainer for a run with a datamodule that collects.

    Refuse callbacks that cannot work and loggers that cannot write, prepare the intervals of evaluations, add the
    checkpoint callbacks of this project, so that ``ckpt_path="last"`` finds them, and remove Lightning's default limit
    of 1000 epochs if the run has its own limit.

    Args:
        trainer: The Trainer; its module is attached already.
        limits: Limits of the run, from the datamodule and the policy's config.

    Raises:
        ValueError: For ``trainer.predict``, a callback that cannot work, or two kinds of intervals.
        OSError: If the folder of a logger cannot be written.
    """
    if trainer.state.fn == "predict":
        raise ValueError(
            "trainer.predict needs a data set, which an env does not provide: use trainer.test to evaluate the "
            "policy, policy(observations) to get actions, or pass a DataLoader of observations"
        )
    policy: Any = trainer.lightning_module
    if hasattr(policy, "check_callbacks"):
        policy.check_callbacks(trainer)
    if trainer.loggers:
        from lightning_ding.callbacks.loggers import note_checkpoint, prepare_loggers

        note_checkpoint(trainer)
        prepare_loggers(trainer)
    if limits.eval_every is not None:
        from lightning_ding.callbacks.evaluation_interval import prepare_intervals

        prepare_intervals(trainer)
    add_checkpoint_callbacks(trainer)
    limits.lift_default_epochs(trainer)


class CheckedIO(TorchCheckpointIO):
    """Lightning's reader of checkpoints, which checks one before it is used.

    Objects are read with ``weights_only=True`` unless ``fit(weights_only=False)`` asks for the opposite.

    Args:
        trainer: The Trainer of the run.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    @override
    def load_checkpoint(
        self, path: Any, map_location: Any = lambda storage, _: storage, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Return the content of a checkpoint; see :mod:`lightning_ding.checkpoints.reading`."""
        from lightning_ding.checkpoints.reading import load_checked

        return load_checked(self.trainer, path, partial(super().load_checkpoint, path, map_location), weights_only)


def check_loading(trainer: Trainer) -> Callable[[], None]:
    """Make a Trainer check the checkpoints that it loads, and return a function that ends this.

    A ``CheckpointIO`` of the user is kept, and checks itself what it loads.
    """
    strategy = trainer.strategy
    before = strategy.checkpoint_io
    if type(before) is TorchCheckpointIO:
        strategy.checkpoint_io = CheckedIO(trainer)

    def restore() -> None:
        strategy.checkpoint_io = before

    return restore


class EpochPosition:
    """Count the rounds of an epoch, and shorten the first epoch of a run that is resumed in the middle of one."""

    round = 0
    """Completed rounds of the current epoch."""
    _length = 0
    _is_resumed = False
    _reload_every: int | None = None

    def resume(self, rounds: int) -> None:
        """Continue after ``rounds`` >= 0 rounds of an epoch, where a run was stopped."""
        self.round = rounds
        self._is_resumed = rounds > 0

    def begin(self, trainer: Trainer, length: int) -> int:
        """Return the number of rounds of the next loader.

        Args:
            trainer: The Trainer; its epoch counters are decremented if an epoch is continued.
            length: Rounds of a whole epoch, >= 1.
        """
        limit = trainer.limit_train_batches
        self._length = min(length, limit) if isinstance(limit, int) else length
        fit_loop: Any = trainer.fit_loop
        evaluates_at_end = getattr(trainer, "val_check_interval", None) == 1.0  # unset if the interval is a duration
        can_resume = evaluates_at_end and (limit == 1.0 or isinstance(limit, int))
        if fit_loop.restarting or not can_resume or self.round >= self._length:
            self.round = 0
        if self._reload_every is not None and not self.round:
            trainer.reload_dataloaders_every_n_epochs, self._reload_every = self._reload_every, None  # type: ignore[attr-defined]
        if not self.round:
            self._is_resumed = False
            return length
        if self._is_resumed:
            self._is_resumed = False
            self._reload_every = trainer.reload_dataloaders_every_n_epochs  # type: ignore[attr-defined]
            trainer.reload_dataloaders_every_n_epochs = 1  # type: ignore[attr-defined]
            epoch = fit_loop.epoch_progress.current
            epoch.ready, epoch.started, epoch.processed = epoch.ready - 1, epoch.started - 1, epoch.processed - 1
        return self._length - self.round

    def count(self) -> None:
        """Count a round that starts."""
        self.round = (self.round + 1) % self._length if self._length else 0


@dataclass(eq=False)
class Stream(IterableDataset[Any]):
    """An iterable data set that yields ``length`` items of a producer. Every iterator continues where the last stopped.

    Because the data set has a length, Lightning does not fetch an item before the update on the previous one is
    finished. Making an iterator calls nothing, so Lightning may make any number of them.
    """

    produce: Callable[[], Any]
    """Function that returns the next item."""
    length: int
    """Items of an epoch, >= 1."""

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self.length):
            yield self.produce()


MISLEADING_WARNINGS = (
    r"The number of training batches \(\d+\) is smaller than the logging interval",  # here, rounds count across epochs
    r"Total length of `list` across ranks is zero",  # a run on a data set without an env has no evaluation
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",  # Lightning 2.6 with torch 2.13
)


class LoaderWarnings:
    """Suppress warnings of Lightning that do not apply here, while it prepares a loader, and only then."""

    _suppressed: AbstractContextManager[object] | None = None

    def suppress(self) -> None:
        """Start suppressing the warnings."""
        if self._suppressed is None:
            self._suppressed = warnings.catch_warnings()
            self._suppressed.__enter__()
            for message in MISLEADING_WARNINGS:
                warnings.filterwarnings("ignore", message)

    def restore(self) -> None:
        """Show the warnings again. Calling it again changes nothing."""
        if self._suppressed is not None:
            self._suppressed.__exit__(None, None, None)
            self._suppressed = None
