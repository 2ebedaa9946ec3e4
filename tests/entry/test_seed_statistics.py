"""Results of seeds and statistics over them, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from lightning_ding.entry.seed_statistics import (
    end_of_run,
    improvement_interval,
    interquartile_mean,
    interval,
    mean_over_run,
    performance_profile,
    probability_of_improvement,
)


def test_end_of_a_run_is_its_last_tenth_without_the_evaluation_at_its_start() -> None:
    assert end_of_run([80, 90, 95, 100], [1.0, 2.0, 10.0, 20.0]) == 15.0
    assert end_of_run([0], [3.0]) == 3.0


def test_mean_over_a_run_is_the_area_of_its_trapezia() -> None:
    # 0 to 20: 4 * 20; 20 to 60: (4 + 8) / 2 * 40; 60 to 100: (8 + 2) / 2 * 40
    assert mean_over_run([20, 60, 100], [4.0, 8.0, 2.0]) == (80 + 240 + 200) / 100
    assert mean_over_run([0], [3.0]) == 3.0


def test_interquartile_mean_leaves_out_the_lowest_and_the_highest_quarter() -> None:
    assert interquartile_mean([0.0, 3.0, 4.0, 5.0, 100.0]) == 4.0  # int(5 / 4) = 1 is left out at each end
    assert interquartile_mean([1.0, 2.0, 6.0]) == 3.0  # int(3 / 4) = 0


def test_interval_of_three_seeds_is_their_range() -> None:
    # A resample has three times the lowest seed with probability 1 / 27 = 3.7 % > 2.5 %.
    assert interval([1.0, 2.0, 6.0]) == (1.0, 6.0)


def test_interval_of_one_seed_is_the_seed() -> None:
    assert interval([5.0]) == (5.0, 5.0)


def test_interval_of_a_curve_has_an_interval_for_each_point() -> None:
    low, high = interval(np.array([[1.0, 10.0], [2.0, 10.0], [6.0, 10.0]]))
    np.testing.assert_array_equal([low, high], [[1.0, 10.0], [6.0, 10.0]])


def test_interval_over_tasks_draws_the_seeds_of_each_task_apart() -> None:
    # Drawn together, a resample could consist of 0 alone; drawn within each task, half of it is always 1.
    low, high = interval([0.0, 0.0], [1.0, 1.0])
    assert (low, high) == (0.5, 0.5)


def test_interval_is_that_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    values = np.array([3.0, 9.0, 4.0, 8.0, 1.0])
    theirs = stats.bootstrap(
        [values],
        lambda drawn, axis: stats.trim_mean(drawn, 0.25, axis=axis),
        n_resamples=20_000,
        method="percentile",
        rng=np.random.default_rng(1),
    ).confidence_interval
    assert interval(values) == pytest.approx(tuple(theirs), abs=0.4)
    for number in range(1, 9):
        drawn = np.random.default_rng(number).normal(size=(3, number))
        assert interquartile_mean(drawn) == pytest.approx(stats.trim_mean(drawn, 0.25, axis=1))


def test_probability_of_improvement_by_hand() -> None:
    assert probability_of_improvement([1.0, 2.0], [0.0]) == 1.0
    assert probability_of_improvement([1.0, 2.0], [1.5, 2.0, 3.0]) == pytest.approx(1.5 / 6)
    assert probability_of_improvement(np.array([[1.0], [0.0]]), np.array([[0.0], [1.0]])).tolist() == [1.0, 0.0]


def test_interval_of_the_improvement_has_the_ends_that_resamples_can_have() -> None:
    # Both seeds drawn are 0 with probability 1 / 4, and both are 2 with probability 1 / 4; the other run is always 1.
    assert improvement_interval([0.0, 2.0], [1.0]) == (0.0, 1.0)


def test_performance_profile_by_hand() -> None:
    # Of the first task two of four seeds have 0.5, of the second one of one: each task weighs the same.
    shares, low, high = performance_profile([[0.0, 0.4, 0.5, 1.0], [0.7]], [0.0, 0.5, 0.8])
    assert shares.tolist() == [1.0, 0.75, 0.125]
    assert (low[0], high[0]) == (1.0, 1.0)
    assert 0.5 <= low[1] < 0.75 < high[1] <= 1.0
    assert (low[2], high[2]) == (0.0, 0.375)  # P(at least 4 of 4) = 1 / 256, P(at least 3 of 4) = 13 / 256
