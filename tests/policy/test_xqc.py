"""XQC: categorical critics whose targets are projected, with batch normalisation and unit weights."""

from __future__ import annotations

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
        after = policy.target_model.compute_critic(batch["next_obs"], action)
        obs, actions = torch.cat([batch["obs"], batch["next_obs"]]), torch.cat([batch["action"], action])
        if layers:
            q = policy.model.compute_critic(batch["obs"], batch["action"])
        else:
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


def test_updates_move_the_statistics_the_targets_and_the_weights_on_the_unit_sphere() -> None:
    policy = make_policy(learn={"target_theta": 0.5, "learning_rate_q": 0.01})
    first = policy.target_model.critic.head.norms[1].mean.clone()
    for _ in range(3):
        report = policy.learn_mode.forward(make_batch())
    assert "statistics" not in report
    head, target = policy.model.critic.head, policy.target_model.critic.head
    assert int(head.norms[0].updates) == int(policy.model.actor.head.norms[0].updates) == 3
    assert_close(target.norms[1].mean, head.norms[1].mean)  # copied
    assert not torch.equal(first, target.norms[1].mean)
    for layer in head.hidden:
        assert_close(layer.weight.norm(dim=1), torch.ones(2, 8))
    assert not torch.equal(head.hidden[0].weight, target.hidden[0].weight)


def test_a_priority_is_an_items_cross_entropy() -> None:
    options = {"priority": True, "other": {"replay_buffer": {"type": "advanced"}}}
    policy = make_policy(**options)
    loss, report = policy.critic_loss(policy.prepare(make_batch()))
    assert_close(report["priority"].mean() * 2, loss.detach())


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
        ({"learn": {"actor_update_freq": 0}}, "learn.actor_update_freq must be >= 1, got 0"),
    ],
)
def test_a_value_that_is_out_of_its_range_is_refused(cfg: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_policy(**cfg)
