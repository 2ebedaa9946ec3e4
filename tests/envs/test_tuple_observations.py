"""Tuple observations come out of vector envs as dicts, in every autoreset mode, and the state of such envs is kept."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from lightning_ding import nested
from lightning_ding.distributed.coordinator.schema import check_rows
from lightning_ding.envs import EnvStepper, env_state, load_env_state, make_vector_env
from lightning_ding.envs.tuples import TuplesAsDicts
from lightning_ding.envs.vector import AutoresetName, without_tuples
from tests.envs.any_spaces import AnySpaces

OBSERVATION = spaces.Tuple([spaces.Discrete(9, start=1), spaces.Dict({"in": spaces.Tuple([spaces.MultiBinary(3)])})])
ENV_KWARGS = {"observation": OBSERVATION, "action": spaces.Discrete(2)}
MODES: list[AutoresetName] = ["same_step", "next_step", "disabled"]


def make(autoreset: AutoresetName = "same_step", num_envs: int = 2) -> gym.vector.VectorEnv:
    maker: Any = AnySpaces
    return make_vector_env(maker, num_envs, seed=0, env_kwargs=ENV_KWARGS, autoreset=autoreset)


def test_the_spaces_say_what_the_observations_are() -> None:
    env = make()
    obs, _ = env.reset()
    assert env.observation_space.contains(obs)
    assert set(env.single_observation_space.spaces) == {"0", "1"}  # type: ignore[attr-defined]
    assert obs["1"]["in"]["0"].shape == (2, 3)


def test_an_env_without_tuples_is_left_as_it_is() -> None:
    env = gym.vector.SyncVectorEnv([lambda: AnySpaces(spaces.Discrete(3), spaces.Discrete(2))])
    assert without_tuples(env) is env


@pytest.mark.parametrize("autoreset", MODES)
def test_a_stepper_sees_final_observations_as_dicts(autoreset: AutoresetName) -> None:
    stepper = EnvStepper(make(autoreset))
    stepper.reset()
    steps = [stepper.step(np.zeros(2, np.int64)) for _ in range(8)]
    for step in steps:
        assert step.next_obs["0"].shape == (2,)
        assert step.next_obs["1"]["in"]["0"].shape == (2, 3)
    assert steps[4].terminated.all()


def test_a_stepper_takes_an_env_of_gymnasium_with_tuples() -> None:
    mode = gym.vector.AutoresetMode.SAME_STEP
    env = gym.vector.SyncVectorEnv([lambda: AnySpaces(**ENV_KWARGS)] * 2, autoreset_mode=mode)
    assert isinstance(EnvStepper(env).env, TuplesAsDicts)
    assert set(EnvStepper(env).reset()) == {"0", "1"}


def test_envs_with_tuples_continue_from_a_saved_state() -> None:
    env, other = make(), make()
    env.step(np.zeros(2, np.int64))
    load_env_state(other, env_state(env))
    for _ in range(6):
        seen, again = (one.step(np.zeros(2, np.int64))[0] for one in (env, other))
        assert [leaf.tolist() for leaf in nested.leaves(seen)] == [leaf.tolist() for leaf in nested.leaves(again)]


def test_a_coordinator_takes_rows_of_integers() -> None:
    obs = nested.to_tensor(make().reset()[0])
    numbers = np.zeros(2, np.int64)
    names = ("action", "reward", "env_id", "episode_id", "policy_version")
    rows = dict.fromkeys(names, numbers) | dict.fromkeys(("terminated", "truncated"), numbers > 0)
    assert check_rows({**nested.to_tensor(rows), "obs": obs, "next_obs": obs}, envs=2) == 2  # type: ignore[dict-item]
