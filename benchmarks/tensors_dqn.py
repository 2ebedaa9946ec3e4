"""Speed of DQN in 1,024 tensor envs on workload W8: this project and a bare torch loop.

    python -m benchmarks.tensors_dqn      # writes docs/results/tensors_dqn_speed.json

Each contestant runs in a separate process with one torch thread, or with ``--threads`` of them; all run in turn, three
times. Envs, networks, minibatches and losses are the same. Seconds of compilation are left out. PPO is in ``tensors``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks import bare_tensor_dqn, contest
from benchmarks.compare import Result
from benchmarks.dqn import make_ours
from benchmarks.workload import W8, DQNWorkload


def run_ours(w: DQNWorkload, compile: bool = False, mode: Any = "tensor") -> Result:
    """Train through ``Trainer.fit``."""
    return contest.fit(*make_ours(w, compile, mode))


CONTESTANTS: dict[str, Callable[[DQNWorkload], Result]] = {
    "bare loop": bare_tensor_dqn.run,
    "ours": run_ours,
    "ours, compiled": lambda w: run_ours(w, compile=True),
    "ours, sync": lambda w: run_ours(w, mode="sync"),
}

if __name__ == "__main__":
    contest.main("tensors_dqn", __doc__, CONTESTANTS, W8)
