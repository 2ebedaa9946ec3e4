"""Targets and losses of continuous critics: two critics say (1, 5) and (3, 4) of two items, rewards are 1 and -1."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lightning_ding import rl

Q = torch.tensor([[1.0, 5.0], [3.0, 4.0]])
REWARD = torch.tensor([1.0, -1.0])
DISCOUNT = torch.tensor([0.5, 0.0])  # the second item terminated
LOG_PROB = torch.tensor([2.0, -3.0])
ALPHA = torch.tensor(0.25)


def test_noise_keeps_an_action_in_its_range() -> None:
    assert_close(
        rl.smoothed_action(torch.tensor([[0.9, -0.9, 0.0]]), torch.tensor([[0.25, -0.25, 0.25]])),
        torch.tensor([[1.0, -1.0, 0.25]]),
    )


@pytest.mark.parametrize(("q", "expected"), [(Q, [1.5, -1.0]), (Q[1:], [2.5, -1.0])])
def test_the_target_takes_the_smaller_value_and_stops_at_terminal_states(q: Tensor, expected: list[float]) -> None:
    """1 + 0.5 * min(1, 3) = 1.5; of the second critic alone 1 + 0.5 * 3 = 2.5; -1 + 0 = -1."""
    assert rl.pessimistic_target(REWARD, DISCOUNT, q).tolist() == expected


def test_the_soft_target_adds_the_entropy_and_stops_at_terminal_states() -> None:
    """1 + 0.5 * (1 - 0.25 * 2) = 1.25; after a terminal state there is no entropy either."""
    assert rl.soft_target(REWARD, DISCOUNT, Q, LOG_PROB, ALPHA).tolist() == [1.25, -1.0]


@pytest.mark.parametrize(("weight", "expected"), [(None, 14.5), (torch.tensor([0.5, 1.0]), 13.5)])
def test_the_loss_is_the_sum_over_critics_of_the_mean_squared_error(weight: Tensor | None, expected: float) -> None:
    """To 1: (0 + 16) / 2 = 8 and (4 + 9) / 2 = 6.5; with half the first item (0 + 16) / 2 + (2 + 9) / 2 = 13.5."""
    assert rl.critic_loss(Q, torch.ones(2), weight).item() == expected


def test_the_error_is_the_mean_over_critics() -> None:
    """abs(1 - 1) and abs(1 - 3) make 1; 4 and 3 make 3.5."""
    assert rl.critic_error(Q, torch.ones(2)).tolist() == [1.0, 3.5]


@pytest.mark.parametrize(("weight", "expected"), [(None, -2.625), (torch.tensor([0.0, 1.0]), -2.375)])
def test_the_actor_weighs_entropy_against_the_smaller_value(weight: Tensor | None, expected: float) -> None:
    """0.25 * 2 - 1 = -0.5 and 0.25 * -3 - 4 = -4.75."""
    assert rl.soft_actor_loss(Q, LOG_PROB, ALPHA, weight).item() == expected


@pytest.mark.parametrize(("target_entropy", "gradient"), [(1.0, -0.5), (0.0, 0.5)])
def test_the_temperature_rises_when_the_entropy_is_too_low(target_entropy: float, gradient: float) -> None:
    """The entropy is -mean(2, -3) = 0.5: less than 1, so descent raises the temperature; more than 0, so it falls."""
    temperature = torch.tensor(0.0, requires_grad=True)
    rl.temperature_loss(temperature, LOG_PROB, target_entropy).backward()
    assert temperature.grad is not None
    assert temperature.grad.item() == gradient


def test_targets_carry_no_gradient() -> None:
    q = Q.clone().requires_grad_()
    assert not rl.pessimistic_target(REWARD, DISCOUNT, q).requires_grad
    assert not rl.soft_target(REWARD, DISCOUNT, q, LOG_PROB, ALPHA).requires_grad
    assert not rl.critic_error(q, REWARD).requires_grad


@pytest.mark.parametrize("weight", [-1.0, 0.0, 2.0])
def test_the_bound_of_two_critics_is_their_mean_and_half_their_difference(weight: float) -> None:
    """The means are 2 and 4.5, half of the differences 1 and 0.5."""
    assert_close(rl.spread_bound(Q, weight), torch.tensor([2.0 + weight, 4.5 + weight / 2]))


def test_the_spread_of_more_critics_is_the_mean_distance_to_their_mean() -> None:
    """Of 1, 2 and 6: 2, 1 and 3 away from 3."""
    assert rl.spread_bound(torch.tensor([[[1.0]], [[2.0]], [[6.0]]]), 0.5).tolist() == [[3.0 + 0.5 * 2.0]]


def test_the_bound_has_a_gradient_where_all_critics_agree() -> None:
    q = torch.ones(2, 3, requires_grad=True)
    rl.spread_bound(q, 1.0).sum().backward()
    assert q.grad is not None
    assert torch.equal(q.grad, torch.full((2, 3), 0.5))


def test_the_divergence_of_shifted_distributions_is_that_of_torch() -> None:
    shift, sigma = torch.randn(5, 2), torch.rand(5, 2) + 0.1
    here = torch.distributions.Normal(torch.zeros(5, 2), sigma)
    there = torch.distributions.Normal(shift, sigma)
    assert_close(rl.shifted_gaussian_kl(shift, sigma), torch.distributions.kl_divergence(there, here).sum(1))


@pytest.mark.parametrize(("weight", "expected"), [(None, (0.5 + 0.125) * 2 / 2), ([2.0, 0.0], 2 * 0.5 * 2 / 2)])
def test_the_huber_loss_is_quadratic_up_to_1(weight: list[float] | None, expected: float) -> None:
    """Errors -1 and 0.5 of critic 1, and 1 and -0.5 of critic 2, with 2 for 1: 0.5, 0.125, 0.5 and 0.125.

    With the target 4.5 of item 1 in place of 2, the errors -3.5 and -1.5 are linear: 3 and 1.
    """
    weights = None if weight is None else torch.tensor(weight)
    assert rl.huber_critic_loss(Q, torch.tensor([2.0, 4.5]), weights).item() == pytest.approx(expected)
    assert rl.huber_critic_loss(Q, torch.tensor([4.5, 4.5])).item() == pytest.approx((3 + 0.125 + 1 + 0.125) / 2)
