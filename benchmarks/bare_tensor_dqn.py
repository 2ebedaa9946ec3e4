"""DQN in tensor envs as one bare PyTorch loop without any framework: all data stay on the device of the envs."""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.bare_dqn import q_network
from benchmarks.compare import Result
from benchmarks.workload import DQNWorkload
from lightning_ding.envs.tensor import CartPole


class TensorReplay:
    """Preallocated tensors, overwritten in a ring."""

    def __init__(self, size: int) -> None:
        self.size, self.count = size, 0
        self.obs, self.next_obs = torch.zeros(size, 4), torch.zeros(size, 4)
        self.action = torch.zeros(size, dtype=torch.int64)
        self.reward = torch.zeros(size)
        self.terminated = torch.zeros(size, dtype=torch.bool)

    def push(self, *columns: Tensor) -> None:
        """Write observations, actions, rewards, next observations and terminations of one step of all envs."""
        start = self.count % self.size
        rows = slice(start, start + len(columns[0]))  # the size is a multiple of the number of envs
        kept = (self.obs, self.action, self.reward, self.next_obs, self.terminated)
        for column, new in zip(kept, columns, strict=True):
            column[rows] = new
        self.count += len(columns[0])

    def sample(self, num_batches: int, batch_size: int) -> list[Tensor]:
        """Return the minibatches of a round, columns with leading axes (U, B)."""
        rows = torch.randint(min(self.count, self.size), (num_batches * batch_size,))
        kept = (self.obs, self.action, self.reward, self.next_obs, self.terminated)
        return [column[rows].unflatten(0, (num_batches, batch_size)) for column in kept]


@torch.no_grad()
def act(w: DQNWorkload, q: nn.Module, obs: Tensor, env_step: int) -> Tensor:
    """Return random actions in the warm-up, and epsilon-greedy ones after it."""
    action = torch.randint(2, (w.num_envs,))
    if env_step < w.warm_up:
        return action
    epsilon = w.eps_end + (w.eps_start - w.eps_end) * max(0.0, 1 - env_step / w.eps_decay)
    return torch.where(torch.rand(w.num_envs) < epsilon, action, q(obs).argmax(1))


def train(w: DQNWorkload) -> tuple[Result, float]:
    """Train, and return what ``run`` does, and the mean length of the episodes of the last half of the steps."""
    torch.manual_seed(0)
    env = CartPole(w.num_envs)
    q, target = q_network((4, *w.hidden, 2)), q_network((4, *w.hidden, 2))
    target.load_state_dict(q.state_dict())
    optimizer = torch.optim.Adam(q.parameters(), lr=w.learning_rate, fused=True)
    replay, updates, ends = TensorReplay(w.buffer_size), 0, torch.zeros(())
    obs, _ = env.reset(seed=0)
    start = time.perf_counter()
    for env_step in range(0, w.env_steps, w.num_envs):
        action = act(w, q, obs, env_step)
        next_obs, reward, terminated, truncated, info = env.step(action)
        replay.push(obs, action, reward, info["final_obs"], terminated)
        obs = next_obs
        if 2 * env_step >= w.env_steps:
            ends += (terminated | truncated).sum()
        if env_step < w.warm_up:
            continue
        for o, a, r, n, end in zip(*replay.sample(w.updates_per_round, w.batch_size), strict=True):
            with torch.no_grad():
                best = q(n).argmax(1, keepdim=True)  # double Q-learning
                label = r + w.gamma * ~end * target(n).gather(1, best).squeeze(1)
            loss = F.smooth_l1_loss(q(o).gather(1, a.unsqueeze(1)).squeeze(1), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            updates += 1
            if updates % w.target_update_freq == 0:
                target.load_state_dict(q.state_dict())
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "env_steps": w.env_steps, "updates": updates}, w.env_steps / 2 / max(1.0, float(ends))


def run(w: DQNWorkload) -> Result:
    """Train, and return the seconds of the loop, the env steps and the updates."""
    return train(w)[0]
