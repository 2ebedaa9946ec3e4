"""Whether a long run leaks: memory, open files, threads and processes over many short episodes.

    python -m benchmarks.soak      # 100,000 episodes; writes docs/results/soak.json, and exits with 1 if one grows

Each part trains through ``Trainer.fit`` with evaluations and checkpoints, in a separate process:

    replay      DQN, 8 envs in this process
    episodes    REINFORCE on whole episodes, 8 envs in this process; a tenth of the episodes
    processes   DQN, 2 envs in processes, which sometimes raise errors or die

Memory, files, threads and processes are counted at intervals. The first quarter of the counts is a warm-up. Of the
others, the largest number of files, threads and processes (grandchildren and dead children too) must not be larger in
the second half than in the first, and a line through the memory must not rise by more than a bound. Needs Linux, for
/proc.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from lightning.pytorch import Callback, Trainer

from benchmarks.compare import provenance
from benchmarks.footprint import COUNTS, Sample, judge
from lightning_ding.datamodules import ReplayDataModule, RolloutDataModule
from lightning_ding.datamodules.base import RunDataModule
from lightning_ding.policy import DQNPolicy, PGPolicy

SHORTEST, LONGEST = 3, 7  # steps of an episode
MEAN_LENGTH = (SHORTEST + LONGEST) / 2
FAULTS = 0.002  # share of steps that raise, and of steps in which the process dies
EVALUATIONS = 50
SMALL: dict[str, Any] = {
    "model": {"encoder_hidden_size_list": [16]},
    "eval": {"evaluator": {"n_episode": 2}},
}
DQN: dict[str, Any] = {
    **SMALL,
    "random_collect_size": 64,
    "learn": {"batch_size": 32},
    "collect": {"n_sample": 64},
    "other": {"replay_buffer": {"replay_buffer_size": 1000}},  # full before the warming up is over
}
DROP = {"collect": {"n_sample": 64, "collector": {"env_fault": "drop"}}}


class ShortEnv(gym.Env[Any, Any]):
    """Episodes of a few steps, in which nothing can be learned.

    Args:
        faults: Share of the steps that raise, and as many in which the process dies.
    """

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, faults: float = 0.0) -> None:
        self.faults = faults
        self.left = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(SHORTEST, LONGEST + 1))
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Come closer to the end."""
        chance = self.np_random.random()
        if chance < self.faults:
            os._exit(3)
        if chance < 2 * self.faults:
            raise RuntimeError("an env that fails now and then")
        self.left -= 1
        return self._observe(), 1.0, self.left <= 0, False, {}

    def _observe(self) -> Any:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)


class Sampler(Callback):
    """Takes samples at the ends of rounds.

    Args:
        episodes: Number of episodes of the run.
        amount: Samples, at most.
    """

    def __init__(self, episodes: int, amount: int) -> None:
        self.samples: list[Sample] = []
        self._every = episodes / amount
        self._next = 0.0

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *_: Any) -> None:
        """Take a sample if it is time (Lightning hook)."""
        episode = pl_module.progress.episode
        if episode >= self._next:
            self._next = episode + self._every
            self.samples.append(Sample.now(episode))


def replay(episodes: int) -> tuple[Any, RunDataModule]:
    """Return DQN, and envs in this process."""
    return DQNPolicy(DQN), ReplayDataModule(ShortEnv, num_envs=8, **_length(episodes, 64))


def whole_episodes(episodes: int) -> tuple[Any, RunDataModule]:
    """Return REINFORCE, and envs in this process."""
    config = {**SMALL, "collect": {"n_episode": 16}}
    return PGPolicy(config), RolloutDataModule(ShortEnv, num_envs=8, **_length(episodes, 16 * MEAN_LENGTH))


def processes(episodes: int) -> tuple[Any, RunDataModule]:
    """Return DQN, and envs in processes that die."""
    env = partial(ShortEnv, FAULTS)
    return DQNPolicy({**DQN, **DROP}), ReplayDataModule(env, num_envs=2, mode="async", **_length(episodes, 64))


PARTS: dict[str, Callable[[int], tuple[Any, RunDataModule]]] = {
    "replay": replay,
    "episodes": whole_episodes,
    "processes": processes,
}


def _length(episodes: int, round_steps: float) -> dict[str, Any]:
    steps = int(episodes * MEAN_LENGTH)
    return {"seed": 0, "max_env_step": steps, "rounds_per_epoch": max(1, int(steps / round_steps / EVALUATIONS))}


def run(part: str, episodes: int, samples: int) -> dict[str, Any]:
    """Train, and return what was counted on the way, and how many episodes faults broke off."""
    policy, datamodule = PARTS[part](episodes)
    sampler = Sampler(episodes, samples)
    with TemporaryDirectory() as folder:
        Trainer(
            accelerator="cpu",
            callbacks=sampler,
            default_root_dir=folder,
            enable_model_summary=False,
            enable_progress_bar=False,
            logger=False,
        ).fit(policy, datamodule)
    collector: Any = datamodule.collector
    return {"samples": list(map(dataclasses.asdict, sampler.samples)), "dropped_episodes": collector.dropped_episode}


def main() -> None:
    """Run one part in this process, or all, each in a separate process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", choices=PARTS, help="run one part in this process and print JSON")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="run only these parts")
    parser.add_argument("--episodes", type=int, default=100_000, help="number of episodes of the replay part")
    parser.add_argument(
        "--process-episodes", type=int, default=5_000, help="number of episodes of the part with env processes"
    )
    parser.add_argument("--samples", type=int, default=100, help="counts of a part, >= 8")
    parser.add_argument("--bound-mib", type=float, default=4.0, help="growth of memory that counts as flat")
    parser.add_argument("--out", type=Path, default=Path("docs/results/soak.json"), help="JSON file")
    options = parser.parse_args()
    lengths = {"replay": options.episodes, "episodes": options.episodes // 10, "processes": options.process_episodes}
    if options.run:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        logging.getLogger("lightning").setLevel(logging.ERROR)
        print(json.dumps(run(options.run, lengths[options.run], options.samples)))
        return
    record: dict[str, Any] = {}
    for part in options.only:
        found = in_process(part, sys.argv[1:])
        record[part] = {**judge([Sample(**one) for one in found["samples"]], options.bound_mib), **found}
    report(record)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({**provenance(), "parts": record}, indent=2))
    print(f"\nwritten to {options.out}")
    sys.exit(0 if all(part["is_flat"] for part in record.values()) else 1)


def in_process(part: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Return the result of ``run`` in a separate process."""
    command = [sys.executable, "-m", "benchmarks.soak", *arguments, "--run", part]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{part} failed:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def report(record: dict[str, Any]) -> None:
    """Print the resources that each part held at the end, and those that grew."""
    print(f"{'':>10} {'episodes':>9} {'dropped':>8} {'MiB':>7} {'grown':>7} {'bytes/episode':>14}  {'  '.join(COUNTS)}")
    for name, part in record.items():
        last, growth = part["samples"][-1], part["growth"]
        counts = "  ".join(f"{last[what]} ({growth[what]:+.0f})" for what in COUNTS)
        print(
            f"{name:>10} {last['episode']:9,} {part['dropped_episodes']:8,} {last['memory_mib']:7.1f} "
            f"{growth['memory_mib']:+7.2f} {part['bytes_per_episode']:14.1f}  {counts}  "
            f"{'flat' if part['is_flat'] else 'NOT FLAT'}"
        )


if __name__ == "__main__":
    main()
