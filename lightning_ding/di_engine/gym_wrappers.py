"""DI-engine's wrappers of ``ding.envs`` for envs of gymnasium and of the package gym, and ``OldEnv``, which adapts gym.

Each wrapper wraps an env of either package, and answers as that env does: ``reset`` returns an observation or a pair,
and ``step`` four or five values.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.core import ObsType

from lightning_ding.di_engine.base_env import as_gymnasium_space

logger = logging.getLogger(__name__)
_warned: set[str] = set()


def is_old_env(env: Any) -> bool:
    """Return whether an env, below the wrappers of this module, is one of the package gym."""
    while isinstance(env, FormWrapper):
        env = env.env
    return any(one.__module__.partition(".")[0] == "gym" and one.__name__ == "Env" for one in type(env).__mro__)


class OldEnv(gym.Env[Any, Any]):
    """An env of the package gym as one of gymnasium, with one warning.

    Args:
        env: The env, with the interface of any version of gym.
    """

    def __init__(self, env: Any) -> None:
        name = getattr(getattr(env, "spec", None), "id", type(env).__name__)
        if name not in _warned:
            _warned.add(name)
            logger.warning("%s is an env of the package gym, which is taken as one of gymnasium", name)
        self.env = env
        self.observation_space = as_gymnasium_space(env.observation_space, "observation_space")
        self.action_space = as_gymnasium_space(env.action_space, "action_space")
        self.metadata = dict(getattr(env, "metadata", None) or {})
        self._has_mode = getattr(env, "render_mode", None) is not None
        self.render_mode = getattr(env, "render_mode", None) or "rgb_array"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        if seed is not None and callable(getattr(self.env, "seed", None)):
            self.env.seed(seed)
        elif seed is not None:
            answer = self.env.reset(seed=seed)
            return self._pair(answer)
        return self._pair(self.env.reset())

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the env; ``info["TimeLimit.truncated"]`` of four values is a truncation."""
        answer = self.env.step(action)
        if len(answer) == 5:
            return cast("tuple[Any, float, bool, bool, dict[str, Any]]", answer)
        obs, reward, done, info = answer
        is_cut = bool(done) and bool(info.get("TimeLimit.truncated", False))
        return obs, float(reward), bool(done) and not is_cut, is_cut, info

    def render(self) -> Any:
        """Return a frame."""
        return self.env.render() if self._has_mode else self.env.render(mode="rgb_array")

    def close(self) -> None:
        """Close the env."""
        self.env.close()

    def _pair(self, answer: Any) -> tuple[Any, dict[str, Any]]:
        is_pair = isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict)
        return answer if is_pair else (answer, {})


class FormWrapper(gym.Env[ObsType, Any]):
    """A wrapper that answers in the form of its env.

    A subclass overrides :meth:`first`, :meth:`observation`, :meth:`reward` or :meth:`action`.

    Args:
        env: An env of gymnasium or of gym.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self.observation_space = env.observation_space
        self.action_space = env.action_space
        for name in ("metadata", "render_mode", "spec"):  # which the base class has, so that __getattr__ is not called
            setattr(self, name, getattr(env, name, None))

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # before __init__
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(self, **kwargs: Any) -> Any:
        """Start an episode."""
        answer = self.env.reset(**kwargs)
        if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict):
            return self.first(answer[0]), answer[1]
        return self.first(answer)

    def step(self, action: Any) -> Any:
        """Step the env."""
        obs, reward, *ends, info = self.env.step(self.action(action))
        return self.after(action, obs, reward, any(ends), ends, info)

    def after(self, action: Any, obs: Any, reward: Any, done: bool, ends: list[Any], info: dict[str, Any]) -> Any:
        """Return the values of a step."""
        return (self.observation(obs), self.reward(reward), *ends, info)

    def first(self, obs: Any) -> Any:
        """Return the observation of a reset."""
        return self.observation(obs)

    def observation(self, obs: Any) -> Any:
        """Return the observation of a step."""
        return obs

    def reward(self, reward: Any) -> Any:
        """Return the reward of a step."""
        return reward

    def action(self, action: Any) -> Any:
        """Return the action that the env gets."""
        return action

    def render(self, *args: Any, **kwargs: Any) -> Any:
        """Return a frame of the env."""
        return self.env.render(*args, **kwargs)

    def close(self) -> None:
        """Close the env."""
        self.env.close()

    @property
    def unwrapped(self) -> Any:
        """The env without wrappers."""
        return self.env.unwrapped


class EvalEpisodeReturnWrapper(FormWrapper[Any]):
    """Reports the sum of the rewards of an episode as ``info["eval_episode_return"]`` at its end."""

    def first(self, obs: Any) -> Any:
        """Begin to add rewards."""
        self._return = np.zeros(1, np.float32)
        return obs

    def after(self, action: Any, obs: Any, reward: Any, done: bool, ends: list[Any], info: dict[str, Any]) -> Any:
        """Add the reward."""
        self._return = self._return + np.asarray(reward, np.float32)
        if done:
            info["eval_episode_return"] = self._return
        return (obs, reward, *ends, info)


class ObsPlusPrevActRewWrapper(FormWrapper[Any]):
    """Observations with the previous action and reward: ``obs``, ``prev_action`` and ``prev_reward_extrinsic``.

    The last two are -1 and 0 at the start of an episode.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        inner = as_gymnasium_space(env.observation_space, "observation_space")
        action = as_gymnasium_space(env.action_space, "action_space")
        self._shape = action.shape or ()
        self.observation_space = spaces.Dict(
            {
                "obs": inner,
                "prev_action": action,
                "prev_reward_extrinsic": spaces.Box(-np.inf, np.inf, (1,), np.float32),
            }
        )

    def first(self, obs: Any) -> Any:
        """Return the first observation."""
        return self._joined(obs, np.full(self._shape, -1), 0.0)

    def after(self, action: Any, obs: Any, reward: Any, done: bool, ends: list[Any], info: dict[str, Any]) -> Any:
        """Return the values of a step."""
        return (self._joined(obs, action, reward), reward, *ends, info)

    def _joined(self, obs: Any, action: Any, reward: Any) -> dict[str, Any]:
        return {
            "obs": obs,
            "prev_action": np.asarray(action).reshape(self._shape),
            "prev_reward_extrinsic": np.asarray(reward, np.float32).reshape(1),
        }


class AllinObsWrapper(FormWrapper[Any]):
    """Observations with the previous reward: a dict of ``obs`` and ``reward``, which is 0 at the start."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        inner = as_gymnasium_space(env.observation_space, "observation_space")
        self.observation_space = spaces.Dict({"obs": inner, "reward": spaces.Box(-np.inf, np.inf, (1,), np.float32)})

    def first(self, obs: Any) -> Any:
        """Return the first observation."""
        return {"obs": obs, "reward": np.zeros(1, np.float32)}

    def after(self, action: Any, obs: Any, reward: Any, done: bool, ends: list[Any], info: dict[str, Any]) -> Any:
        """Return the values of a step."""
        joined = {"obs": obs, "reward": np.asarray(reward, np.float32).reshape(1)}
        return (joined, reward, *ends, info)


class ActionRepeatWrapper(FormWrapper[Any]):
    """Repeats each action, and adds the rewards up to the end of the episode.

    Args:
        env: The env.
        action_repeat: Steps of each action, >= 1.
    """

    def __init__(self, env: Any, action_repeat: int = 1) -> None:
        super().__init__(env)
        self.action_repeat = action_repeat

    def step(self, action: Any) -> Any:
        """Step the env."""
        frames, *others = _repeated(self.env, action, self.action_repeat)
        return (frames[-1], *others)


class MaxAndSkipWrapper(FormWrapper[Any]):
    """Repeats each action, and returns the largest pixels of the last two frames.

    Args:
        env: The env.
        skip: Steps of each action, >= 1.
    """

    def __init__(self, env: Any, skip: int = 4) -> None:
        super().__init__(env)
        self.skip = skip

    def step(self, action: Any) -> Any:
        """Step the env."""
        frames, *others = _repeated(self.env, action, self.skip)
        return (np.maximum.reduce(frames[-2:]), *others)


def _repeated(env: Any, action: Any, times: int) -> list[Any]:
    """Return the observations, the sum of the rewards, and the last ends and info, of up to ``times`` equal steps."""
    frames: list[Any] = []
    rewards: list[Any] = []
    rest: list[Any] = [False]
    while len(frames) < times and not any(rest[:-1]):
        obs, reward, *rest = env.step(action)
        frames.append(obs)
        rewards.append(reward)
    return [frames, sum(rewards), *rest]


class WarpFrameWrapper(FormWrapper[Any]):
    """Grey images of 84 by 84 pixels (needs ``opencv-python``).

    Args:
        env: The env, with images (height, width, 3).
        size: Width and height.
    """

    def __init__(self, env: Any, size: int = 84) -> None:
        super().__init__(env)
        import cv2

        self._cv2, self._size = cv2, (size, size)
        self.observation_space = spaces.Box(0, 255, self._size, np.uint8)

    def observation(self, obs: Any) -> Any:
        """Return the image of a frame."""
        grey = self._cv2.cvtColor(np.asarray(obs), self._cv2.COLOR_RGB2GRAY)
        return self._cv2.resize(grey, self._size, interpolation=self._cv2.INTER_AREA)


class ScaledFloatFrameWrapper(FormWrapper[Any]):
    """Observations as floats in [0, 1], from the bounds of the space."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        inner = env.observation_space
        self._low = float(inner.low.min())
        self._range = float(inner.high.max()) - self._low
        self.observation_space = spaces.Box(0.0, 1.0, inner.shape, np.float32)

    def observation(self, obs: Any) -> Any:
        """Return the scaled observation."""
        return ((np.asarray(obs, np.float32) - self._low) / self._range).astype(np.float32)


class ClipRewardWrapper(FormWrapper[Any]):
    """The signs of rewards."""

    def reward(self, reward: Any) -> Any:
        """Return -1, 0 or 1."""
        return np.sign(reward)


class FrameStackWrapper(FormWrapper[Any]):
    """The newest observations as one, along a new first axis; the first one repeats at the start.

    Args:
        env: The env.
        n_frames: Number of observations, >= 1.
    """

    def __init__(self, env: Any, n_frames: int = 4) -> None:
        super().__init__(env)
        self._frames = deque[Any](maxlen=n_frames)
        inner = as_gymnasium_space(env.observation_space, "observation_space")
        low, high = (np.stack([np.asarray(getattr(inner, name))] * n_frames) for name in ("low", "high"))
        self.observation_space = spaces.Box(low, high, dtype=inner.dtype)  # type: ignore[arg-type]

    def first(self, obs: Any) -> Any:
        """Return the first observation, repeated."""
        self._frames.extend([obs] * (self._frames.maxlen or 1))
        return np.stack(self._frames)

    def observation(self, obs: Any) -> Any:
        """Return the newest observations."""
        self._frames.append(obs)
        return np.stack(self._frames)
