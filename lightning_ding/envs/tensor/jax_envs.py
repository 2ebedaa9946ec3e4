"""Envs of gymnax, Brax and MuJoCo Playground as batches of arrays of JAX, whose memory the tensors of torch share.

A step of all N envs, with its resets, is one jitted function. The final observation is handed over, and a time limit
truncates.

Shapes: N envs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from lightning_ding.config import require

SEEN = "state"
"""The entry of several observations that a policy sees, in MuJoCo Playground."""


class JaxEnv:
    """N envs of a JAX package, with same-step autoreset, for ``mode="tensor"``.

    Args:
        num_envs: Number of envs N, >= 1.
    """

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.SAME_STEP}
    single_observation_space: spaces.Space[Any]
    single_action_space: spaces.Space[Any]

    def __init__(self, num_envs: int) -> None:
        require(num_envs >= 1, "num_envs", ">= 1", num_envs)
        self._jax = _package("jax")
        self.num_envs = num_envs
        self._state: Any = None  # of the envs, a pytree
        self._key = self._jax.random.PRNGKey(0)
        self._reset, self._step = self._jax.jit(self._reset_all), self._jax.jit(self._step_all)

    @abstractmethod
    def _reset_all(self, key: Any) -> tuple[Any, Any]:
        """Return the first observations and states of N envs for a random key."""

    @abstractmethod
    def _advance(self, key: Any, state: Any, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Return observations, states, rewards, terminated and truncated of N envs, without a reset."""

    def _step_all(self, key: Any, state: Any, action: Any) -> Any:
        jnp = self._jax.numpy
        own, of_step, of_reset = self._jax.random.split(key, 3)
        final, state, reward, terminated, truncated = self._advance(of_step, state, action)
        first_obs, first_state = self._reset_all(of_reset)
        ended = terminated | truncated

        def chosen(first: Any, later: Any) -> Any:
            if later.shape[:1] != ended.shape:  # MuJoCo Playground has some that all envs share
                return later
            return jnp.where(ended.reshape(-1, *[1] * (later.ndim - 1)), first, later)

        obs = self._jax.tree.map(chosen, first_obs, final)
        state = self._jax.tree.map(chosen, first_state, state)
        return own, state, (obs, reward, terminated, truncated, {"final_obs": final})

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        """Start a new episode in every env.

        Args:
            seed: Seed of all random numbers from now on; None continues them.
        """
        key = self._key if seed is None else self._jax.random.PRNGKey(seed % 2**32)
        self._key, of_reset = self._jax.random.split(key)
        obs, self._state = self._reset(of_reset)
        return obs, {}

    def step(self, actions: Any) -> Any:
        """Return observations, rewards, terminated, truncated, and an info with ``final_obs``."""
        self._key, self._state, result = self._step(self._key, self._state, actions)
        return result

    def state_dict(self) -> dict[str, Any]:
        """Return the states and the random key as arrays."""
        return {
            "leaves": [np.asarray(leaf) for leaf in self._jax.tree.leaves(self._state)],
            "key": np.asarray(self._key),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned, after a reset."""
        jax = self._jax
        leaves = [jax.numpy.asarray(leaf) for leaf in state["leaves"]]
        self._state = jax.tree.unflatten(jax.tree.structure(self._state), leaves)
        self._key = jax.numpy.asarray(state["key"])


class GymnaxEnv(JaxEnv):
    """N envs of gymnax, such as ``CartPole-v1``; the id ``gymnax:CartPole-v1`` makes them.

    Args:
        name: Name of the env.
        num_envs: Number of envs N, >= 1.
        params: Fields of the parameters of the env that differ from its defaults.
    """

    def __init__(self, name: str, num_envs: int = 1, params: Mapping[str, Any] | None = None) -> None:
        gymnax = _package("gymnax")
        self._env, defaults = gymnax.make(name)
        self._params = defaults.replace(**(params or {}))
        super().__init__(num_envs)
        self.single_observation_space = _space_of(self._env.observation_space(self._params))
        self.single_action_space = _space_of(self._env.action_space(self._params))

    def _reset_all(self, key: Any) -> tuple[Any, Any]:
        keys = self._jax.random.split(key, self.num_envs)
        return self._jax.vmap(self._env.reset_env, in_axes=(0, None))(keys, self._params)  # type: ignore[no-any-return]

    def _advance(self, key: Any, state: Any, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        keys = self._jax.random.split(key, self.num_envs)
        step = self._jax.vmap(self._env.step_env, in_axes=(0, 0, 0, None))
        obs, state, reward, *_ = step(keys, state, action, self._params)
        flags = [
            self._jax.vmap(one, in_axes=(0, None))(state, self._params)
            for one in (self._env.is_terminated, self._env.is_truncated)
        ]
        return obs, state, reward, *flags


class BraxEnv(JaxEnv):
    """N envs of Brax, such as ``ant``; the id ``brax:ant`` makes them.

    Args:
        name: Name of the env.
        num_envs: Number of envs N, >= 1.
        episode_length: Steps after which an episode is truncated, >= 1.
        env_kwargs: Further arguments of ``brax.envs.get_environment``, such as ``backend``.
    """

    def __init__(
        self, name: str, num_envs: int = 1, episode_length: int = 1000, env_kwargs: Mapping[str, Any] | None = None
    ) -> None:
        self._use(_package("brax.envs").get_environment(name, **(env_kwargs or {})), num_envs, episode_length)

    def _use(self, env: Any, num_envs: int, episode_length: int) -> None:
        require(episode_length >= 1, "episode_length", ">= 1", episode_length)
        self._env, self._length = env, episode_length
        super().__init__(num_envs)
        size = env.observation_size
        shape = size[SEEN] if isinstance(size, Mapping) else size
        shape = tuple(shape) if isinstance(shape, Sequence) else (shape,)
        self.single_observation_space = spaces.Box(-np.inf, np.inf, shape, np.float32)
        self.single_action_space = spaces.Box(-1.0, 1.0, (env.action_size,), np.float32)

    def _seen(self, state: Any) -> Any:
        return state.obs[SEEN] if isinstance(state.obs, Mapping) else state.obs

    def _reset_all(self, key: Any) -> tuple[Any, Any]:
        state = self._jax.vmap(self._env.reset)(self._jax.random.split(key, self.num_envs))
        return self._seen(state), (state, self._jax.numpy.zeros(self.num_envs, "int32"))

    def _advance(self, key: Any, state: Any, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        inner, steps = state
        after = self._jax.vmap(self._env.step)(inner, action)
        steps = steps + 1
        return self._seen(after), (after, steps), after.reward, after.done.astype(bool), steps >= self._length


class PlaygroundEnv(BraxEnv):
    """N envs of MuJoCo Playground, such as ``CartpoleBalance``; the id ``playground:CartpoleBalance`` makes them.

    If observations have several entries, the policy sees the entry ``state``.

    Args:
        name: Name of the env.
        num_envs: Number of envs N, >= 1.
        episode_length: Steps after which an episode is truncated, >= 1; None means those of the env's config.
        config_overrides: Entries of the env's config that differ from its defaults, such as ``impl``.
    """

    def __init__(
        self,
        name: str,
        num_envs: int = 1,
        episode_length: int | None = None,
        config_overrides: Mapping[str, Any] | None = None,
    ) -> None:
        registry = _package("mujoco_playground", "playground").registry
        length = registry.get_default_config(name).episode_length if episode_length is None else episode_length
        self._use(registry.load(name, config_overrides=dict(config_overrides or {})), num_envs, length)


def _package(name: str, package: str | None = None) -> Any:
    """Return a module of a package that is not installed with this one, and may have another name.

    Raises:
        ImportError: If it is not installed.
    """
    try:
        return import_module(name)
    except ImportError as error:
        package = package or name.partition(".")[0]
        raise ImportError(f"envs of JAX need the package {package!r}: pip install {package} ({error})") from error


def _space_of(space: Any) -> spaces.Space[Any]:
    """Return the space of gymnasium for one of gymnax.

    Raises:
        TypeError: If it is neither Discrete nor a Box.
    """
    kind = type(space).__name__
    if kind == "Discrete":
        return spaces.Discrete(int(space.n))
    if kind != "Box":
        raise TypeError(f"spaces of gymnax must be Discrete or Box, got {kind}")
    dtype = np.dtype(str(np.dtype(space.dtype)))
    low, high = (np.broadcast_to(np.asarray(one), space.shape).astype(dtype) for one in (space.low, space.high))
    return spaces.Box(low, high, space.shape, dtype)
