from __future__ import annotations

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from lightning_ding.envs.bit_flip import BitFlipEnv


def test_env_keeps_the_rules_of_gymnasium() -> None:
    check_env(BitFlipEnv(4), skip_render_check=True)


def test_start_is_never_at_the_goal() -> None:
    env = BitFlipEnv(1)
    for seed in range(20):
        obs, _ = env.reset(seed=seed)
        assert obs["desired_goal"].tolist() == [1 - obs["achieved_goal"][0]]


def test_flipping_all_wrong_bits_ends_the_episode_with_the_only_reward() -> None:
    env = BitFlipEnv(6)
    obs, _ = env.reset(seed=1)
    wrong = np.flatnonzero(obs["observation"] != obs["desired_goal"])
    assert len(wrong) > 1
    results = [env.step(bit)[1:4] for bit in wrong]
    assert results == [(0.0, False, False)] * (len(wrong) - 1) + [(1.0, True, False)]


def test_episode_is_truncated_after_as_many_steps_as_bits() -> None:
    env = BitFlipEnv(3)
    obs, _ = env.reset(seed=0)
    right = int(np.flatnonzero(np.append(obs["observation"] == obs["desired_goal"], True))[0])
    assert right < 3
    ends = [env.step(np.int64(right))[2:4] for _ in range(3)]  # an odd number of flips of a bit that was right
    assert ends == [(False, False), (False, False), (False, True)]


def test_number_of_bits_is_checked() -> None:
    with pytest.raises(ValueError, match="n_bits must be >= 1, got 0"):
        BitFlipEnv(0)
