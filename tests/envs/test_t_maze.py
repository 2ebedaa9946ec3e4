"""The T-maze: its rewards, its bound without memory, and the ways to name it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from lightning_ding.envs import make_vector_env
from lightning_ding.envs.t_maze import TMazeEnv

SEEDS = (0, 1)  # of an episode with each of the cues


def episode(
    env: Any, seed: int, act: Callable[[tuple[float, ...]], int]
) -> tuple[list[tuple[float, ...]], float, bool]:
    """Return the observations, the sum of rewards and whether the episode was truncated."""
    obs, _ = env.reset(seed=seed)
    seen, total, is_over, truncated = [tuple(obs)], 0.0, False, False
    while not is_over:
        obs, reward, terminated, truncated, _ = env.step(act(seen[-1]))
        seen.append(tuple(obs))
        total, is_over = total + reward, terminated or truncated
    return seen, total, truncated


def test_cue_is_shown_at_the_start_only_and_the_junction_after_the_corridor() -> None:
    cues = [TMazeEnv().reset(seed=seed)[0].tolist() for seed in SEEDS]
    assert sorted(cues) == [[-1.0, 0.0], [1.0, 0.0]]
    seen, total, _ = episode(TMazeEnv(), SEEDS[0], lambda obs: 1 if obs[1] else 0)
    assert seen[1:-1] == [(0.0, 0.0)] * 19 + [(0.0, 1.0)]
    assert total == cues[0][0]  # turning to 1 is right after the cue 1


def test_best_return_is_1_and_what_is_not_possible_costs_a_tenth() -> None:
    env = TMazeEnv(length=2)
    for seed in SEEDS:
        cue = env.reset(seed=seed)[0][0]
        right = 1 if cue > 0 else 2
        rewards = [env.step(action)[1] for action in (1, 0, 2, 0, 0, right)]
        assert rewards == [-0.1, 0.0, -0.1, 0.0, -0.1, 1.0]


def mean_return(env: TMazeEnv, choice: Mapping[tuple[float, ...], int]) -> float:
    return float(np.mean([episode(env, seed, choice.__getitem__)[1] for seed in SEEDS]))


def test_no_policy_without_memory_has_a_return_above_0() -> None:
    """By hand: the same turns follow both cues, and earn 1 after one and -1 after the other; all else costs."""
    env = TMazeEnv(length=3)
    kinds = [(1.0, 0.0), (-1.0, 0.0), (0.0, 0.0), (0.0, 1.0)]
    returns = {
        actions: mean_return(env, dict(zip(kinds, actions, strict=True))) for actions in product(range(3), repeat=4)
    }
    assert len(returns) == 81
    assert max(returns.values()) == 0.0
    assert {actions for actions, value in returns.items() if value == 0} == {(0, 0, 0, 1), (0, 0, 0, 2)}
    # a step lost after one cue: the next observation is that of the corridor, so the turns are the same again
    assert returns[0, 1, 0, 1] == pytest.approx((1.0 - 1.1) / 2)


def test_an_episode_is_truncated_after_ten_times_its_length() -> None:
    seen, total, truncated = episode(TMazeEnv(length=2), 0, lambda obs: 0)
    assert (len(seen), truncated) == (21, True)
    assert total == pytest.approx(-1.8)  # 18 steps at the junction: 0.9 times the length


def test_it_has_a_name_and_the_api_of_gymnasium() -> None:
    env = make_vector_env("lightning_ding.envs.t_maze:TMaze-v0", 2)
    assert [one.unwrapped.length for one in env.envs] == [20, 20]  # type: ignore[attr-defined]
    env.close()
    check_env(gym.make("TMaze-v0", length=4).unwrapped, skip_render_check=True)
    with pytest.raises(ValueError, match="length must be >= 1, got 0"):
        TMazeEnv(length=0)
