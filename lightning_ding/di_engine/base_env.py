"""Envs with DI-engine's interface, and the adapter that turns them into gymnasium envs.

Such an env has ``reset() -> observation`` and ``step(action) -> BaseEnvTimestep(obs, reward, done, info)``. To use one
here, change the import of ``BaseEnv`` and ``BaseEnvTimestep`` to this module and that of ``ENV_REGISTRY`` to
``lightning_ding.registry``.

Where this differs: ``done`` with ``info["TimeLimit.truncated"]`` is a truncation, after which values are bootstrapped;
any other ``done`` is a termination. Each env has a separate random stream for the numbers that it draws from
``numpy.random``, so they do not depend on other envs, on the learner, or on whether envs have separate processes.
"""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import gymnasium as gym
import numpy as np
from easydict import EasyDict
from gymnasium import spaces

from lightning_ding.config import require
from lightning_ding.envs.named import find_env
from lightning_ding.registry import ENV_REGISTRY

BaseEnvTimestep = namedtuple("BaseEnvTimestep", ["obs", "reward", "done", "info"])
"""Result of a step: observation, reward (a number or an array of shape (1,)), whether the episode ended, and infos."""
Info = dict[str, Any]
LARGEST_SEED = 2**31
"""Seeds are below this number, because envs add to their seed and ``numpy.random.seed`` takes at most 2**32 - 1."""


class BaseEnv(ABC):
    """An env with the interface of DI-engine's class of the same name.

    A subclass sets or defines ``observation_space``, ``action_space`` and ``reward_space``, at the latest in its first
    ``reset``.

    Args:
        cfg: The ``env`` section of the config, an ``EasyDict``.

    Example:
        >>> class Count(BaseEnv):
        ...     observation_space, action_space = spaces.Box(0, 3, (1,)), spaces.Discrete(2)
        ...     def reset(self): self.steps = 0; return np.zeros(1)
        ...     def step(self, action): return BaseEnvTimestep(np.ones(1), [1.0], False, {})
        ...     def seed(self, seed, dynamic_seed=True): pass
        ...     def close(self): pass
        >>> env = make_base_env(Count, {})
        >>> env.reset()[0], env.step(0)[1:4]
        (array([0.], dtype=float32), (1.0, False, False))
    """

    observation_space: Any
    action_space: Any
    reward_space: Any

    def __init__(self, cfg: Any) -> None:
        self._cfg = cfg

    @abstractmethod
    def reset(self) -> Any:
        """Start an episode and return the first observation."""

    @abstractmethod
    def step(self, action: Any) -> Any:
        """Return a ``BaseEnvTimestep``, or a tuple of four as in gym or of five as in gymnasium.

        Args:
            action: A discrete action as an int64 array of shape (1,); any other action as an array, or as a dict of
                arrays.
        """

    @abstractmethod
    def seed(self, seed: int, dynamic_seed: bool = True) -> None:
        """Set the seed of the following episodes.

        Args:
            seed: The seed, >= 0.
            dynamic_seed: Whether episodes have different seeds, which derive from ``seed``; envs for evaluation get
                False and start every episode with ``seed`` itself.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the resources of the env."""

    def enable_save_replay(self, replay_path: str) -> None:
        """Write videos of the following episodes to the folder ``replay_path``."""
        raise NotImplementedError(
            f"{type(self).__name__} has no method enable_save_replay, which env.replay_path needs"
        )

    def random_action(self) -> Any:
        """Return a random action, in the form that ``step`` takes."""
        return as_base_env_action(self.action_space.sample())

    @staticmethod
    def create_collector_env_cfg(cfg: Any) -> list[Any]:
        """Return a config for each env that collects data; the entry ``collector_env_num`` is removed from ``cfg``."""
        return [cfg] * cfg.pop("collector_env_num")

    @staticmethod
    def create_evaluator_env_cfg(cfg: Any) -> list[Any]:
        """Return a config for each env of evaluations; the entry ``evaluator_env_num`` is removed from ``cfg``."""
        return [cfg] * cfg.pop("evaluator_env_num")

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def make_base_env(
    env: str | Callable[..., Any],
    cfg: Mapping[str, Any] | None = None,
    evaluation: bool = False,
    replay_path: str | None = None,
) -> gym.Env[Any, Any]:
    """Return a gymnasium env made from an env with DI-engine's interface.

    Args:
        env: Class or function that is called as ``env(cfg=cfg)``, its dotted path, or its name in ``ENV_REGISTRY``.
        cfg: Config of the env.
        evaluation: Whether the env is for evaluations; see :class:`BaseEnvAdapter`.
        replay_path: Folder for videos, passed to ``enable_save_replay``; None for no videos.

    Raises:
        ValueError: If no env has this name.
        TypeError: If the result is neither such an env nor a gymnasium env, which is returned unchanged.
    """
    make = ENV_REGISTRY.get(env) if isinstance(env, str) and env in ENV_REGISTRY else find_env(env, "env")
    require(callable(make), "env", "a class or function, its dotted path, or a name in ENV_REGISTRY", env)
    made = cast("Callable[..., Any]", make)(cfg=EasyDict(cfg or {}))
    if replay_path is not None:
        made.enable_save_replay(replay_path)
    return made if isinstance(made, gym.Env) else BaseEnvAdapter(made, evaluation)


class BaseEnvAdapter(gym.Env[Any, Any]):
    """A gymnasium env that calls an env with DI-engine's interface.

    Observations are converted to the type of their space, rewards to floats. ``reset(options=...)`` passes the options
    to the env's ``reset`` as keyword arguments.

    Args:
        env: The env. It is reset once if it has no spaces yet.
        evaluation: Whether the env is for evaluations. Then each episode starts with exactly the given seed
            (``dynamic_seed=False``), and the last reward of an episode is changed so that the sum of its rewards is
            ``info["eval_episode_return"]``, if the env reports that return.

    Raises:
        TypeError: If the env lacks a method, or a space that is one of gymnasium or can be converted to one.
    """

    def __init__(self, env: Any, evaluation: bool = False) -> None:
        missing = [name for name in ("reset", "step", "seed", "close") if not callable(getattr(env, name, None))]
        if missing:
            raise TypeError(f"the env {type(env).__name__} must have the methods of BaseEnv, but lacks {missing}")
        self.base_env = env
        self.evaluation = evaluation
        self._random = np.random.RandomState()
        self._return = 0.0
        if any(getattr(env, name, None) is None for name in ("observation_space", "action_space")):
            with self._own_random_numbers():
                env.reset()
        self.observation_space = self._space("observation_space")
        self.action_space = self._space("action_space")

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Start an episode, after setting the seed of the env if one is given."""
        super().reset(seed=seed)
        with self._own_random_numbers():
            if seed is not None:
                self._seed(seed % LARGEST_SEED)
            answer = self.base_env.reset(**(options or {}))
        info: Info = {}
        is_pair = isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict)
        if is_pair and not isinstance(self.observation_space, spaces.Tuple):
            answer, info = answer
        self._return = 0.0
        return _in_type_of(self.observation_space, answer), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        """Step the env."""
        with self._own_random_numbers():
            answer = self.base_env.step(as_base_env_action(action))
        obs, reward, terminated, truncated, info = self._five_values(answer)
        self._return += reward
        if self.evaluation and (terminated or truncated) and "eval_episode_return" in info:
            reward += self._number("eval_episode_return", info["eval_episode_return"]) - self._return
        return _in_type_of(self.observation_space, obs), reward, terminated, truncated, info

    def close(self) -> None:
        """Close the env."""
        self.base_env.close()

    def _seed(self, seed: int) -> None:
        np.random.seed(seed)  # the env's own stream, also if the env draws from it without seeding it
        parameters = inspect.signature(self.base_env.seed).parameters
        takes_more = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
        given = {"dynamic_seed": not self.evaluation} if takes_more or "dynamic_seed" in parameters else {}
        self.base_env.seed(seed, **given)

    def _five_values(self, answer: Any) -> tuple[Any, float, bool, bool, Info]:
        good = isinstance(answer, tuple) and len(answer) in (4, 5)
        name = type(self.base_env).__name__
        if not good:
            what = f"a tuple of {len(answer)}" if isinstance(answer, tuple) else type(answer).__name__
            raise TypeError(f"{name}.step() must return a BaseEnvTimestep or a tuple of 4 or 5 values, got {what}")
        obs, reward, *ends, info = answer
        flags = [bool(self._number("done", end)) for end in ends]
        if len(flags) == 1:
            truncated = flags[0] and bool(info.get("TimeLimit.truncated", False))
            flags = [flags[0] and not truncated, truncated]
        return obs, self._number("reward", reward), flags[0], flags[1], dict(info)

    def _number(self, what: str, value: Any) -> float:
        array = np.asarray(value)
        if array.size != 1:
            name = type(self.base_env).__name__
            raise TypeError(f"{what} of {name}.step() must be one number or an array of shape (1,), got {value!r}")
        return float(array.item())

    def _space(self, name: str) -> spaces.Space[Any]:
        return as_gymnasium_space(getattr(self.base_env, name, None), f"{name} of {type(self.base_env).__name__}")

    @contextmanager
    def _own_random_numbers(self) -> Iterator[None]:
        """Let ``numpy.random`` draw from the stream of this env."""
        others = np.random.mtrand.get_bit_generator()
        np.random.mtrand.set_bit_generator(self._random._bit_generator)
        try:
            yield
        finally:
            np.random.mtrand.set_bit_generator(others)


class _DiscreteAction(np.ndarray[Any, Any]):
    """An array of shape (1,) that ``int`` accepts, as with NumPy 1."""

    def __int__(self) -> int:
        return int(self.item())


def as_base_env_action(action: Any) -> Any:
    """Return an action of gymnasium in the form that envs of DI-engine expect.

    Example:
        >>> as_base_env_action(np.int64(3)).tolist()
        [3]
    """
    if isinstance(action, Mapping):
        return {name: as_base_env_action(part) for name, part in action.items()}
    array = np.asarray(action)
    if array.ndim == 0 and array.dtype.kind in "iu":
        return array.astype(np.int64).reshape(1).view(_DiscreteAction)
    return array


def as_gymnasium_space(space: Any, name: str) -> spaces.Space[Any]:
    """Return the gymnasium space for one of the package ``gym``, or a gymnasium space itself.

    Args:
        space: The space.
        name: Name of the space in errors.

    Raises:
        TypeError: If there is no such space in gymnasium.
    """
    if isinstance(space, spaces.Space):
        return space
    kind = type(space).__name__
    is_old = type(space).__module__.partition(".")[0] == "gym"
    if not is_old or kind not in _FROM_GYM:
        raise TypeError(
            f"{name} must be a space of gymnasium, or a {', '.join(_FROM_GYM)} of gym, got {space!r}; "
            "import gymnasium in place of gym"
        )
    return _FROM_GYM[kind](space, functools.partial(as_gymnasium_space, name=name))


_Convert = Callable[[Any], "spaces.Space[Any]"]
_FROM_GYM: dict[str, Callable[[Any, _Convert], spaces.Space[Any]]] = {
    "Box": lambda old, _: spaces.Box(old.low, old.high, old.shape, old.dtype),
    "Discrete": lambda old, _: spaces.Discrete(int(old.n), start=int(getattr(old, "start", 0))),
    "MultiDiscrete": lambda old, _: spaces.MultiDiscrete(old.nvec),
    "MultiBinary": lambda old, _: spaces.MultiBinary(old.n),
    "Dict": lambda old, convert: spaces.Dict({name: convert(below) for name, below in old.spaces.items()}),
    "Tuple": lambda old, convert: spaces.Tuple([convert(below) for below in old.spaces]),
}


def _in_type_of(space: spaces.Space[Any], obs: Any) -> Any:
    """Return an observation in the type of its space, unless the conversion would change its kind of number."""
    if isinstance(space, spaces.Dict):
        return {name: _in_type_of(below, obs[name]) for name, below in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_in_type_of(below, part) for below, part in zip(space.spaces, obs, strict=True))
    array = np.asarray(obs)
    if space.dtype is None or not np.can_cast(array.dtype, space.dtype, "same_kind"):
        return obs
    return space.dtype.type(array.item()) if isinstance(space, spaces.Discrete) else array.astype(space.dtype)
