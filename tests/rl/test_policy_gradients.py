"""Losses of REINFORCE, A2C and PPO."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lightning_ding.rl import approx_kl, policy_gradient_loss, ppo_policy_loss, ppo_value_loss, standardise

RATIO = torch.tensor([1.5, 0.5, 1.5, 0.5, 1.1])


ADVANTAGE = torch.tensor([1.0, 1.0, -1.0, -1.0, 2.0])


def loss_of(ratio: list[float], advantage: list[float], dual_clip: float | None = None) -> float:
    """Return the loss with a clip ratio of 0.2."""
    log_prob = torch.tensor(ratio).log()
    return ppo_policy_loss(log_prob, torch.zeros(len(ratio)), torch.tensor(advantage), 0.2, dual_clip).loss.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "objective"),
    [
        (1.5, 1.0, 1.2),  # min(1.5, 1.2)
        (0.5, 1.0, 0.5),  # min(0.5, 0.8)
        (1.5, -1.0, -1.5),  # min(-1.5, -1.2)
        (0.5, -1.0, -0.8),  # min(-0.5, -0.8)
        (1.1, 2.0, 2.2),  # not clipped
    ],
)
def test_policy_loss_is_minus_the_clipped_objective(ratio: float, advantage: float, objective: float) -> None:
    assert loss_of([ratio], [advantage]) == pytest.approx(-objective)


def test_policy_loss_reports_the_movement_of_the_policy() -> None:
    # four of five ratios are further than 0.2 from 1; k3 = mean(ratio - 1 - log ratio)
    log_prob = RATIO.log().requires_grad_()
    result = ppo_policy_loss(log_prob, torch.zeros(5), ADVANTAGE, 0.2)
    # objective: (1.2 + 0.5 - 1.5 - 0.8 + 2.2) / 5 = 0.32
    assert_close(result.loss.detach(), torch.tensor(-0.32))
    assert_close(result.clip_fraction, torch.tensor(0.8))
    assert_close(result.approx_kl, (RATIO - 1 - RATIO.log()).mean())
    assert [result.approx_kl.requires_grad, result.clip_fraction.requires_grad] == [False, False]


def test_only_ratios_that_still_pay_have_a_gradient() -> None:
    # d objective / d log ratio = ratio * advantage where the unclipped term is the smaller one, else 0
    log_prob = RATIO.log().requires_grad_()
    ppo_policy_loss(log_prob, torch.zeros(5), ADVANTAGE, 0.2).loss.backward()
    assert log_prob.grad is not None
    assert_close(log_prob.grad, -torch.tensor([0.0, 0.5, -1.5, 0.0, 2.2]) / 5)


@pytest.mark.parametrize(
    ("ratio", "advantage", "objective"),
    [
        (10.0, -1.0, -3.0),  # max(-10, 3 * -1)
        (2.0, -1.0, -2.0),  # max(-2, -3)
        (10.0, 1.0, 1.2),  # positive advantages are as without it
    ],
)
def test_dual_clip_bounds_the_loss_of_a_negative_advantage(ratio: float, advantage: float, objective: float) -> None:
    assert loss_of([ratio], [advantage], dual_clip=3.0) == pytest.approx(-objective)


@pytest.mark.parametrize(("name", "value"), [("clip_ratio", 0.0), ("dual_clip", 1.0)])
def test_policy_loss_refuses_a_clip_out_of_its_range(name: str, value: float) -> None:
    clips = {"clip_ratio": 0.2, name: value}
    with pytest.raises(ValueError, match=f"{name} must be > .*, got {value}"):
        ppo_policy_loss(torch.zeros(1), torch.zeros(1), torch.zeros(1), **clips)


def test_value_loss_is_half_the_squared_error() -> None:
    # errors 2 and -1: (4 + 1) / 2 / 2 = 1.25
    loss = ppo_value_loss(torch.tensor([3.0, 0.0]), torch.zeros(2), torch.tensor([1.0, 1.0]))
    assert loss.item() == 1.25


def test_clipped_value_loss_takes_the_larger_error() -> None:
    # 0 -> 3 is clipped to 0.5, target 1: max(4, 0.25) = 4; 0 -> 1 is clipped to 0.5, target 1: max(0, 0.25) = 0.25
    loss = ppo_value_loss(torch.tensor([3.0, 1.0]), torch.zeros(2), torch.tensor([1.0, 1.0]), clip_ratio=0.5)
    assert loss.item() == pytest.approx(4.25 / 4)


def test_value_clip_changes_nothing_for_values_that_moved_less() -> None:
    value, old, target = torch.tensor([0.3, -0.2]), torch.zeros(2), torch.tensor([1.0, 1.0])
    assert_close(ppo_value_loss(value, old, target, clip_ratio=0.5), ppo_value_loss(value, old, target))


def test_value_loss_refuses_a_clip_out_of_its_range() -> None:
    with pytest.raises(ValueError, match="clip_ratio must be > 0 or None, got -1"):
        ppo_value_loss(torch.zeros(1), torch.zeros(1), torch.zeros(1), clip_ratio=-1.0)


def test_approx_kl_is_zero_for_equal_policies_and_positive_for_others() -> None:
    # ratio e: e - 1 - 1
    values: list[Tensor] = [approx_kl(torch.tensor([x]), torch.tensor([0.0])) for x in (0.0, 1.0)]
    assert_close(torch.stack(values), torch.tensor([0.0, 0.7182818]))


def test_standardise_gives_mean_0_and_standard_deviation_1() -> None:
    # mean 2, unbiased variance (1 + 0 + 1) / 2 = 1
    assert_close(standardise(torch.tensor([[1.0, 2.0, 3.0]])), torch.tensor([[-1.0, 0.0, 1.0]]))


def test_standardise_of_equal_numbers_is_zero_and_a_single_one_stays() -> None:
    assert standardise(torch.tensor([5.0, 5.0])).tolist() == [0.0, 0.0]
    assert standardise(torch.tensor([5.0])).tolist() == [5.0]
    assert standardise(torch.tensor([])).tolist() == []


def test_standardise_keeps_eps_in_the_denominator() -> None:
    assert_close(standardise(torch.tensor([1.0, 2.0, 3.0]), eps=1.0), torch.tensor([-0.5, 0.0, 0.5]))


def test_policy_gradient_loss_is_minus_the_mean_of_the_weighed_log_probabilities() -> None:
    log_prob = torch.tensor([-1.0, -2.0], requires_grad=True)
    weight = torch.tensor([3.0, -0.5], requires_grad=True)
    loss = policy_gradient_loss(log_prob, weight)
    loss.backward()
    assert loss.item() == pytest.approx(1.0, rel=1e-6)  # -(-3 + 1) / 2
    assert log_prob.grad is not None
    assert log_prob.grad.tolist() == [-1.5, 0.25]
    assert weight.grad is None
