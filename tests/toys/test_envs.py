"""The toy envs give the answers they promise."""

from __future__ import annotations

import pytest
from gymnasium.utils.env_checker import check_env

from tests.toys.envs import ChainEnv, CountingEnv


@pytest.mark.parametrize("terminate", [True, False])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_chain_env_keeps_gymnasiums_contract(terminate: bool) -> None:
    check_env(ChainEnv(terminate=terminate), skip_render_check=True)


@pytest.mark.parametrize("terminate", [True, False])
def test_chain_env_value_is_the_discounted_sum_of_the_rewards_to_come(terminate: bool) -> None:
    env = ChainEnv(length=3, terminate=terminate)
    env.reset()
    env.step(env.action_space.sample())

    # From position 1: the last step is the second from here, and if the chain continues, every third after it.
    expected, discount = 0.0, 1.0
    for _ in range(300):
        _, reward, terminated, _, _ = env.step(env.action_space.sample())
        expected += discount * reward
        discount *= 0.9
        if terminated:
            break

    assert env.value(position=1, discount_factor=0.9) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("terminate", [True, False])
def test_chain_env_ends_after_its_length_in_the_way_asked(terminate: bool) -> None:
    env = ChainEnv(length=3, terminate=terminate)
    env.reset()

    steps = [env.step(env.action_space.sample())[1:4] for _ in range(3)]

    assert steps == [(0.0, False, False), (0.0, False, False), (1.0, terminate, not terminate)]


def test_counting_env_takes_lengths_and_endings_in_turn() -> None:
    env = CountingEnv(lengths=(1, 2), truncates=(False, True, True))
    endings = []
    for _ in range(4):
        env.reset()
        ended = False
        while not ended:
            observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
            ended = terminated or truncated
        endings.append((*observation[1:].tolist(), truncated))

    # Episode, length, truncated.
    assert endings == [(0, 1, False), (1, 2, True), (2, 1, True), (3, 2, False)]


@pytest.mark.parametrize("lengths", [(), (0,), (2, -1)])
def test_counting_env_refuses_episodes_without_a_step(lengths: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="lengths must be at least one number >= 1"):
        CountingEnv(lengths=lengths)


def test_chain_env_refuses_an_episode_without_a_step() -> None:
    with pytest.raises(ValueError, match="length must be >= 1, got 0"):
        ChainEnv(length=0)
