"""DQN on stacks of frames as one bare PyTorch loop, the baseline of workload W4."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.compare import Result
from benchmarks.frames_env import ACTIONS, makers
from benchmarks.workload import PixelWorkload

Array = NDArray[Any]
SHAPE = (4, 84, 84)


class NatureNetwork(nn.Sequential):
    """The Q-network of Mnih et al. 2015 over stacks of bytes.

    Args:
        channels_last: Whether images have the channels in the last axis in memory.
    """

    def __init__(self, channels_last: bool = False) -> None:
        super().__init__(
            nn.Conv2d(4, 32, 8, 4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, 2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, 1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * 7 * 7, 512),
            nn.ReLU(),
            nn.Linear(512, ACTIONS),
        )
        self.format = torch.channels_last if channels_last else torch.contiguous_format
        self.to(memory_format=self.format)  # type: ignore[call-overload]

    def forward(self, obs: Tensor) -> Tensor:
        """Return action values, shape (B, A), of observations, shape (B, 4, 84, 84)."""
        values: Tensor = super().forward(obs.to(torch.float32, memory_format=self.format).div_(255))  # type: ignore[no-untyped-call]
        return values


class FrameReplay:
    """Preallocated numpy columns of whole stacks, overwritten in a ring."""

    def __init__(self, size: int) -> None:
        self.size, self.count = size, 0
        self.obs = np.zeros((size, *SHAPE), np.uint8)
        self.next_obs = np.zeros((size, *SHAPE), np.uint8)
        self.action = np.zeros(size, np.int64)
        self.reward = np.zeros(size, np.float32)
        self.terminated = np.zeros(size, np.float32)

    def push(self, obs: Array, action: Array, reward: Array, next_obs: Array, terminated: Array) -> None:
        """Write a transition of every env."""
        rows = np.arange(self.count, self.count + len(obs)) % self.size
        self.obs[rows], self.next_obs[rows], self.action[rows] = obs, next_obs, action
        self.reward[rows], self.terminated[rows] = reward, terminated
        self.count += len(obs)

    def sample(self, batch_size: int, rng: np.random.Generator) -> list[Tensor]:
        """Return a minibatch of every column."""
        rows = rng.integers(min(self.count, self.size), size=batch_size)
        columns = (self.obs, self.action, self.reward, self.next_obs, self.terminated)
        return [torch.from_numpy(column.take(rows, axis=0)) for column in columns]


def step(envs: gym.vector.VectorEnv, obs: Array, action: Array, replay: FrameReplay) -> Array:
    """Step the envs, store the transitions, return the next observations."""
    next_obs: Array
    next_obs, reward, terminated, truncated, info = envs.step(action)
    final_obs = next_obs
    if (terminated | truncated).any():
        final_obs = next_obs.copy()
        for i in np.flatnonzero(terminated | truncated):
            final_obs[i] = info["final_obs"][i]
    replay.push(obs, action, reward, final_obs, terminated)
    return next_obs


def run(w: PixelWorkload, channels_last: bool = False) -> Result:
    """Train, and return the seconds of the loop, the env steps and the updates."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    envs = SyncVectorEnv(makers(w.num_envs), autoreset_mode=AutoresetMode.SAME_STEP)
    q, target = NatureNetwork(channels_last), NatureNetwork(channels_last)
    target.load_state_dict(q.state_dict())
    optimizer = torch.optim.Adam(q.parameters(), lr=w.learning_rate, fused=True)
    replay, updates = FrameReplay(w.buffer_size), 0
    obs, _ = envs.reset(seed=0)
    start = time.perf_counter()
    for env_step in range(0, w.env_steps, w.num_envs):
        action = rng.integers(ACTIONS, size=w.num_envs)
        if env_step >= w.warm_up:
            with torch.no_grad():
                greedy = q(torch.from_numpy(obs)).argmax(1).numpy()
            epsilon = w.eps_end + (w.eps_start - w.eps_end) * max(0.0, 1 - env_step / w.eps_decay)
            action = np.where(rng.random(w.num_envs) < epsilon, action, greedy)
        obs = step(envs, obs, action, replay)
        for _ in range(w.updates_per_round if env_step >= w.warm_up else 0):
            o, a, r, n, terminated = replay.sample(w.batch_size, rng)
            with torch.no_grad():
                label = r + w.gamma * (1 - terminated) * target(n).amax(1)
            loss = F.smooth_l1_loss(q(o).gather(1, a.unsqueeze(1)).squeeze(1), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            updates += 1
            if updates % w.target_update_freq == 0:
                target.load_state_dict(q.state_dict())
    return {"seconds": time.perf_counter() - start, "env_steps": w.env_steps, "updates": updates}
