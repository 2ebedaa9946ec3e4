"""Memory of 100,000 stored frames: this project's buffer and that of Stable-Baselines3 with ``optimize_memory_usage``.

    python -m benchmarks.frame_memory      # writes docs/results/frame_memory.json

The transitions are those of workload W4, pushed in steps of eight envs; each observation stacks four frames. What
counts is by how much the memory of the process grows from the empty to the full buffer. The frames of an observation
are 84 x 84 bytes each. Each contestant runs in a separate process.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.compare import Result, in_turn, medians_of, save
from benchmarks.footprint import Sample
from benchmarks.frames_env import ACTIONS, makers
from benchmarks.workload import W4

FRAMES = 100_000
SHAPE = (4, 84, 84)
FRAME_BYTES = math.prod(SHAPE[1:])
Push = Callable[[dict[str, Any]], None]


def ours() -> Push:
    """Return the function that adds transitions to this project's buffer."""
    from lightning_ding.worker.buffer import NaiveReplayBuffer

    return NaiveReplayBuffer({"replay_buffer_size": FRAMES, "frame_stack": SHAPE[0]}).push


def sb3() -> Push:
    """Return the function that adds transitions to Stable-Baselines3's buffer."""
    from stable_baselines3.common.buffers import ReplayBuffer

    env = makers(1)[0]()
    spaces = (env.observation_space, env.action_space)
    kwargs = {"n_envs": W4.num_envs, "optimize_memory_usage": True, "handle_timeout_termination": False}
    buffer = ReplayBuffer(FRAMES, *spaces, device="cpu", **kwargs)
    infos: list[dict[str, Any]] = [{} for _ in range(W4.num_envs)]

    def push(step: dict[str, Any]) -> None:
        names = ("obs", "next_obs", "action", "reward", "terminated")
        buffer.add(*(step[name] for name in names), infos)

    return push


CONTESTANTS: dict[str, Callable[[], Push]] = {"ours": ours, "SB3, optimize_memory_usage": sb3}


def fill(push: Push, transitions: int = FRAMES) -> int:
    """Push transitions of W4's envs, and return their number."""
    envs = [make() for make in makers(W4.num_envs)]
    obs, episode = np.stack([env.reset()[0] for env in envs]), np.arange(len(envs))
    rng, pushed = np.random.default_rng(0), 0
    while pushed < transitions:
        action = rng.integers(ACTIONS, size=len(envs))
        next_obs, reward, terminated, truncated, _ = map(
            np.array, zip(*[env.step(a) for env, a in zip(envs, action, strict=True)], strict=True)
        )
        ends = {"terminated": terminated, "truncated": truncated, "reward": reward.astype(np.float32)}
        ids = {"env_id": np.arange(len(envs)), "episode_id": episode}
        push({"obs": obs, "next_obs": next_obs, "action": action, **ends, **ids})
        pushed += len(envs)
        obs, episode = next_obs.copy(), np.where(terminated, episode + len(envs), episode)
        for number in np.flatnonzero(terminated).tolist():
            obs[number] = envs[number].reset()[0]
    return pushed


def measure(name: str) -> Result:
    """Return the bytes per transition of a full buffer, and their ratio to those of a frame."""
    push, start = CONTESTANTS[name](), time.perf_counter()
    fill(push, 8)  # what the first push imports or allocates for the check of a batch is not data
    before = Sample.now(0).memory_mib
    pushed = fill(push)
    grown = (Sample.now(0).memory_mib - before) * 2**20 / pushed
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "bytes_per_transition": grown, "bytes_per_frame_byte": grown / FRAME_BYTES}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS))
    parser.add_argument("--output", type=Path, default=Path("docs/results/frame_memory.json"))
    parser.add_argument("--run", choices=CONTESTANTS, help="run one contestant and print its result")
    arguments = parser.parse_args()
    if arguments.run is not None:
        print(json.dumps(measure(arguments.run)))
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    results = in_turn(["benchmarks.frame_memory"], arguments.only, arguments.repeats)
    for name, row in medians_of(results).items():
        print(f"{name:>28}: {row['bytes_per_transition']:8,.0f} bytes, {row['bytes_per_frame_byte']:.3f} of a frame's")
    save(results, arguments.output)


if __name__ == "__main__":
    main()
