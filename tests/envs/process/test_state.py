"""Env processes return their state, and other ones continue from it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import VectorEnv

from lightning_ding.envs import FaultBarrier, NotPlainError, env_state, load_env_state, make_vector_env
from tests.envs.rich import WordEnv
from tests.envs.state.test_state import RunningNormalisation, check_continues, through_a_file

Make = Callable[..., Any]


@pytest.fixture
def make() -> Iterator[Make]:
    """Make vector envs of two processes that are closed after the test."""
    made: list[VectorEnv] = []

    def make_and_remember(env: Any = "CartPole-v1", seed: int = 1, **options: Any) -> VectorEnv:
        made.append(make_vector_env(env, 2, "async", **options))
        made[-1].reset(seed=seed)
        made[-1].action_space.seed(seed)
        return made[-1]

    yield make_and_remember
    for env in made:
        env.close()


@pytest.mark.parametrize("autoreset", ["same_step", "next_step", "disabled"])
def test_env_processes_continue_from_a_saved_state(make: Make, autoreset: str) -> None:
    wraps = (FaultBarrier, RunningNormalisation)
    check_continues(*(make(seed=seed, autoreset=autoreset, wrappers=wraps) for seed in (1, 2)))


def test_observations_without_a_fixed_size_are_part_of_the_state(make: Make) -> None:
    first, second = make(WordEnv), make(WordEnv, seed=2)
    for _ in range(4):
        first.step(np.zeros(2, dtype=np.int64))
    load_env_state(second, through_a_file(env_state(first)))
    one, other = (env.step(np.zeros(2, dtype=np.int64)) for env in (first, second))
    assert one[0] == other[0]


def test_replacements_have_the_seeds_of_an_uninterrupted_run(make: Make) -> None:
    first, second = make(on_env_error="restart"), make(seed=9, on_env_error="restart")
    first.set_attr("length", [0.4, 0.6])
    load_env_state(second, through_a_file(env_state(first)))
    seen = []
    for env in (first, second):
        os.kill(env._processes.all[0].process.pid, signal.SIGKILL)
        obs, _, _, truncated, info = env.step(np.zeros(2, dtype=np.int64))
        seen.append([obs.tolist(), truncated.tolist(), info["final_obs"][0].tolist(), env.get_attr("length")])
    assert seen[0] == seen[1]
    assert seen[0][1] == [True, False]


def test_env_that_cannot_give_its_state_is_named_with_the_attribute(make: Make) -> None:
    class Opaque(gym.Wrapper[Any, Any, Any, Any]):
        def __init__(self, env: Any) -> None:
            super().__init__(env)
            self.engine = object()

    with pytest.raises(NotPlainError, match=r"CartPole-v1: Opaque.engine is a builtins.object"):
        env_state(make(wrappers=[Opaque]))


def test_process_that_died_gives_no_state_and_is_replaced_in_the_next_step(make: Make) -> None:
    env = make(on_env_error="restart")
    os.kill(env._processes.all[1].process.pid, signal.SIGKILL)
    with pytest.raises(NotPlainError, match=r"env 1 failed in state\(\): its process was ended by SIGKILL"):
        env_state(env)
    assert env.step(np.zeros(2, dtype=np.int64))[3].tolist() == [False, True]
    assert env_state(env)["core"]["class"] == "ProcessVectorEnv"


def test_state_of_other_envs_is_refused(make: Make) -> None:
    env = make()
    state = env_state(env)
    env.close()
    sync = make_vector_env("CartPole-v1", 2)
    for other, message in (
        (make("Acrobot-v1"), "Acrobot-v1: .* was made with .*, now with "),
        (make(wrappers=[FaultBarrier]), "the number of wrappers must be as saved, 3, got 4"),
        (
            make(autoreset="disabled"),
            "autoreset was made with AutoresetMode.SAME_STEP, now with AutoresetMode.DISABLED",
        ),
        (make_vector_env("CartPole-v1", 1, "async"), "the number of env processes must be as saved, 2, got 1"),
        (sync, "CartPole-v1: _SyncVectorEnv was a ProcessVectorEnv when saved"),
    ):
        with pytest.raises(NotPlainError, match=message):
            load_env_state(other, state)
        other.close()
