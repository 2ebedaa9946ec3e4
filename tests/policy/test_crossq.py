"""CrossQ: one batch of both observations, no target network, and running statistics that updates move."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from lightning_ding.policy import CrossQPolicy

SIZES = {"obs_shape": 3, "action_shape": 1, "actor_head_hidden_size": 8, "critic_head_hidden_size": 8}


def make_policy(**cfg: Any) -> Any:
    torch.manual_seed(0)
    learn = {"actor_update_freq": 1, **cfg.pop("learn", {})}
    model = {**SIZES, "activation": "tanh", "renorm_warmup": 2, "renorm_momentum": 0.25, **cfg.pop("model", {})}
    policy = CrossQPolicy({"model": model, "learn": learn, **cfg})
    policy.seed(0)
    return policy


def make_batch(size: int = 16) -> dict[str, Any]:
    rng = torch.Generator().manual_seed(0)
    numbers = {name: torch.randn(size, 3, generator=rng) for name in ("obs", "next_obs")}
    flags = {"terminated": torch.arange(size) % 4 == 0, "truncated": torch.zeros(size, dtype=torch.bool)}
    return {**numbers, **flags, "action": torch.rand(size, 1, generator=rng), "reward": numbers["obs"][:, 0]}


def test_the_critics_see_both_observations_in_one_batch() -> None:
    """The target is r + gamma * (min Q(s', a') - alpha log pi), of the joint batch, without gradient."""
    policy = make_policy()
    batch = policy.prepare(make_batch())
    loss, report = policy.critic_loss(batch)
    with torch.no_grad():
        action, log_prob = policy._sample(batch["next_obs"], batch["next_noise"])
    obs, actions = torch.cat([batch["obs"], batch["next_obs"]]), torch.cat([batch["action"], action])
    q = policy.model.compute_critic(obs, actions, by_batch=True)["q_value"]
    target = batch["reward"] + batch["discount_t"] * (q[:, 16:].amin(0) - policy.alpha * log_prob)
    assert_close(report["target_q_value"], target.detach())
    assert_close(loss, (q[:, :16] - target.detach()).square().mean(1).sum())
    alone = policy.model.compute_critic(batch["obs"], batch["action"], by_batch=True)["q_value"]
    assert not torch.allclose(alone, q[:, :16])


def test_there_is_no_target_network() -> None:
    policy = make_policy()
    policy.learn_mode.forward(make_batch())
    assert not hasattr(policy, "target_model")
    assert not [name for name in policy.state_dict() if "target" in name]
    assert "target_model" not in policy.learn_mode.state_dict()


def test_updates_move_the_running_statistics_of_the_part_that_learns() -> None:
    policy = make_policy(learn={"actor_update_freq": 2})
    counts = []
    for _ in range(4):
        report = policy.learn_mode.forward(make_batch())
        assert "statistics" not in report
        parts = (policy.model.critic, policy.model.actor)
        counts.append([int(part.head.renorms[1].updates) for part in parts])
    assert counts == [[1, 0], [2, 1], [3, 1], [4, 2]]
    assert policy.model.critic.head.renorms[0].mean.abs().max() > 0


def test_acting_uses_and_keeps_the_running_statistics() -> None:
    policy, obs = make_policy(), torch.randn(5, 3)
    for _ in range(3):
        policy.learn_mode.forward(make_batch())
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    together = policy.eval_mode.forward(obs)["action"]
    alone = torch.cat([policy.eval_mode.forward(row[None])["action"] for row in obs])
    assert_close(together, alone)
    assert all(torch.equal(value, before[name]) for name, value in policy.state_dict().items())


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        ({"model": {"ensemble_num": 0}}, "model.ensemble_num must be >= 1, got 0"),
        ({"model": {"renorm_momentum": 0.0}}, r"model.renorm_momentum must be in \(0, 1\], got 0.0"),
        ({"model": {"renorm_warmup": -1}}, "model.renorm_warmup must be >= 0, got -1"),
        ({"learn": {"target_theta": 0.1}}, "learn.target_theta must be None, because there is no target network"),
        ({"learn": {"target_update_freq": 5}}, "learn.target_update_freq must be None, because there is no target"),
        ({"learn": {"actor_update_freq": 0}}, "learn.actor_update_freq must be >= 1, got 0"),
    ],
)
def test_a_value_that_is_out_of_its_range_or_does_nothing_is_refused(cfg: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CrossQPolicy(cfg)
