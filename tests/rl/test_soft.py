"""Soft values, against numbers worked out by hand and against loops over actions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lightning_ding.rl import (
    Categorical,
    expected_soft_value,
    gumbel_perturbed,
    masked,
    munchausen_bonus,
    soft_q_target,
    soft_value,
)

LOG_2, LOG_3 = math.log(2), math.log(3)


def policy_of(q: list[float], temperature: float) -> list[float]:
    """Return softmax(q / temperature), action by action; the probability of minus infinity is 0."""
    largest = max(q)
    weights = [math.exp((value - largest) / temperature) for value in q]
    return [weight / sum(weights) for weight in weights]


def slow_soft_value(q: list[float], temperature: float) -> float:
    """Return the expectation of Q - temperature * log pi over the actions that have a probability."""
    pairs = zip(q, policy_of(q, temperature), strict=True)
    return sum(p * (value - temperature * math.log(p)) for value, p in pairs if p > 0)


def random_values(size: int = 32, actions: int = 4) -> tuple[Tensor, Tensor]:
    """Return action values, some illegal, and legal actions."""
    generator = torch.Generator().manual_seed(0)
    q = 2 * torch.randn(size, actions, generator=generator, dtype=torch.float64)
    legal = torch.rand(size, actions, generator=generator) < 0.7
    legal[:, 1] = True
    return masked(q, legal), legal.float().argmax(1)


def test_soft_value_of_equal_values_adds_the_entropy() -> None:
    # 0.5 * log(e^(1 / 0.5) + e^(1 / 0.5)) = 1 + 0.5 log 2
    assert_close(soft_value(torch.tensor([[1.0, 1.0]]), 0.5), torch.tensor([1 + 0.5 * LOG_2]))


def test_soft_value_leaves_out_illegal_actions() -> None:
    assert_close(soft_value(torch.tensor([[1.0, -torch.inf, 1.0]]), 0.5), torch.tensor([1 + 0.5 * LOG_2]))


def test_soft_value_of_a_low_temperature_is_the_maximum() -> None:
    assert_close(soft_value(torch.tensor([[100.0, 3.0, -200.0]]), 1e-3), torch.tensor([100.0]))


@pytest.mark.parametrize("temperature", [0.03, 0.5, 4.0])
def test_soft_value_is_the_expectation_of_the_loops(temperature: float) -> None:
    q, _ = random_values()
    slow = [slow_soft_value(row, temperature) for row in q.tolist()]
    assert_close(soft_value(q, temperature), torch.tensor(slow, dtype=torch.float64), rtol=1e-9, atol=1e-12)


def test_soft_q_target_ends_at_a_terminal_state() -> None:
    # 1 + 0.5 * log(1 + 3) = 1 + log 2; 1 after termination
    target = soft_q_target(torch.ones(2), torch.tensor([0.5, 0.0]), torch.tensor([[0.0, LOG_3]] * 2), 1.0)
    assert_close(target, torch.tensor([1 + LOG_2, 1.0]))


def test_munchausen_bonus_is_the_log_probability_within_its_bounds() -> None:
    # softmax of (0, log 3) is (1/4, 3/4): log 3/4, and log 1/4 = -1.39 is clipped to -1
    bonus = munchausen_bonus(torch.tensor([[0.0, LOG_3]] * 2), torch.tensor([1, 0]), 1.0, -1.0)
    assert_close(bonus, torch.tensor([math.log(0.75), -1.0]))


def test_munchausen_bonus_is_that_of_the_loops() -> None:
    q, action = random_values()
    slow = []
    for row, chosen in zip(q.tolist(), action.tolist(), strict=True):
        probability = policy_of(row, 0.3)[chosen]
        slow.append(max(0.3 * math.log(probability), -0.5))
    found = munchausen_bonus(q, action, 0.3, -0.5)
    assert_close(found, torch.tensor(slow, dtype=torch.float64), rtol=1e-9, atol=1e-12)
    assert (found == -0.5).any()
    assert (found > -0.5).any()


def test_targets_and_bonuses_pass_no_gradient() -> None:
    q = torch.zeros(1, 2, requires_grad=True)
    assert not soft_q_target(torch.zeros(1), torch.ones(1), q, 1.0).requires_grad
    assert not munchausen_bonus(q, torch.zeros(1, dtype=torch.long), 1.0, -1.0).requires_grad


def test_expected_soft_value_takes_the_smaller_critic_and_adds_the_entropy() -> None:
    # p = (1/4, 3/4), smaller values 1 and 2, alpha = 0.5: 1/4 (1 + 0.5 log 4) + 3/4 (2 - 0.5 log 3/4)
    q = torch.tensor([[[1.0, 5.0]], [[3.0, 2.0]]])
    value = expected_soft_value(torch.tensor([[0.25, 0.75]]).log(), q, torch.tensor(0.5))
    assert_close(value, torch.tensor([0.25 * (1 + LOG_2) + 0.75 * (2 - 0.5 * math.log(0.75))]))


def test_expected_soft_value_is_that_of_the_loops_over_legal_actions() -> None:
    generator = torch.Generator().manual_seed(0)
    logit, q = torch.randn(16, 4, generator=generator), torch.randn(2, 16, 4, generator=generator)
    legal = torch.rand(16, 4, generator=generator) < 0.6
    legal[:, 0] = True
    slow = []
    for row in range(16):
        actions = [action for action in range(4) if legal[row, action]]
        probability = policy_of([logit[row, action].item() for action in actions], 1.0)
        values = [min(q[0, row, action].item(), q[1, row, action].item()) for action in actions]
        slow.append(sum(p * (v - 0.2 * math.log(p)) for p, v in zip(probability, values, strict=True)))
    found = expected_soft_value(Categorical(logit, legal).log_p, q, torch.tensor(0.2))
    assert_close(found, torch.tensor(slow), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("alpha", [0.2, 3.0, 1e4])
def test_expected_soft_value_is_finite_at_any_temperature(alpha: float) -> None:
    # p = (1/2, 1/2, 0): 1/2 (1 + alpha log 2) + 1/2 (2 + alpha log 2); the gradient is p (f - mean of f)
    logit = torch.zeros(1, 3, requires_grad=True)
    log_p = Categorical(logit, torch.tensor([[1, 1, 0]])).log_p
    value = expected_soft_value(log_p, torch.tensor([[[1.0, 2.0, 9.0]]]), torch.tensor(alpha))
    assert_close(value, torch.tensor([1.5 + alpha * LOG_2]))
    value.sum().backward()
    assert_close(logit.grad, torch.tensor([[-0.25, 0.25, 0.0]]), rtol=0, atol=1e-3)


def test_expected_soft_value_passes_no_gradient_to_illegal_actions() -> None:
    logit = torch.zeros(2, 3, requires_grad=True)
    log_p = Categorical(logit, torch.tensor([[1, 1, 0], [0, 0, 0]])).log_p
    expected_soft_value(log_p, torch.tensor([[[1.0, 2.0, 9.0]] * 2]), torch.tensor(0.1)).sum().backward()
    # of row 0: p (f - mean of f) with f = q - alpha log p: (1/2)(1 - 3/2) = -1/4
    assert logit.grad is not None
    assert_close(logit.grad[0], torch.tensor([-0.25, 0.25, 0.0]))
    assert logit.grad.isfinite().all()


def test_largest_perturbed_value_is_a_sample_of_the_softmax() -> None:
    rng = np.random.default_rng(0)
    q = np.tile(np.array([0.0, 0.5 * LOG_3, -np.inf], dtype=np.float32), (20_000, 1))
    share = np.bincount(gumbel_perturbed(q, 0.5, rng).argmax(1), minlength=3) / 20_000
    assert_close(share, np.array([0.25, 0.75, 0.0]), rtol=0, atol=0.01)  # three standard deviations
