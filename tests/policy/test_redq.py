"""REDQ and DroQ against numbers worked out by hand, and compiled updates with dropout.

Three critics value an action at a weight times its sum. The actor's output is a weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from lightning_ding.datamodules import OfflineDataModule, ReplayDataModule
from lightning_ding.policy import REDQPolicy, RLPDPolicy
from tests.algorithms.table import random_episodes
from tests.conftest import MakeTrainer
from tests.policy.tables import TinyActor

DROQ: dict[str, Any] = {"ensemble_num": 2, "critic_dropout": 0.25, "critic_layer_norm": True}
ACTION = math.tanh(0.5)
LOG_PROB = -0.125 - 0.5 * math.log(2 * math.pi) - math.log(1 - ACTION**2)


class TinyEnsemble(TinyActor):
    """The network of the docstring above."""

    def compute_critic(self, obs: Tensor, action: Tensor, members: Tensor | None = None) -> dict[str, Tensor]:
        weights = self.critic.values if members is None else self.critic.values[members]
        return {"q_value": weights[:, None] * action.sum(1)}


def make_policy(**learn: Any) -> REDQPolicy:
    model = {"action_low": [-1.0], "action_high": [1.0], "ensemble_num": 3}
    config = {"discount_factor": 0.5, "model": model, "learn": {"alpha": 0.25, **learn}}
    policy = REDQPolicy(config, model=TinyEnsemble([1.0, 2.0, 6.0]))
    policy.target_model.load_state_dict(TinyEnsemble([2.0, 4.0, 8.0]).state_dict())
    return policy


def make_batch(size: int = 2) -> dict[str, Any]:
    """Return transitions with action 1, every second of which terminates."""
    rng = torch.Generator().manual_seed(0)
    numbers = {name: torch.randn(size, 3, generator=rng) for name in ("obs", "next_obs")}
    flags = {"terminated": torch.arange(size) % 2 == 1, "truncated": torch.arange(size) % 2 == 0}
    return {**numbers, **flags, "action": torch.ones(size, 1), "reward": 1.0 - 2 * (torch.arange(size) % 2)}


def without_noise(policy: REDQPolicy, **changes: Any) -> Any:
    noise = {name: torch.full((2, 1), 0.5) for name in ("noise", "next_noise")}
    return policy.prepare(make_batch()) | noise | changes


@pytest.mark.parametrize(("members", "smallest"), [([1, 2], 4.0), ([2, 0], 2.0), ([2, 2], 8.0)])
def test_the_target_is_the_smallest_value_of_the_chosen_critics(members: list[int], smallest: float) -> None:
    policy = make_policy()
    batch = without_noise(policy, target_critics=torch.tensor([members, members]))
    expected = torch.tensor([1 + 0.5 * (smallest * ACTION - 0.25 * LOG_PROB), -1.0])
    assert_close(policy.critic_loss(batch)[1]["target_q_value"], expected)


def test_the_loss_is_the_sum_over_all_critics() -> None:
    """Values of action 1: 1, 2 and 6; the target of the terminated item is -1: 4 + 9 + 49 of it alone."""
    policy = make_policy()
    report = policy.critic_loss(without_noise(policy))
    target = report[1]["target_q_value"][0].item()
    first = sum((value - target) ** 2 for value in (1, 2, 6))
    assert report[0].item() == pytest.approx((first + 62) / 2, rel=1e-5)


def test_the_actor_climbs_the_mean_of_all_critics() -> None:
    policy = make_policy()
    assert policy.actor_loss(without_noise(policy))[0].item() == pytest.approx(0.25 * LOG_PROB - 3 * ACTION, rel=1e-5)


def test_every_update_draws_different_critics_without_repetition() -> None:
    policy = REDQPolicy(
        {"model": {"obs_shape": 3, "action_shape": 1, "ensemble_num": 5}, "learn": {"target_critics": 3}}
    )
    policy.seed(0)
    data = {name: torch.stack([value] * 400) for name, value in make_batch(4).items()}
    drawn = policy._prepare_round(data)["target_critics"]
    assert drawn.shape == (400, 4, 3)
    assert torch.equal(drawn, drawn[:, :1].expand_as(drawn))  # the same for all items of a minibatch
    assert all(len(set(members)) == 3 for members in drawn[:, 0].tolist())
    share = torch.bincount(drawn[:, 0].flatten(), minlength=5) / 400
    assert_close(share, torch.full((5,), 3 / 5), rtol=0, atol=0.12)


def test_the_actor_and_the_temperature_move_every_few_updates_and_the_targets_always() -> None:
    policy = make_policy(actor_update_freq=3)
    seen = []
    for _ in range(7):
        policy.learn_mode.forward(make_batch())
        seen.append([x.clone() for x in (policy.model.actor.values, policy.alpha, policy.target_model.critic.values)])
    moved = [[not torch.equal(a, b) for a, b in zip(x, y, strict=True)] for x, y in pairwise(seen)]
    assert [x[:2] for x in moved] == [[False] * 2, [True] * 2, [False] * 2, [False] * 2, [True] * 2, [False] * 2]
    assert all(x[2] for x in moved)


def make_droq(**cfg: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"obs_shape": 3, "action_shape": 1, "actor_head_hidden_size": 8, "critic_head_hidden_size": 8}
    learn = {"actor_update_freq": 1}
    policy = REDQPolicy({"model": {**sizes, **DROQ, "activation": "tanh"}, "learn": learn, **cfg})
    policy.seed(0)
    return policy


def test_each_use_of_the_critics_leaves_out_other_units() -> None:
    """The loss, the target and the actor's loss depend on their column of random numbers, and on no other."""
    policy = make_droq()
    batch = policy.prepare(make_batch(16))
    results: dict[int, Callable[[Any], Tensor]] = {
        0: lambda data: policy._targets(data),
        1: lambda data: policy._values_of_taken(data),
        2: lambda data: policy.actor_loss(data)[0],
    }
    for changed in range(3):
        other = {**batch, "dropout": batch["dropout"].clone()}
        other["dropout"][:, changed] += 12345
        for use, result in results.items():
            assert torch.equal(result(other), result(batch)) == (use != changed)


def test_actions_do_not_depend_on_dropout_and_updates_are_repeatable() -> None:
    policies = [make_droq(), make_droq()]
    for policy in policies:
        policy.learn_mode.forward(make_batch(16))
    for one, other in zip(*(policy.state_dict().values() for policy in policies), strict=True):
        assert torch.equal(one, other)
    assert len(policies[0].prepare(make_batch(16))["dropout"].unique()) == 48


@pytest.mark.slow
def test_compiled_updates_leave_out_the_units_of_eager_ones(caplog: pytest.LogCaptureFixture) -> None:
    compiled, eager = make_droq(compile=True), make_droq()
    for _ in range(20):
        for policy in (compiled, eager):
            policy._learn(make_batch(16))
    assert "eagerly" not in caplog.text
    for one, other in zip(compiled.parameters(), eager.parameters(), strict=True):
        assert_close(one, other, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        ({"model": {"ensemble_num": 0}}, "model.ensemble_num must be >= 1, got 0"),
        ({"model": {"critic_dropout": 1.0}}, r"model.critic_dropout must be in \[0, 1\), got 1.0"),
        ({"model": {"critic_layer_norm": True, "layer_norm": True}}, "model.critic_layer_norm must be False with"),
        ({"learn": {"target_critics": 11}}, r"learn.target_critics must be in \[1, 10\]"),
        ({"learn": {"target_critics": 0}}, r"learn.target_critics must be in \[1, 10\]"),
        ({"learn": {"actor_update_freq": 0}}, "learn.actor_update_freq must be >= 1, got 0"),
    ],
)
def test_a_value_that_is_out_of_its_range_is_refused(cfg: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        REDQPolicy(cfg)


@pytest.mark.parametrize(("with_q_entropy", "bonus"), [(True, 0.25 * LOG_PROB), (False, 0.0)])
@pytest.mark.parametrize(("members", "smallest"), [([1, 2], 4.0), ([2, 0], 2.0), ([2], 8.0)])
def test_target_is_the_smallest_value_of_the_chosen_critics(
    members: list[int], smallest: float, with_q_entropy: bool, bonus: float
) -> None:
    model = {"action_low": [-1.0], "action_high": [1.0], "ensemble_num": 3}
    learn = {"alpha": 0.25, "target_critics": len(members), "with_q_entropy": with_q_entropy}
    config = {"discount_factor": 0.5, "model": model, "learn": learn}
    policy = RLPDPolicy(config, model=TinyEnsemble([1.0, 2.0, 6.0]))
    policy.target_model.load_state_dict(TinyEnsemble([2.0, 4.0, 8.0]).state_dict())
    batch = without_noise(policy, target_critics=torch.tensor([members, members]))
    expected = torch.tensor([1 + 0.5 * (smallest * ACTION - bonus), -1.0])
    assert_close(policy.critic_loss(batch)[1]["target_q_value"], expected)


def test_only_the_critics_have_layer_normalisation() -> None:
    policy: Any = RLPDPolicy({"model": {"obs_shape": 3, "action_shape": 1}})
    assert policy.config.model.ensemble_num == 10
    assert (policy.config.learn.target_critics, policy.config.learn.update_per_collect) == (2, 20)
    assert not [one for one in policy.model.actor.modules() if isinstance(one, nn.LayerNorm)]
    plain: Any = RLPDPolicy({"model": {"obs_shape": 3, "action_shape": 1, "critic_layer_norm": False}})
    sizes = [sum(one.numel() for one in made.model.critic.parameters()) for made in (policy, plain)]
    assert sizes[0] - sizes[1] == 10 * 2 * 2 * 256  # a scale and a shift of each unit of two layers of ten critics
    assert float(policy.alpha) == pytest.approx(math.exp(0.0))


def test_half_of_each_minibatch_is_from_the_data(make_trainer: MakeTrainer) -> None:
    shares: list[float] = []

    class Noting(RLPDPolicy):
        def _forward_learn(self, batch: dict[str, Any]) -> dict[str, Any]:
            shares.append(float(batch["is_expert"].float().mean()))
            return super()._forward_learn(batch)

    config = {
        "random_collect_size": 8,
        "model": {"actor_head_hidden_size": 8, "critic_head_hidden_size": 8},
        "learn": {"batch_size": 6, "update_per_collect": 3},
        "collect": {"n_sample": 8},
    }
    data = {"num_envs": 2, "max_env_step": 24, "demonstrations": random_episodes("Pendulum-v1")}
    make_trainer(limit_val_batches=0).fit(Noting(config), ReplayDataModule("Pendulum-v1", **data))
    assert shares == [0.5] * 6


def test_it_needs_data_and_an_env(make_trainer: MakeTrainer) -> None:
    with pytest.raises(ValueError, match="demonstrations must be a data set, because RLPDPolicy learns from"):
        make_trainer().fit(RLPDPolicy(), ReplayDataModule("Pendulum-v1", num_envs=2))
    with pytest.raises(ValueError, match="policy must be one that learns from a data set alone, got 'RLPDPolicy'"):
        make_trainer().fit(RLPDPolicy(), OfflineDataModule(random_episodes("Pendulum-v1")))
