"""R2D2 as one bare PyTorch loop without any framework, the baseline of its speed benchmark.

Shapes: T steps of a sequence, B sequences, N envs, S size of a state.
"""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.bare_dqn import q_network
from benchmarks.compare import Result
from benchmarks.workload import R2D2Workload

Array = NDArray[Any]
SLOPE = 1e-3  # of the rescaled values


class Network(nn.Module):
    """Action values from the observations so far."""

    def __init__(self, hidden: tuple[int, ...], core: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(q_network((4, *hidden)), nn.ReLU())
        self.lstm, self.head = nn.LSTM(hidden[-1], core), nn.Linear(core, 2)

    def core(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs (T, B, H) and the last state (B, S), of features (T, B, F) and the state before them."""
        hidden, cell = state.chunk(2, 1)
        output, (hidden, cell) = self.lstm(features, (hidden.contiguous()[None], cell.contiguous()[None]))
        return output, torch.cat([hidden[0], cell[0]], 1)

    def forward(self, obs: Tensor, state: Tensor, burn_in: int = 0, first: Tensor | None = None) -> Tensor:
        """Return values (T, B, 2); no gradient passes the burn-in, except in sequences that begin with an episode."""
        features = self.encoder(obs)
        if first is None:
            output, _ = self.core(features, state)
        else:
            before, state = self.core(features[:burn_in], state)
            after, _ = self.core(features[burn_in:], torch.where(first.unsqueeze(1), state, state.detach()))
            output = torch.cat([before, after])
        values: Tensor = self.head(output)
        return values


class Replay:
    """The steps of all envs in preallocated numpy columns, leading axes (time, N), with room for the whole run."""

    def __init__(self, w: R2D2Workload) -> None:
        shape = (w.env_steps // w.num_envs + 1, w.num_envs)
        self.obs, self.next_obs = np.zeros((*shape, 4), np.float32), np.zeros((*shape, 4), np.float32)
        self.action, self.reward = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
        self.terminated, self.ended = np.zeros(shape, np.float32), np.zeros(shape, bool)
        self.state, self.first = np.zeros((*shape, 2 * w.core), np.float32), np.zeros(shape, bool)
        self.count, self.burn_in = 0, w.burn_in

    def sample(self, batch_size: int, length: int, rng: np.random.Generator) -> list[Tensor]:
        """Return sequences of every column and where their steps are real; the state and ``first`` of their begin."""
        begin, env = np.empty(0, np.int64), np.empty(0, np.int64)
        while len(begin) < batch_size:  # a sequence needs a burn-in, or begins with its episode
            step, column = rng.integers(self.count, size=batch_size), rng.integers(self.ended.shape[1], size=batch_size)
            later = np.minimum(step + np.arange(self.burn_in)[:, None], self.count - 1)
            good = self.first[step, column] | ~self.ended[later, column].any(0) & (step + self.burn_in < self.count)
            begin, env = np.append(begin, step[good]), np.append(env, column[good])
        begin, env = begin[:batch_size], env[:batch_size]
        step = begin + np.arange(length)[:, None]  # (T, B)
        inside = step < self.count
        step = np.minimum(step, self.count - 1)
        mask = inside.copy()
        mask[1:] &= ~np.logical_or.accumulate(self.ended[step, env])[:-1]
        rows = np.minimum(step, begin + mask.sum(0) - 1)  # the last step is repeated
        columns = [column[rows, env] for column in (self.obs, self.next_obs, self.action, self.reward, self.terminated)]
        return [torch.from_numpy(x) for x in (*columns, mask, self.state[begin, env], self.first[begin, env])]


def rescale(x: Tensor) -> Tensor:
    """Return h(x) of Pohlen et al. 2018."""
    return x.sign() * ((x.abs() + 1).sqrt() - 1) + SLOPE * x


def unscale(x: Tensor) -> Tensor:
    """Return the inverse of h."""
    root = ((1 + 4 * SLOPE * (x.abs() + 1 + SLOPE)).sqrt() - 1) / (2 * SLOPE)
    return x.sign() * (root.square() - 1)


def targets(reward: Tensor, terminated: Tensor, mask: Tensor, value: Tensor, gamma: float, n_step: int) -> Tensor:
    """Return the n-step targets (T, B) of sequences, from the values (T + 1, B) of all observations."""
    steps = len(reward)
    total, discount, last = reward.clone(), torch.full_like(reward, gamma), torch.arange(steps)[:, None].expand_as(mask)
    for k in range(1, n_step):
        real = torch.zeros_like(mask)
        real[: steps - k] = mask[k:]
        total[: steps - k] += gamma**k * reward[k:] * mask[k:]
        discount, last = torch.where(real, gamma ** (k + 1), discount), last + real
    return total + discount * value.gather(0, last + 1) * (1 - terminated.gather(0, last))


def loss_of(w: R2D2Workload, q: Network, target: Network, batch: list[Tensor]) -> Tensor:
    """Return the squared errors of the steps after the burn-in whose return has its full length."""
    obs, next_obs, action, reward, terminated, mask, state, first = batch
    seen = torch.cat([obs[:1], next_obs])
    output = q(seen, state, w.burn_in, first)
    with torch.no_grad():  # double Q-learning
        value = target(seen, state).gather(2, output.argmax(2, keepdim=True)).squeeze(2)
        label = rescale(targets(reward, terminated, mask, unscale(value), w.gamma, w.n_step))
    step = torch.arange(w.length).unsqueeze(1)
    learned = mask & ((step >= w.burn_in) | first) & (step < w.length - w.n_step + 1)
    error = output[:-1].gather(2, action.unsqueeze(2)).squeeze(2) - label
    loss: Tensor = (learned * error.square()).sum() / (w.unroll * w.batch_size)
    return loss


def run(w: R2D2Workload) -> Result:
    """Train, and return the seconds of the loop, the env steps and the updates."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    envs = gym.make_vec(w.env_id, w.num_envs, "sync", vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP})
    q, target = Network(w.hidden, w.core), Network(w.hidden, w.core)
    target.load_state_dict(q.state_dict())
    optimizer = torch.optim.Adam(q.parameters(), lr=w.learning_rate, fused=True)
    replay, updates = Replay(w), 0
    obs, _ = envs.reset(seed=0)
    state, first = torch.zeros(w.num_envs, 2 * w.core), np.ones(w.num_envs, bool)
    start = time.perf_counter()
    for env_step in range(0, w.env_steps, w.num_envs):
        with torch.no_grad():
            features, after = q.core(q.encoder(torch.from_numpy(obs)).unsqueeze(0), state)
            greedy = q.head(features[0]).argmax(1).numpy()
        epsilon = w.eps_end + (w.eps_start - w.eps_end) * max(0.0, 1 - env_step / w.eps_decay)
        epsilon = epsilon if env_step >= w.warm_up else 1.0
        action = np.where(rng.random(w.num_envs) < epsilon, rng.integers(2, size=w.num_envs), greedy)
        next_obs, reward, terminated, truncated, info = envs.step(action)
        ended, final_obs = terminated | truncated, next_obs
        if ended.any():
            final_obs = next_obs.copy()
            for i in np.flatnonzero(ended):
                final_obs[i] = info["final_obs"][i]
        at = replay.count
        replay.obs[at], replay.next_obs[at], replay.action[at], replay.reward[at] = obs, final_obs, action, reward
        replay.terminated[at], replay.ended[at], replay.state[at], replay.first[at] = terminated, ended, state, first
        replay.count += 1
        obs, first = next_obs, ended
        after[torch.from_numpy(ended)] = 0.0
        state = after
        for _ in range(w.updates_per_round if env_step >= w.warm_up else 0):
            loss = loss_of(w, q, target, replay.sample(w.batch_size, w.length, rng))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            updates += 1
            if updates % w.target_update_freq == 0:
                target.load_state_dict(q.state_dict())
    return {"seconds": time.perf_counter() - start, "env_steps": w.env_steps, "updates": updates}
