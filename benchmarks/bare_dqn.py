"""DQN as one bare PyTorch loop without any framework, the baseline of the speed benchmarks."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from torch import nn

from benchmarks.compare import Result
from benchmarks.workload import DQNWorkload

Array = NDArray[Any]


def q_network(sizes: tuple[int, ...]) -> nn.Sequential:
    """Return linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for width_in, width_out in pairwise(sizes):
        layers += [nn.Linear(width_in, width_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Replay:
    """Preallocated numpy columns, overwritten in a ring."""

    def __init__(self, size: int) -> None:
        self.size, self.count = size, 0
        self.obs = np.zeros((size, 4), np.float32)
        self.next_obs = np.zeros((size, 4), np.float32)
        self.action = np.zeros(size, np.int64)
        self.reward = np.zeros(size, np.float32)
        self.terminated = np.zeros(size, np.float32)

    def sample(self, batch_size: int, rng: np.random.Generator) -> list[torch.Tensor]:
        """Return a minibatch of every column."""
        rows = rng.integers(min(self.count, self.size), size=batch_size)
        columns = (self.obs, self.action, self.reward, self.next_obs, self.terminated)
        return [torch.from_numpy(column[rows]) for column in columns]


def collect(envs: gym.vector.VectorEnv, obs: Array, action: Array, replay: Replay) -> Array:
    """Step the envs, store the transitions, return the next observations."""
    next_obs: Array
    next_obs, reward, terminated, truncated, info = envs.step(action)
    final_obs = next_obs
    if (terminated | truncated).any():
        final_obs = next_obs.copy()
        for i in np.flatnonzero(terminated | truncated):
            final_obs[i] = info["final_obs"][i]
    rows = np.arange(replay.count, replay.count + len(obs)) % replay.size
    replay.obs[rows], replay.next_obs[rows], replay.action[rows] = obs, final_obs, action
    replay.reward[rows], replay.terminated[rows] = reward, terminated
    replay.count += len(obs)
    return next_obs


def run(w: DQNWorkload) -> Result:
    """Train, and return the seconds of the loop, the env steps and the updates."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    envs = gym.make_vec(w.env_id, w.num_envs, "sync", vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP})
    q, target = q_network((4, *w.hidden, 2)), q_network((4, *w.hidden, 2))
    target.load_state_dict(q.state_dict())
    optimizer = torch.optim.Adam(q.parameters(), lr=w.learning_rate, fused=True)
    replay, updates = Replay(w.buffer_size), 0
    obs, _ = envs.reset(seed=0)
    start = time.perf_counter()
    for env_step in range(0, w.env_steps, w.num_envs):
        action = rng.integers(2, size=w.num_envs)
        if env_step >= w.warm_up:
            with torch.no_grad():
                greedy = q(torch.from_numpy(obs)).argmax(1).numpy()
            epsilon = w.eps_end + (w.eps_start - w.eps_end) * max(0.0, 1 - env_step / w.eps_decay)
            action = np.where(rng.random(w.num_envs) < epsilon, action, greedy)
        obs = collect(envs, obs, action, replay)
        for _ in range(w.updates_per_round if env_step >= w.warm_up else 0):
            o, a, r, n, terminated = replay.sample(w.batch_size, rng)
            with torch.no_grad():
                best = q(n).argmax(1, keepdim=True)  # double Q-learning
                label = r + w.gamma * (1 - terminated) * target(n).gather(1, best).squeeze(1)
            loss = F.smooth_l1_loss(q(o).gather(1, a.unsqueeze(1)).squeeze(1), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            updates += 1
            if updates % w.target_update_freq == 0:
                target.load_state_dict(q.state_dict())
    return {"seconds": time.perf_counter() - start, "env_steps": w.env_steps, "updates": updates}
