"""PPO as one bare PyTorch loop without any framework, in the form of CleanRL's ``ppo.py``."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor, nn
from torch.distributions import Categorical

from benchmarks.compare import Result
from benchmarks.workload import PPOWorkload


def layer(width_in: int, width_out: int, gain: float = 2**0.5) -> nn.Linear:
    """Return a linear layer with orthogonal weights and zero bias."""
    linear = nn.Linear(width_in, width_out)
    nn.init.orthogonal_(linear.weight, gain)
    nn.init.zeros_(linear.bias)
    return linear


def mlp(sizes: tuple[int, ...], outputs: int, gain: float) -> nn.Sequential:
    """Return tanh layers and a linear one on top."""
    layers: list[nn.Module] = []
    for width_in, width_out in pairwise(sizes):
        layers += [layer(width_in, width_out), nn.Tanh()]
    return nn.Sequential(*layers, layer(sizes[-1], outputs, gain))


class Agent(nn.Module):
    """An actor and a critic that share nothing."""

    def __init__(self, num_inputs: int, num_actions: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.critic = mlp((num_inputs, *hidden), 1, 1.0)
        self.actor = mlp((num_inputs, *hidden), num_actions, 0.01)

    def act(self, obs: Tensor, action: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return action, its log-probability, entropy and value, each (B,); the action is drawn if there is none."""
        distribution = Categorical(logits=self.actor(obs))
        if action is None:
            action = distribution.sample()
        return action, distribution.log_prob(action), distribution.entropy(), self.critic(obs).squeeze(-1)


class Rollout:
    """Columns of T steps of N envs."""

    def __init__(self, w: PPOWorkload) -> None:
        shape = w.num_steps, w.num_envs
        self.obs = torch.zeros(*shape, 4)
        self.action = torch.zeros(shape)
        self.log_prob, self.reward, self.starts, self.value = (torch.zeros(shape) for _ in range(4))

    def flat(self) -> list[Tensor]:
        """Return observations, actions, log-probabilities and values with one leading axis."""
        return [x.flatten(0, 1) for x in (self.obs, self.action, self.log_prob, self.value)]


def collect(envs: VectorEnv, agent: Agent, data: Rollout, obs: Tensor, start: Tensor) -> tuple[Tensor, Tensor, Any]:
    """Fill the rollout; return the next observations, the mask of envs at an episode's start, and finished returns."""
    returns = []
    for step in range(len(data.obs)):
        data.obs[step], data.starts[step] = obs, start
        with torch.no_grad():
            action, log_prob, _, value = agent.act(obs)
        data.action[step], data.log_prob[step], data.value[step] = action, log_prob, value
        next_obs, reward, terminated, truncated, info = envs.step(action.numpy())
        data.reward[step] = torch.as_tensor(reward)
        obs, start = torch.from_numpy(next_obs), torch.from_numpy(np.logical_or(terminated, truncated)).float()
        if "episode" in info.get("final_info", {}):
            final = info["final_info"]["episode"]
            returns += final["r"][info["final_info"]["_episode"]].tolist()
    return obs, start, returns


def advantages(w: PPOWorkload, data: Rollout, next_value: Tensor, next_start: Tensor) -> Tensor:
    """Return the generalised advantage estimates, shape (T, N); a truncated episode ends as a terminated one does."""
    advantage, last = torch.zeros_like(data.reward), torch.zeros(w.num_envs)
    for t in reversed(range(w.num_steps)):
        is_last = t == w.num_steps - 1
        continues = 1.0 - (next_start if is_last else data.starts[t + 1])
        value = next_value if is_last else data.value[t + 1]
        delta = data.reward[t] + w.gamma * value * continues - data.value[t]
        advantage[t] = last = delta + w.gamma * w.gae_lambda * continues * last
    return advantage


def loss_of(w: PPOWorkload, agent: Agent, batch: list[Tensor]) -> Tensor:
    """Return the loss of one minibatch."""
    obs, action, old_log_prob, old_value, advantage, returns = batch
    _, log_prob, entropy, value = agent.act(obs, action)
    ratio = (log_prob - old_log_prob).exp()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    clipped = ratio.clamp(1 - w.clip_ratio, 1 + w.clip_ratio)
    policy_loss = torch.max(-advantage * ratio, -advantage * clipped).mean()
    near = old_value + (value - old_value).clamp(-w.clip_ratio, w.clip_ratio)
    value_loss = 0.5 * torch.max((value - returns) ** 2, (near - returns) ** 2).mean()
    return policy_loss - w.entropy_weight * entropy.mean() + w.value_weight * value_loss


def train(w: PPOWorkload, with_returns: bool = False) -> tuple[Result, list[float]]:
    """Train, and return what ``run`` does and, if asked for, the returns of the episodes in order."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    wrappers = [gym.wrappers.RecordEpisodeStatistics] if with_returns else []
    same_step = {"autoreset_mode": AutoresetMode.SAME_STEP}
    envs = gym.make_vec(w.env_id, w.num_envs, "sync", vector_kwargs=same_step, wrappers=wrappers)
    agent = Agent(4, 2, w.hidden)
    optimizer = torch.optim.Adam(agent.parameters(), lr=w.learning_rate, eps=w.adam_epsilon, fused=True)
    data, updates, returns = Rollout(w), 0, []
    obs, start = torch.from_numpy(envs.reset(seed=0)[0]), torch.zeros(w.num_envs)
    began = time.perf_counter()
    rounds = w.env_steps // w.rollout
    for number in range(rounds):
        optimizer.param_groups[0]["lr"] = (1 - number / rounds) * w.learning_rate
        obs, start, episodes = collect(envs, agent, data, obs, start)
        returns += episodes
        with torch.no_grad():
            advantage = advantages(w, data, agent.critic(obs).squeeze(-1), start)
        columns = [*data.flat(), advantage.flatten(), (advantage + data.value).flatten()]
        for _ in range(w.epochs):
            for rows in torch.from_numpy(rng.permutation(w.rollout)).split(w.batch_size):
                loss = loss_of(w, agent, [column[rows] for column in columns])
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), w.grad_norm)
                optimizer.step()
                updates += 1
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "env_steps": rounds * w.rollout, "updates": updates}, returns


def run(w: PPOWorkload) -> Result:
    """Train, and return the seconds of the loop, the env steps and the updates."""
    return train(w)[0]
