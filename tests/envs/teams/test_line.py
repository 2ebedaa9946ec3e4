from __future__ import annotations

from itertools import product
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from lightning_ding.envs.teams.line import CoverGame, LateRewardGame


def play(env: gym.Env[Any, Any], plan: Any) -> list[float]:
    env.reset(seed=0)
    return [float(env.step(np.asarray(action))[1]) for action in plan]


@pytest.mark.parametrize("env", [CoverGame(), CoverGame(is_discrete=True), LateRewardGame(3, is_individual=True)])
def test_games_are_gymnasium_envs(env: gym.Env[Any, Any]) -> None:
    check_env(env, skip_render_check=True)


def test_no_plan_of_moves_covers_the_targets_better_than_parting_does() -> None:
    assert play(CoverGame(), [[[-1.0], [1.0]]] * 4) == [-1, 0, 0, 0]
    assert play(CoverGame(), [[[0.0], [1.0]]] * 4) == [-1.5, -1, -1, -1]
    assert play(CoverGame(), [[[1.0], [1.0]]] * 4) == play(CoverGame(), [[[0.0], [0.0]]] * 4) == [-2] * 4
    assert play(CoverGame(), [[[9.0], [-9.0]]]) == [-1]  # moves are bounded
    env, moves = CoverGame(is_discrete=True), list(product(range(3), repeat=2))
    assert max(sum(play(env, plan)) for plan in product(moves, repeat=4)) == -1


def test_a_time_limit_truncates_the_game() -> None:
    env = CoverGame()
    env.reset()
    ends = [env.step(np.zeros((2, 1)))[2:4] for _ in range(4)]
    assert ends == [(False, False)] * 3 + [(False, True)]


def test_a_late_reward_is_that_of_the_places_chosen_before() -> None:
    env = LateRewardGame(2, is_individual=True)
    targets = env.reset(seed=0)[0]["agent_state"][:, :1]
    obs, reward, terminated, _, _ = env.step(targets + np.array([[0.0], [0.25]], np.float32))
    assert (reward, terminated) == (0.0, False)
    assert (obs["agent_state"] == 0).all()
    obs, reward, terminated, _, _ = env.step(np.ones((2, 1)))  # which is ignored
    assert terminated
    assert obs["agent_reward"] == pytest.approx([1.0, 0.75])
    assert reward == pytest.approx(0.875)


def test_blind_places_have_the_return_of_the_middle_at_best() -> None:
    env = LateRewardGame(1)
    means = {}
    for place in (0.0, 0.3, -0.6):
        env.reset(seed=1)
        total = 0.0
        for _ in range(4000):
            env.reset()
            env.step(np.array([[place]]))
            total += env.step(np.zeros((1, 1)))[1]
        means[place] = total / 4000
        assert means[place] == pytest.approx(1 - (1 + place**2) / 2, abs=0.02)  # E|u - c| is (1 + c^2) / 2
    assert max(means, key=means.__getitem__) == 0.0
