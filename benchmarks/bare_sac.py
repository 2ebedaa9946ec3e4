"""SAC as one bare PyTorch loop without any framework, after CleanRL's ``sac_continuous_action.py``.

Faster than CleanRL's: the two critics are one batched network, and Adam is fused. Where CleanRL updates the actor twice
at every second update of the critics, it is updated once for each, as Stable-Baselines3 does.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.compare import Result
from benchmarks.workload import SACWorkload

LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0
LOG_2PI = float(np.log(2 * np.pi))


class Critics(nn.Module):
    """Two Q networks whose layers are evaluated together."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for width_in, width_out in pairwise(sizes):
            bound = width_in**-0.5  # as nn.Linear starts
            self.weights.append(torch.empty(2, width_in, width_out).uniform_(-bound, bound))
            self.biases.append(torch.empty(2, 1, width_out).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """Return the values of inputs (B, I), shape (2, B)."""
        x, last = x.expand(2, -1, -1), len(self.weights) - 1
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x, weight)
            x = x.relu() if number < last else x
        return x.squeeze(-1)


class Actor(nn.Module):
    """A Gaussian squashed by tanh and scaled to the bounds of the actions."""

    def __init__(self, num_inputs: int, space: gym.spaces.Box, hidden: tuple[int, ...]) -> None:
        super().__init__()
        width = int(np.prod(space.shape))
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise((num_inputs, *hidden, 2 * width)))
        self.register_buffer("scale", torch.from_numpy((space.high - space.low) / 2))
        self.register_buffer("middle", torch.from_numpy((space.high + space.low) / 2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions drawn for observations, (B, A), and their log-probabilities, (B,)."""
        *hidden, top = self.layers
        for linear in hidden:
            x = F.linear(x, linear.weight, linear.bias).relu()  # type: ignore[arg-type]
        mean, log_std = F.linear(x, top.weight, top.bias).chunk(2, -1)  # type: ignore[arg-type]
        log_std = LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (log_std.tanh() + 1)
        noise = torch.randn_like(mean)
        squashed = torch.tanh(mean + log_std.exp() * noise)
        log_prob = -0.5 * noise**2 - log_std - 0.5 * LOG_2PI
        log_prob = log_prob - torch.log(self.scale * (1 - squashed**2) + 1e-6)  # type: ignore[operator]
        return squashed * self.scale + self.middle, log_prob.sum(-1)  # type: ignore[operator]


class Replay:
    """One preallocated numpy table of observation, action, reward, next observation and termination."""

    def __init__(self, size: int, num_inputs: int, num_actions: int) -> None:
        self.size, self.count = size, 0
        self.table = np.zeros((size, 2 * num_inputs + num_actions + 2), np.float32)
        self.widths = [num_inputs + num_actions, 1, num_inputs, 1]

    def add(self, *row: NDArray[np.float32] | float) -> None:
        """Store a transition."""
        self.table[self.count % self.size] = np.concatenate([np.atleast_1d(part) for part in row])
        self.count += 1

    def sample(self, batch_size: int, rng: np.random.Generator) -> Sequence[Tensor]:
        """Return observations with actions, rewards, next observations, terminations."""
        rows = rng.integers(min(self.count, self.size), size=batch_size)
        parts: Sequence[Tensor] = torch.from_numpy(self.table[rows]).split(self.widths, 1)
        return parts


class Learner:
    """Actor, critics and temperature with their optimizers."""

    def __init__(self, w: SACWorkload, num_inputs: int, space: gym.spaces.Box) -> None:
        self.w, self.num_inputs = w, num_inputs
        num_actions = int(np.prod(space.shape))
        sizes = (num_inputs + num_actions, *w.hidden, 1)
        self.actor, self.critics, self.target = Actor(num_inputs, space, w.hidden), Critics(sizes), Critics(sizes)
        self.target.load_state_dict(self.critics.state_dict())
        self.log_alpha = torch.zeros(1, requires_grad=True)
        self.entropy_target = -float(num_actions)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=w.actor_learning_rate, fused=True)
        self.critic_optimizer = torch.optim.Adam(self.critics.parameters(), lr=w.learning_rate, fused=True)
        self.alpha_optimizer = torch.optim.Adam([self.log_alpha], lr=w.learning_rate, fused=True)
        self.target_weights: list[Tensor] = list(self.target.parameters())
        self.critic_weights: list[Tensor] = list(self.critics.parameters())

    def update(self, inputs: Tensor, reward: Tensor, next_obs: Tensor, terminated: Tensor) -> None:
        """Update critics, actor, temperature and target critics once."""
        w, obs = self.w, inputs[:, : self.num_inputs]
        alpha = self.log_alpha.detach().exp()
        with torch.no_grad():
            next_action, next_log_prob = self.actor(next_obs)
            next_q = self.target(torch.cat([next_obs, next_action], 1)).min(0).values - alpha * next_log_prob
            label = reward.squeeze(1) + w.gamma * (1 - terminated.squeeze(1)) * next_q
        critic_loss = ((self.critics(inputs) - label) ** 2).mean(1).sum()
        self.critic_optimizer.zero_grad()
        critic_loss.backward()
        self.critic_optimizer.step()

        for parameter in self.critic_weights:
            parameter.requires_grad_(False)
        action, log_prob = self.actor(obs)
        q = self.critics(torch.cat([obs, action], 1)).min(0).values
        self.actor_optimizer.zero_grad()
        (alpha * log_prob - q).mean().backward()
        self.actor_optimizer.step()
        for parameter in self.critic_weights:
            parameter.requires_grad_(True)

        alpha_loss = -(self.log_alpha.exp() * (log_prob.detach() + self.entropy_target)).mean()
        self.alpha_optimizer.zero_grad()
        alpha_loss.backward()
        self.alpha_optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(self.target_weights, self.critic_weights, w.tau)


def train(w: SACWorkload) -> tuple[Result, list[float]]:
    """Train, and return what ``run`` does and the returns of the episodes in order."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    env = gym.make(w.env_id)
    space = env.action_space
    assert isinstance(space, gym.spaces.Box)
    obs, _ = env.reset(seed=0)
    learner = Learner(w, len(obs), space)
    replay, updates, returns, current = Replay(w.buffer_size, len(obs), space.shape[0]), 0, [], 0.0
    start = time.perf_counter()
    for env_step in range(w.env_steps):
        if env_step < w.warm_up:
            action = rng.uniform(space.low, space.high).astype(np.float32)
        else:
            with torch.no_grad():
                action = learner.actor(torch.from_numpy(obs).unsqueeze(0))[0].squeeze(0).numpy()
        next_obs, reward, terminated, truncated, _ = env.step(action)
        replay.add(obs, action, float(reward), next_obs, float(terminated))
        obs, current = next_obs, current + float(reward)
        if terminated or truncated:
            returns.append(current)
            obs, current = env.reset()[0], 0.0
        if env_step >= w.warm_up:
            learner.update(*replay.sample(w.batch_size, rng))
            updates += 1
    return {"seconds": time.perf_counter() - start, "env_steps": w.env_steps, "updates": updates}, returns


def run(w: SACWorkload) -> Result:
    """Train, and return the seconds of the loop, the env steps and the updates."""
    return train(w)[0]
