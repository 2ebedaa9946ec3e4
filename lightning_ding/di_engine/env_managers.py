"""DI-engine's env managers, as adapters of this package's vector envs.

A worker in DI-engine's form (:mod:`lightning_ding.di_engine.worker`) takes a manager's vector env. A manager can also
be stepped by hand, with the actions of all envs in each call; an env whose episode ends begins the next one at once.

Shapes: N envs.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from easydict import EasyDict
from typing_extensions import Self

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.di_engine.base_env import BaseEnvAdapter, BaseEnvTimestep, as_base_env_action
from lightning_ding.di_engine.configs import plain
from lightning_ding.di_engine.env_manager import translate_manager
from lightning_ding.di_engine.gym_wrappers import OldEnv, is_old_env
from lightning_ding.di_engine.policies.data import TIME_LIMIT, info_of
from lightning_ding.di_engine.two_players import players_of
from lightning_ding.envs import EnvStepper, PettingZooVectorEnv, make_vector_env

EnvFunction = Callable[[], Any]
NumberedTimestep = namedtuple("NumberedTimestep", ["obs", "reward", "done", "info", "env_id"])
"""Result of the step of an env: as :class:`BaseEnvTimestep`, and the number of the env."""
logger = logging.getLogger(__name__)


class BaseEnvManager:
    """N envs that are stepped in this process.

    Args:
        env_fn: A function for each env that makes it: a ``BaseEnv``, or an env of gymnasium or gym.
        cfg: Section ``env.manager`` of the config.

    Raises:
        ValueError: If there is no function, or an entry of the section has a value that is not possible.
    """

    kind: ClassVar[str] = "base"
    by_id: ClassVar[bool] = True
    """Whether observations, actions and steps are dicts by the number of the env, and not lists."""

    def __init__(self, env_fn: Sequence[EnvFunction], cfg: Mapping[str, Any] | None = None) -> None:
        require(len(env_fn) >= 1, "env_fn", "a function for each env", env_fn)
        self._fns = list(env_fn)
        self._managed = translate_manager({**plain(cfg or {}), "type": self.kind})
        for line in self._managed.warnings:
            logger.warning(line)
        self.seed_of_run: int | None = None
        """The seed that :meth:`seed` set."""
        self._replay_path: str | None = None
        self._vector: Any = None
        self._stepper: EnvStepper | None = None
        self._closed = False

    @classmethod
    def default_config(cls) -> EasyDict:
        """Return the defaults of the section as a new ``EasyDict``."""
        return EasyDict(type=cls.kind, cfg_type=f"{cls.__name__}Dict")

    # ------------------------------------------------------------------ for workers

    def vector_env(self, evaluation: bool = False) -> Any:
        """Return the vector env, which is made at the first call.

        Args:
            evaluation: Whether the envs are for evaluations; see :class:`BaseEnvAdapter`.
        """
        if self._vector is None:
            options = {} if self._managed.mode == "sync" else self._managed.datamodule
            make = _Maker(self._function(), evaluation, self._replay_path)
            self._vector = make_vector_env(make, len(self._fns), self._managed.mode, self.seed_of_run, **options)
        return self._vector

    def vector_games(self) -> Any:
        """Return the vector env of games whose players all act in each step, which is made at the first call."""
        if self._vector is None:
            make = _InTurn([_Maker(one, False, self._replay_path) for one in self._fns])
            self._vector = PettingZooVectorEnv(lambda: players_of(make()), len(self._fns), seed=self.seed_of_run)
        return self._vector

    def _function(self) -> EnvFunction:
        if self._managed.mode == "sync":
            return _InTurn(self._fns)
        first, *others = self._fns
        allowed = "the same for all envs, which processes make alike; BaseEnvManager takes different ones"
        require(all(_same(first, one) for one in others), "env_fn", allowed, self._fns)
        return first

    # ------------------------------------------------------------------ by hand

    def seed(self, seed: int | Sequence[int] | Mapping[int, int], dynamic_seed: bool | None = None) -> None:
        """Set the seed of the envs, before they are made.

        Args:
            seed: Seed of the first env; that of each following env is one more. Or the seeds of all envs, as a list or
                by their numbers, which must follow each other in this way.
            dynamic_seed: Without effect: collectors have different episodes, evaluators the same ones.

        Raises:
            ValueError: If the seeds do not follow each other.
            RuntimeError: If the envs run already.
        """
        if self._vector is not None:
            raise RuntimeError("seed must be called before the envs are made by launch() or by a worker")
        of_envs = [seed[env_id] for env_id in sorted(seed)] if isinstance(seed, Mapping) else seed
        listed = np.atleast_1d(of_envs).tolist()
        first = int(listed[0])
        is_row = listed == list(range(first, first + len(listed)))
        require(is_row, "seed", "a number, or numbers that are each one more than the one before", seed)
        self.seed_of_run = first

    def enable_save_replay(self, replay_path: str | Sequence[str]) -> None:
        """Write videos of all episodes to a folder; before the envs are made.

        Raises:
            RuntimeError: If the envs run already.
        """
        if self._vector is not None:
            raise RuntimeError("enable_save_replay must be called before the envs are made")
        paths = [replay_path] if isinstance(replay_path, str) else list(replay_path or [])
        self._replay_path = paths[0] if paths else "./video"

    def launch(self, reset_param: Mapping[int, Any] | None = None) -> None:
        """Make the envs and begin episodes."""
        require(not reset_param, "reset_param", "None: all envs are reset alike", reset_param)
        self._closed = False
        self.reset()

    def reset(self, reset_param: Mapping[int, Any] | None = None) -> None:
        """Begin new episodes in all envs."""
        require(not reset_param, "reset_param", "None: all envs are reset alike", reset_param)
        self._stepper = EnvStepper(self.vector_env())
        self._stepper.reset()

    def step(self, actions: Any) -> Any:
        """Step all envs.

        Args:
            actions: The action of each of the N envs by its number, or as a list.

        Returns:
            The result of each env: the last observation of an episode that ended, while :attr:`ready_obs` has the first
            of the next one.

        Raises:
            RuntimeError: If the envs were not launched.
            ValueError: If there are not N actions.
        """
        stepper, count = self._running(), self.env_num
        listed = [actions[env_id] for env_id in sorted(actions)] if isinstance(actions, Mapping) else list(actions)
        require(len(listed) == count, "actions", f"those of all {count} envs", len(listed))
        space = stepper.env.single_action_space
        taken = np.stack([_as_action(space, nested.to_numpy(one)) for one in listed])
        step = stepper.step(taken)
        after = list(nested.unbind(nested.to_tensor(step.next_obs)))
        found = []
        for env_id in range(count):
            done = bool(step.terminated[env_id] or step.truncated[env_id])
            info = info_of(step.info, env_id) | {TIME_LIMIT: bool(step.truncated[env_id])}
            values = (nested.to_array(after[env_id]), np.array([step.reward[env_id]], np.float32), done, info)
            found.append(values)
        if self.by_id:
            return {env_id: BaseEnvTimestep(*values) for env_id, values in enumerate(found)}
        return [NumberedTimestep(*values, np.array(env_id)) for env_id, values in enumerate(found)]

    @property
    def ready_obs(self) -> Any:
        """The newest observation of each env by its number, or with leading axis N."""
        obs = self._running().obs
        if not self.by_id:
            return obs
        return {env_id: nested.to_array(one) for env_id, one in enumerate(nested.unbind(nested.to_tensor(obs)))}

    @property
    def ready_obs_id(self) -> list[int]:
        """The numbers of the envs that take an action: all."""
        return list(range(self.env_num))

    def random_action(self) -> Any:
        """Return a random action for each env by its number, or a list."""
        space = self.vector_env().single_action_space
        actions = [as_base_env_action(space.sample()) for _ in range(self.env_num)]
        return dict(enumerate(actions)) if self.by_id else actions

    @property
    def env_num(self) -> int:
        """Number of envs N."""
        return len(self._fns)

    @property
    def active_env(self) -> list[int]:
        """The numbers of the envs whose episodes are not over: all."""
        return [] if self._closed else list(range(self.env_num))

    @property
    def done(self) -> bool:
        """Whether all envs are closed; their episodes never end for good."""
        return self._closed

    @property
    def closed(self) -> bool:
        """Whether the envs are closed."""
        return self._closed

    @property
    def observation_space(self) -> gym.Space[Any]:
        """The observation space of one env."""
        return self.vector_env().single_observation_space  # type: ignore[no-any-return]

    @property
    def action_space(self) -> gym.Space[Any]:
        """The action space of one env."""
        return self.vector_env().single_action_space  # type: ignore[no-any-return]

    @property
    def reward_space(self) -> gym.Space[Any]:
        """The space of a reward."""
        return gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def close(self) -> None:
        """Close the envs; may be called repeatedly."""
        if self._vector is not None:
            self._vector.close()
        self._vector = self._stepper = None
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _running(self) -> EnvStepper:
        if self._stepper is None:
            raise RuntimeError("the envs must be launched first")
        return self._stepper


class BaseEnvManagerV2(BaseEnvManager):
    """N envs that are stepped in this process, with lists in place of dicts."""

    kind = "base_v2"
    by_id = False


class SyncSubprocessEnvManager(BaseEnvManager):
    """N envs in processes, whose steps wait for all of them."""

    kind = "subprocess"


class AsyncSubprocessEnvManager(SyncSubprocessEnvManager):
    """The same as :class:`SyncSubprocessEnvManager`, because each step waits for all envs here."""

    kind = "async_subprocess"


class SubprocessEnvManagerV2(SyncSubprocessEnvManager):
    """N envs in processes, with lists in place of dicts."""

    kind = "subprocess_v2"
    by_id = False


MANAGERS: dict[str, type[BaseEnvManager]] = {
    one.kind: one
    for one in (
        BaseEnvManager,
        BaseEnvManagerV2,
        SyncSubprocessEnvManager,
        AsyncSubprocessEnvManager,
        SubprocessEnvManagerV2,
    )
}
"""The class for each type of manager."""


def get_env_manager_cls(cfg: Mapping[str, Any]) -> type[BaseEnvManager]:
    """Return the class of the manager that ``cfg["type"]`` names, ``base`` if it names none."""
    kind = cfg.get("type", "base")
    require(kind in MANAGERS, "type", f"one of {sorted(MANAGERS)}", kind)
    return MANAGERS[kind]


def create_env_manager(manager_cfg: Mapping[str, Any], env_fn: Sequence[EnvFunction]) -> BaseEnvManager:
    """Return a manager of the type that its config names.

    Args:
        manager_cfg: Section ``env.manager`` of the config.
        env_fn: A function for each env that makes it.
    """
    return get_env_manager_cls(manager_cfg)(env_fn, manager_cfg)


def _as_action(space: gym.Space[Any], action: Any) -> Any:
    shape = space.shape
    return action if shape is None else np.asarray(action, space.dtype).reshape(shape)


class _Maker:
    """Makes an env of gymnasium with a function of the user."""

    def __init__(self, make: EnvFunction, evaluation: bool, replay_path: str | None) -> None:
        self.make, self.evaluation, self.replay_path = make, evaluation, replay_path

    def __call__(self) -> gym.Env[Any, Any]:
        """Return a new env."""
        env = self.make()
        if self.replay_path is not None and hasattr(env, "enable_save_replay"):
            env.enable_save_replay(self.replay_path)
        if is_old_env(env):
            return OldEnv(env)
        return env if isinstance(env, gym.Env) else BaseEnvAdapter(env, self.evaluation)


class _InTurn:
    """Makes the envs of several functions in turn."""

    def __init__(self, fns: Sequence[EnvFunction]) -> None:
        self._next = itertools.cycle(fns)

    def __call__(self) -> Any:
        """Return a new env of the next function."""
        return next(self._next)()


def _same(one: Any, other: Any) -> bool:
    """Return whether two functions make the same env: lambdas of one line and partials are compared by their parts."""
    if one is other:
        return True
    if isinstance(one, functools.partial) and isinstance(other, functools.partial):
        same_parts = (one.args, one.keywords) == (other.args, other.keywords)
        return _same(one.func, other.func) and same_parts
    codes = getattr(one, "__code__", None), getattr(other, "__code__", None)
    if codes[0] is None or codes[0] is not codes[1]:
        return False
    cells = [[cell.cell_contents for cell in fn.__closure__ or ()] for fn in (one, other)]
    return (one.__defaults__, one.__kwdefaults__, cells[0]) == (other.__defaults__, other.__kwdefaults__, cells[1])
