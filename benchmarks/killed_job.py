"""The job of a side of ``benchmarks.killed_sides``, the counter of its env steps, and its greedy episodes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch

ENV, HIDDEN, GAMMA, RATE, BATCH = "CartPole-v1", [64, 64], 0.99, 1e-3, 64
WARM_UP, TRAIN_EVERY, TARGET_EVERY = 1_000, 4, 25  # env steps, env steps for each update, updates
EPISODES = 20
Act = Callable[[torch.Tensor], torch.Tensor]
"""Q-values of an observation, shape (1, ...), or a greedy action."""


class Trained(NamedTuple):
    """The weights and the greedy policy of a side at the end of its run."""

    weights: Iterable[torch.Tensor]
    act: Act
    env_id: str = ENV


class Job(NamedTuple):
    """The folder, the length and the seed of a side's run."""

    folder: Path
    budget: int
    """Env steps."""
    every: int
    """Env steps between two checkpoints."""
    seed: int

    def epsilon(self, step: int) -> float:
        """Return the rate of random actions at an env step: from 1 to 0.05 over half of the budget."""
        return max(0.05, 1.0 - 0.95 * step / (self.budget / 2))

    def note(self, env_step: int, buffer: int, adam: torch.optim.Optimizer, unreadable: int = 0) -> None:
        """Write what a start begins with; ``unreadable`` counts newer checkpoints that could not be loaded."""
        updates = max((int(state["step"]) for state in adam.state.values() if "step" in state), default=0)
        row = {"env_step": env_step, "buffer": buffer, "updates": updates, "unreadable": unreadable}
        with (self.folder / "starts.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")


class Counted(gym.Wrapper):
    """Appends a byte to a file at each step, so that a kill loses none. The wrapper itself has no state."""

    def step(self, action: Any) -> Any:
        """Count, and step."""
        append("steps")
        return super().step(action)


def append(name: str) -> None:
    """Append a byte to a file of the run."""
    with open(os.path.join(os.environ["KILLED_FOLDER"], name), "ab", 0) as file:
        file.write(b".")


def counted(*_: Any, id: str = ENV, **__: Any) -> gym.Env:
    """Return the training env."""
    return Counted(gym.make(id))


class Noted(gym.Wrapper):
    """Notes at the first reset what is in memory, for a library that has no hook between loading and training."""

    def __init__(self, env: gym.Env, note: Callable[[], None]) -> None:
        super().__init__(env)
        self.notes = [note]

    def reset(self, **kwargs: Any) -> Any:
        """Note once, and reset."""
        while self.notes:
            self.notes.pop()()
        return super().reset(**kwargs)


def newest_first(paths: Iterable[Path], step: Callable[[Path], int]) -> list[Path]:
    """Return checkpoints by their env step, the newest first."""
    return sorted(paths, key=step, reverse=True)


def greedy_returns(act: Act, env_id: str) -> list[float]:
    """Return the returns of greedy episodes with fixed seeds."""
    env, returns = gym.make(env_id), []
    for episode in range(EPISODES):
        obs, over, total = env.reset(seed=10_000 + episode)[0], False, 0.0
        while not over:
            with torch.no_grad():
                found = act(torch.as_tensor(np.asarray(obs, np.float32))[None])
            if isinstance(env.action_space, gym.spaces.Box):
                action: Any = found[0].numpy()
            else:
                action = int(found.argmax()) if found.numel() > 1 else int(found)
            obs, reward, terminated, truncated, _ = env.step(action)
            over, total = terminated or truncated, total + float(reward)
        returns.append(total)
    return returns
