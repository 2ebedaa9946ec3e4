"""Steps per second of envs in processes, compared with gymnasium's AsyncVectorEnv and SyncVectorEnv.

    python -m benchmarks.envs      # writes docs/results/envs.json

Three workloads of 8 envs, all with the defaults of their vector env and the same autoreset mode: CartPole-v1, which
costs next to nothing; an env that computes for 2 ms; and one that observes 84 x 84 x 4 bytes. Each contestant runs in a
separate process. All run in turn, three times. The load of a shared machine varies, so a run is timed in pieces, and
the median piece counts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from benchmarks.compare import Result, in_turn, medians_of, save
from lightning_ding.envs import ProcessVectorEnv

ENVS = 8
PIECES = 25
BASELINE = "AsyncVectorEnv"


class Working(gym.Env[Any, Any]):
    """An env that computes for a while in every step and ends an episode every 200 steps.

    Args:
        seconds: Duration of the computation, in CPU time of this process.
        shape: Shape of an observation of bytes.
    """

    def __init__(self, seconds: float, shape: tuple[int, ...]) -> None:
        self.observation_space = gym.spaces.Box(0, 255, shape, np.uint8)
        self.action_space = gym.spaces.Discrete(2)
        self.seconds, self.obs, self.length = seconds, np.zeros(shape, dtype=np.uint8), 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        self.length = 0
        return self.obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Compute and return another observation."""
        start = time.process_time()
        while time.process_time() - start < self.seconds:
            pass
        self.length += 1
        self.obs = np.full_like(self.obs, self.length % 256)
        return self.obs, 1.0, self.length == 200, False, {}


WORKLOADS: dict[str, tuple[Callable[[], Any], int]] = {
    "cartpole": (lambda: gym.make("CartPole-v1"), 5_000),
    "computing_2_ms": (lambda: Working(0.002, (4,)), 400),
    "images": (lambda: Working(0.0, (84, 84, 4)), 2_500),
}
CONTESTANTS: dict[str, Callable[[Any], VectorEnv]] = {
    "lightning_ding": lambda makers: ProcessVectorEnv(makers, AutoresetMode.SAME_STEP),
    "AsyncVectorEnv": lambda makers: AsyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP),
    "SyncVectorEnv": lambda makers: SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP),
}


def run(name: str) -> Result:
    """Return the env steps a second of each workload, and the seconds until the first observations were there."""
    result: Result = {}
    start = time.perf_counter()
    for workload, (maker, steps) in WORKLOADS.items():
        made = time.perf_counter()
        envs = CONTESTANTS[name]([maker] * ENVS)
        envs.reset(seed=0)
        result[f"{workload}_start_seconds"] = time.perf_counter() - made
        actions = [np.random.default_rng(number).integers(2, size=ENVS) for number in range(100)]
        _steps(envs, actions, steps // PIECES)
        pieces = [_steps(envs, actions, steps // PIECES) for _ in range(PIECES)]
        result[f"{workload}_steps_per_second"] = ENVS / statistics.median(pieces)
        envs.close()
    return {"seconds": time.perf_counter() - start, **result}


def _steps(envs: VectorEnv, actions: list[Any], number: int) -> float:
    """Return the seconds that a step of all envs takes."""
    start = time.perf_counter()
    for step in range(number):
        envs.step(actions[step % len(actions)])
    return (time.perf_counter() - start) / number


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("docs/results/envs.json"))
    parser.add_argument("--run", choices=CONTESTANTS, help="run one contestant and print its result")
    arguments = parser.parse_args()
    if arguments.run is not None:
        print(json.dumps(run(arguments.run)))
        return
    for library in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[library] = "1"
    results = in_turn(["benchmarks.envs"], list(CONTESTANTS), arguments.repeats)
    medians = medians_of(results)
    print("\n" + " ".join([f"{'steps a second':>16}", *(f"{workload:>16}" for workload in WORKLOADS), "  ratios"]))
    for name, row in medians.items():
        speeds = [row[f"{workload}_steps_per_second"] for workload in WORKLOADS]
        ratios = [row[key] / medians[BASELINE][key] for key in row if key.endswith("_steps_per_second")]
        shown = " ".join(f"{ratio:5.2f}" for ratio in ratios)
        print(" ".join([f"{name:>16}", *(f"{speed:16,.0f}" for speed in speeds), shown]))
    save(results, arguments.output, baseline=BASELINE)


if __name__ == "__main__":
    main()
