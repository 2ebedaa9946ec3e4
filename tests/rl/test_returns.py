"""n-step returns."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lightning_ding.rl import n_step_return


def slow_n_step_return(reward: Tensor, alive: Tensor, gamma: float) -> tuple[list[float], list[float]]:
    """Return what `n_step_return` should, one step of one item at a time."""
    totals, discounts = [], []
    for item in range(reward.shape[1]):
        total, discount = 0.0, 1.0
        for step in range(reward.shape[0]):
            if not alive[step, item]:
                break
            total += discount * reward[step, item].item()
            discount *= gamma
        totals.append(total)
        discounts.append(discount)
    return totals, discounts


def test_n_step_return_of_a_whole_window() -> None:
    # 1 + 0.5 * 2 + 0.25 * 4 = 3, and 0.5^3 = 0.125
    total, discount = n_step_return(torch.tensor([[1.0], [2.0], [4.0]]), torch.ones(3, 1, dtype=torch.bool), 0.5)
    assert (total.tolist(), discount.tolist()) == ([3.0], [0.125])


def test_n_step_return_stops_where_the_window_stops() -> None:
    # windows of 1, 2 and 3 steps with rewards 1, 2, 4: 1, 1 + 1 = 2, 3; discounts 0.5, 0.25, 0.125
    alive = torch.tensor([[1, 1, 1], [0, 1, 1], [0, 0, 1]], dtype=torch.bool)
    total, discount = n_step_return(torch.tensor([1.0, 2.0, 4.0]).unsqueeze(1).expand(3, 3), alive, 0.5)
    assert (total.tolist(), discount.tolist()) == ([1.0, 2.0, 3.0], [0.5, 0.25, 0.125])


def test_n_step_return_of_one_step_is_the_reward() -> None:
    reward = torch.tensor([[3.0, -2.0]])
    total, discount = n_step_return(reward, torch.ones(1, 2, dtype=torch.bool), 0.9)
    assert_close((total, discount), (reward[0], torch.tensor([0.9, 0.9])))


@pytest.mark.parametrize(("gamma", "total", "discount"), [(0.0, 5.0, 0.0), (1.0, 12.0, 1.0)])
def test_n_step_return_at_the_ends_of_the_range_of_gamma(gamma: float, total: float, discount: float) -> None:
    # gamma 0 keeps the first reward, 5; gamma 1 adds all, 5 + 3 + 4 = 12
    got = n_step_return(torch.tensor([[5.0], [3.0], [4.0]]), torch.ones(3, 1, dtype=torch.bool), gamma)
    assert (got[0].item(), got[1].item()) == (total, discount)


@pytest.mark.parametrize("seed", range(5))
def test_n_step_return_equals_the_slow_loop_for_windows_cut_at_random(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    steps = seed + 2
    reward = torch.randn(steps, 40, generator=generator)
    lengths = torch.randint(1, steps + 1, (40,), generator=generator)
    alive = torch.arange(steps).unsqueeze(1) < lengths
    total, discount = n_step_return(reward, alive, 0.9)
    expected = slow_n_step_return(reward, alive, 0.9)
    assert_close((total, discount), (torch.tensor(expected[0]), torch.tensor(expected[1])), rtol=1e-6, atol=1e-6)


def test_n_step_returns_chain_to_the_return_of_the_episode() -> None:
    # an episode of 4 rewards in windows of 3: R(0) = G3(0) + 0.9^3 * R(3), R(3) = 4; R(0) = 1 + 1.8 + 2.43 + 2.916
    reward, alive = torch.tensor([[1.0], [2.0], [3.0]]), torch.ones(3, 1, dtype=torch.bool)
    total, discount = n_step_return(reward, alive, 0.9)
    assert_close(total + discount * 4.0, torch.tensor([8.146]), rtol=1e-6, atol=1e-6)
