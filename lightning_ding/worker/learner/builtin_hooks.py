"""The hooks that learners bring along: loading, saving, reporting, averaging over ranks."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from lightning_ding.config import nearest, require
from lightning_ding.registry import LEARNER_HOOK_REGISTRY
from lightning_ding.worker.learner.engine import LearnerEngine
from lightning_ding.worker.learner.hook import LearnerHook, Position
from lightning_ding.worker.learner.log_buffer import LogBuffer, Scalar
from lightning_ding.worker.learner.ranks import device_of, gather_bytes

NO_REDUCE = "noreduce_"


@LEARNER_HOOK_REGISTRY.register("load_ckpt")
class LoadCkptHook(LearnerHook):
    """Loads a checkpoint of a learner before the run.

    Args:
        name: Name of the hook.
        priority: Lower comes first.
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
    """Writes a checkpoint behind every so many completed updates, or at the end of the run.

    It is a snapshot of the policy and the counters. A whole run, with buffers and random number generators, is saved
    by ``RunCheckpoint``.

    Args:
        name: Name of the hook.
        priority: Lower comes first.
        position: ``after_iter`` or ``after_run``.
        ext_args: With ``after_iter``, ``freq``: updates between two checkpoints, >= 1, 1 by default.

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
        """Write the checkpoint when it is due."""
        if self.position == "after_run" or engine.crossed(self.freq):
            engine.save_checkpoint()


@LEARNER_HOOK_REGISTRY.register("log_show")
class LogShowHook(LearnerHook):
    """Reports, behind every so many completed updates, the means over all updates since the last report.

    Reported are ``{name}_avg`` of the policy's ``monitor_vars``, those of all ``[scalars]``, and the histograms of the
    last iteration. A name that an iteration does not report does not count in it. An iteration counts as often as it
    made updates. Nothing is brought to the host in between.

    Args:
        name: Name of the hook.
        priority: Lower comes first.
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
        """Add up the iteration, and report when it is due."""
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
    """Averages over ranks what the iteration reported, in one all-reduce; on the CPU with gloo.

    Histograms, and names that begin with ``noreduce_``, stay what they are on each rank.

    Args:
        name: Name of the hook.
        priority: Lower comes first; before what reports.
        position: ``after_iter``.
        ext_args: Nothing.

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
        if not (dist.is_available() and dist.is_initialized()):
            raise RuntimeError(f"averaging over {engine.world_size} ranks needs an initialised torch.distributed")
        places = _places(engine.log_buffer)
        names = "\n".join(sorted(places))
        _require_same_on_all_ranks(names)
        if not places:
            return
        ordered, device = [places[name] for name in sorted(places)], device_of()
        flat = torch.stack(
            [torch.as_tensor(values[key], dtype=torch.float64, device=device) for values, key in ordered]
        )
        dist.all_reduce(flat)
        for (values, key), mean in zip(ordered, (flat / dist.get_world_size()).unbind(), strict=True):
            values[key] = mean


def _monitored(engine: LearnerEngine) -> dict[str, Scalar]:
    """Return what is reported of an iteration."""
    scalar, scalars = engine.log_buffer["scalar"], engine.log_buffer["scalars"]
    values = {name: scalar[name] for name in engine.policy.monitor_vars() if name in scalar}
    return values | {f"{name}/{key}": value for name, below in scalars.items() for key, value in below.items()}


def _places(buffer: LogBuffer) -> dict[str, tuple[dict[str, Any], str]]:
    """Return where each value stands that is averaged: a dict and a key in it."""
    groups = {"scalar": buffer["scalar"], **{f"scalars/{name}": below for name, below in buffer["scalars"].items()}}
    return {
        f"{group}/{key}": (values, key)
        for group, values in groups.items()
        for key in values
        if not key.startswith(NO_REDUCE) and not group.startswith(f"scalars/{NO_REDUCE}")
    }


def _require_same_on_all_ranks(names: str) -> None:
    number = zlib.crc32(names.encode())
    extremes = torch.tensor([number, -number], dtype=torch.int64, device=device_of())
    dist.all_reduce(extremes, op=dist.ReduceOp.MAX)
    largest, smallest = extremes.tolist()
    if largest == -smallest:
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
