"""XQC: categorical critics whose targets are projected, with batch normalisation and unit weights."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from lightning_ding.policy import XQCPolicy
from tests.policy.test_crossq import make_batch

SIZES = {"obs_shape": 3, "action_shape": 1, "actor_head_hidden_size": 8, "critic_head_hidden_size": 8}
SUPPORT = {"v_min": -1.0, "v_max": 1.0, "n_atom": 5}


def make_policy(**cfg: Any) -> Any:
    torch.manual_seed(0)
    policy = XQCPolicy({**cfg, "model": {**SIZES, **SUPPORT, "critic_head_layer_num": 1, **cfg.get("model", {})}})
    policy.seed(0)
    return policy


@pytest.mark.parametrize("layers", [{}, {"type": "simba_v2", "norm": None, "weights": None}])
def test_the_loss_is_the_cross_entropy_with_the_projected_soft_target(layers: dict[str, Any]) -> None:
    """Each atom moves to r + gamma (z - alpha log pi), clipped, and shares its mass among its two neighbours."""
    policy = make_policy(model={"actor_layers": layers, "critic_layers": layers}, learn={"alpha": 0.3})
    batch = policy.prepare(make_batch())
    loss, report = policy.critic_loss(batch)
    with torch.no_grad():
        action, log_prob = policy._sample(batch["next_obs"], batch["next_noise"])
        obs, actions = torch.cat([batch["obs"], batch["next_obs"]]), torch.cat([batch["action"], action])
        if layers:
            after = policy.target_model.compute_critic(batch["next_obs"], action)
            q = policy.model.compute_critic(batch["obs"], batch["action"])
        else:
            after = policy.target_model.compute_critic(obs, actions, by_batch=True)
            after = {name: after[name][:, 16:] for name in ("q_value", "distribution")}
            q = policy.model.compute_critic(obs, actions, by_batch=True)
    expected, means = 0.0, []
    for row in range(16):
        chosen = int(after["q_value"][:, row].argmin())
        target = [0.0] * 5
        for atom, mass in zip((-1.0, -0.5, 0.0, 0.5, 1.0), after["distribution"][chosen, row].tolist(), strict=True):
            soft = atom - 0.3 * float(log_prob[row])
            moved = min(max(float(batch["reward"][row]) + float(batch["discount_t"][row]) * soft, -1.0), 1.0)
            place = (moved + 1.0) / 0.5
            lower = min(int(place), 3)
            target[lower] += mass * (lower + 1 - place)
            target[lower + 1] += mass * (place - lower)
        means.append(sum(z * p for z, p in zip((-1.0, -0.5, 0.0, 0.5, 1.0), target, strict=True)))
        for critic in range(2):
            log_p = q["log_distribution"][critic, row].tolist()
            expected -= sum(p * one for p, one in zip(target, log_p, strict=True)) / 16
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert_close(report["target_q_value"], torch.tensor(means), atol=1e-5, rtol=1e-5)
    assert report["q_value"].shape == (2, 16)
    assert ("statistics" in report) != bool(layers)


def test_the_targets_do_not_change_with_the_running_statistics() -> None:
    """The running statistics fit newer weights than those of the target network, which uses those of the minibatch."""
    policy = make_policy()
    batch = policy.prepare(make_batch())
    before = policy.critic_loss(batch)[1]["target_q_value"]
    for norm in (*policy.model.critic.head.norms, *policy.target_model.critic.head.norms):
        norm.mean += 3.0
        norm.variance *= 10.0
    assert_close(policy.critic_loss(batch)[1]["target_q_value"], before)


def test_updates_move_the_statistics_the_targets_and_the_weights_on_the_unit_sphere() -> None:
    rates = {"learning_rate_q": 0.01, "learning_rate_policy": 0.01}
    policy = make_policy(learn={"target_theta": 0.5, **rates})
    head, target, actor = policy.model.critic.head, policy.target_model.critic.head, policy.model.actor.head
    first, bias = head.norms[1].mean.clone(), head.output.bias.detach().clone()
    for _ in range(7):
        report = policy.learn_mode.forward(make_batch())
    assert "statistics" not in report
    assert (int(head.norms[0].updates), int(actor.norms[0].updates)) == (7, 6)  # the actor's: 3 each in the 3rd and 6th
    assert not torch.equal(first, head.norms[1].mean)
    for layer in (*head.hidden, head.output, *actor.hidden, actor.output):
        assert_close(layer.weight.norm(dim=1), torch.ones_like(layer.weight[:, 0]))
    assert not torch.allclose(head.output.bias, bias, atol=0.005)  # biases are free
    assert not torch.equal(head.hidden[0].weight, target.hidden[0].weight)


def test_the_actors_running_statistics_move_as_fast_as_those_of_the_critics() -> None:
    """After n updates with inputs of mean m they are (1 - 0.99^n) m, though the actor learns every 3rd time."""
    policy = make_policy()
    for _ in range(6):
        policy.learn_mode.forward(make_batch())
    expected = (1 - 0.99**6) * make_batch()["obs"].mean(0)
    assert_close(policy.model.actor.head.norms[0].mean[0, 0], expected)


@pytest.mark.parametrize(("given", "expected"), [(None, -1.5), (-2.0, -2.0)])
def test_the_entropy_to_reach_is_minus_half_the_dimensions_of_the_action(given: float | None, expected: float) -> None:
    policy = make_policy(model={"action_shape": 3}, learn={"target_entropy": given})
    report = {"log_prob": torch.tensor([1.0, 2.0, 3.0])}
    loss, _ = policy.alpha_loss(report)
    assert loss.item() == pytest.approx(-math.log(0.01) * (2.0 + expected))


def test_a_priority_is_an_items_cross_entropy() -> None:
    options = {"priority": True, "other": {"replay_buffer": {"type": "advanced"}}}
    policy = make_policy(**options)
    loss, report = policy.critic_loss(policy.prepare(make_batch()))
    assert_close(report["priority"].mean() * 2, loss.detach())


def test_a_network_of_the_user_needs_no_more_than_its_two_functions() -> None:
    own = make_policy()

    class Own(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.actor, self.critic = own.model.actor, own.model.critic
            self.inner = [own.model]

        def compute_actor(self, *args: Any, **kwargs: Any) -> Any:
            return self.inner[0].compute_actor(*args, **kwargs)

        def compute_critic(self, *args: Any, **kwargs: Any) -> Any:
            return self.inner[0].compute_critic(*args, **kwargs)

    batch = own.prepare(make_batch())
    expected, _ = own.critic_loss(batch)
    own.model = Own()
    own.target_model = Own()
    assert_close(own.critic_loss(batch)[0], expected)


def test_the_actors_loss_is_that_of_sac_with_the_smallest_mean() -> None:
    policy = make_policy()
    batch = policy.prepare(make_batch())
    loss, report = policy.actor_loss(batch)
    output = policy.model.compute_actor(batch["obs"], by_batch=True)
    action = (output["mu"] + output["log_sigma"].exp() * batch["noise"]).tanh()
    q = policy.model.compute_critic(batch["obs"], action)["q_value"].amin(0)
    assert_close(loss, (policy.alpha * report["log_prob"] - q).mean())


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        ({"model": {"ensemble_num": 0}}, "model.ensemble_num must be >= 1, got 0"),
        ({"model": {"v_min": 1.0}}, r"model.v_min must be below v_max \(1.0\), got 1.0"),
        ({"model": {"n_atom": 1}}, "model.n_atom must be >= 2, got 1"),
        (
            {"model": {"critic_layers": {"norm": "batch_renorm"}}},
            "model.critic_layers.norm must be batch, layer or None",
        ),
        ({"learn": {"actor_update_freq": 0}}, "learn.actor_update_freq must be >= 1, got 0"),
    ],
)
def test_a_value_that_is_out_of_its_range_is_refused(cfg: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_policy(**cfg)
