"""Random and epsilon-greedy actions."""

from __future__ import annotations

import numpy as np
import pytest

from lightning_ding.rl import epsilon_greedy, random_actions

ROWS = 20_000


SURE = np.tile(np.array([0.0, 9.0, 1.0, 2.0], dtype=np.float32), (ROWS, 1))  # action 1 is greedy in every row


def test_epsilon_zero_is_greedy_in_every_row() -> None:
    q = np.random.default_rng(0).normal(size=(500, 3)).astype(np.float32)
    actions = epsilon_greedy(q, 0.0, np.random.default_rng(1))
    assert actions.tolist() == [int(row.argmax()) for row in q]


def test_epsilon_one_takes_every_action_equally_often() -> None:
    # 20000 draws of 4: 0.25 each, standard deviation 0.003
    actions = epsilon_greedy(SURE, 1.0, np.random.default_rng(0))
    assert np.allclose(np.bincount(actions, minlength=4) / ROWS, 0.25, atol=0.015)


def test_epsilon_half_explores_in_some_rows_and_not_in_others() -> None:
    # greedy 0.5 + 0.5 / 4 = 0.625, each other action 0.125
    actions = epsilon_greedy(SURE, 0.5, np.random.default_rng(0))
    assert np.allclose(np.bincount(actions, minlength=4) / ROWS, [0.125, 0.625, 0.125, 0.125], atol=0.015)


def test_epsilon_greedy_explores_about_as_often_in_every_call() -> None:
    # one coin for all rows would give shares of 0 or about 0.75 per call
    rng = np.random.default_rng(0)
    shares = [(epsilon_greedy(SURE[:1000], 0.5, rng) != 1).mean() for _ in range(20)]
    assert np.allclose(shares, 0.375, atol=0.08)


def test_epsilon_greedy_of_one_seed_is_always_the_same() -> None:
    draws = [epsilon_greedy(SURE[:100], 0.5, np.random.default_rng(7)).tolist() for _ in range(2)]
    assert draws[0] == draws[1]


def test_exploration_takes_legal_actions_only_and_equally_often() -> None:
    mask = np.tile(np.array([1, 0, 1, 1]), (ROWS, 1))
    actions = epsilon_greedy(np.where(mask, SURE, -np.inf), 1.0, np.random.default_rng(0), mask)
    assert np.allclose(np.bincount(actions, minlength=4) / ROWS, [1 / 3, 0, 1 / 3, 1 / 3], atol=0.015)
    assert not (actions == 1).any()


def test_greedy_actions_are_legal_when_illegal_values_are_masked() -> None:
    # without action 1 the best is action 3
    mask = np.tile(np.array([True, False, True, True]), (10, 1))
    actions = epsilon_greedy(np.where(mask, SURE[:10], -np.inf), 0.0, np.random.default_rng(0), mask)
    assert actions.tolist() == [3] * 10


def test_each_row_has_its_own_mask() -> None:
    mask = np.eye(4)[np.arange(400) % 4]
    actions = epsilon_greedy(np.where(mask, SURE[:400], -np.inf), 0.5, np.random.default_rng(0), mask)
    assert actions.tolist() == [row % 4 for row in range(400)]


def test_random_actions_are_legal_and_equally_often() -> None:
    mask = np.tile(np.array([1, 0, 1, 1, 0]), (ROWS, 1))

    counts = np.bincount(random_actions(mask, np.random.default_rng(0)), minlength=5)

    assert counts[[1, 4]].tolist() == [0, 0]
    expected = ROWS / 3
    assert ((counts[[0, 2, 3]] - expected) ** 2 / expected).sum() < 13.82  # p = 0.001 at 2 degrees of freedom


def test_random_actions_of_several_dimensions_are_legal_in_each() -> None:
    mask = np.tile(np.array([0, 1, 1, 0, 1]), (500, 1))  # of two actions the second, of three the first and the last

    actions = random_actions(mask, np.random.default_rng(0), sizes=(2, 3))

    assert actions.shape == (500, 2)
    assert set(map(tuple, actions.tolist())) == {(1, 0), (1, 2)}


def test_random_actions_follow_each_rows_own_mask() -> None:
    mask = np.eye(4, dtype=bool)

    assert random_actions(mask, np.random.default_rng(0)).tolist() == [0, 1, 2, 3]


def test_random_actions_follow_the_seed() -> None:
    mask = np.ones((100, 6))

    first, second, third = (random_actions(mask, np.random.default_rng(seed)).tolist() for seed in (3, 3, 4))

    assert first == second != third


def test_random_actions_need_a_mask_as_wide_as_the_sizes() -> None:
    with pytest.raises(ValueError, match=r"sizes must add up to 5, the width of action_mask, got \(2, 2\)"):
        random_actions(np.ones((1, 5)), np.random.default_rng(0), sizes=(2, 2))
