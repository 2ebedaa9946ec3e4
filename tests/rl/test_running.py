"""Running mean and standard deviation."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from lightning_ding.rl import RunningMeanStd, combine_moments, moments


def test_running_moments_are_those_of_all_items_together() -> None:
    x = 1e4 + torch.randn(100, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    running = RunningMeanStd((3,))
    for part in x.split([1, 40, 0, 59]):
        running.update(part)
    assert_close(running.mean, x.mean(0), rtol=1e-12, atol=0)
    assert_close(running.std, x.std(0, correction=0), rtol=1e-9, atol=0)
    assert running.count.item() == 100


def test_running_numbers_may_come_in_any_shape() -> None:
    running = RunningMeanStd()
    running.update(torch.tensor([[1.0, 3.0], [5.0, 7.0]]))
    # mean 4; variance (9 + 1 + 1 + 9) / 4 = 5
    assert_close(torch.stack([running.mean, running.std**2]), torch.tensor([4.0, 5.0], dtype=torch.float64))


def test_standard_deviation_is_1_before_anything_differs() -> None:
    running = RunningMeanStd()
    before = running.std.item()
    running.update(torch.full((5,), 3.0))
    assert (before, running.std.item()) == (1.0, 1.0)


def test_moments_of_nothing_change_nothing() -> None:
    full, nothing = moments(torch.tensor([1.0, 3.0])), moments(torch.tensor([]))
    assert_close(combine_moments(*full, *nothing), full)
    assert_close(combine_moments(*nothing, *full), full)
    assert_close(combine_moments(*nothing, *nothing), nothing)


def test_running_moments_are_saved_with_the_module() -> None:
    running, restored = RunningMeanStd(), RunningMeanStd()
    running.update(torch.tensor([1.0, 3.0]))
    restored.load_state_dict(running.state_dict())
    running.update(torch.tensor([8.0]))
    restored.update(torch.tensor([8.0]))
    assert_close(restored.state_dict(), running.state_dict())


def test_root_mean_square_is_that_of_all_items_and_one_where_there_is_nothing_to_divide_by() -> None:
    running = RunningMeanStd()
    assert running.root_mean_square.item() == 1
    running.update(torch.tensor([3.0, 3.0]))
    assert running.root_mean_square.item() == pytest.approx(3.0)  # its standard deviation is 0
    running.update(torch.tensor([1.0, 5.0]))
    assert running.root_mean_square.item() == pytest.approx(11**0.5)  # (9 + 9 + 1 + 25) / 4
    zeros = RunningMeanStd()
    zeros.update(torch.zeros(5))
    assert zeros.root_mean_square.item() == 1
