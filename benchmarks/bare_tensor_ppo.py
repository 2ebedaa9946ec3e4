"""PPO in tensor envs as one bare PyTorch loop without any framework: all data stay on the device of the envs."""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn

from benchmarks.bare_ppo import Agent, Rollout, loss_of
from benchmarks.compare import Result
from benchmarks.workload import PPOWorkload
from lightning_ding.envs.tensor import CartPole


class TensorRollout(Rollout):
    """Columns of T steps of N envs, with the ends of episodes and the values of what comes next."""

    def __init__(self, w: PPOWorkload) -> None:
        super().__init__(w)
        self.action = self.action.long()
        shape = w.num_steps, w.num_envs
        self.next_value = torch.zeros(shape)
        self.terminated, self.ended = (torch.zeros(shape, dtype=torch.bool) for _ in range(2))


@torch.no_grad()
def collect(env: CartPole, agent: Agent, data: TensorRollout, obs: Tensor, final: Tensor) -> Tensor:
    """Fill the rollout, write the final observations of all steps to ``final``, and return the next observations."""
    for step in range(len(data.obs)):
        data.obs[step] = obs
        logits = agent.actor(obs).log_softmax(-1)
        action = (logits - torch.empty_like(logits).exponential_().log_()).argmax(-1)
        data.action[step] = action
        data.log_prob[step] = logits.gather(-1, action[:, None])[:, 0]
        obs, data.reward[step], terminated, truncated, info = env.step(action)
        final[step] = info["final_obs"]
        data.terminated[step], data.ended[step] = terminated, terminated | truncated
    return obs


@torch.no_grad()
def advantages(w: PPOWorkload, data: TensorRollout, agent: Agent, final: Tensor) -> Tensor:
    """Return the generalised advantage estimates, shape (T, N); a truncated episode bootstraps from its last value."""
    data.value = agent.critic(data.obs.flatten(0, 1)).view(data.reward.shape)
    next_value = torch.cat([data.value[1:], data.value[-1:]])
    cut = data.ended & ~data.terminated
    cut[-1] = ~data.terminated[-1]
    next_value[cut] = agent.critic(final[cut]).squeeze(-1)
    delta = data.reward + w.gamma * next_value * ~data.terminated - data.value
    decay = w.gamma * w.gae_lambda * ~data.ended
    advantage = delta.clone()
    for t in range(w.num_steps - 2, -1, -1):
        advantage[t].addcmul_(decay[t], advantage[t + 1])
    return advantage


def train(w: PPOWorkload) -> tuple[Result, float]:
    """Train, and return what ``run`` does, and the env steps for each episode that ended in the last rollout."""
    torch.manual_seed(0)
    env = CartPole(w.num_envs)
    obs, _ = env.reset(seed=0)
    agent = Agent(4, 2, w.hidden)
    optimizer = torch.optim.Adam(agent.parameters(), lr=w.learning_rate, eps=w.adam_epsilon, fused=True)
    data, updates = TensorRollout(w), 0
    final = torch.zeros_like(data.obs)
    began, began_cpu = time.perf_counter(), time.process_time()
    rounds = w.env_steps // w.rollout
    for number in range(rounds):
        optimizer.param_groups[0]["lr"] = (1 - number / rounds) * w.learning_rate
        obs = collect(env, agent, data, obs, final)
        advantage = advantages(w, data, agent, final)
        columns = [*data.flat(), advantage.flatten(), (advantage + data.value).flatten()]
        for _ in range(w.epochs):
            order = torch.randperm(w.rollout)
            shuffled = [column[order] for column in columns]
            for batch in zip(*[column.split(w.batch_size) for column in shuffled], strict=True):
                loss = loss_of(w, agent, list(batch))
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), w.grad_norm)
                optimizer.step()
                updates += 1
    seconds, cpu = time.perf_counter() - began, time.process_time() - began_cpu
    steps_an_episode = w.rollout / max(1, int(data.ended.sum()))
    counts = {"env_steps": rounds * w.rollout, "updates": updates}
    return {"seconds": seconds, "cpu_ms_a_round": 1e3 * cpu / rounds, **counts}, steps_an_episode


def run(w: PPOWorkload) -> Result:
    """Train, and return the seconds of the loop, the env steps and the updates."""
    return train(w)[0]
