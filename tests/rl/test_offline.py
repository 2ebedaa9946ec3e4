"""Losses of offline reinforcement learning against numbers worked out by hand and slow loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from lightning_ding import rl


def test_expectile_loss_of_numbers_worked_out_by_hand() -> None:
    prediction, target = torch.tensor([1.0, 1.0, 0.0]), torch.tensor([3.0, 0.0, 0.0])
    # errors 2, -1, 0: 0.7 * 4 = 2.8, 0.3 * 1 = 0.3, 0; mean 3.1 / 3
    assert_close(rl.expectile_loss(prediction, target, 0.7), torch.tensor(3.1 / 3))


@pytest.mark.parametrize("tau", [0.1, 0.5, 0.9])
def test_expectile_loss_is_smallest_at_the_expectile(tau: float) -> None:
    values = torch.tensor([0.0, 1.0], dtype=torch.float64)
    # of 0 and 1: tau (1 - m) = (1 - tau) m, so m = tau
    guess = torch.full((1,), 0.3, dtype=torch.float64, requires_grad=True)
    for _ in range(200):
        (gradient,) = torch.autograd.grad(rl.expectile_loss(guess.expand(2), values, tau), guess)
        guess = (guess - gradient).detach().requires_grad_()
    assert_close(guess.detach(), torch.tensor([tau], dtype=torch.float64))


def test_expectile_loss_equals_a_loop() -> None:
    rng = np.random.default_rng(0)
    prediction, target = rng.normal(size=(2, 20))
    total = 0.0
    for p, t in zip(prediction, target, strict=True):
        u = t - p
        total += abs(0.8 - (1 if u < 0 else 0)) * u * u
    found = rl.expectile_loss(torch.from_numpy(prediction), torch.from_numpy(target), 0.8)
    assert float(found) == pytest.approx(total / 20, rel=1e-12)


def test_advantage_weight_grows_with_the_advantage_up_to_a_bound() -> None:
    advantage = torch.tensor([0.0, math.log(2.0), -math.log(2.0), 50.0], requires_grad=True)
    weight = rl.advantage_weight(advantage, 2.0)
    assert_close(weight, torch.tensor([1.0, 4.0, 0.25, 100.0]))
    assert not weight.requires_grad


def test_gaussian_log_prob_equals_that_of_torch() -> None:
    rng = np.random.default_rng(0)
    mean, log_sigma, action = (torch.from_numpy(x) for x in rng.normal(size=(3, 5, 2)))
    expected = torch.distributions.Normal(mean, log_sigma.exp()).log_prob(action).sum(1)
    assert_close(rl.gaussian_log_prob(mean, log_sigma, action), expected)


def test_conservative_gap_of_numbers_worked_out_by_hand() -> None:
    q_sampled = torch.tensor([[[math.log(1.0), math.log(3.0)]]])
    density = torch.tensor([[math.log(1.0), math.log(0.5)]])
    # log(1 / 1 + 3 / 0.5) = log 7, minus Q of the data
    assert_close(rl.conservative_gap(q_sampled, density, torch.tensor([[0.5]])), torch.tensor([math.log(7.0) - 0.5]))


def test_conservative_gap_equals_a_loop() -> None:
    rng = np.random.default_rng(0)
    q, density, q_data = rng.normal(size=(2, 4, 3)), rng.normal(size=(4, 3)), rng.normal(size=(2, 4))
    expected = []
    for critic in range(2):
        gaps = []
        for row in range(4):
            total = sum(math.exp(q[critic, row, n]) / math.exp(density[row, n]) for n in range(3))
            gaps.append(math.log(total) - q_data[critic, row])
        expected.append(sum(gaps) / 4)
    found = rl.conservative_gap(torch.from_numpy(q), torch.from_numpy(density), torch.from_numpy(q_data))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


def test_discrete_conservative_gap_leaves_out_illegal_actions() -> None:
    q = torch.tensor([[math.log(2.0), math.log(6.0), -math.inf], [0.0, 0.0, 0.0]])
    # log(2 + 6) - log 2 = log 4; log 3 - 0
    assert_close(rl.discrete_conservative_gap(q, torch.tensor([0, 2])), torch.tensor([math.log(4.0), math.log(3.0)]))


def test_smoothed_cross_entropy_of_numbers_worked_out_by_hand() -> None:
    log_p = torch.log(torch.tensor([[0.5, 0.25, 0.25]]))
    # labels 0.7 + 0.1, 0.1, 0.1: 0.8 log 2 + 0.2 log 4 = 1.2 log 2
    assert_close(rl.smoothed_cross_entropy(log_p, torch.tensor([0]), 0.3), torch.tensor([1.2 * math.log(2)]))
    assert_close(rl.smoothed_cross_entropy(log_p, torch.tensor([1]), 0.0), torch.tensor([2 * math.log(2)]))


def test_smoothed_cross_entropy_leaves_out_illegal_actions() -> None:
    log_p = rl.Categorical(torch.zeros(1, 3), torch.tensor([[1, 1, 0]])).log_p
    # labels 0.7 + 0.15 and 0.15, both of probability 0.5
    assert_close(rl.smoothed_cross_entropy(log_p, torch.tensor([0]), 0.3), torch.tensor([math.log(2)]))
