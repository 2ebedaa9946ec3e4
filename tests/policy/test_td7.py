"""TD7 against numbers worked out by hand and a slow oracle: its network, losses, priorities, range and copies."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from lightning_ding.config import deep_merge
from lightning_ding.model import SALEQAC
from lightning_ding.policy import TD7Policy
from lightning_ding.worker import create_buffer

SMALL: dict[str, Any] = {
    "obs_shape": 3,
    "action_shape": 2,
    "embedding_size": 4,
    "embedding_hidden_size": 5,
    "actor_head_hidden_size": 6,
    "critic_head_hidden_size": 7,
}

HYBRID = {"obs_shape": 3, "action_shape": {"action_type_shape": 2, "action_args_shape": 1}}


def make_policy(**changes: Any) -> TD7Policy:
    torch.manual_seed(0)
    return TD7Policy(deep_merge({"model": SMALL, "learn": {"batch_size": 8}}, changes))


def rows(**changes: Any) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    obs, next_obs = torch.randn(2, 8, 3, generator=generator)
    action, reward = torch.rand(8, 2, generator=generator) * 2 - 1, torch.randn(8, generator=generator)
    batch = {"obs": obs, "action": action, "reward": reward, "next_obs": next_obs, "terminated": torch.arange(8) > 6}
    return {**batch, "priority": torch.ones(8), **changes}


def norm(x: Tensor) -> Tensor:
    return x / (x.abs().sum() / len(x))


def chain(layers: list[tuple[Tensor, Tensor]], x: Tensor, activate: Any) -> Tensor:
    for weight, bias in layers[:-1]:
        x = activate(weight @ x + bias)
    return layers[-1][0] @ x + layers[-1][1]


def linear_layers(module: torch.nn.Module) -> list[tuple[Tensor, Tensor]]:
    return [(one.weight, one.bias) for one in module.modules() if isinstance(one, torch.nn.Linear)]


def test_the_network_equals_a_loop_over_items_and_critics() -> None:
    model = make_policy().model
    obs, action = torch.randn(3, 3), torch.randn(3, 2)
    for parameter in model.embedding.parameters():
        parameter.data.mul_(2)  # the actor and the critics see the fixed one
    states: list[Tensor] = []
    values: list[list[Tensor]] = []
    actions: list[Tensor] = []
    for row in range(3):
        state = norm(chain(linear_layers(model.fixed_embedding.state), obs[row], F.elu))
        joint = chain(linear_layers(model.fixed_embedding.state_action), torch.cat([state, action[row]]), F.elu)
        first = norm(model.actor.first.weight @ obs[row] + model.actor.first.bias)
        actions.append(chain(linear_layers(model.actor.head), torch.cat([first, state]), F.relu).tanh())
        states.append(state)
        values.append([])
        for one in range(2):
            weight, bias = model.critic.first.weight[one].T, model.critic.first.bias[one, 0]
            first = norm(weight @ torch.cat([obs[row], action[row]]) + bias)
            head = zip(model.critic.head.weights, model.critic.head.biases, strict=True)
            layers = [(weights[one].T, biases[one, 0]) for weights, biases in head]
            values[-1].append(chain(layers, torch.cat([first, joint, state]), F.elu)[0])
    assert_close(model.fixed_embedding.of_state(obs), torch.stack(states))
    assert_close(model.compute_actor(obs)["action"], torch.stack(actions))
    assert_close(model.compute_critic(obs, action)["q_value"], torch.tensor(values).T)
    assert_close(model.compute_critic(obs, action, members=1)["q_value"], torch.tensor(values).T[:1])


def test_the_embedding_of_a_state_and_an_action_predicts_that_of_the_next_state() -> None:
    policy, batch = make_policy(), rows()
    embedding = policy.model.embedding
    for parameter in embedding.parameters():
        parameter.data.mul_(1.5)  # both sides of the error are embeddings by the trained one
    loss, report = policy.embedding_loss(policy.prepare(batch))
    errors = []
    for row in range(8):
        state, next_state = (embedding.of_state(batch[name][row][None]) for name in ("obs", "next_obs"))
        errors.append((embedding.of_action(state, batch["action"][row][None]) - next_state).square().mean())
    assert loss.item() == pytest.approx(sum(map(float, errors)) / 8, rel=1e-5)
    assert report["embedding_loss"].item() == loss.item()


def test_the_gradient_does_not_pass_through_the_embedding_of_the_next_state() -> None:
    policy = make_policy()
    batch = policy.prepare(rows())
    loss, _ = policy.embedding_loss(batch)
    found = torch.autograd.grad(loss, policy.model.embedding.state_action.parameters(), retain_graph=True)
    next_obs = batch["next_obs"].requires_grad_()
    (of_next,) = torch.autograd.grad(policy.embedding_loss(batch)[0], next_obs, allow_unused=True)
    assert of_next is None
    assert all(gradient.abs().sum() > 0 for gradient in found)


def test_the_loss_is_quadratic_up_to_1_and_priorities_are_the_largest_errors_but_at_least_1() -> None:
    """Errors of item 1: 0.5 and 3, Huber 0.125 and 2.5; of item 2: -0.5 and 0, Huber 0.125 and 0."""
    policy = make_policy()
    q, target = torch.tensor([[0.5, 1.5], [3.0, 2.0]]), torch.tensor([0.0, 2.0])
    batch: Any = {"IS": torch.tensor([2.0, 0.0])}
    loss, report = policy._td_loss(batch, q, target)
    assert loss.item() == pytest.approx((0.125 + 0.125) / 2 + 2.5 / 2)
    assert report["priority"].tolist() == [3.0, 1.0]
    weighted, _ = make_policy(priority_IS_weight=True)._td_loss(batch, q, target)
    assert weighted.item() == pytest.approx(2 * (0.125 + 2.5) / 2)


@pytest.mark.parametrize(("limits", "value"), [((-10.0, 10.0), 1.5), ((-1.0, 1.0), 1.0), ((2.0, 9.0), 2.0)])
def test_the_next_value_is_the_smallest_of_the_critics_in_the_range_of_earlier_targets(
    limits: tuple[float, float], value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = make_policy(learn={"noise": False}, discount_factor=0.5)
    q_t = torch.tensor([[1.5] * 8, [4.0] * 8])
    monkeypatch.setattr(policy.target_model, "compute_critic", lambda obs, action: {"q_value": q_t})
    policy.value_range[1] = torch.tensor(limits)
    batch = policy.prepare(rows(reward=torch.ones(8)))
    assert policy._targets(batch).tolist() == [1 + 0.5 * value] * 7 + [1.0]


def test_the_first_targets_are_rewards_and_their_range_is_used_after_the_first_copy() -> None:
    policy, batch = make_policy(learn={"target_update_freq": 2}), rows()
    policy.learn_mode.forward(batch)
    low, high = batch["reward"].min(), batch["reward"].max()
    assert_close(policy.value_range, torch.tensor([[low, high], [0.0, 0.0]]))
    policy.learn_mode.forward(rows(reward=batch["reward"] * 2))
    assert_close(policy.value_range, torch.tensor([[low * 2, high * 2], [low * 2, high * 2]]))


def test_a_loss_that_is_not_finite_leaves_the_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where the update is written
    policy = make_policy(on_non_finite="skip_update")
    policy.learn_mode.forward(rows())
    before = policy.value_range.clone()
    reward = torch.full((8,), 100.0)
    reward[0] = math.nan
    policy.learn_mode.forward(rows(reward=reward))
    assert torch.equal(policy.value_range, before)


def test_a_copy_before_the_first_finite_loss_leaves_the_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    policy = make_policy(on_non_finite="skip_update", learn={"target_update_freq": 1})
    policy.learn_mode.forward(rows(reward=torch.full((8,), math.nan)))
    assert policy.value_range[1].tolist() == [0.0, 0.0]
    reward = torch.arange(8.0)
    policy.learn_mode.forward(rows(reward=reward))
    assert policy.value_range.tolist() == [[0.0, 7.0], [0.0, 7.0]]


def weights_of(module: torch.nn.Module) -> Tensor:
    return torch.cat([one.detach().flatten() for one in module.parameters()])


def test_targets_become_copies_and_the_fixed_embedding_follows_with_a_delay() -> None:
    policy = make_policy(learn={"target_update_freq": 2})
    model, target = policy.model, policy.target_model
    first = weights_of(model.fixed_embedding)
    policy.learn_mode.forward(rows())
    assert torch.equal(weights_of(model.fixed_embedding), first)
    assert not torch.equal(weights_of(model.critic), weights_of(target.critic))
    policy.learn_mode.forward(rows())
    for part in ("actor", "critic"):
        assert torch.equal(weights_of(getattr(model, part)), weights_of(getattr(target, part)))
    second = weights_of(model.embedding)
    assert torch.equal(weights_of(target.fixed_embedding), first)
    assert torch.equal(weights_of(model.fixed_embedding), second)
    for _ in range(2):
        policy.learn_mode.forward(rows())
    assert torch.equal(weights_of(target.fixed_embedding), second)
    assert not torch.equal(weights_of(model.embedding), second)


def test_the_actor_climbs_the_mean_of_the_critics_through_the_embedding_of_its_action() -> None:
    policy = make_policy()
    batch = policy.prepare(rows())
    loss, _ = policy.actor_loss(batch)
    action = policy.model.compute_actor(batch["obs"])["action"]
    q = policy.model.compute_critic(batch["obs"], action)["q_value"]
    assert loss.item() == pytest.approx(-sum(map(float, q.flatten())) / 16, rel=1e-5)
    for weight in (policy.model.critic.first.weight, policy.model.fixed_embedding.state_action.layers[0].weight):
        before = torch.autograd.grad(policy.actor_loss(batch)[0], policy.model.actor.first.weight)[0]
        weight.data[..., -2:] *= 2  # the columns of the action
        after = torch.autograd.grad(policy.actor_loss(batch)[0], policy.model.actor.first.weight)[0]
        assert not torch.equal(before, after)
    assert all(not one.requires_grad for one in policy.model.fixed_embedding.parameters())


def test_the_actor_learns_in_every_second_update() -> None:
    policy = make_policy()
    moved = []
    for _ in range(4):
        before = weights_of(policy.model.actor)
        policy.learn_mode.forward(rows())
        moved.append(not torch.equal(before, weights_of(policy.model.actor)))
    assert moved == [False, True, False, True]


def test_its_buffer_has_the_exponent_of_the_paper_and_another_type_can_be_chosen() -> None:
    section = TD7Policy().config.other.replay_buffer
    assert (section.type, create_buffer(section).config.alpha) == ("lap", 0.4)
    other = TD7Policy({"priority": False, "other": {"replay_buffer": {"type": "naive"}}})
    assert other.config.other.replay_buffer.type == "naive"


def test_hybrid_actions_are_refused() -> None:
    numbers = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    hybrid = gym.spaces.Dict({"action_type": gym.spaces.Discrete(2), "action_args": numbers})
    with pytest.raises(TypeError, match="TD7Policy needs a one-dimensional Box"):
        TD7Policy().build(numbers, hybrid)


def test_a_mask_of_actions_is_refused() -> None:
    masked = gym.spaces.Dict({"action_mask": gym.spaces.MultiBinary(2), "x": gym.spaces.Box(-1.0, 1.0, (3,))})
    with pytest.raises(ValueError, match="obs_shape must be without action_mask for actions without a choice"):
        TD7Policy().build(masked, gym.spaces.Box(-1.0, 1.0, (2,), np.float32))


def test_a_reset_renews_the_range_and_the_fixed_embeddings() -> None:
    policy = make_policy(learn={"target_update_freq": 1, "reset_at": [2]})
    first = weights_of(policy.model.embedding)
    policy.learn_mode.forward(rows())
    policy.learn_mode.forward(rows())
    assert policy.value_range.tolist() == [[math.inf, -math.inf], [0.0, 0.0]]
    fresh = weights_of(policy.model.embedding)
    assert (fresh - first).abs().max() > 0.1
    for network in (policy.model, policy.target_model):
        assert torch.equal(weights_of(network.fixed_embedding), fresh)
    assert not any(optimizer.state for optimizer in policy.updater.optimizers)
    policy.learn_mode.forward(rows(reward=torch.arange(8.0)))
    assert policy.value_range.tolist() == [[0.0, 7.0], [0.0, 7.0]]


def test_the_range_is_part_of_the_learning_state() -> None:
    policy, other = make_policy(), make_policy()
    policy.learn_mode.forward(rows())
    other.learn_mode.load_state_dict(policy.learn_mode.state_dict())
    assert torch.equal(other.value_range, policy.value_range)


def test_the_last_layers_begin_within_their_bound() -> None:
    model = SALEQAC(3, 2, last_layer_init=1e-3)
    last = [model.actor.head.layers[-1].weight, model.critic.head.weights[-1]]
    assert [one.abs().max().item() for one in last] == pytest.approx([1e-3, 1e-3], rel=0.05)


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        ({"model": {"ensemble_num": 0}}, "model.ensemble_num must be >= 1, got 0"),
        ({"model": {"embedding_size": 0}}, "model.embedding_size must be >= 1, got 0"),
        ({"model": {"embedding_hidden_size": 0}}, "model.embedding_hidden_size must be >= 1, got 0"),
        ({"model": HYBRID}, "action_shape must be a number of dimensions for actions without a choice"),
        ({"model": {"share_encoder": True}}, "model.share_encoder must be False for td7, got True"),
        ({"model": {"actor_layers": {"type": "simba"}}}, "model.actor_layers must be left at its default for td7"),
        ({"model": {"critic_layers": {"norm": "layer"}}}, "model.critic_layers must be left at its default for td7"),
        ({"learn": {"target_theta": 0.1}}, "learn.target_theta must be None for td7, which copies, got 0.1"),
        ({"learn": {"learning_rate_embedding": 0.0}}, "learn.learning_rate_embedding must be > 0, got 0.0"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(cfg: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TD7Policy(cfg)
