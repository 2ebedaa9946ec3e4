"""The mathematics of DreamerV3 against numbers by hand and loops over elements."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lightning_ding import rl
from lightning_ding.rl.world_models import softmax


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class TestTwoHot:
    def test_bins_are_symmetric_and_evenly_spaced_after_symlog(self) -> None:
        bins = rl.two_hot_bins(5)  # symlog -20, -10, 0, 10, 20
        assert_close(bins, torch.tensor([-math.expm1(20), -math.expm1(10), 0.0, math.expm1(10), math.expm1(20)]))
        assert bool((rl.two_hot_bins(255).flip(0) == -rl.two_hot_bins(255)).all())
        assert bool((rl.two_hot_bins(255).diff() > 0).all())

    def test_weights_have_the_value_as_their_mean(self) -> None:
        bins = torch.tensor([-3.0, -1.0, 0.0, 1.0, 3.0])
        # 0.25 is a quarter of the way from 0 to 1; -2.5 is a quarter of the way from -3 to -1; both ends are clipped
        index, weight = rl.two_hot(torch.tensor([0.25, -2.5, 1.0, 7.0, -7.0]), bins)
        dense = torch.zeros(5, 5).scatter_add(1, index, weight)
        expected = [[0, 0, 0.75, 0.25, 0], [0.75, 0.25, 0, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1], [1, 0, 0, 0, 0]]
        assert_close(dense, torch.tensor(expected))

    def test_loss_is_the_cross_entropy_of_all_targets(self) -> None:
        bins, logit = torch.tensor([-1.0, 0.0, 1.0]), torch.tensor([[1.0, 2.0, 0.0]])
        log_p = [one - math.log(math.exp(1) + math.exp(2) + 1) for one in (1.0, 2.0, 0.0)]
        expected = -(0.5 * log_p[1] + 0.5 * log_p[2]) - (0.2 * log_p[0] + 0.8 * log_p[1])  # of 0.5 and of -0.2
        found = rl.two_hot_loss(logit, bins, torch.tensor([0.5]), torch.tensor([-0.2]))
        assert found.tolist() == pytest.approx([expected], rel=1e-6)

    def test_mean_of_equal_probabilities_is_exactly_zero(self) -> None:
        bins = rl.two_hot_bins(255)
        assert rl.two_hot_mean(torch.zeros(3, 255), bins).tolist() == [0.0, 0.0, 0.0]

    @pytest.mark.parametrize("value", [0.0, 0.3, -12.5, 4e5])
    def test_mean_inverts_the_weights(self, value: float) -> None:
        bins = rl.two_hot_bins(255)
        index, weight = rl.two_hot(torch.tensor([value]), bins)
        logit = torch.zeros(1, 255).scatter_add(1, index, weight).log()
        assert_close(rl.two_hot_mean(logit, bins), torch.tensor([value]), rtol=1e-5, atol=1e-6)
        for dtype in (torch.bfloat16, torch.float16):
            with torch.autocast("cpu", dtype):  # a matrix product would have 16 bits
                found = rl.two_hot_mean(logit, bins)
            assert_close(found, torch.tensor([value]), rtol=1e-5, atol=1e-6)


class TestLatents:
    def test_one_percent_of_a_distribution_is_uniform(self) -> None:
        # softmax of (log 3, 0) is (0.75, 0.25): 0.99 * 0.75 + 0.005 = 0.7475
        found = rl.with_uniform(torch.tensor([math.log(3), 0.0]), 0.01)
        assert_close(found, torch.tensor([0.7475, 0.2525]))

    def test_draws_have_the_probabilities(self) -> None:
        probability = torch.tensor([0.1, 0.0, 0.6, 0.3])
        noise = (torch.arange(1000) + 0.5) / 1000
        drawn = rl.draw_index(probability.expand(1000, 4), noise)
        assert torch.bincount(drawn, minlength=4).tolist() == [100, 0, 600, 300]

    def test_gradient_of_a_one_hot_vector_is_that_of_the_probabilities(self) -> None:
        probability = torch.tensor([0.2, 0.8], requires_grad=True)
        one_hot = rl.one_hot_of(torch.tensor(0), probability)
        assert one_hot.tolist() == [1.0, 0.0]
        (one_hot * torch.tensor([3.0, 5.0])).sum().backward()
        assert probability.grad is not None
        assert probability.grad.tolist() == [3.0, 5.0]

    def test_balanced_kl_is_a_sum_over_latents_with_free_nats(self) -> None:
        posterior, prior = (rl.with_uniform(numbers(2, 3, 4, seed=seed), 0.01) for seed in (0, 1))
        expected = [
            sum(
                float(posterior[row, group, k]) * math.log(float(posterior[row, group, k] / prior[row, group, k]))
                for group in range(3)
                for k in range(4)
            )
            for row in range(2)
        ]
        posterior.requires_grad_(), prior.requires_grad_()
        dynamics, representation = rl.balanced_kl(posterior, prior, 0.0)
        assert dynamics.tolist() == pytest.approx(expected, rel=1e-5)
        assert representation.tolist() == dynamics.tolist()
        assert torch.autograd.grad(dynamics.sum(), [posterior, prior], allow_unused=True)[0] is None
        assert torch.autograd.grad(representation.sum(), [posterior, prior], allow_unused=True)[1] is None
        low, high = sorted(expected)
        free, _ = rl.balanced_kl(posterior, prior, (low + high) / 2)
        assert sorted(free.tolist()) == pytest.approx([(low + high) / 2, high], rel=1e-5)
        gradient = torch.autograd.grad(free.sum(), prior)[0].abs().amax((1, 2))
        assert sorted(gradient.tolist())[0] == 0.0  # nothing pulls below the free nats


class TestReturns:
    def test_returns_are_those_of_a_recursion_by_element(self) -> None:
        reward, value = numbers(6, 2), numbers(6, 2, seed=1)
        alive, last = torch.rand(6, 2, generator=torch.Generator().manual_seed(2)), torch.zeros(6, 2, dtype=torch.bool)
        last[3, 0] = True
        found = rl.bootstrapped_returns(reward, value, alive, last, 0.9, 0.8)
        for column in range(2):
            following = float(value[5, column])
            for row in range(4, -1, -1):
                after = float(value[row + 1, column])
                mixed = after if last[row + 1, column] else 0.2 * after + 0.8 * following
                following = float(reward[row + 1, column]) + 0.9 * float(alive[row + 1, column]) * mixed
                assert float(found[row, column]) == pytest.approx(following, rel=1e-5, abs=1e-6)

    def test_a_time_limit_bootstraps_and_a_termination_does_not(self) -> None:
        reward, value = torch.tensor([[0.0, 0.0], [1.0, 1.0]]), torch.full((2, 2), 10.0)
        alive, last = torch.tensor([[1.0, 1.0], [1.0, 0.0]]), torch.ones(2, 2, dtype=torch.bool)
        assert rl.bootstrapped_returns(reward, value, alive, last, 0.5, 0.9).tolist() == [[6.0, 1.0]]

    def test_range_is_a_moving_average_of_percentiles(self) -> None:
        spread = rl.ReturnRange(rate=0.1)
        assert spread.scale.item() == 1.0  # never below
        spread.update(torch.arange(101.0))  # percentiles 5 and 95, a tenth of which counts
        spread.update(torch.arange(101.0) * 2)  # 10 and 190
        assert spread.low.item() == pytest.approx(0.9 * 0.5 + 0.1 * 10)
        assert spread.scale.item() == pytest.approx(0.9 * 9.5 + 0.1 * 190 - (0.9 * 0.5 + 0.1 * 10))

    def test_range_leaves_out_what_is_not_finite(self) -> None:
        spread, other = rl.ReturnRange(), rl.ReturnRange()
        spread.update(torch.tensor([math.nan, math.inf]))
        assert spread.high.item() == 0.0
        spread.update(torch.tensor([1.0, 9.0, math.nan]))
        other.update(torch.tensor([1.0, 9.0]))
        assert spread.high.item() == other.high.item() > 0


def slow_rows(terminated: list[bool], real: int) -> list[tuple[int, bool]]:
    """Return the step of each row of a sequence, and whether the row has its next observation."""
    rows = []
    for step in range(real):
        rows.append((step, False))
        if terminated[step] or step == real - 1:
            rows.append((step, True))
    return rows[: len(terminated) + 1]


@pytest.mark.parametrize(
    ("ends", "real"), [((), 5), ((1,), 5), ((0, 1, 3), 5), ((4,), 5), ((), 3), ((2,), 3), ((0, 1, 2, 3, 4), 5)]
)
def test_rows_of_episodes_are_those_of_a_loop(ends: tuple[int, ...], real: int) -> None:
    terminated = torch.tensor([step in ends for step in range(5)])
    mask = torch.arange(5) < real
    rows = rl.episode_rows(torch.stack([terminated, torch.zeros(5).bool()], 1), torch.stack([mask, mask], 1))
    for column, flags in enumerate((terminated.tolist(), [False] * 5)):
        expected = slow_rows(flags, real)
        count = len(expected)
        assert rows.is_real[:, column].tolist() == [True] * count + [False] * (6 - count)
        found = list(zip(rows.step[:count, column].tolist(), rows.is_next[:count, column].tolist(), strict=True))
        assert found == expected


@pytest.mark.parametrize("classes", [2, 4, 15, 16, 40])
def test_softmax_is_that_of_a_loop_over_rows_with_its_gradient(classes: int) -> None:
    logit = torch.randn(3, 5, classes, generator=torch.Generator().manual_seed(0), requires_grad=True)
    weight = torch.arange(15.0 * classes).view(3, 5, classes)
    found = softmax(logit)
    (gradient,) = torch.autograd.grad((found * weight).sum(), logit)
    for row in range(3):
        for column in range(5):
            powers = logit[row, column].exp()
            expected = powers / powers.sum()
            assert_close(found[row, column], expected)
            mean = (expected * weight[row, column]).sum()
            assert_close(gradient[row, column], expected * (weight[row, column] - mean), rtol=1e-4, atol=1e-4)
