"""Targets and losses of distributional Q-learning."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lightning_ding.rl import (
    categorical_projection,
    cross_entropy,
    ensemble_quantile_huber,
    fraction_loss,
    moved_support,
    quantile_huber,
    quantile_target,
    take_action_distribution,
    truncated_quantiles,
    weighted_mean,
)
from lightning_ding.rl.distributional import _projected_densely

SUPPORT = torch.tensor([-1.0, 0.0, 1.0, 2.0])


def project(reward: float, discount: float, probability: list[float]) -> list[float]:
    """Return the projection of one row onto the support above."""
    row = projection(torch.tensor([reward]), torch.tensor([discount]), torch.tensor([probability]), SUPPORT)
    return [round(value, 6) for value in row[0].tolist()]


def projection(reward: Tensor, discount: Tensor, probability: Tensor, support: Tensor) -> Tensor:
    """Return the projection of rows onto a support."""
    return categorical_projection(moved_support(reward, discount, support), probability, support)


def slow_projection(reward: Tensor, discount: Tensor, probability: Tensor, support: Tensor) -> Tensor:
    """Return the projection as in eq. 7 of the paper: a tent around each atom, one pair of atoms after the other."""
    z = support.tolist()
    spacing = (z[-1] - z[0]) / (len(z) - 1)
    rows = []
    for r, g, row in zip(reward.tolist(), discount.tolist(), probability.tolist(), strict=True):
        moved = [min(max(r + g * atom, z[0]), z[-1]) for atom in z]
        tents = [[max(0.0, 1 - abs(m - atom) / spacing) for m in moved] for atom in z]
        rows.append([sum(t * p for t, p in zip(tent, row, strict=True)) for tent in tents])
    return torch.tensor(rows)


def slow_quantile_huber(prediction: list[float], target: list[float], tau: list[float], kappa: float) -> float:
    """Return eq. 10 of one item, pair by pair."""
    total = 0.0
    for theta, level in zip(prediction, tau, strict=True):
        for sample in target:
            u = sample - theta
            huber = u * u / 2 if abs(u) <= kappa else kappa * (abs(u) - kappa / 2)
            total += abs(level - (u < 0)) * huber / len(target)
    return total


def random_rows(n_atom: int = 11) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    reward = 4 * torch.randn(64, generator=generator)
    discount = torch.rand(64, generator=generator) * (torch.rand(64, generator=generator) < 0.7)
    return {
        "reward": reward,
        "discount_t": discount,
        "probability_t": torch.randn(64, n_atom, generator=generator).softmax(1),
        "support": torch.linspace(-3, 5, n_atom),
    }


def test_take_action_distribution_picks_one_row_of_each_item() -> None:
    distribution = torch.arange(12.0).reshape(2, 2, 3)
    assert take_action_distribution(distribution, torch.tensor([1, 0])).tolist() == [[3.0, 4.0, 5.0], [6.0, 7.0, 8.0]]


# Categorical projection


@pytest.mark.parametrize(
    ("reward", "discount", "probability", "expected"),
    [
        # -0.25, 0.25, 0.75, 1.25 with 0.1, 0.2, 0.3, 0.4: a quarter of 0.1 goes to -1; 0: 0.075 + 0.15 + 0.075;
        # 1: 0.05 + 0.225 + 0.3; 2: 0.1
        (0.25, 0.5, [0.1, 0.2, 0.3, 0.4], [0.025, 0.3, 0.575, 0.1]),
        # exact hits, all of them: every atom keeps its own
        (0.0, 1.0, [0.1, 0.2, 0.3, 0.4], [0.1, 0.2, 0.3, 0.4]),
        # exact hits one atom up: what leaves the support is kept at its end
        (1.0, 1.0, [0.1, 0.2, 0.3, 0.4], [0.0, 0.1, 0.2, 0.7]),
        (-1.0, 1.0, [0.1, 0.2, 0.3, 0.4], [0.3, 0.3, 0.4, 0.0]),
        # termination: everything at the reward, between two atoms or on one
        (0.25, 0.0, [0.1, 0.2, 0.3, 0.4], [0.0, 0.75, 0.25, 0.0]),
        (1.0, 0.0, [0.1, 0.2, 0.3, 0.4], [0.0, 0.0, 1.0, 0.0]),
        # far outside
        (9.0, 0.5, [0.1, 0.2, 0.3, 0.4], [0.0, 0.0, 0.0, 1.0]),
        (-9.0, 0.5, [0.1, 0.2, 0.3, 0.4], [1.0, 0.0, 0.0, 0.0]),
    ],
)
def test_projection_shares_each_atom_between_its_neighbours(
    reward: float, discount: float, probability: list[float], expected: list[float]
) -> None:
    assert project(reward, discount, probability) == expected


def test_projection_is_that_of_the_loops() -> None:
    rows = random_rows()
    assert_close(projection(*rows.values()), slow_projection(*rows.values()), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n_atom", [2, 11, 51, 101])
def test_projection_of_a_gpu_is_that_of_the_cpu(n_atom: int) -> None:
    generator = torch.Generator().manual_seed(0)
    support = torch.linspace(-10, 10, n_atom)
    moved = 30 * torch.rand(25, n_atom, generator=generator) - 15
    moved[:5] = support  # exact hits
    probability = torch.rand(25, n_atom, generator=generator).softmax(1)
    position = ((moved - support[0]) / (support[1] - support[0])).clamp(0, n_atom - 1)
    dense = _projected_densely(position, probability)
    assert_close(dense, categorical_projection(moved, probability, support), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n_atom", [2, 11, 51, 101])
def test_projection_loses_no_mass(n_atom: int) -> None:
    # whole rewards on a support whose spacing is no binary number: many hits that rounding moves a little
    support, reward = torch.linspace(-10, 10, n_atom), torch.arange(-12.0, 13.0)
    probability = torch.rand(25, n_atom, generator=torch.Generator().manual_seed(0)).softmax(1)
    projected = projection(reward, torch.ones(25), probability, support)
    assert_close(projected.sum(1), torch.ones(25), rtol=1e-5, atol=0)
    assert projected.min() >= 0


def test_projection_keeps_the_mean_when_nothing_is_clipped() -> None:
    rows = random_rows()
    reward, discount = rows["reward"].clamp(-0.5, 0.5), rows["discount_t"] / 2
    projected = projection(reward, discount, rows["probability_t"], rows["support"])
    mean = reward + discount * (rows["probability_t"] @ rows["support"])
    assert_close(projected @ rows["support"], mean, rtol=1e-5, atol=1e-5)


def test_projection_carries_no_gradient() -> None:
    rows = random_rows()
    rows["probability_t"].requires_grad_()
    assert not projection(*rows.values()).requires_grad


# Cross entropy


def test_cross_entropy_is_that_of_each_item() -> None:
    # -(0.25 ln 0.5 + 0.75 ln 0.5) = ln 2; -(1 ln 0.25) = 2 ln 2
    target = torch.tensor([[0.25, 0.75], [1.0, 0.0]])
    prediction = torch.tensor([[0.5, 0.5], [0.25, 0.75]])
    assert_close(cross_entropy(prediction.log(), target), torch.tensor([math.log(2), 2 * math.log(2)]))


def test_cross_entropy_leads_the_prediction_to_the_target() -> None:
    # d/dx of the cross entropy of softmax(x): softmax(x) - target
    scores = torch.tensor([[0.0, 0.0]], requires_grad=True)
    cross_entropy(scores.log_softmax(1), torch.tensor([[0.25, 0.75]])).sum().backward()
    assert scores.grad is not None
    assert_close(scores.grad, torch.tensor([[0.25, -0.25]]))


# Quantiles


def test_quantile_target_moves_every_quantile() -> None:
    # 1 + 0.5 * (2, 4); -1 + 0 * anything
    quantile_t = torch.tensor([[2.0, 4.0], [3.0, 5.0]], requires_grad=True)
    target = quantile_target(torch.tensor([1.0, -1.0]), torch.tensor([0.5, 0.0]), quantile_t)
    assert (target.tolist(), target.requires_grad) == ([[2.0, 3.0], [-1.0, -1.0]], False)


@pytest.mark.parametrize(
    ("kappa", "expected"),
    [
        # errors 0.5, 3 of the first (tau 0.25) and -1, 1.5 of the second (tau 0.75)
        # kappa 1: Huber 0.125, 2.5; 0.5, 1: 0.25 (0.125 + 2.5) / 2 + (0.25 * 0.5 + 0.75 * 1) / 2
        (1.0, 0.328125 + 0.4375),
        # kappa 2: Huber 0.125, 4; 0.5, 1.125: 0.25 * 4.125 / 2 + (0.125 + 0.84375) / 2
        (2.0, 0.515625 + 0.484375),
        # kappa 0.5: Huber 0.125, 1.375; 0.375, 0.625: 0.25 * 1.5 / 2 + (0.09375 + 0.46875) / 2
        (0.5, 0.1875 + 0.28125),
    ],
)
def test_quantile_huber_is_the_sum_over_predictions_of_the_mean_over_targets(kappa: float, expected: float) -> None:
    prediction, target = torch.tensor([[0.0, 1.5]]), torch.tensor([[0.5, 3.0]])
    loss = quantile_huber(prediction, target, torch.tensor([0.25, 0.75]), kappa)
    assert_close(loss, torch.tensor([expected]))


@pytest.mark.parametrize("kappa", [0.3, 1.0, 2.5])
def test_quantile_huber_is_that_of_the_loops(kappa: float) -> None:
    generator = torch.Generator().manual_seed(0)
    prediction, target = torch.randn(8, 5, generator=generator), 2 * torch.randn(8, 7, generator=generator)
    tau = torch.rand(8, 5, generator=generator)
    slow = [slow_quantile_huber(*row, kappa) for row in zip(prediction.tolist(), target.tolist(), tau.tolist())]  # noqa: B905
    assert_close(quantile_huber(prediction, target, tau, kappa), torch.tensor(slow), rtol=1e-5, atol=1e-6)


def test_quantile_huber_takes_the_same_levels_for_all_items_or_each_its_own() -> None:
    prediction, target, tau = torch.randn(4, 3), torch.randn(4, 3), torch.tensor([0.2, 0.5, 0.8])
    assert_close(quantile_huber(prediction, target, tau), quantile_huber(prediction, target, tau.expand(4, 3)))


def test_quantile_huber_is_smallest_at_the_quantile() -> None:
    # a small kappa is close to quantile regression: the 0.75 quantile of 0..99 lies between 74 and 75
    prediction, target = torch.arange(100.0)[:, None], torch.arange(100.0).expand(100, 100)
    best = quantile_huber(prediction, target, torch.tensor([0.75]), 0.01).argmin().item()
    assert best in (74, 75)


def test_quantile_huber_pulls_the_prediction_by_its_level() -> None:
    # beyond kappa the slope is -kappa * tau above, kappa * (1 - tau) below
    prediction = torch.zeros(2, 1, requires_grad=True)
    quantile_huber(prediction, torch.tensor([[9.0], [-9.0]]), torch.tensor([0.75])).sum().backward()
    assert prediction.grad is not None
    assert_close(prediction.grad, torch.tensor([[-0.75], [0.25]]))


# Ensembles of critics


@pytest.mark.parametrize(
    ("dropped", "expected"), [(0, [-1.0, 0.0, 2.0, 3.0, 5.0, 9.0]), (1, [-1.0, 0.0, 2.0, 3.0]), (2, [-1.0, 0.0])]
)
def test_the_largest_quantiles_of_all_critics_together_are_left_out(dropped: int, expected: list[float]) -> None:
    """Two critics with three quantiles; each dropped one of a critic costs the pool two."""
    quantiles = torch.tensor([[[3.0, 9.0, 5.0], [1.0, 1.0, 1.0]], [[2.0, 0.0, -1.0], [2.0, 0.0, 1.0]]])
    kept = truncated_quantiles(quantiles, dropped)
    assert kept[0].tolist() == expected
    assert kept[1].tolist() == sorted([1.0, 1.0, 1.0, 2.0, 0.0, 1.0])[: 6 - 2 * dropped]


def test_the_loss_of_an_ensemble_is_the_mean_over_predictions_and_targets() -> None:
    """One critic, quantiles 0 and 1 at levels 1/4 and 3/4, targets 1 and 3.

    Errors of the first 1 and 3, Huber 0.5 and 2.5: 0.25 * 3 / 2 = 0.375; of the second 0 and 2: 0.75 * 1.5 / 2 =
    0.5625. Another critic with both at 4: errors -3 and -1, Huber 2.5 and 0.5: 0.75 * 3 / 2 and 0.25 * 3 / 2.
    """
    prediction = torch.tensor([[[0.0, 1.0]], [[4.0, 4.0]]])
    loss = ensemble_quantile_huber(prediction, torch.tensor([[1.0, 3.0]]), torch.tensor([0.25, 0.75]))
    assert loss.tolist() == [[(0.375 + 0.5625) / 2], [(1.125 + 0.375) / 2]]


@pytest.mark.parametrize("kappa", [0.5, 1.0, 3.0])
def test_the_loss_of_an_ensemble_and_its_gradient_are_those_of_the_loops(kappa: float) -> None:
    torch.manual_seed(0)
    tau = [0.1, 0.5, 0.7]
    prediction = torch.randn(2, 4, 3) * 3 - 500  # large values would lose the digits of the squares in 32 bits
    target = (torch.randn(4, 5) * 3 - 500).sort(1).values
    prediction[0, 0, 0] = target[0, 2]  # an error of 0
    prediction.requires_grad_()
    found = ensemble_quantile_huber(prediction, target, torch.tensor(tau), kappa)
    slow = [
        [slow_quantile_huber(row, samples, tau, kappa) / 3 for row, samples in zip(rows, target.tolist(), strict=True)]
        for rows in prediction.tolist()
    ]
    assert_close(found, torch.tensor(slow), rtol=1e-5, atol=1e-6)
    (gradient,) = torch.autograd.grad(found.sum(), prediction)
    pairs = quantile_huber(prediction.flatten(0, 1), target.repeat(2, 1), torch.tensor(tau), kappa)
    assert_close(gradient, torch.autograd.grad(pairs.sum() / 3, prediction)[0], rtol=1e-5, atol=1e-6)


# Mean


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        (None, 2.0),
        (torch.tensor([0.5, 2.0]), 3.25),  # (0.5 * 1 + 2 * 3) / 2
    ],
)
def test_weighted_mean_weighs_each_item(weight: Any, expected: float) -> None:
    assert weighted_mean(torch.tensor([1.0, 3.0]), weight).item() == expected


def test_projection_of_a_reward_that_is_not_a_number_is_none_either() -> None:
    rewards, discounts = torch.tensor([math.nan, 0.0]), torch.tensor([1.0, 1.0])
    projected = projection(rewards, discounts, torch.tensor([[0.25] * 4] * 2), SUPPORT)
    assert projected[0].isnan().any()
    assert_close(projected[1], torch.tensor([0.25] * 4))


def staircase_error(ends: list[float], power: float) -> float:
    """Return the 1-Wasserstein error of steps that approximate the quantile function tau^power, summed finely."""
    total, parts = 0.0, 4000
    for low, high in pairwise(ends):
        step, middle = (high - low) / parts, ((low + high) / 2) ** power
        total += sum(abs((low + (k + 0.5) * step) ** power - middle) * step for k in range(parts))
    return total


def test_fraction_loss_is_the_product_of_levels_and_their_gradients() -> None:
    # levels 0.25 and 0.5; gradients 2 * 1 - 0 - 3 = -1 and 2 * 4 - 3 - 4.5 = 0.5: -0.25 + 0.25 = 0
    ends = torch.tensor([[0.0, 0.25, 0.5, 1.0]], requires_grad=True)
    loss = fraction_loss(ends, torch.tensor([[1.0, 4.0]]), torch.tensor([[0.0, 3.0, 4.5]]))
    loss.sum().backward()
    assert_close(loss.detach(), torch.tensor([0.0]))
    assert ends.grad is not None
    assert ends.grad.tolist() == [[0.0, -1.0, 0.5, 0.0]]


@pytest.mark.parametrize("power", [1.0, 2.0, 3.0])
def test_gradient_of_the_fraction_loss_is_that_of_the_wasserstein_error(power: float) -> None:
    levels, small = [0.0, 0.3, 0.5, 0.9, 1.0], 1e-4
    ends = torch.tensor([levels], dtype=torch.float64, requires_grad=True)
    values = ends.detach() ** power, ((ends[:, :-1] + ends[:, 1:]) / 2).detach() ** power
    fraction_loss(ends, values[0][:, 1:-1], values[1]).sum().backward()
    slow = []
    for place in (1, 2, 3):
        above, below = ([*levels[:place], levels[place] + sign * small, *levels[place + 1 :]] for sign in (1, -1))
        slow.append((staircase_error(above, power) - staircase_error(below, power)) / (2 * small))
    assert ends.grad is not None
    assert_close(ends.grad[0, 1:-1], torch.tensor(slow, dtype=torch.float64), rtol=1e-4, atol=1e-5)
