"""State outside of envs: attributes of classes, variables of modules, slots, and deleted attributes."""

from __future__ import annotations

import importlib
import random
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import VectorEnv

from lightning_ding.envs import env_state, load_env_state, make_vector_env
from lightning_ding.envs.state.variables import Variables
from tests.envs.state.test_state import through_a_file

MODULE = "tests.envs.state.outside"
ACTIONS = np.zeros(2, dtype=np.int64)


def fresh() -> Any:
    """Return the module of the envs as a new process would import it."""
    for name in (MODULE, f"{MODULE}_helpers"):
        sys.modules.pop(name, None)
        vars(importlib.import_module("tests.envs.state")).pop(name.rpartition(".")[2], None)
    return importlib.import_module(MODULE)


def make(name: str, mode: Any = "sync") -> VectorEnv:
    env = make_vector_env(getattr(fresh(), name), 2, mode)
    env.reset(seed=1)
    return env


def play(env: VectorEnv, steps: int) -> list[Any]:
    return [env.step(ACTIONS)[0].tolist() for _ in range(steps)]


@pytest.mark.parametrize("name", ["OnClass", "InModule", "Slots", "Deletes"])
@pytest.mark.parametrize("before", [0, 1, 4])
def test_envs_continue_with_state_outside_of_their_attributes(name: str, before: int) -> None:
    first = make(name)
    play(first, before)
    state = through_a_file(env_state(first))
    seen = play(first, 5)
    second = make(name)
    play(second, 2)
    load_env_state(second, state)
    assert play(second, 5) == seen
    assert state["lost"] == []


@pytest.mark.parametrize("name", ["OnClass", "InModule", "Slots", "Deletes", "Global"])
def test_env_processes_continue_with_state_outside_of_attributes(name: str) -> None:
    first, second = make(name, "async"), make(name, "async")
    play(first, 4)
    play(second, 1)
    load_env_state(second, through_a_file(env_state(first)))
    assert play(second, 5) == play(first, 5)
    first.close()
    second.close()


def test_env_processes_draw_numbers_that_the_seed_defines_and_each_process_others() -> None:
    first, second = make("Global", "async"), make("Global", "async")
    seen = play(first, 3)
    assert play(second, 3) == seen
    assert seen[0][0] != seen[0][1]
    second.reset(seed=2)
    assert play(second, 3) != seen
    first.close()
    second.close()


def test_env_processes_do_not_change_the_generators_of_this_process() -> None:
    random.seed(5)
    env = make("Global", "async")
    assert random.random() == 0.6229016948897019
    env.close()


def test_attribute_of_a_class_that_did_not_change_keeps_the_value_of_the_new_code() -> None:
    first = make("OnClass")
    play(first, 3)
    state = env_state(first)
    kind = fresh().OnClass
    kind.constant = 6
    load_env_state(make_vector_env(kind, 2), state)
    assert (kind.constant, kind.step_size) == (6, 7)


def test_changed_list_of_a_class_stays_the_same_object() -> None:
    first = make("OnClass")
    play(first, 1)
    state = env_state(first)
    second = make("OnClass")
    seen = second.envs[0].unwrapped.seen  # type: ignore[attr-defined]
    load_env_state(second, state)
    assert second.envs[0].unwrapped.seen is seen  # type: ignore[attr-defined]
    assert seen == [2, 5]


def test_attribute_that_only_the_new_code_has_is_kept() -> None:
    state = env_state(make("Deletes"))
    module = fresh()

    def create(self: Any) -> None:
        self.gain = 2.0

    module.Deletes.__init__ = create
    second = make_vector_env(module.Deletes, 2)
    second.reset(seed=1)
    load_env_state(second, state)
    assert [env.unwrapped.gain for env in second.envs] == [2.0, 2.0]  # type: ignore[attr-defined]


def test_changed_object_that_cannot_be_saved_is_named_and_the_rest_is_saved() -> None:
    env = make("Opaque")
    assert env_state(env)["lost"] == []
    play(env, 1)
    assert env_state(env)["lost"] == [f"{MODULE}.Opaque.engine is a {MODULE}.Engine"]
    env = make("Still")
    play(env, 1)
    assert env_state(env)["lost"] == []


def test_changed_object_of_an_env_process_that_cannot_be_saved_is_named() -> None:
    env = make("Opaque", "async")
    play(env, 1)
    assert env_state(env)["lost"] == [f"{MODULE}.Opaque.engine is a {MODULE}.Engine"]
    env.close()


def test_variables_are_those_that_the_code_of_a_class_names() -> None:
    module = fresh()
    names = sorted(label.removeprefix(MODULE) for label in Variables(module.InModule).all())
    own = [".Base.action_space", ".Base.observation_space", ".count", ".episodes", ".generator"]
    helpers = ["_helpers._draws", "_helpers.state", "_helpers.total"]
    assert names == [*own, *helpers]


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1"])
def test_classes_of_gymnasium_have_no_variables(env: str) -> None:
    made = gym.make(env)
    assert Variables(type(made)).all() == Variables(type(made.unwrapped)).all() == {}
