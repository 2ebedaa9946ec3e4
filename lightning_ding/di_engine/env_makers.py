"""Functions and envs for DI-engine's env types of other packages, and its own small ones.

Nothing here imports torch, because env processes import this module. Packages are imported when an env is made.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from lightning_ding.config import require

FloatArray = NDArray[np.float32]
Info = dict[str, Any]


# ---------------------------------------------------------------------------------------------------- gym_hybrid

ACCELERATE, TURN, BRAKE = 0, 1, 2
MAX_TURN, MAX_ACCELERATION, SECONDS, BRAKING = np.pi / 2, 0.5, 0.005, 0.1
PENALTY, RADIUS, MAX_STEPS = 0.001, 0.1, 200


class Moving(gym.Env[FloatArray, dict[str, Any]]):
    """Stop an agent on a target in a square, with a kind of action and its amount: ``Moving-v0`` of gym_hybrid.

    Masson et al. 2016 (https://arxiv.org/abs/1509.01644) describe such actions. An action chooses to accelerate, to
    turn or to brake; ``action_args`` are the acceleration, in [0, 1], and the turn, in [-1, 1]. A step is rewarded with
    the distance that it gains, less 0.001, plus 1 on stopping at the target; leaving the square or running out of steps
    gives -1. As in gym_hybrid, both end the episode for good: it is ``terminated``.

    An observation has the position, speed, and cosine and sine of the direction of the agent, the position and distance
    of the target, whether the agent is on it, and the share of the steps that has passed.

    Example:
        >>> env = Moving()
        >>> obs, _ = env.reset(seed=0)
        >>> obs.shape, env.action_space["action_args"].low.tolist()
        ((10,), [0.0, -1.0])
    """

    slides: ClassVar[bool] = False
    """Whether the agent keeps its velocity when it turns."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (10,), np.float32)
        low, high = np.array([0, -1], np.float32), np.ones(2, np.float32)
        self.action_space: Any = spaces.Dict({"action_type": spaces.Discrete(3), "action_args": spaces.Box(low, high)})

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[FloatArray, Info]:
        """Place the target and the agent at random, and let the agent stand still."""
        super().reset(seed=seed)
        self._steps, self._speed, self._course = 0, 0.0, 0.0
        self._target = self.np_random.uniform(RADIUS - 1, 1 - RADIUS, 2)
        self._place = self.np_random.uniform(-1, 1, 2)
        self._direction = float(self.np_random.uniform(0, 2 * np.pi))
        return self._obs(), {}

    def step(self, action: dict[str, Any]) -> tuple[FloatArray, float, bool, bool, Info]:
        """Accelerate, turn or brake."""
        before = self._distance
        self._steps += 1
        kind, amounts = int(action["action_type"]), np.asarray(action["action_args"], np.float64)
        if kind == ACCELERATE:
            self._accelerate(MAX_ACCELERATION * float(np.clip(amounts[0], 0, 1)))
        elif kind == TURN:
            turn = MAX_TURN * float(np.clip(amounts[1], -1, 1))
            self._direction = (self._direction + turn) % (2 * np.pi)
        else:
            self._speed = 0.0 if self._speed < BRAKING else self._speed - BRAKING
        course = self._course if self.slides else self._direction
        self._place = self._place + SECONDS * self._speed * np.array([np.cos(course), np.sin(course)])
        is_there = self._distance < RADIUS and self._speed == 0
        is_lost = not is_there and bool(np.abs(self._place).max() > 1 or self._steps > MAX_STEPS)
        reward = -1.0 if is_lost else before - self._distance - PENALTY + is_there
        return self._obs(), float(reward), is_there or is_lost, False, {}

    def _accelerate(self, gain: float) -> None:
        self._speed += gain

    @property
    def _distance(self) -> float:
        return float(np.linalg.norm(self._place - self._target))

    def _obs(self) -> FloatArray:
        direction = (np.cos(self._direction), np.sin(self._direction))
        ends = (self._distance, self._distance <= RADIUS, self._steps / MAX_STEPS)
        return np.array([*self._place, self._speed, *direction, *self._target, *ends], np.float32)


class Sliding(Moving):
    """The same with an agent that keeps its velocity when it turns: ``Sliding-v0`` of gym_hybrid."""

    slides: ClassVar[bool] = True

    def _accelerate(self, gain: float) -> None:
        """Add a velocity in the direction of the agent to its own."""
        own = self._speed * np.array([np.cos(self._course), np.sin(self._course)])
        own += gain * np.array([np.cos(self._direction), np.sin(self._direction)])
        self._speed, self._course = float(np.hypot(*own)), float(np.arctan2(own[1], own[0]))


# ---------------------------------------------------------------------------------------------------- dm_env


class DmEnv(gym.Env[Any, Any]):
    """An env with the interface of ``dm_env``, with vectors of 32-bit floats as observations.

    An episode is terminated if its last discount is 0, and truncated otherwise.

    Args:
        make: Function that makes the env of a seed, because such envs are seeded when they are made.
        is_over: Whether each end is a termination, whatever the discount.
    """

    metadata: Info = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012  # as gymnasium has it

    def __init__(self, make: Callable[[int], Any], is_over: bool = False, render_mode: str | None = None) -> None:
        self._make, self._is_over, self.render_mode = make, is_over, render_mode
        self.inner = make(0)
        size = int(_vector(self.inner.reset().observation).size)
        self.observation_space = spaces.Box(-np.inf, np.inf, (size,), np.float32)
        spec = self.inner.action_spec()
        if hasattr(spec, "num_values"):
            self.action_space: Any = spaces.Discrete(int(spec.num_values))
        else:
            low, high = (np.broadcast_to(end, spec.shape).astype(np.float32) for end in (spec.minimum, spec.maximum))
            self.action_space = spaces.Box(low, high)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[FloatArray, Info]:
        """Start an episode."""
        super().reset(seed=seed)
        if seed is not None:
            self.inner = self._make(int(self.np_random.integers(2**31)))
        return _vector(self.inner.reset().observation), {}

    def step(self, action: Any) -> tuple[FloatArray, float, bool, bool, Info]:
        """Step the env."""
        is_discrete = isinstance(self.action_space, spaces.Discrete)
        found = self.inner.step(int(action) if is_discrete else np.asarray(action, np.float64))
        over = bool(found.last())
        terminated = over and (self._is_over or found.discount == 0)
        return _vector(found.observation), float(found.reward or 0.0), terminated, over and not terminated, {}

    def render(self) -> Any:
        """Return the image of the env's first camera."""
        return self.inner.physics.render(height=240, width=320, camera_id=0)


def _vector(observation: Any) -> FloatArray:
    """Return the entries of an observation, one after the other."""
    parts = observation.values() if isinstance(observation, dict) else [observation]
    return np.concatenate([np.asarray(part, np.float32).reshape(-1) for part in parts])


def make_bsuite(bsuite_id: str) -> gym.Env[Any, Any]:
    """Return an env of the Behaviour Suite (package ``bsuite``), whose episodes always end for good.

    Args:
        bsuite_id: Name of the env and number of its setting, such as ``"memory_len/0"``.
    """
    import bsuite
    from bsuite import sweep

    known = sweep.SETTINGS
    require(bsuite_id in known, "env.env_id", "the id of an env of bsuite, such as 'memory_len/0'", bsuite_id)
    name, _, _ = bsuite_id.partition("/")
    load = bsuite.bsuite.EXPERIMENT_NAME_TO_ENVIRONMENT[name]
    settings = {key: value for key, value in dict(known[bsuite_id]).items() if key != "seed"}
    takes_seed = "seed" in inspect.signature(load).parameters
    return DmEnv(lambda seed: load(**settings, **({"seed": seed} if takes_seed else {})), is_over=True)


def make_dm_control(
    domain_name: str, task_name: str, frame_skip: int = 1, pixels: int | None = None, render_mode: str | None = None
) -> gym.Env[Any, Any]:
    """Return a task of the DeepMind Control Suite (package ``dm_control``) with actions in [-1, 1].

    Args:
        domain_name: Name of the domain, such as ``"cartpole"``.
        task_name: Name of the task, such as ``"swingup"``.
        frame_skip: Number of steps of the task for each action, whose rewards are added up, >= 1.
        pixels: Height and width of images as observations, (3, pixels, pixels) bytes; None for the state.
        render_mode: ``"rgb_array"``, or None.
    """
    from dm_control import suite

    def make(seed: int) -> Any:
        return suite.load(domain_name, task_name, task_kwargs={"random": seed})

    inner = DmEnv(make, render_mode=render_mode)
    bounded = gym.wrappers.RescaleAction(inner, np.float32(-1), np.float32(1))
    repeated = RepeatedAction(bounded, frame_skip)
    return repeated if pixels is None else PhysicsImage(repeated, pixels)


class RepeatedAction(gym.Wrapper[Any, Any, Any, Any]):
    """Repeats each action, and adds up the rewards; an episode that ends stops it.

    Args:
        env: Any env.
        times: Number of steps for each action, >= 1.
    """

    def __init__(self, env: gym.Env[Any, Any], times: int) -> None:
        super().__init__(env)
        require(times >= 1, "frame_skip", ">= 1", times)
        self._times = times

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        """Step the env."""
        total = 0.0
        for _ in range(self._times):
            obs, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return obs, total, terminated, truncated, info


class PhysicsImage(gym.ObservationWrapper[Any, Any, Any]):
    """Gives the image of the first camera of a :class:`DmEnv` as observation, (3, size, size) bytes.

    Args:
        env: The env.
        size: Height and width in pixels.
    """

    def __init__(self, env: gym.Env[Any, Any], size: int) -> None:
        super().__init__(env)
        self._size = size
        self.observation_space = spaces.Box(0, 255, (3, size, size), np.uint8)

    def observation(self, observation: Any) -> NDArray[np.uint8]:
        """Return the image."""
        physics = cast(DmEnv, self.unwrapped).inner.physics
        image = physics.render(height=self._size, width=self._size, camera_id=0)
        return np.ascontiguousarray(np.moveaxis(image, -1, 0))


class GreyStack(gym.Wrapper[Any, Any, Any, Any]):
    """Stacks the newest images, in shades of grey if wanted, along the first axis.

    Args:
        env: An env with images of shape (3, height, width).
        stack: Number of images, >= 1; the first one fills the stack.
        grey: Whether images become grey, of shape (1, height, width).
    """

    def __init__(self, env: gym.Env[Any, Any], stack: int, grey: bool) -> None:
        super().__init__(env)
        require(stack >= 1, "frame_stack", ">= 1", stack)
        self._grey, self._images = grey, deque[Any](maxlen=stack)
        channels, height, width = cast("tuple[int, int, int]", cast(spaces.Box, env.observation_space).shape)
        self.observation_space = spaces.Box(0, 255, (stack * (1 if grey else channels), height, width), np.uint8)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Start an episode."""
        obs, info = self.env.reset(seed=seed, options=options)
        self._images.extend([self._shade(obs)] * cast(int, self._images.maxlen))
        return np.concatenate(self._images), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        """Step the env."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._images.append(self._shade(obs))
        return np.concatenate(self._images), float(reward), terminated, truncated, info

    def _shade(self, image: Any) -> Any:
        if not self._grey:
            return image
        weights = np.array([0.299, 0.587, 0.114], np.float32)  # of ITU-R BT.601, as in OpenCV
        return np.tensordot(weights, image, 1)[None].round().astype(np.uint8)


# ---------------------------------------------------------------------------------------------------- procgen


class Procgen(gym.Env[Any, Any]):
    """A game of Procgen (package ``procgen``, which has wheels for Python 3.10 and earlier), with images (3, 64, 64).

    The package restarts an episode by itself, so the last observation of an episode is that of the next one; nothing
    is learned from it, because the episode is terminated.

    Args:
        game: Name of the game, such as ``"coinrun"``.
        start_level: Number of the first level, >= 0.
        num_levels: Number of different levels; 0 means no limit.
    """

    def __init__(self, game: str, start_level: int = 0, num_levels: int = 0) -> None:
        from procgen import ProcgenGym3Env

        self._make: Callable[[int], Any] = lambda seed: ProcgenGym3Env(
            num=1, env_name=game, start_level=start_level, num_levels=num_levels, rand_seed=seed
        )
        self._inner: Any = None
        self.observation_space = spaces.Box(0, 255, (3, 64, 64), np.uint8)
        self.action_space = spaces.Discrete(15)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Start an episode; with a seed the levels are drawn afresh."""
        super().reset(seed=seed)
        if seed is not None or self._inner is None:
            self._inner = self._make(int(self.np_random.integers(2**31 - 1)))
        elif not self._inner.observe()[2][0]:  # in the middle of an episode
            self._inner.act(np.array([-1], np.int32))
        return self._image(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        """Step the env."""
        self._inner.act(np.array([int(action)], np.int32))
        reward, _, first = self._inner.observe()
        return self._image(), float(reward[0]), bool(first[0]), False, {}

    def _image(self) -> NDArray[np.uint8]:
        return np.ascontiguousarray(np.moveaxis(self._inner.observe()[1]["rgb"][0], -1, 0))


# ---------------------------------------------------------------------------------------------------- pomdp


class FlawedRam(gym.Wrapper[Any, Any, Any, Any]):
    """Stacks the memory of an Atari game, with noise, gaps and repetitions: DI-engine's env type ``pomdp``.

    Args:
        env: An env whose observations are the 128 bytes of a game's memory.
        stack: Number of memories in an observation, >= 2 with ``duplicate_p``.
        noise_scale: Standard deviation of the noise of each number, which is in [0, 1] without it.
        zero_p: Probability that an observation is blank, apart from its noise.
        reward_noise: Standard deviation of the noise of rewards.
        duplicate_p: Probability that the newest memories of an observation repeat an older one.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        stack: int = 4,
        noise_scale: float = 0.01,
        zero_p: float = 0.2,
        reward_noise: float = 0.01,
        duplicate_p: float = 0.2,
    ) -> None:
        super().__init__(env)
        require(stack >= (2 if duplicate_p else 1), "frame_stack", ">= 2 with duplicate_p, otherwise >= 1", stack)
        self._scales = (noise_scale, zero_p, reward_noise, duplicate_p)
        self._seen = deque[FloatArray](maxlen=stack)
        (size,) = cast("tuple[int]", cast(spaces.Box, env.observation_space).shape)
        self.observation_space = spaces.Box(-np.inf, np.inf, (stack * size,), np.float32)
        self._random = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Start an episode."""
        if seed is not None:
            self._random = np.random.default_rng(seed)
        obs, info = self.env.reset(seed=seed, options=options)
        self._seen.extend([self._numbers(obs)] * cast(int, self._seen.maxlen))
        return self._flawed(), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        """Step the env."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._seen.append(self._numbers(obs))
        noisy = float(reward) + self._scales[2] * float(self._random.standard_normal())
        return self._flawed(), noisy, terminated, truncated, info

    @staticmethod
    def _numbers(memory: Any) -> FloatArray:
        return (np.asarray(memory, np.float32) / 255).astype(np.float32)

    def _flawed(self) -> FloatArray:
        noise, zero_p, _, duplicate_p = self._scales
        obs: NDArray[Any] = np.stack(self._seen)
        if self._random.random() < duplicate_p:
            first = int(self._random.integers(1, len(obs)))
            obs[first:] = obs[first]
        obs = obs * (self._random.random() > zero_p) + noise * self._random.standard_normal(obs.shape)
        return obs.astype(np.float32).reshape(-1)


def make_flawed_ram(game: str, training: bool = True, **options: Any) -> gym.Env[Any, Any]:
    """Return an Atari game with its memory as observation, for DI-engine's env type ``pomdp`` (extra ``atari``).

    Args:
        game: Name of the game as in ale-py, such as ``"Pong"``.
        training: End an episode with each lost life, and clip rewards to their sign.
        options: Arguments of :class:`FlawedRam`.
    """
    import ale_py

    from lightning_ding.envs.atari import EpisodicLife, FireAtStart
    from lightning_ding.envs.rewards import sign_reward

    gym.register_envs(ale_py)
    settings: dict[str, Any] = {"obs_type": "ram", "frameskip": 4, "repeat_action_probability": 0.0}
    env: gym.Env[Any, Any] = gym.make(f"ALE/{game}-v5", **settings)
    env = FireAtStart(EpisodicLife(env) if training else env)
    return FlawedRam(cast(Any, sign_reward(env)) if training else env, **options)


# ---------------------------------------------------------------------------------------------------- minigrid


def make_minigrid(name: str, flat: bool = True, full: bool = False, **kwargs: Any) -> gym.Env[Any, Any]:
    """Return a grid world of MiniGrid (extra ``minigrid``).

    Args:
        name: Its id, such as ``"MiniGrid-Empty-8x8-v0"``.
        flat: Whether an observation is the image and the mission in one vector, rather than the image.
        full: Whether the agent sees the whole grid.
        kwargs: Further arguments of the env, such as ``max_episode_steps``.
    """
    import minigrid.wrappers as own

    gym.register_envs(own)
    env = gym.make(name, **kwargs)
    env = own.FullyObsWrapper(env) if full else env
    if not flat:
        return cast("gym.Env[Any, Any]", own.ImgObsWrapper(env))
    return gym.wrappers.DtypeObservation(own.FlatObsWrapper(env), np.float32)


class FlatGoal(gym.ObservationWrapper[Any, Any, Any]):
    """Joins the bits and the goal of ``BitFlipEnv`` into one vector, as DI-engine's env type ``bitflip``."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        (size,) = cast("tuple[int]", cast(Any, env.observation_space)["observation"].shape)
        self.observation_space = spaces.Box(0.0, 1.0, (2 * size,), np.float32)

    def observation(self, observation: Any) -> FloatArray:
        """Return the bits and the goal."""
        return np.concatenate([observation["observation"], observation["desired_goal"]])
