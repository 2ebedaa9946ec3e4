from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from lightning_ding.envs import make_vector_env
from lightning_ding.envs.named import find_env, find_wrappers
from tests.envs.own import SOURCE

FORMS: list[Any] = [
    "{module}:Own-v0",
    "{module}.OwnEnv",
    "{module}:OwnEnv",
    "{module}.make_own",
    {"class_path": "{module}.OwnEnv", "init_args": {"size": 3}},
    {"class_path": "{module}.OwnEnv", "size": 3},
]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the name of a user's module that has not been imported."""
    (tmp_path / "own_envs.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield "own_envs"
    sys.modules.pop("own_envs", None)
    gym.registry.pop("Own-v0", None)


def filled(form: Any, module: str) -> Any:
    if isinstance(form, str):
        return form.format(module=module)
    return {key: filled(value, module) if isinstance(value, str) else value for key, value in form.items()}


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_users_env_is_created_in_every_form(module: str, form: Any) -> None:
    envs = make_vector_env(filled(form, module), 2)
    assert [env.unwrapped.size for env in envs.envs] == [3, 3]  # type: ignore[attr-defined]
    envs.close()


def test_users_env_is_created_in_processes_that_have_not_imported_it(module: str) -> None:
    envs = make_vector_env(f"{module}:Own-v0", 1, "async", wrappers=["gymnasium.wrappers.FlattenObservation"])
    assert envs.single_observation_space.shape == (4,)
    envs.close()


def test_modules_to_import_register_their_envs_in_the_processes_too(module: str) -> None:
    envs = make_vector_env(f"{module}.make_by_id", 1, "async", import_names=[module])
    assert envs.call("size") == (3,)  # type: ignore[attr-defined]
    envs.close()


def test_a_registered_id_stays_an_id() -> None:
    assert find_env("CartPole-v1") == "CartPole-v1"
    assert find_env(CartPoleEnv) is CartPoleEnv


def test_wrappers_are_found_by_path_with_their_arguments() -> None:
    limit = {"class_path": "gymnasium.wrappers.TimeLimit", "init_args": {"max_episode_steps": 5}}
    first, second, third = find_wrappers(["gymnasium.wrappers.FlattenObservation", limit, gym.wrappers.Autoreset])
    assert (first, third) == (gym.wrappers.FlattenObservation, gym.wrappers.Autoreset)
    assert isinstance(second, functools.partial)
    assert (second.func, second.keywords) == (gym.wrappers.TimeLimit, {"max_episode_steps": 5})
    alone: list[Any] = list(find_wrappers("gymnasium.wrappers.TimeLimit"))
    assert alone == [gym.wrappers.TimeLimit]


WRONG_ENVS: list[tuple[Any, str]] = [
    ("CartPol-v1", "got 'CartPol-v1'; did you mean 'CartPole-v1'?"),
    ("cartpole-v1", "did you mean 'CartPole-v1'?"),
    ("CartPole-v99", "It provides versioned environments: [ `v0`, `v1` ]"),
    ("ALE/Pongg-v5", "got 'ALE/Pongg-v5'"),
    ("own_envs:Ownn-v0", "'own_envs' has no 'Ownn-v0'"),
    ("own_envs.OwnEvn", "'own_envs' has no 'OwnEvn'; did you mean 'own_envs.OwnEnv'?"),
    ("own_envs.SIZE", "'own_envs' has no 'SIZE'"),
    ("nowhere.OwnEnv", "No module named 'nowhere'"),
    ("nowhere:Own-v0", "No module named 'nowhere'"),
    ("..OwnEnv", "got '..OwnEnv'"),
    ({"size": 3}, "got {'size': 3}"),
    ({"class_path": "CartPole-v1"}, "env_id.class_path must be a dotted path, got 'CartPole-v1'"),
]


@pytest.mark.parametrize(("env", "message"), WRONG_ENVS, ids=[str(env) for env, _ in WRONG_ENVS])
def test_error_of_an_unknown_env_names_the_nearest_id(module: str, env: Any, message: str) -> None:
    with pytest.raises(ValueError, match=r"^env_id(\.class_path)? must be a ") as error:
        find_env(env)
    assert message in str(error.value)


def test_what_is_no_env_at_all_is_refused() -> None:
    with pytest.raises(TypeError, match=r"eval_env_id must be a registered gymnasium id, .*, got 3"):
        find_env(3, "eval_env_id")  # type: ignore[arg-type]


def test_arguments_that_a_class_does_not_take_are_named(module: str) -> None:
    with pytest.raises(TypeError, match=r"env_id: own_envs\.OwnEnv got an unexpected keyword argument 'sise'"):
        find_env({"class_path": "own_envs.OwnEnv", "init_args": {"sise": 3}})


def test_a_wrapper_that_does_not_exist_names_the_nearest_of_gymnasium() -> None:
    for name in ("FlattenObservation", "gymnasium.wrappers.FlatenObservation"):
        with pytest.raises(ValueError, match=r"did you mean 'gymnasium\.wrappers\.FlattenObservation'"):
            find_wrappers([name], "train_wrappers")
