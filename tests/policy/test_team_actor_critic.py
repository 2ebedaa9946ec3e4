"""The losses of MADDPG and of SAC of teams against plain loops over transitions, agents and actions."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor
from torch.testing import assert_close

from lightning_ding.config import deep_merge
from lightning_ding.envs.teams.line import LateRewardGame
from lightning_ding.policy import create_policy
from lightning_ding.policy.teams.actor_critic import living_mean, living_weight
from lightning_ding.policy.teams.maddpg import straight_through

B, N, D, A = 6, 3, 4, 2
GAMMA, ALPHA = 0.5, 0.3
COUNTS = (3, 2, 3)


def make_policy(name: str, discrete: bool = False, **changes: Any) -> Any:
    torch.manual_seed(0)
    shapes = {"agent_num": N, "agent_obs_shape": D, "global_obs_shape": N * D}
    action: dict[str, Any] = {"action_shape": COUNTS if discrete else A}
    action["action_space"] = "discrete" if discrete else "continuous"
    config: dict[str, Any] = {
        "type": name,
        "discount_factor": GAMMA,
        "model": {**shapes, **action, "encoder_hidden_size_list": [8], "twin_critic": True},
        "learn": {"alpha": ALPHA} if name == "masac" else {},
    }
    return create_policy(deep_merge(config, changes))


def make_batch(discrete: bool = False) -> dict[str, Any]:
    """Return transitions in which agents leave, and with illegal actions."""
    generator = torch.Generator().manual_seed(1)

    def observation(living: Tensor) -> dict[str, Tensor]:
        seen = {"agent_state": torch.randn(B, N, D, generator=generator), "alive": living}
        mask = torch.ones(B, sum(COUNTS))
        mask[::2, 1] = mask[1, 3] = 0
        return seen | ({"action_mask": mask} if discrete else {})

    before = torch.tensor([[1.0, 1, 1]]).repeat(B, 1)
    before[0, 1] = before[3, 2] = 0
    after = before.clone()
    after[2, 0] = 0
    own = {"agent_reward": torch.randn(B, N, generator=generator)}
    action = torch.rand(B, N, A, generator=generator) * 2 - 1
    choice = torch.tensor([[0, 1, 2], [2, 1, 0]]).repeat(B // 2, 1)
    ends = {"terminated": torch.tensor([False] * 4 + [True, False]), "truncated": torch.tensor([False] * 5 + [True])}
    return {
        **{"obs": observation(before), "next_obs": observation(after) | own, **ends},
        **{"action": choice if discrete else action, "reward": torch.full((B,), 100.0)},
    }


def one(obs: dict[str, Tensor], b: int) -> dict[str, Tensor]:
    return {name: entry[b : b + 1] for name, entry in obs.items()}


def legal_of(obs: dict[str, Tensor], b: int, i: int) -> list[int]:
    first = sum(COUNTS[:i])
    return [a for a in range(COUNTS[i]) if "action_mask" not in obs or obs["action_mask"][b, first + a] > 0]


def slow_log_p(policy: Any, obs: dict[str, Tensor], b: int, i: int) -> Tensor:
    """Return log probabilities of the actions of an agent, minus infinity where they are illegal or missing."""
    logit, legal = policy.model.compute_actor(one(obs, b))["logit"][0, i], legal_of(obs, b, i)
    total = sum(math.exp(float(logit[a])) for a in legal)
    return torch.tensor([float(logit[a]) - math.log(total) if a in legal else -math.inf for a in range(max(COUNTS))])


def vector(action: int) -> Tensor:
    return torch.eye(max(COUNTS))[action]


def sampled(log_p: Tensor, uniform: Tensor) -> int:
    noise = [-math.log(-math.log(max(float(u), 1e-30))) for u in uniform]
    return max(range(len(log_p)), key=lambda a: float(log_p[a]) + noise[a])


def slow_error(policy: Any, batch: dict[str, Any], value_of_next: Any) -> tuple[float, Tensor]:
    """Return the critics' loss over living agents, and the targets, from the value of the next observation."""
    total, count, targets = 0.0, 0, torch.zeros(B, N)
    prepared = policy.prepare(batch)
    q = policy._values_of_taken(prepared).detach()
    for b, i in product(range(B), range(N)):
        continues = (not bool(batch["terminated"][b])) * float(batch["next_obs"]["alive"][b, i])
        reward = float(batch["next_obs"]["agent_reward"][b, i])
        targets[b, i] = reward + GAMMA * continues * float(value_of_next(b, i))
        if batch["obs"]["alive"][b, i]:
            count += 1
            total += float((q[:, b, i] - targets[b, i]).square().sum())
    return total / count, targets


def test_means_over_living_agents() -> None:
    living = torch.tensor([[1.0, 1.0], [0.0, 1.0], [0.0, 0.0]])
    value = torch.tensor([[1.0, 2.0], [50.0, 6.0], [70.0, 80.0]])
    assert float(living_mean(value, living)) == 3.0
    assert living_mean(value, living, 1).tolist() == [1.5, 6.0, 0.0]
    assert living_mean(value, living, 0).tolist() == [1.0, 4.0]
    assert float((value * living_weight(living)).mean()) == pytest.approx(3.0)


@pytest.mark.parametrize("discrete", [False, True])
def test_critics_of_maddpg_learn_the_rewards_of_their_agents(discrete: bool) -> None:
    policy, batch = make_policy("maddpg", discrete), make_batch(discrete)
    prepared = policy.prepare(batch)
    assert torch.equal(prepared["alive"], batch["obs"]["alive"])

    def value_of_next(b: int, i: int) -> Tensor:
        obs = one(batch["next_obs"], b)
        if discrete:
            noise, own = prepared["next_noise"][b], range(N)
            actions = [vector(sampled(slow_log_p(policy, batch["next_obs"], b, j), noise[j])) for j in own]
            joint = torch.stack(actions)[None]
        else:
            joint = policy.target_model.compute_actor(obs)["action"]
        return policy.target_model.compute_critic(obs, joint)["q_value"][:, 0, i].min()  # type: ignore[no-any-return]

    expected, targets = slow_error(policy, batch, value_of_next)
    loss, report = policy.critic_loss(prepared)
    assert_close(report["target_q_value"], targets)
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_an_actor_of_maddpg_follows_its_own_critic_given_the_actions_taken_by_others() -> None:
    policy, batch = make_policy("maddpg", model={"parameter_sharing": False}), make_batch()
    prepared = policy.prepare(batch)
    total, count = torch.zeros(()), 0
    for b, i in product(range(B), range(N)):
        if batch["obs"]["alive"][b, i]:
            joint = batch["action"][b].clone()
            joint[i] = policy.model.compute_actor(one(batch["obs"], b))["action"][0, i]
            total = total - policy.model.compute_critic(one(batch["obs"], b), joint[None])["q_value"][0, 0, i]
            count += 1
    loss, _ = policy.actor_loss(prepared)
    assert_close(loss, total / count)
    actor = list(policy.model.actor.parameters())
    assert_close(torch.autograd.grad(loss, actor), torch.autograd.grad(total / count, actor))


def test_discrete_actions_of_maddpg_are_samples_with_the_gradient_of_the_softmax() -> None:
    logit, uniform = torch.tensor([[0.5, -1.0, -torch.inf]], requires_grad=True), torch.tensor([[0.3, 0.9, 0.99]])
    noise = -(-uniform.log()).log()
    sample = straight_through(logit, uniform)
    assert_close(sample.detach(), torch.tensor([[0.0, 1.0, 0.0]]))
    (found,) = torch.autograd.grad(sample[0, 1], logit)
    (expected,) = torch.autograd.grad((logit + noise).softmax(-1)[0, 1], logit)
    assert_close(found, expected)
    assert torch.isfinite(found).all()
    policy, batch = make_policy("maddpg", True), make_batch(True)
    policy.actor_loss(policy.prepare(batch))[0].backward()
    grads = [parameter.grad for parameter in policy.model.actor.parameters()]
    assert all(grad is not None and torch.isfinite(grad).all() for grad in grads)


def test_critics_of_discrete_masac_take_the_expectation_over_the_actions_of_their_agent() -> None:
    policy, batch = make_policy("masac", True), make_batch(True)
    prepared = policy.prepare(batch)

    def value_of_next(b: int, i: int) -> float:
        return slow_soft_value(policy, policy.target_model, batch["next_obs"], prepared["next_noise"], b, i)

    expected, targets = slow_error(policy, batch, value_of_next)
    loss, report = policy.critic_loss(prepared)
    assert_close(report["target_q_value"], targets)
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def slow_soft_value(policy: Any, model: Any, obs: dict[str, Tensor], noise: Tensor, b: int, i: int) -> float:
    others = [vector(sampled(slow_log_p(policy, obs, b, j), noise[b, j])) for j in range(N)]
    q = model.compute_critic(one(obs, b), torch.stack(others)[None])["q_value"][:, 0, i]
    log_p = slow_log_p(policy, obs, b, i)
    return sum(
        math.exp(float(log_p[a])) * (float(q[:, a].min()) - ALPHA * float(log_p[a])) for a in legal_of(obs, b, i)
    )


def test_actors_of_discrete_masac_maximise_soft_values_and_temperatures_follow_their_agent() -> None:
    policy, batch = make_policy("masac", True, learn={"alpha_per_agent": True}), make_batch(True)
    prepared = policy.prepare(batch)
    values, gaps = torch.zeros(B, N), torch.zeros(B, N)
    for b, i in product(range(B), range(N)):
        values[b, i] = slow_soft_value(policy, policy.model, batch["obs"], prepared["noise"], b, i)
        log_p, legal = slow_log_p(policy, batch["obs"], b, i), legal_of(batch["obs"], b, i)
        gaps[b, i] = sum(math.exp(float(log_p[a])) * float(log_p[a]) for a in legal) + 0.98 * math.log(len(legal))
    living = batch["obs"]["alive"]
    loss, report = policy.actor_loss(prepared)
    assert loss.item() == pytest.approx(-float((values * living).sum() / living.sum()), rel=1e-5)
    alpha_loss, _ = policy.alpha_loss(report)
    (found,) = torch.autograd.grad(alpha_loss, policy.temperature)
    assert_close(found, -(gaps * living).sum(0) / living.sum(0))


def test_losses_of_continuous_masac() -> None:
    policy, batch = make_policy("masac"), make_batch()
    prepared = policy.prepare(batch)

    def sample(obs: dict[str, Tensor], noise: Tensor, b: int) -> tuple[Tensor, Tensor]:
        output = policy.model.compute_actor(one(obs, b))
        mu, sigma = output["mu"][0], output["log_sigma"][0].exp()
        u = mu + sigma * noise[b]
        density = torch.distributions.Normal(mu, sigma).log_prob(u) - (1 - u.tanh().square()).log()
        return u.tanh(), density.sum(-1)

    def value_of_next(b: int, i: int) -> Tensor:
        action, log_p = sample(batch["next_obs"], prepared["next_noise"], b)
        q = policy.target_model.compute_critic(one(batch["next_obs"], b), action[None])["q_value"][:, 0, i].min()
        return q - ALPHA * log_p[i]  # type: ignore[no-any-return]

    expected, targets = slow_error(policy, batch, value_of_next)
    loss, report = policy.critic_loss(prepared)
    assert_close(report["target_q_value"], targets, rtol=1e-4, atol=1e-4)
    assert loss.item() == pytest.approx(expected, rel=1e-4)

    total, gap, count = torch.zeros(()), 0.0, 0
    for b, i in product(range(B), range(N)):
        if batch["obs"]["alive"][b, i]:
            action, log_p = sample(batch["obs"], prepared["noise"], b)
            joint = action.detach().clone()
            joint[i] = action[i]
            q = policy.model.compute_critic(one(batch["obs"], b), joint[None])["q_value"][:, 0, i].min()
            total, gap, count = total + ALPHA * log_p[i] - q, gap + float(log_p[i]) - A, count + 1
    loss, report = policy.actor_loss(prepared)
    assert_close(loss, total / count, rtol=1e-4, atol=1e-4)
    actor = list(policy.model.actor.parameters())
    both = (torch.autograd.grad(one_loss, actor) for one_loss in (loss, total / count))
    for found, slow in zip(*both, strict=True):
        assert_close(found, slow, rtol=1e-3, atol=1e-4)
    (found,) = torch.autograd.grad(policy.alpha_loss(report)[0], policy.temperature)
    assert float(found) == pytest.approx(-gap / count, rel=1e-4)


def test_a_team_with_one_reward_gives_it_to_each_agent_and_importance_weights_weigh_its_agents() -> None:
    policy, batch = make_policy("maddpg", priority=True, priority_IS_weight=True), make_batch()
    del batch["next_obs"]["agent_reward"]
    batch["IS"] = torch.tensor([2.0] + [0.0] * (B - 1))
    prepared = policy.prepare(batch)
    assert (prepared["reward"] == 100).all()
    loss, report = policy.critic_loss(prepared)
    squares = (report["q_value"] - report["target_q_value"]).square().sum(0)
    assert_close(loss, 2 * (squares[0, 0] + squares[0, 2]) / batch["obs"]["alive"].sum())
    errors = (report["q_value"] - report["target_q_value"]).abs().mean(0)
    assert_close(report["priority"][0], (errors[0, 0] + errors[0, 2]) / 2)


def test_updates_train_everything_and_the_report_is_finite() -> None:
    for name, discrete in (("maddpg", False), ("maddpg", True), ("masac", False), ("masac", True)):
        policy, batch = make_policy(name, discrete), make_batch(discrete)
        before = {key: value.clone() for key, value in policy.model.state_dict().items()}
        report = policy.learn_mode.forward(batch)
        assert all(torch.isfinite(torch.as_tensor(value)).all() for value in report.values())
        for key, value in policy.model.state_dict().items():
            assert not torch.equal(value, before[key]), (name, discrete, key)


def test_matd3_is_maddpg_with_twin_critics_noise_and_delay() -> None:
    policy = make_policy("maddpg", learn={"noise": True, "actor_update_freq": 2})
    prepared = policy.prepare(make_batch())
    assert prepared["next_noise"].shape == (B, N, A)
    moved = {**prepared, "next_noise": prepared["next_noise"] + 0.3}
    assert not torch.equal(policy._targets(prepared), policy._targets(moved))
    assert "actor_loss" not in policy.learn_mode.forward(make_batch())


def test_illegal_and_missing_actions_are_never_taken() -> None:
    obs = make_batch(True)["obs"]
    for name in ("maddpg", "masac"):
        policy = make_policy(name, True)
        for _ in range(50):
            arguments = {"eps": 0.5} if name == "masac" else {}
            for mode in (policy.collect_mode.forward(obs, **arguments), policy.eval_mode.forward(obs)):
                for b, i in product(range(B), range(N)):
                    assert int(mode["action"][b, i]) in legal_of(obs, b, i)


def test_actions_are_sampled_from_the_policy() -> None:
    policy = make_policy("masac", True)
    obs = {"agent_state": torch.randn(1, N, D).expand(4000, -1, -1)}
    action = policy.collect_mode.forward(obs)["action"]
    for i in range(N):
        shares = np.bincount(action[:, i].numpy(), minlength=3) / 4000
        assert_close(torch.tensor(shares).float(), slow_log_p(policy, obs, 0, i).exp(), atol=0.04, rtol=0)


def test_continuous_actions_are_in_the_units_of_the_env() -> None:
    box = spaces.Box(np.array([[-1.0], [2.0]], np.float32), np.array([[3.0], [4.0]], np.float32))
    seen = spaces.Dict({"agent_state": spaces.Box(-1, 1, (2, D))})
    for name in ("maddpg", "masac"):
        policy: Any = create_policy({"type": name, "model": {"encoder_hidden_size_list": [8]}}).build(seen, box)
        action = policy.collect_mode.forward({"agent_state": torch.randn(50, 2, D)})["action"]
        assert action.shape == (50, 2, 1)
        assert ((action >= torch.tensor(box.low)) & (action <= torch.tensor(box.high))).all()
        assert_close(policy._normalised(torch.tensor([[[-1.0], [4.0]]])), torch.tensor([[[-1.0], [1.0]]]))
        assert_close(policy._to_env(torch.tensor([[[0.0], [0.0]]])), torch.tensor([[[1.0], [3.0]]]))


def test_agents_may_each_have_a_global_state() -> None:
    entries: Any = {"agent_state": spaces.Box(-1, 1, (N, D)), "global_state": spaces.Box(-1, 1, (N, 7))}
    policy: Any = create_policy({"type": "maddpg"}).build(spaces.Dict(entries), spaces.Box(-1, 1, (N, A)))
    state = torch.zeros(B, N, 7)
    obs, action = {"agent_state": torch.zeros(B, N, D), "global_state": state}, torch.zeros(B, N, A)
    first = policy.model.compute_critic(obs, action)["q_value"]
    state[:, 1] = 1
    changed = (policy.model.compute_critic(obs, action)["q_value"] != first).any(1).any(0)
    assert changed.tolist() == [False, True, False]


def test_options_that_do_not_fit_are_refused() -> None:
    game = LateRewardGame(2, is_individual=True)
    changes: Any
    for changes, text in (
        ({"nstep": 3}, "nstep must be 1 for a team whose observations have an 'agent_reward', got 3"),
        ({"reward_model": {"type": "rnd"}}, "reward_model.type must be None for a team"),
    ):
        with pytest.raises(ValueError, match=text):
            create_policy({"type": "maddpg", **changes}).build(game.observation_space, game.action_space)
    leaving = spaces.Dict({"agent_state": spaces.Box(-1, 1, (3, 4)), "alive": spaces.Box(0, 1, (3,))})
    with pytest.raises(ValueError, match="nstep must be 1 for a team whose observations have 'alive', got 3"):
        create_policy({"type": "masac", "nstep": 3}).build(leaving, spaces.MultiDiscrete([2, 2, 2]))
    for name, discrete, changes, text in (
        ("maddpg", True, {"learn": {"noise": True}}, "learn.noise must be False with discrete actions"),
        ("masac", False, {"other": {"eps": {"start": 0.5}}}, "other.eps must be left at its default with continuous"),
        ("masac", False, {"learn": {"auto_alpha": False, "alpha_per_agent": True}}, "learn.alpha_per_agent must be"),
    ):
        with pytest.raises(ValueError, match=text):
            make_policy(name, discrete, **changes)
    with pytest.raises(TypeError, match="MADDPGPolicy needs the env of a team"):
        create_policy({"type": "maddpg"}).build(spaces.Box(-1, 1, (3,)), spaces.Discrete(2))
