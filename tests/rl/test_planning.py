"""Planning by MPPI against numbers by hand and a loop over envs, and on a problem with a known optimum."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lightning_ding import rl

SPREAD: dict[str, Any] = {"num_elites": 2, "temperature": 0.5, "min_std": 0.05, "max_std": 2.0}


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class TestElites:
    def test_the_best_are_weighted_by_their_values(self) -> None:
        place, weight = rl.elite_weights(torch.tensor([[1.0, 5.0, 3.0, -2.0], [0.0, 0.0, 7.0, 7.0]]), 2, 0.5)
        assert [set(one) for one in place.tolist()] == [{1, 2}, {2, 3}]
        assert place[0].tolist() == [1, 2]  # the best one first
        second = math.exp(-1.0)  # of 0.5 times the difference of 2
        expected = torch.tensor([[1 / (1 + second), second / (1 + second)], [0.5, 0.5]])
        assert_close(weight, expected)

    def test_nan_is_the_worst_value_and_large_values_do_not_overflow(self) -> None:
        place, weight = rl.elite_weights(torch.tensor([[math.nan, -1e30, 1e30]]), 2, 0.5)
        assert place.tolist() == [[2, 1]]
        assert weight.tolist() == [[1.0, 0.0]]
        assert rl.elite_weights(torch.full((1, 3), math.nan), 2, 0.5)[1].tolist() == [[0.5, 0.5]]

    def test_moments_are_weighted_and_stay_within_their_bounds(self) -> None:
        elites = torch.tensor([[[[1.0, 0.3]], [[-1.0, 0.3]]]])  # two elites of one step and two dimensions
        mean, std = rl.weighted_moments(elites, torch.tensor([[0.75, 0.25]]), 0.05, 0.8)
        # mean 0.75 - 0.25; variance 0.75 * 0.5^2 + 0.25 * 1.5^2 = 0.75, std 0.866, cut to 0.8
        assert_close(mean, torch.tensor([[[0.5, 0.3]]]))
        assert_close(std, torch.tensor([[[0.8, 0.05]]]))
        assert_close(
            rl.weighted_moments(elites, torch.tensor([[0.75, 0.25]]), 0.05, 2.0)[1][0, 0, 0].square(),
            torch.tensor(0.75),
        )


def slow_plan(mean: Tensor, proposals: Tensor, noise: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
    """Return the means and standard deviations of ``rl.mppi``, from one env and one candidate after the other."""
    means, stds = [], []
    for env in range(len(mean)):
        middle, std = mean[env], torch.full_like(mean[env], 2.0)
        for iteration in range(len(noise)):
            candidates = list(proposals[env])
            for numbers_of_one in noise[iteration, env]:
                candidates.append((middle + std * numbers_of_one).clamp(-1, 1))
            value = [-float((one - goal[env]).square().sum()) for one in candidates]
            best = sorted(range(len(value)), key=lambda number: -value[number])[:2]
            score = [math.exp(0.5 * (value[number] - value[best[0]])) for number in best]
            elites = [candidates[number] for number in best]
            middle = sum(s * one for s, one in zip(score, elites, strict=True)) / sum(score)
            variance = sum(s * (one - middle) ** 2 for s, one in zip(score, elites, strict=True)) / sum(score)
            std = variance.sqrt().clamp(0.05, 2.0)
        means.append(middle)
        stds.append(std)
    return torch.stack(means), torch.stack(stds)


class TestMPPI:
    def test_envs_together_are_planned_as_in_a_loop(self) -> None:
        mean, proposals, noise = (
            0.3 * numbers(3, 2, 2),
            numbers(3, 2, 2, 2, seed=1).clamp(-1, 1),
            numbers(3, 3, 6, 2, 2),
        )
        goal = numbers(3, 2, 2, seed=3)
        plan = rl.mppi(
            lambda plans, _: -(plans - goal.unsqueeze(1)).square().sum((-2, -1)), mean, proposals, noise, **SPREAD
        )
        expected_mean, expected_std = slow_plan(mean, proposals, noise, goal)
        assert_close(plan.mean, expected_mean)
        assert_close(plan.std, expected_std)

    def test_equal_noise_of_all_envs_plans_each_env_as_alone(self) -> None:
        mean, noise, goal = numbers(3, 2, 1), numbers(2, 1, 8, 2, 1), numbers(3, 1, 2, 1, seed=4)
        nothing = torch.zeros(3, 0, 2, 1)

        def planned(rows: slice) -> Tensor:
            def value_of(plans: Tensor, _: int) -> Tensor:
                return -(plans - goal[rows]).square().sum((-2, -1))

            return rl.mppi(value_of, mean[rows], nothing[rows], noise, **SPREAD).mean

        assert_close(planned(slice(None)), torch.cat([planned(slice(row, row + 1)) for row in range(3)]))

    def test_values_may_depend_on_the_iteration(self) -> None:
        seen: list[int] = []

        def value_of(plans: Tensor, iteration: int) -> Tensor:
            seen.append(iteration)
            return plans.sum((-2, -1))

        rl.mppi(value_of, torch.zeros(1, 1, 1), torch.zeros(1, 0, 1, 1), numbers(3, 1, 4, 1, 1), **SPREAD)
        assert seen == [0, 1, 2]

    @pytest.mark.parametrize("seed", range(4))
    def test_it_finds_the_optimum_of_a_problem_with_a_known_one(self, seed: int) -> None:
        """A point at 0 moves by each action; the cost is its squared distance from 1.5, so 1, 0.5, 0 is best."""

        def value_of(plans: Tensor, _: int) -> Tensor:
            return -(plans.squeeze(-1).cumsum(-1) - 1.5).square().sum(-1)

        spread: dict[str, Any] = {"num_elites": 16, "temperature": 20.0, "min_std": 0.02, "max_std": 2.0}
        noise = numbers(10, 2, 256, 3, 1, seed=seed)
        plan = rl.mppi(value_of, torch.zeros(2, 3, 1), torch.zeros(2, 0, 3, 1), noise, **spread)
        best = plan.elites[:, :1]
        assert value_of(best, 0).min() > -0.27  # the bound is -0.25, from the first step, whose distance is 0.5
        assert_close(plan.mean, torch.tensor([1.0, 0.5, 0.0]).view(1, 3, 1).expand(2, 3, 1), rtol=0, atol=0.2)


class TestActions:
    def test_an_elite_is_drawn_with_its_probability_and_noise_is_in_units_of_the_plan(self) -> None:
        elites = torch.tensor([[0.5, 0.9], [-0.5, -0.9]]).view(1, 2, 2, 1).expand(1000, 2, 2, 1)
        weight = torch.tensor([0.8, 0.2]).expand(1000, 2)
        std = torch.tensor([0.1, 0.7]).view(1, 2, 1).expand(1000, 2, 1)
        plan = rl.Plan(torch.zeros(1000, 2, 1), std, elites, weight)
        gumbel = -torch.empty(1000, 2).exponential_(generator=torch.Generator().manual_seed(0)).log()
        action = rl.first_action(plan, gumbel)
        assert (action > 0).float().mean().item() == pytest.approx(0.8, abs=0.04)
        assert action.abs().unique().tolist() == [0.5]  # the first step of a plan
        noisy = rl.first_action(plan, gumbel, torch.full((1000, 1), 2.0))
        assert_close(noisy, action + 0.2)
        assert rl.first_action(plan, gumbel, torch.full((1000, 1), 99.0)).max().item() == 1.0

    def test_the_next_plan_starts_one_step_later(self) -> None:
        mean = torch.arange(6.0).view(1, 3, 2)
        assert rl.moved_on(mean).tolist() == [[[2.0, 3.0], [4.0, 5.0], [0.0, 0.0]]]
