"""Interquartile means and their bootstrap intervals, on numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import intervals


def test_interquartile_mean_leaves_out_the_lowest_and_the_highest_quarter() -> None:
    assert intervals.interquartile_mean([0.0, 3.0, 4.0, 5.0, 100.0]) == 4.0  # int(5 / 4) = 1 is left out at each end
    assert intervals.interquartile_mean([1.0, 2.0, 6.0]) == 3.0  # int(3 / 4) = 0


def test_interval_of_three_seeds_is_their_range() -> None:
    # A resample has three times the lowest seed with probability 1 / 27 = 3.7 % > 2.5 %.
    assert intervals.interval([1.0, 2.0, 6.0]) == (1.0, 6.0)


def test_interval_of_one_seed_is_the_seed() -> None:
    assert intervals.interval([5.0]) == (5.0, 5.0)


def test_interval_of_a_curve_has_an_interval_for_each_point() -> None:
    low, high = intervals.interval(np.array([[1.0, 10.0], [2.0, 10.0], [6.0, 10.0]]))
    np.testing.assert_array_equal([low, high], [[1.0, 10.0], [6.0, 10.0]])


def test_interval_over_tasks_draws_the_seeds_of_each_task_apart() -> None:
    # Drawn together, a resample could consist of 0 alone; drawn within each task, half of it is always 1.
    low, high = intervals.interval([0.0, 0.0], [1.0, 1.0])
    assert (low, high) == (0.5, 0.5)


@pytest.mark.parametrize(("seeds", "expected"), [([5.0], "5.00"), ([10.0, 20.0, 60.0], "30.0 [10.0, 60.0]")])
def test_text_shows_the_interval_unless_there_is_one_seed(seeds: list[float], expected: str) -> None:
    assert intervals.text(seeds) == expected
