"""Where the time of a round goes: env steps, acting, replay, updates, and what is around them.

    python -m benchmarks.overhead                     # W1, eager
    python -m benchmarks.overhead --case W3 --compile

A clock around the function of each part measures it, in one process with one torch thread. The time of a part does not
include the other parts that it calls. Overhead is everything but the steps of the envs and the updates, to which the
target network's output for a whole round belongs. The first hundred rounds are left out: with them would come the
start of the fit, the random actions that fill the buffer, compilation, and the first calls of everything.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock

import torch

from benchmarks import contest, dqn, sac
from benchmarks.workload import W1, W3
from lightning_ding.datamodules.replay import ReplayDataModule
from lightning_ding.datamodules.replay_round import ReplayRound
from lightning_ding.envs.sync import _SyncVectorEnv
from lightning_ding.policy.base.policy import Policy
from lightning_ding.worker.buffer.naive import NaiveReplayBuffer
from lightning_ding.worker.buffer.ring_buffer import RingBuffer
from lightning_ding.worker.collector.sample import SampleSerialCollector

CASES: dict[str, tuple[Callable[..., Any], Any]] = {"W1": (dqn.make_ours, W1), "W3": (sac.make_ours, W3)}
PARTS: dict[str, tuple[Any, str]] = {
    "the envs' steps": (_SyncVectorEnv, "step"),
    "choosing actions": (Policy, "_collect"),
    "collecting": (SampleSerialCollector, "collect"),
    "storing transitions": (RingBuffer, "push"),
    "drawing minibatches": (NaiveReplayBuffer, "sample"),
    "fetching a round": (ReplayDataModule, "_next_round"),
    "preparing a round": (ReplayRound, "prepare"),
    "updates": (Policy, "_learn"),
    "learning": (Policy, "training_step"),
}
INSIDE = {
    "collecting": ("the envs' steps", "choosing actions"),
    "fetching a round": ("collecting", "storing transitions", "drawing minibatches"),
    "learning": ("preparing a round", "updates"),
}
"""Parts that another part contains."""
NOT_OVERHEAD = ("the envs' steps", "preparing a round", "updates")
LIGHTNING = "Lightning and callbacks"
LAST_PART = "learning"  # the part that ends a round


class Clock:
    """Adds up the seconds in the functions of ``PARTS``, from the end of one round to the end of a later one.

    Args:
        skipped: Number of rounds to leave out, >= 1.
    """

    def __init__(self, skipped: int) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.rounds = -skipped
        self.total = 0.0

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that is timed as a part."""

        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                end = time.perf_counter()
                self.seconds[name] += end - start
                if name == LAST_PART:
                    self._end_round(end)

        return call

    def _end_round(self, now: float) -> None:
        self.rounds += 1
        if self.rounds == 0:
            self.seconds.clear()
            self._begin = now
        elif self.rounds > 0:
            self.total = now - self._begin


def measure(case: str, env_steps: int, compile: bool = False, skipped: int = 100) -> dict[str, float]:
    """Return the microseconds of a round by part, without those of the parts inside, and ``total``.

    Args:
        case: Name of the workload, ``"W1"`` or ``"W3"``.
        env_steps: Length of the workload.
        compile: Whether updates are compiled.
        skipped: Number of rounds at the start of the workload that are not measured, >= 1.
    """
    make, workload = CASES[case]
    clock = Clock(skipped)
    with ExitStack() as stack:
        for name, (owner, function) in PARTS.items():
            stack.enter_context(mock.patch.object(owner, function, clock.timed(name, getattr(owner, function))))
        contest.fit(*make(dataclasses.replace(workload, env_steps=env_steps), compile))
    whole = {name: clock.seconds[name] / clock.rounds * 1e6 for name in PARTS}
    own = {name: whole[name] - sum(whole[part] for part in INSIDE.get(name, ())) for name in PARTS}
    total = clock.total / clock.rounds * 1e6
    return {**own, LIGHTNING: total - whole["learning"] - whole["fetching a round"], "total": total}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES, default="W1", help="workload")
    parser.add_argument("--compile", action="store_true", help="compile the updates")
    parser.add_argument("--env-steps", type=int, help="length of the workload; default: its own")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    parts = measure(options.case, options.env_steps or CASES[options.case][1].env_steps, options.compile)
    total = parts.pop("total")
    for name, microseconds in parts.items():
        print(f"{name:>24} {microseconds:8.0f} us {microseconds / total:6.1%}")
    overhead = total - sum(parts[name] for name in NOT_OVERHEAD)
    print(f"{'a round':>24} {total:8.0f} us\n{'overhead':>24} {overhead:8.0f} us {overhead / total:6.1%}")


if __name__ == "__main__":
    main()
