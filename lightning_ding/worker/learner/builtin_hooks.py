"""The built-in hooks of learners: loading, saving, reporting, averaging over ranks."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from lightning_ding.config import nearest, require
from lightning_ding.ranks import (
    communication_device,
    gather_bytes,
    max_over_ranks,
    min_over_ranks,
    rank_and_world_size,
    sum_over_ranks,
)
from lightning_ding.registry import LEARNER_HOOK_REGISTRY
from lightning_ding.worker.learner.engine import LearnerEngine
from lightning_ding.worker.learner.hooks import LearnerHook, Position
from lightning_ding.worker.learner.log_buffer import LogBuffer, Scalar

NO_REDUCE = "noreduce_"


@LEARNER_HOOK_REGISTRY.register("load_ckpt")
class LoadCkptHook(LearnerHook):
    """Loads a checkpoint of a learner before the run.

    Args:
        name: Name of the hook.
        priority: Order among the hooks of a position, lower first; >= 0.
        position: ``before_run``.
        ext_args: ``load_path``, the file.

    Raises:
        ValueError: If ``load_path`` is missing, or the position is another.
    """

    def __init__(
        self,
        name: str = "load_ckpt",
        priority: int = 20,
        position: Position = "before_run",
        ext_args: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(name, priority, position, ext_args)
        _require_position(self, "before_run")
        _require_known(self, "load_path")
        path = self.ext_args.get("load_path")
        require(isinstance(path, (str, Path)) and str(path) != "", "ext_args.load_path", "the path of a file", path)
        self.load_path = Path(str(path))

    def __call__(self, engine: LearnerEngine) -> None:
        """Load the file."""
        engine.load_checkpoint(self.load_path)


@LEARNER_HOOK_REGISTRY.register("save_ckpt")
class SaveCkptHook(LearnerHook):
    """Writes a checkpoint every ``freq`` completed updates, or at the end of the run.

    It is a snapshot of the policy and the counters. ``RunCheckpoint`` saves a whole run, with buffers and random number
    generators.

    Args:
        name: Name of the hook.
        priority: Order among the hooks of a position, lower first; >= 0.
        position: ``after_iter`` or ``after_run``.
        ext_args: ``freq``, only with ``after_iter``: updates between two checkpoints, >= 1, 1 by default.

    Raises:
        ValueError: If ``freq`` is out of range or does nothing, or the position is another.
    """

    def __init__(
        self,
        name: str = "save_ckpt_after_iter",
        priority: int = 20,
        position: Position = "after_iter",
        ext_args: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(name, priority, position, ext_args)
        _require_position(self, "after_iter", "after_run")
        _require_known(self, *(["freq"] if position == "after_iter" else []))
        self.freq = _freq(self)

    def __call__(self, engine: LearnerEngine) -> None:
        """Write a checkpoint if one is due."""
        if self.position == "after_run" or engine.crossed(self.freq):
            engine.save_checkpoint()


@LEARNER_HOOK_REGISTRY.register("log_show")
class LogShowHook(LearnerHook):
    """Reports, every ``freq`` completed updates, the means over all updates since the last report.

    It reports ``{name}_avg`` of the policy's ``monitor_vars`` and of all ``[scalars]``, and the histograms of the last
    iteration. The weight of an iteration is its number of updates; an iteration that does not report a name does not
    count for it. Values stay on their device between two reports.

    Args:
        name: Name of the hook.
        priority: Order among the hooks of a position, lower first; >= 0.
        position: ``after_iter``.
        ext_args: ``freq``: updates between two reports, >= 1, 1 by default.

    Raises:
        ValueError: If ``freq`` is out of range, or the position is another.
    """

    def __init__(
        self,
        name: str = "log_show",
        priority: int = 20,
        position: Position = "after_iter",
        ext_args: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(name, priority, position, ext_args)
        _require_position(self, "after_iter")
        _require_known(self, "freq")
        self.freq = _freq(self)
        self._sums: dict[str, Scalar] = {}
        self._updates: dict[str, int] = {}

    def __call__(self, engine: LearnerEngine) -> None:
        """Add the values of the iteration to the sums, and report the means if a report is due."""
        if engine.updates == 0:
            return
        for name, value in _monitored(engine).items():
            self._sums[name] = self._sums.get(name, 0.0) + value * engine.updates
            self._updates[name] = self._updates.get(name, 0) + engine.updates
        if engine.crossed(self.freq):
            means = {f"{name}_avg": float(total) / self._updates[name] for name, total in self._sums.items()}
            self._sums, self._updates = {}, {}
            engine.report(means)


@LEARNER_HOOK_REGISTRY.register("log_reduce")
class LogReduceHook(LearnerHook):
    """Averages the reports of an iteration over the ranks, in one all-reduce; on the CPU with gloo.

    Histograms, and names that begin with ``noreduce_``, are not averaged.

    Args:
        name: Name of the hook.
        priority: Order among the hooks, lower first; below the priority of the hooks that report.
        position: ``after_iter``.
        ext_args: Must be empty.

    Raises:
        ValueError: If there are ``ext_args``, or the position is another.
    """

    def __init__(
        self,
        name: str = "log_reduce_after_iter",
        priority: int = 10,
        position: Position = "after_iter",
        ext_args: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(name, priority, position, ext_args)
        _require_position(self, "after_iter")
        _require_known(self)

    def __call__(self, engine: LearnerEngine) -> None:
        """Average the log buffer.

        Raises:
            ValueError: On all ranks, if they report different names.
            RuntimeError: If there should be other ranks, but torch.distributed is not initialised.
        """
        if engine.world_size == 1:
            return
        if rank_and_world_size()[1] == 1:
            raise RuntimeError(f"averaging over {engine.world_size} ranks needs an initialised torch.distributed")
        places = _places(engine.log_buffer)
        names = "\n".join(sorted(places))
        _require_same_on_all_ranks(names)
        if not places:
            return
        ordered, device = [places[name] for name in sorted(places)], communication_device()
        flat = torch.stack(
            [torch.as_tensor(values[key], dtype=torch.float64, device=device) for values, key in ordered]
        )
        means = sum_over_ranks(flat) / rank_and_world_size()[1]
        for (values, key), mean in zip(ordered, means.unbind(), strict=True):
            values[key] = mean


def _monitored(engine: LearnerEngine) -> dict[str, Scalar]:
    """Return what is reported of an iteration."""
    scalar, scalars = engine.log_buffer["scalar"], engine.log_buffer["scalars"]
    values = {name: scalar[name] for name in engine.policy.monitor_vars() if name in scalar}
    return values | {f"{name}/{key}": value for name, below in scalars.items() for key, value in below.items()}


def _places(buffer: LogBuffer) -> dict[str, tuple[dict[str, Any], str]]:
    """Return the dict and the key of each value that is averaged."""
    groups = {"scalar": buffer["scalar"], **{f"scalars/{name}": below for name, below in buffer["scalars"].items()}}
    return {
        f"{group}/{key}": (values, key)
        for group, values in groups.items()
        for key in values
        if not key.startswith(NO_REDUCE) and not group.startswith(f"scalars/{NO_REDUCE}")
    }


def _require_same_on_all_ranks(names: str) -> None:
    number = zlib.crc32(names.encode())
    if min_over_ranks(number) == max_over_ranks(number):
        return
    of_ranks = [set(part.decode().split("\n")) for part in gather_bytes(names.encode())]
    on_all = of_ranks[0].intersection(*of_ranks)
    differing = sorted(set().union(*of_ranks) - on_all)
    raise ValueError(f"every rank must report the same names, but only some report {', '.join(differing)}")


def _require_position(hook: LearnerHook, *positions: str) -> None:
    allowed = f"{' or '.join(positions)} for {type(hook).__name__}"
    require(hook.position in positions, "position", allowed, hook.position)


def _require_known(hook: LearnerHook, *known: str) -> None:
    for key in hook.ext_args:
        if key not in known:
            where = f"{type(hook).__name__} at {hook.position}"
            raise ValueError(f"unknown ext_args key {key!r} of {where}; {nearest(key, known)}")


def _freq(hook: LearnerHook) -> int:
    freq = hook.ext_args.get("freq", 1)
    allowed = isinstance(freq, int) and not isinstance(freq, bool) and freq >= 1
    require(allowed, "ext_args.freq", "a number of updates >= 1", freq)
    return int(freq)
