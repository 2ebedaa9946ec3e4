"""The function that creates one env, in this process or in another one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from lightning_ding.envs.checks import check_contract
from lightning_ding.registry import import_modules


class EnvMaker:
    """Creates one env when called. It can be pickled, and a fingerprint of the env reads its attributes."""

    def __init__(
        self,
        env: str | EnvSpec | Callable[..., Any],
        wrappers: tuple[Callable[[Any], Any], ...],
        kwargs: dict[str, Any],
        modules: tuple[str, ...] = (),
    ) -> None:
        self.env, self.wrappers, self.kwargs, self.modules = env, wrappers, kwargs, modules
        self.check_api = False

    def __call__(self) -> gym.Env[Any, Any]:
        """Return a new env, after a check of the API if ``check_api`` is set."""
        import_modules(self.modules)
        if self.check_api:
            check_contract(self._make)
        return self._make()

    def _make(self) -> gym.Env[Any, Any]:
        make = functools.partial(gym.make, self.env) if isinstance(self.env, (str, EnvSpec)) else self.env
        env = make(**self.kwargs)
        for wrapper in self.wrappers:
            env = wrapper(env)
        if isinstance(env, VectorEnv):
            env.close()
            raise ValueError(f'mode must be "native" with an env_id that creates a vector env, {type(env).__name__}')
        if not isinstance(env, gym.Env):
            raise TypeError(f"env_id must create a gymnasium.Env, got {type(env).__name__}")
        return env
