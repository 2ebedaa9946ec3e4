"""IQN as one bare PyTorch loop without any framework, the baseline of its speed benchmark."""

from __future__ import annotations

import math
import time

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from gymnasium.vector import AutoresetMode
from torch import Tensor, nn

from benchmarks.bare_dqn import Replay, collect, q_network
from benchmarks.compare import Result
from benchmarks.workload import DQNWorkload

COSINES = 64
LEVELS = 8  # random levels of prediction and target
MIDDLES = (torch.arange(32) + 0.5) / 32  # levels whose mean is an action's value


class Network(nn.Module):
    """Action values at quantile levels."""

    def __init__(self, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.encoder = nn.Sequential(q_network((4, *hidden)), nn.ReLU())
        self.embedding, self.values = nn.Linear(COSINES, hidden[-1]), nn.Linear(hidden[-1], 2)
        self.frequency = math.pi * torch.arange(1.0, COSINES + 1)

    def forward(self, obs: Tensor, tau: Tensor) -> Tensor:
        """Return values, shape (B, N, 2), of observations (B, 4) at levels (B, N)."""
        embedded = self.embedding(torch.cos(tau.unsqueeze(2) * self.frequency)).relu()
        values: Tensor = self.values(self.encoder(obs).unsqueeze(1) * embedded)
        return values

    def best(self, obs: Tensor) -> Tensor:
        """Return the actions with the largest means, shape (B,)."""
        values: Tensor = self(obs, MIDDLES.expand(len(obs), -1))
        return values.mean(1).argmax(1)


def loss_of(prediction: Tensor, target: Tensor, tau: Tensor) -> Tensor:
    """Return the quantile Huber loss of values (B, N) at levels (B, N) for targets (B, M)."""
    error = target.unsqueeze(1) - prediction.unsqueeze(2)
    huber = F.smooth_l1_loss(error, torch.zeros_like(error), reduction="none")
    return ((tau.unsqueeze(2) - (error.detach() < 0).float()).abs() * huber).mean(2).sum(1).mean()


def run(w: DQNWorkload) -> Result:
    """Train, and return the seconds of the loop, the env steps and the updates."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    envs = gym.make_vec(w.env_id, w.num_envs, "sync", vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP})
    q, target = Network(w.hidden), Network(w.hidden)
    target.load_state_dict(q.state_dict())
    optimizer = torch.optim.Adam(q.parameters(), lr=w.learning_rate, fused=True)
    replay, updates = Replay(w.buffer_size), 0
    obs, _ = envs.reset(seed=0)
    start = time.perf_counter()
    for env_step in range(0, w.env_steps, w.num_envs):
        action = rng.integers(2, size=w.num_envs)
        if env_step >= w.warm_up:
            with torch.no_grad():
                greedy = q.best(torch.from_numpy(obs)).numpy()
            epsilon = w.eps_end + (w.eps_start - w.eps_end) * max(0.0, 1 - env_step / w.eps_decay)
            action = np.where(rng.random(w.num_envs) < epsilon, action, greedy)
        obs = collect(envs, obs, action, replay)
        for _ in range(w.updates_per_round if env_step >= w.warm_up else 0):
            o, a, r, n, terminated = replay.sample(w.batch_size, rng)
            tau, tau_t = torch.rand(2, w.batch_size, LEVELS)
            with torch.no_grad():  # double Q-learning
                chosen = q.best(n).reshape(-1, 1, 1).expand(-1, LEVELS, 1)
                value = target(n, tau_t).gather(2, chosen).squeeze(2)
                label = r.unsqueeze(1) + w.gamma * (1 - terminated).unsqueeze(1) * value
            prediction = q(o, tau).gather(2, a.reshape(-1, 1, 1).expand(-1, LEVELS, 1)).squeeze(2)
            loss = loss_of(prediction, label, tau)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            updates += 1
            if updates % w.target_update_freq == 0:
                target.load_state_dict(q.state_dict())
    return {"seconds": time.perf_counter() - start, "env_steps": w.env_steps, "updates": updates}
