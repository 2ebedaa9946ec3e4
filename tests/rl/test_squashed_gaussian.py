"""The squashed normal distribution against the naive formula, and where that fails."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Normal
from torch.testing import assert_close

from lightning_ding.rl import squashed_gaussian_log_prob, squashed_gaussian_sample

MU = torch.tensor([[0.3, -0.5], [0.0, 1.0]], dtype=torch.float64)
LOG_SIGMA = torch.tensor([[-0.7, 0.2], [0.0, -1.0]], dtype=torch.float64)
NOISE = torch.tensor([[0.5, -1.0], [2.0, 0.1]], dtype=torch.float64)


def test_a_sample_is_squashed_by_tanh() -> None:
    action, _ = squashed_gaussian_sample(MU, LOG_SIGMA, NOISE)
    assert_close(action, torch.tanh(MU + LOG_SIGMA.exp() * NOISE))


def test_log_density_is_that_of_the_normal_minus_the_logarithm_of_the_slope() -> None:
    action, log_prob = squashed_gaussian_sample(MU, LOG_SIGMA, NOISE)
    u = MU + LOG_SIGMA.exp() * NOISE
    naive = Normal(MU, LOG_SIGMA.exp()).log_prob(u) - torch.log(1 - action**2)
    assert_close(log_prob, naive.sum(1))


def test_log_density_of_a_given_action_is_that_of_its_sample() -> None:
    action, log_prob = squashed_gaussian_sample(MU, LOG_SIGMA, NOISE)
    assert_close(squashed_gaussian_log_prob(MU, LOG_SIGMA, action), log_prob)


def test_log_density_is_exact_where_tanh_rounds_to_one() -> None:
    """At u = 20 the logarithm of the slope is 2 log 2 - 40 to the last bit; the naive formula gives infinity."""
    mu = torch.tensor([[20.0]])
    action, log_prob = squashed_gaussian_sample(mu, torch.zeros(1, 1), torch.zeros(1, 1))
    assert action.item() == 1.0
    assert log_prob.item() == pytest.approx(-0.5 * math.log(2 * math.pi) - (2 * math.log(2) - 40), rel=1e-6)


def test_the_density_adds_up_to_one() -> None:
    action = torch.linspace(-0.99999, 0.99999, 200_001, dtype=torch.float64).unsqueeze(1)
    mu, log_sigma = torch.full_like(action, 0.3), torch.full_like(action, -0.7)
    density = squashed_gaussian_log_prob(mu, log_sigma, action).exp()
    assert torch.trapezoid(density, action.squeeze(1)).item() == pytest.approx(1.0, abs=1e-4)


def test_the_gradient_passes_through_the_sample() -> None:
    """d tanh(mu) / d mu = 1 at mu = 0 and zero noise; d log pi / d log_sigma = -1 there."""
    mu, log_sigma = torch.zeros(1, 1, requires_grad=True), torch.zeros(1, 1, requires_grad=True)
    action, log_prob = squashed_gaussian_sample(mu, log_sigma, torch.zeros(1, 1))
    assert torch.autograd.grad(action.sum(), mu, retain_graph=True)[0].item() == 1.0
    assert torch.autograd.grad(log_prob.sum(), log_sigma)[0].item() == -1.0
