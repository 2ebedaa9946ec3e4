"""Wrappers of single envs: faults, pauses, videos, masks of actions, and the previous action and reward."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from lightning_ding.config import require
from lightning_ding.envs.action_masks import KEY, OTHER_KEY, mask_sizes
from lightning_ding.envs.answers import observation_check, reset_values, step_values
from lightning_ding.envs.checks import check_finite
from lightning_ding.envs.faults import is_of_env

Info = dict[str, Any]


class FaultBarrier(gym.Wrapper[Any, Any, Any, Any]):
    """Ends the episode when a fault occurs in an env, instead of raising.

    A fault is an exception, a returned value that violates gymnasium's API, or an observation or reward that is not
    finite or too large for float32. A step with a fault returns the last valid observation, reward 0, ``truncated`` and
    the info ``{"abnormal": True, "fault": "<ExceptionType>: <message>"}``. A reset with a fault is repeated.
    ``SystemExit`` and ``KeyboardInterrupt`` are faults if the env raised them, but not if a signal caused them.

    Args:
        env: Any env.
        max_faults: Maximum number of faults without a valid step between them, >= 1. The next fault is the cause of a
            ``RuntimeError``.

    Raises:
        ValueError: If ``max_faults`` is out of range.

    Example:
        >>> env = FaultBarrier(gym.make("CartPole-v1"))
        >>> _ = env.reset(seed=0)
        >>> _, reward, terminated, truncated, info = env.step("left")
        >>> reward, terminated, truncated, info["fault"].split(":")[0]
        (0.0, False, True, 'AssertionError')
    """

    def __init__(self, env: gym.Env[Any, Any], max_faults: int = 10) -> None:
        super().__init__(env)
        require(max_faults >= 1, "max_faults", ">= 1", max_faults)
        self.max_faults = max_faults
        self._faults = 0
        self._obs: Any = None
        self._check = observation_check(env.observation_space)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Start a new episode, if necessary with several attempts."""
        while True:
            try:
                obs, info = reset_values(self.env.reset(seed=seed, options=options))
                self._check(obs, "reset()")
                check_finite("observation", obs)
            except BaseException as error:
                if not is_of_env(error):
                    raise
                self._handle_fault(error)
                seed = None if seed is None else seed + 1  # the same seed would probably fail again
            else:
                self._obs = copy.deepcopy(obs)
                return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Info]:
        """Step the env, or end its episode after a fault."""
        try:
            obs, reward, terminated, truncated, info = step_values(self.env.step(action))
            self._check(obs, "step()")
            check_finite("observation", obs)
            check_finite("reward", reward)
        except BaseException as error:
            if self._obs is None or not is_of_env(error):  # before the first reset, or the end of this process
                raise
            self._handle_fault(error)
            fault = f"{type(error).__name__}: {error}"
            return self._obs, 0.0, False, True, {"abnormal": True, "fault": fault}
        self._faults = 0
        self._obs = copy.deepcopy(obs)  # the env may overwrite this memory with an invalid observation
        return obs, reward, terminated, truncated, info

    def state_dict(self) -> Info:
        """Return the number of faults and the last valid observation."""
        return {"faults": self._faults, "obs": self._obs}

    def load_state_dict(self, state: Info) -> None:
        """Restore the state that ``state_dict`` returned."""
        self._faults, self._obs = state["faults"], state["obs"]

    def _handle_fault(self, error: BaseException) -> None:
        self._faults += 1
        if self._faults > self.max_faults:
            raise RuntimeError(
                f"{self.env} failed {self._faults} times without a valid step in between, the last time with "
                f"{type(error).__name__}: {error}"
            ) from error


class Pausable(gym.Wrapper[Any, Any, Any, Any]):
    """Allows an env to be paused: while ``paused`` is true, a step has no effect.

    A paused step returns the last observation, reward 0, no end of the episode, and the info ``{"paused": True}``. A
    reset is not affected, so an env that is paused at the end of an episode waits at the first observation of the next
    one. This must be the outermost wrapper, so that no other wrapper counts paused steps. ``EnvStepper.pause`` sets
    ``paused`` in the envs of a vector env.

    Args:
        env: Any env.

    Example:
        >>> env = Pausable(gym.make("CartPole-v1"))
        >>> observation, _ = env.reset(seed=0)
        >>> env.paused = True
        >>> bool((env.step(0)[0] == observation).all()), env.step(0)[1:]
        (True, (0.0, False, False, {'paused': True}))
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.paused = False
        self._obs: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start a new episode, paused or not."""
        self._obs, info = self.env.reset(seed=seed, options=options)
        return self._obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the env unless it is paused."""
        if self.paused:
            return self._obs, 0.0, False, False, {"paused": True}
        self._obs, reward, terminated, truncated, info = self.env.step(action)
        return self._obs, reward, terminated, truncated, info


def record_videos(env: gym.Env[Any, Any], folder: str) -> gym.Env[Any, Any]:
    """Return an env that writes a video of each whole episode to a folder (extra ``video``).

    The names of the files contain the process and the env, so that several envs can write to one folder.
    """
    prefix = f"rl-video-{os.getpid()}-{id(env)}"
    return _EpisodeVideos(env, folder, episode_trigger=lambda _: True, name_prefix=prefix)


class _EpisodeVideos(gym.wrappers.RecordVideo):
    """Writes a video when its episode ends; gymnasium waits for a reset, and also writes unfinished episodes."""

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Start an episode, without a video of an unfinished one."""
        self._drop_frames()
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Info]:
        """Step the env."""
        obs, reward, terminated, truncated, info = super().step(action)
        if self.recording and (terminated or truncated):
            self.stop_recording()  # type: ignore[no-untyped-call]
        return obs, reward, terminated, truncated, info

    def close(self) -> None:
        """Close the env, without a video of an unfinished episode."""
        self._drop_frames()
        super().close()  # type: ignore[no-untyped-call]

    def _drop_frames(self) -> None:
        self.recording, self.recorded_frames = False, []


class ActionMask(gym.Wrapper[Any, Any, Any, Any]):
    """Adds the mask of legal actions to the observation, as the entry ``action_mask``.

    An observation that is no dict becomes ``{"observation": observation, "action_mask": mask}``.

    Args:
        env: An env with a Discrete, MultiDiscrete or MultiBinary action space.
        source: ``"info"`` reads ``info["action_mask"]``, as of gymnasium's Taxi; ``"method"`` calls the method
            ``action_masks()`` of the env, as MaskablePPO of sb3-contrib does; None means the method if there is one.

    Raises:
        ValueError: If the action space has no masks, the env has no such method, or an info or a mask is wrong.

    Example:
        >>> env = ActionMask(gym.make("Taxi-v4"))
        >>> obs, info = env.reset(seed=0)
        >>> obs["action_mask"].tolist() == info["action_mask"].tolist()
        True
    """

    def __init__(self, env: gym.Env[Any, Any], source: Literal["info", "method"] | None = None) -> None:
        super().__init__(env)
        require(source in (None, "info", "method"), "source", "'info', 'method' or None", source)
        sizes = mask_sizes(env.action_space)
        kinds = "Discrete, MultiDiscrete or MultiBinary with the wrapper action_mask"
        require(sizes is not None, "action_space", kinds, env.action_space)
        has_method = env.has_wrapper_attr(OTHER_KEY)
        require(source != "method" or has_method, "source", "'info' for an env without action_masks()", source)
        self._size = sum(sizes or ())
        self._is_called = has_method and source != "info"
        inner = env.observation_space
        parts = dict(inner.spaces) if isinstance(inner, spaces.Dict) else {"observation": inner}
        self.observation_space = spaces.Dict({**parts, KEY: spaces.Box(0, 1, (self._size,), np.int8)})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        obs, info = self.env.reset(seed=seed, options=options)
        return self._with_mask(obs, info), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the env."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._with_mask(obs, info), reward, terminated, truncated, info

    def _with_mask(self, obs: Any, info: Mapping[str, Any]) -> dict[str, Any]:
        if self._is_called:
            given = self.env.get_wrapper_attr(OTHER_KEY)()
        else:
            require(KEY in info, "info", "one with the entry 'action_mask' in every step and reset", sorted(info))
            given = info[KEY]
        mask = (np.asarray(given) != 0).astype(np.int8).reshape(-1)
        require(mask.size == self._size, KEY, f"of {self._size} entries, one for each action", mask.size)
        return {**(obs if isinstance(obs, Mapping) else {"observation": obs}), KEY: mask}


class PreviousStep(gym.Wrapper[Any, Any, Any, Any]):
    """Adds the previous action and reward to the observation, as ``previous_action`` and ``previous_reward``.

    An observation that is no dict becomes the entry ``observation``. A discrete action is a one-hot vector; both are
    zeros in the first observation of an episode.

    Args:
        env: An env with a Discrete or Box action space.

    Raises:
        ValueError: If the env has another action space.

    Example:
        >>> env = PreviousStep(gym.make("CartPole-v1"))
        >>> _ = env.reset(seed=0)
        >>> obs = env.step(1)[0]
        >>> obs["previous_action"].tolist(), obs["previous_reward"].tolist()
        ([0.0, 1.0], [1.0])
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        space, inner = env.action_space, env.observation_space
        kinds = "Discrete or Box with the wrapper previous_step"
        require(isinstance(space, (spaces.Discrete, spaces.Box)), "action_space", kinds, space)
        self._start = int(space.start) if isinstance(space, spaces.Discrete) else None
        self._size = int(space.n) if isinstance(space, spaces.Discrete) else int(np.prod(space.shape or ()))
        parts = dict(inner.spaces) if isinstance(inner, spaces.Dict) else {"observation": inner}
        sizes = {"previous_action": self._size, "previous_reward": 1}
        added = {name: spaces.Box(-np.inf, np.inf, (size,), np.float32) for name, size in sizes.items()}
        self.observation_space = spaces.Dict({**parts, **added})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        obs, info = self.env.reset(seed=seed, options=options)
        return self._joined(obs, np.zeros(self._size, dtype=np.float32), 0.0), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the env."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        if self._start is None:
            vector = np.asarray(action, dtype=np.float32).reshape(-1)
        else:
            vector = (np.arange(self._size) == int(action) - self._start).astype(np.float32)
        return self._joined(obs, vector, reward), reward, terminated, truncated, info

    def _joined(self, obs: Any, action: Any, reward: Any) -> dict[str, Any]:
        parts = dict(obs) if isinstance(obs, Mapping) else {"observation": obs}
        return {**parts, "previous_action": action, "previous_reward": np.array([reward], dtype=np.float32)}
