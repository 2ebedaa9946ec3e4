"""An env that violates gymnasium's API is reported in one error before anything is collected."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from lightning import Trainer

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.envs import BrokenEnvError, EnvProcessError, make_vector_env
from lightning_ding.policy import DQNPolicy
from tests.envs.faulty import FaultyEnv
from tests.toys.envs import CountingEnv

OBS = np.zeros(3, np.float32)


class Env(gym.Env[Any, Any]):
    """An env that follows the API except for the given deviations."""

    def __init__(self, first: Any = (OBS, {}), answer: Any = (OBS, 0.0, False, True, {}), spaces: Any = None) -> None:
        self.observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        vars(self).update(spaces or {})
        self.first, self.answer = first, answer

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self.first

    def step(self, action: Any) -> Any:
        return self.answer


class WithoutSeed(Env):
    def reset(self) -> Any:  # type: ignore[override]
        return OBS


class Draws(Env):
    """Draws from the global generators, as it should not."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        random.random()
        np.random.random()
        torch.rand(1)
        return super().reset(seed=seed)


class Raises(Env):
    def __init__(self, error: BaseException, method: str = "reset") -> None:
        super().__init__()
        self.error, self.method = error, method

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if self.method == "reset":
            raise self.error
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        raise self.error


KEYS = gym.spaces.Dict({"a": gym.spaces.Box(-1, 1, (3,)), "b": gym.spaces.Discrete(2)})
BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "old reset": ({"first": OBS}, r"reset\(\) must return \(observation, info\), got shape \(3,\) and dtype float32"),
    "4-tuple": (
        {"answer": (OBS, 0.0, True, {})},
        r"step\(\) must return .*, got a tuple of 4; a single `done` is the old",
    ),
    "shape": ({"first": (np.zeros(4, np.float32), {})}, r"of reset\(\) must have shape \(3,\) .*, got shape \(4,\)"),
    "dtype": ({"first": (np.array(["a"] * 3), {})}, "must have shape .* and dtype float32 .* and dtype <U1"),
    "shape of a step": ({"answer": (0.0, 0.0, True, False, {})}, r"observation of step\(\) must have shape \(3,\)"),
    "reward": ({"answer": (OBS, None, True, False, {})}, "reward .* must be a number, got NoneType None"),
    "rewards": ({"answer": (OBS, np.ones(2), True, False, {})}, r"reward .* must be a number, got shape \(2,\)"),
    "terminated": ({"answer": (OBS, 0.0, None, False, {})}, "terminated .* must be a bool, got NoneType"),
    "info": ({"answer": (OBS, 0.0, True, False, None)}, "info .* must be a dict"),
    "entry": ({"first": ({"a": OBS}, {}), "spaces": {"observation_space": KEYS}}, r"of reset\(\) must be in Dict"),
    "no space": ({"spaces": {"observation_space": None}}, r"observation_space must be a gymnasium.Space, got None"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_in_an_env_is_named(name: str) -> None:
    kwargs, message = BROKEN[name]
    with pytest.raises(BrokenEnvError, match="the env Env violates gymnasium's API: .*" + message):
        make_vector_env(Env, 2, env_kwargs=kwargs, check_api=True)


class WithoutOptions(Env):
    def reset(self, *, seed: int | None = None) -> Any:  # type: ignore[override]
        return super().reset(seed=seed)


def test_mistakes_are_named() -> None:
    with pytest.raises(BrokenEnvError, match=r"the env WithoutSeed .*: reset\(\) must take seed and options"):
        make_vector_env(WithoutSeed, check_api=True)
    with pytest.raises(BrokenEnvError, match=r"the env WithoutOptions .*: reset\(\) must take seed and options"):
        make_vector_env(WithoutOptions, check_api=True)


def test_a_broken_env_that_is_registered_is_named_by_its_id() -> None:
    gym.register("Broken-v0", lambda **kwargs: Env(**kwargs), kwargs={"first": OBS})
    try:
        with pytest.raises(BrokenEnvError, match=r"the env Env \(Broken-v0\) violates"):
            make_vector_env("Broken-v0", check_api=True)
    finally:
        del gym.registry["Broken-v0"]


def test_a_broken_env_in_a_process_is_named_too() -> None:
    with pytest.raises(BrokenEnvError, match=r"^the env Env violates gymnasium's API: reset"):
        make_vector_env(Env, mode="async", env_kwargs={"first": OBS}, check_api=True)


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("env", [CountingEnv, "CartPole-v1"])
def test_arguments_that_an_env_does_not_take_are_named_in_one_line(env: Any, mode: Any) -> None:
    with pytest.raises(TypeError, match=r"^\w+.__init__\(\) got an unexpected keyword argument 'size'[^\n]*$"):
        make_vector_env(env, 2, mode, env_kwargs={"size": 5})


def test_an_error_in_the_code_of_an_env_keeps_the_traceback_of_its_process() -> None:
    with pytest.raises(EnvProcessError, match=r"TypeError: .*int.* is not iterable\nTraceback(.*\n)*.* in __init__"):
        make_vector_env(FaultyEnv, mode="async", env_kwargs={"places": 5})


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"first": ([0.0, 0.0, 0.0], {}), "answer": (np.zeros(3), 1, np.bool_(True), np.bool_(False), {})},
        {"answer": (OBS + 9, np.float64(1), 1, 0, {"a": 1})},
        {
            "first": ("some words", {}),
            "answer": ("word", 0, True, False, {}),
            "spaces": {"observation_space": gym.spaces.Text(9)},
        },
    ],
)
def test_values_that_can_be_used_are_accepted(kwargs: Any) -> None:
    make_vector_env(Env, env_kwargs=kwargs, check_api=True).close()


@pytest.mark.parametrize("method", ["reset", "step"])
@pytest.mark.parametrize("error", [OSError("the simulator is busy"), asyncio.CancelledError(), SystemExit(0)])
def test_an_exception_of_the_env_is_left_to_the_run(error: BaseException, method: str) -> None:
    make_vector_env(Raises, env_kwargs={"error": error, "method": method}, check_api=True).close()


def test_the_check_draws_no_random_numbers() -> None:
    def numbers() -> list[float]:
        return [random.random(), float(np.random.random()), float(torch.rand(1))]

    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    without = numbers()
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    make_vector_env(Draws, check_api=True).close()
    assert numbers() == without


def test_a_datamodule_checks_its_envs(make_trainer: Callable[..., Trainer], small: dict[str, Any]) -> None:
    with pytest.raises(BrokenEnvError, match="the env Env violates"):
        make_trainer().fit(DQNPolicy(small), ReplayDataModule(Env, env_kwargs={"first": OBS}))
