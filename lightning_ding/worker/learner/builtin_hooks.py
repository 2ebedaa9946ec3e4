"""The built-in hooks of learners: loading, saving, reporting, averaging over ranks."""

from __future__ import annotations

import zlib
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch

from lightning_ding.config import nearest, require
from lightning_ding.registry import LEARNER_HOOK_REGISTRY
from lightning_ding.utils.ranks import (
    communication_device,
    gather_bytes,
    max_over_ranks,
    min_over_ranks,
    rank_and_world_size,
    sum_over_ranks,
)
from lightning_ding.worker.learner.engine import LearnerEngine, LogBuffer, Scalar
from lightning_ding.worker.learner.hooks import LearnerHook, Position

NO_REDUCE = "noreduce_"


class BuiltinHook(LearnerHook):
    """A hook whose constructor has defaults.

    Args:
        name: Name of the hook; None means the name of its class.
        priority: Order among the hooks of a position, lower first; >= 0. None means that of its class.
        position: One of the ``positions`` of its class; None means the first one.
        ext_args: Further arguments of the hook by name.

    Raises:
        ValueError: If there is an unknown key in ``ext_args`` or a value is out of range, or the position is not
            allowed.
    """

    default_name: ClassVar[str]
    default_priority: ClassVar[int] = 20
    positions: ClassVar[tuple[Position, ...]] = ("after_iter",)
    """Positions at which the hook can be called."""

    def __init__(
        self,
        name: str | None = None,
        priority: int | None = None,
        position: Position | None = None,
        ext_args: Mapping[str, Any] | None = None,
    ) -> None:
        priority = self.default_priority if priority is None else priority
        super().__init__(name or self.default_name, priority, position or self.positions[0], ext_args)
        allowed = f"{' or '.join(self.positions)} for {type(self).__name__}"
        require(self.position in self.positions, "position", allowed, self.position)
        known = self._known_keys()
        for key in self.ext_args:
            if key not in known:
                where = f"{type(self).__name__} at {self.position}"
                raise ValueError(f"unknown ext_args key {key!r} of {where}; {nearest(key, known)}")
        self._set_up()

    def _known_keys(self) -> tuple[str, ...]:
        """Return the keys that may be in ``ext_args``."""
        return ("freq",)

    @abstractmethod
    def _set_up(self) -> None:
        """Read ``ext_args``, whose keys are known."""

    def _freq(self) -> int:
        freq = self.ext_args.get("freq", 1)
        allowed = isinstance(freq, int) and not isinstance(freq, bool) and freq >= 1
        require(allowed, "ext_args.freq", "a number of updates >= 1", freq)
        return int(freq)


@LEARNER_HOOK_REGISTRY.register("load_ckpt")
class LoadCkptHook(BuiltinHook):
    """Loads a checkpoint of a learner before the run. ``ext_args`` needs ``load_path``, the file."""

    default_name = "load_ckpt"
    positions = ("before_run",)

    def _known_keys(self) -> tuple[str, ...]:
        return ("load_path",)

    def _set_up(self) -> None:
        path = self.ext_args.get("load_path")
        require(isinstance(path, (str, Path)) and str(path) != "", "ext_args.load_path", "the path of a file", path)
        self.load_path = Path(str(path))

    def __call__(self, engine: LearnerEngine) -> None:
        """Load the file."""
        engine.load_checkpoint(self.load_path)


@LEARNER_HOOK_REGISTRY.register("save_ckpt")
class SaveCkptHook(BuiltinHook):
    """Writes a checkpoint every ``ext_args["freq"]`` completed updates (>= 1, 1 by default), or at the end of the run.

    It is a snapshot of the policy and the counters. ``RunCheckpoint`` saves a whole run, with buffers and random number
    generators.
    """

    default_name = "save_ckpt_after_iter"
    positions = ("after_iter", "after_run")

    def _known_keys(self) -> tuple[str, ...]:
        return ("freq",) if self.position == "after_iter" else ()

    def _set_up(self) -> None:
        self.freq = self._freq()

    def __call__(self, engine: LearnerEngine) -> None:
        """Write a checkpoint if one is due."""
        if self.position == "after_run" or engine.crossed(self.freq):
            engine.save_checkpoint()


@LEARNER_HOOK_REGISTRY.register("log_show")
class LogShowHook(BuiltinHook):
    """Reports, every ``ext_args["freq"]`` completed updates (>= 1, 1 by default), the means since the last report.

    It reports ``{name}_avg`` of the policy's ``monitor_vars`` and of all ``[scalars]``, and the histograms of the last
    iteration. The weight of an iteration is its number of updates; an iteration that does not report a name does not
    count for it. Values stay on their device between two reports.
    """

    default_name = "log_show"

    def _set_up(self) -> None:
        self.freq = self._freq()
        self._sums: dict[str, Scalar] = {}
        self._updates: dict[str, int] = {}

    def __call__(self, engine: LearnerEngine) -> None:
        """Add the values of the iteration to the sums, and report the means if a report is due."""
        if engine.updates == 0:
            return
        scalar, scalars = engine.log_buffer["scalar"], engine.log_buffer["scalars"]
        values = {name: scalar[name] for name in engine.policy.monitor_vars() if name in scalar}
        values |= {f"{name}/{key}": value for name, below in scalars.items() for key, value in below.items()}
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0.0) + value * engine.updates
            self._updates[name] = self._updates.get(name, 0) + engine.updates
        if engine.crossed(self.freq):
            means = {f"{name}_avg": float(total) / self._updates[name] for name, total in self._sums.items()}
            self._sums, self._updates = {}, {}
            engine.report(means)


@LEARNER_HOOK_REGISTRY.register("log_reduce")
class LogReduceHook(BuiltinHook):
    """Averages the reports of an iteration over the ranks, in one all-reduce; on the CPU with gloo.

    Its priority must be below that of the hooks that report. Histograms, and names that begin with ``noreduce_``, are
    not averaged.
    """

    default_name = "log_reduce_after_iter"
    default_priority = 10

    def _known_keys(self) -> tuple[str, ...]:
        return ()

    def _set_up(self) -> None:
        pass

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
