"""D4PG against numbers worked out by hand and against loops, on distributions over the support -1, 0, 1, 2.

The critics' logits are parameters, whatever the observation and the action, and the actor's output is a weight.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lightning_ding.policy import D4PGPolicy
from tests.policy.tables import TinyActor

SUPPORT = torch.tensor([-1.0, 0.0, 1.0, 2.0])
ONLINE = [[0.25, 0.25, 0.25, 0.25]]
TARGET = [[0.0, 0.5, 0.0, 0.5]]


class TinyDistribution(TinyActor):
    """The network of the docstring above; an action shifts the mean, so that the actor has a gradient."""

    def __init__(self, critics: list[list[float]]) -> None:
        super().__init__(critics, [0.5])

    def compute_critic(self, obs: Tensor, action: Tensor, members: int | None = None) -> dict[str, Tensor]:
        probability = self.critic.values[:members, None].expand(-1, len(obs), -1)
        found = {"distribution": probability, "log_distribution": probability.log(), "support": SUPPORT}
        return found | {"q_value": (probability * SUPPORT).sum(2) + action.sum(1)}


def make_policy(online: Any = ONLINE, target: Any = TARGET, **cfg: Any) -> D4PGPolicy:
    model = {"action_low": [-1.0], "action_high": [1.0], "v_min": -1.0, "v_max": 2.0, "n_atom": 4}
    policy = D4PGPolicy({"model": model, "nstep": 1, "discount_factor": 0.5, **cfg}, model=TinyDistribution(online))
    policy.target_model.load_state_dict(TinyDistribution(target).state_dict())
    return policy


def make_batch(**changes: Any) -> dict[str, Any]:
    """Return three transitions: one with a reward of 0.5, one that terminates, and one beyond the support."""
    return {
        "obs": torch.zeros(3, 3),
        "action": torch.zeros(3, 1),
        "reward": torch.tensor([0.5, -0.25, 9.0]),
        "next_obs": torch.ones(3, 3),
        "terminated": torch.tensor([False, True, False]),
        "truncated": torch.tensor([True, False, False]),
        "IS": torch.ones(3),
        **changes,
    }


def slow_projection(reward: float, discount: float, probability: list[float]) -> list[float]:
    """Return the projection of one distribution, atom by atom (Bellemare et al. 2017, algorithm 1)."""
    found = [0.0] * 4
    for atom, mass in zip(SUPPORT.tolist(), probability, strict=True):
        position = min(max(reward + discount * atom, -1.0), 2.0) + 1.0
        low = math.floor(position)
        found[low] += mass * (1 - (position - low))
        if position > low:
            found[low + 1] += mass * (position - low)
    return found


def test_the_target_is_the_projected_distribution_of_the_target_critic() -> None:
    """0.5 + 0.5 * 0 = 0.5 lies between 0 and 1, 0.5 + 0.5 * 2 = 1.5 between 1 and 2; each has half of the mass.

    After termination -0.25 has all of it: 1/4 at -1 and 3/4 at 0. 9 and 10 count as 2.
    """
    policy = make_policy()
    target, clipped = policy._target_distribution(policy.prepare(make_batch()), SUPPORT)
    assert_close(target, torch.tensor([[0.0, 0.25, 0.5, 0.25], [0.25, 0.75, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]]))
    assert clipped.tolist() == [0.0, 0.0, 1.0]


def test_the_target_is_that_of_the_loops() -> None:
    probability = torch.rand(4, generator=torch.Generator().manual_seed(0)).softmax(0)
    policy = make_policy(target=[probability.tolist()])
    batch = policy.prepare(make_batch())
    rows = zip(batch["reward"].tolist(), batch["discount_t"].tolist(), strict=True)
    expected = [slow_projection(reward, discount, probability.tolist()) for reward, discount in rows]
    assert_close(policy._target_distribution(batch, SUPPORT)[0], torch.tensor(expected), rtol=1e-5, atol=1e-6)


def test_the_loss_is_the_weighted_cross_entropy_and_a_priority_is_that_of_the_item() -> None:
    """The target of item 2 is 1/4 at the first atom, predicted as 1/8, and 3/4 at the second; of item 3, all at 3/8."""
    policy = make_policy([[0.125, 0.25, 0.25, 0.375]])
    loss, report = policy.critic_loss(policy.prepare(make_batch(IS=torch.tensor([0.0, 1.0, 0.5]))))
    second, third = 0.25 * math.log(8) + 0.75 * math.log(4), -math.log(0.375)
    assert loss.item() == pytest.approx((second + third / 2) / 3, rel=1e-5)
    assert report["priority"][1:].tolist() == pytest.approx([second, third], rel=1e-5)
    assert_close(report["target_q_value"], torch.tensor([1.0, -0.25, 2.0]))


def test_of_two_critics_the_target_is_the_distribution_with_the_smaller_mean() -> None:
    sure = [[0.0, 0.5, 0.0, 0.5], [0.0, 1.0, 0.0, 0.0]]
    policy = make_policy(ONLINE * 2, sure)
    target, _ = policy._target_distribution(policy.prepare(make_batch()), SUPPORT)
    assert_close(target[0], torch.tensor([0.0, 0.5, 0.5, 0.0]))
    loss, _ = policy.critic_loss(policy.prepare(make_batch()))
    assert loss.item() == pytest.approx(2 * math.log(4), rel=1e-5)


def test_the_actor_climbs_the_mean() -> None:
    policy = make_policy()
    loss, _ = policy.actor_loss(policy.prepare(make_batch()))
    assert loss.item() == pytest.approx(-(0.5 + 0.5))  # the mean of the support is 0.5, the action 0.5


def test_much_mass_outside_of_the_support_is_reported_once() -> None:
    policy = make_policy()
    with pytest.warns(UserWarning, match=r"30% of the targets' mass lies outside .* = \[-1.0, 2.0\]"):
        policy.check_means({"clipped_share": 0.3})
    policy.check_means({"clipped_share": 0.9})


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"v_min": 10.0}, r"model.v_min must be below v_max \(10.0\), got 10.0"),
        ({"n_atom": 1}, "model.n_atom must be >= 2, got 1"),
    ],
)
def test_a_support_without_extent_is_refused(model: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        D4PGPolicy({"model": model})
