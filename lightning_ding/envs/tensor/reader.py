"""Reading envs that take and return batches of tensors, in the forms that are in use.

* gymnasium's ``VectorEnv`` with same-step autoreset, whose numbers are tensors: five results of ``step``, and the final
  observations in ``info["final_obs"]`` or ``info["final_observation"]`` (ManiSkill).
* Isaac Lab's envs: the same five results, a dict of observations with the key ``policy``, and often no final
  observation.
* rsl_rl's envs (Genesis): four results, observations, rewards, dones, and an info with ``time_outs``.
* Any of these with arrays of another library that has ``__dlpack__``, such as JAX: they are read without a copy.

Shapes: N envs.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from torch import Tensor

from lightning_ding import nested
from lightning_ding.config import require

FINAL_OBS = ("final_obs", "final_observation")
"""Entries of an info that may hold the observations before envs were reset."""
POLICY = "policy"
"""The entry of a dict of observations that the policy sees, in the convention of Isaac Lab."""


class TensorStep(NamedTuple):
    """The result of one step of N envs, with the names of :class:`~lightning_ding.envs.Timestep`."""

    next_obs: Any
    """Observations after the step, at the end of an episode the final ones; nested, leading axis N."""
    reward: Tensor
    """Rewards, shape (N,)."""
    terminated: Tensor
    """Whether a terminal state was reached, shape (N,)."""
    truncated: Tensor
    """Whether the episode was truncated, shape (N,)."""
    info: Mapping[str, Any]
    """The info of the env."""
    ended: Tensor
    """Whether an episode ended, shape (N,)."""
    obs: Any
    """Observations to act on next, where an episode ended the first ones of the next episode."""


class TensorEnv:
    """N envs on one device, read in one way.

    Where an env gives no final observations, an episode that was truncated bootstraps from its last observation but
    one, as in rsl_rl.

    Args:
        env: An env in one of the forms of this module.

    Raises:
        TypeError: If it has no ``num_envs``, spaces, ``reset`` or ``step``.
        ValueError: If it resets its envs in another way than in the step.

    Example:
        >>> from lightning_ding.envs.tensor import CartPole
        >>> env = TensorEnv(CartPole(num_envs=2))
        >>> obs = env.reset(seed=0)
        >>> env.step(torch.tensor([0, 1])).reward.tolist()
        [1.0, 1.0]
    """

    def __init__(self, env: Any) -> None:
        needed = ("num_envs", "single_observation_space", "single_action_space", "reset", "step")
        missing = [name for name in needed if not hasattr(env, name)]
        if missing:
            raise TypeError(
                f'with mode="tensor", env_id must make an env of N envs with {", ".join(needed)}, got '
                f"{type(env).__name__} without {', '.join(missing)}"
            )
        mode = (getattr(env, "metadata", None) or {}).get("autoreset_mode", AutoresetMode.SAME_STEP)
        allowed = 'SAME_STEP with mode="tensor": an env is reset in the step that ends its episode'
        require(mode == AutoresetMode.SAME_STEP, "env.metadata['autoreset_mode']", allowed, mode)
        self.env = env
        self.num_envs: int = env.num_envs
        self.single_observation_space, self._key = _seen_by_policy(env.single_observation_space)
        self.single_action_space: spaces.Space[Any] = env.single_action_space
        self.obs: Any = None
        """Observations to act on, leading axis N; None before the first reset."""
        self.previous_obs: Any = None
        """A copy of the observations before the last step, because an env may write new ones into the same memory."""
        self.gives_final_obs = False
        """Whether a step has had final observations."""
        self._to_env: Callable[[Tensor], Any] = _as_it_is

    @property
    def device(self) -> torch.device:
        """The device of the observations."""
        if self.obs is None:
            return torch.device(getattr(self.env, "device", "cpu"))
        device: torch.device = nested.leaves(self.obs)[0].device
        return device

    def reset(self, seed: int | None = None) -> Any:
        """Start a new episode in every env, and return the observations, leading axis N.

        Args:
            seed: Seed of the envs, >= 0; None continues their random stream. An env whose ``reset`` has no argument
                ``seed``, as in rsl_rl, ignores it.

        Raises:
            TypeError: If the observations are neither tensors nor arrays with ``__dlpack__``.
        """
        given = self.env.reset() if seed is None or not _takes_seed(self.env) else self.env.reset(seed=seed)
        obs = given[0] if isinstance(given, tuple) else given
        obs = obs if self._key is None else obs[self._key]
        self._to_env = _converter(nested.leaves(obs)[0])
        self.obs = nested.apply(as_tensor, obs)
        return self.obs

    def step(self, action: Any) -> TensorStep:
        """Step all envs.

        Args:
            action: Actions as tensors, leading axis N.

        Raises:
            ValueError: If rewards or final observations do not have the shape for N envs.
        """
        self.previous_obs = nested.apply(torch.clone, self.obs)
        found = self.env.step(nested.apply(self._to_env, action))
        if len(found) == 5:
            obs, reward, terminated, truncated, info = found
            terminated, truncated = as_tensor(terminated).bool(), as_tensor(truncated).bool()
            ended = terminated | truncated
        else:
            obs, reward, ended, info = found
            ended = as_tensor(ended).bool()
            # an env may leave the time limits of an earlier step in its info
            truncated = ended & as_tensor(info["time_outs"]).bool() if "time_outs" in info else torch.zeros_like(ended)
            terminated = ended & ~truncated
        obs = nested.apply(as_tensor, obs if self._key is None else obs[self._key])
        self.obs = obs
        next_obs = self._next_obs(self.previous_obs, obs, ended, info)
        reward = as_tensor(reward).reshape(-1)
        require(len(reward) == self.num_envs, "reward of env.step", f"{self.num_envs} numbers", len(reward))
        reward = reward if reward.is_floating_point() else reward.float()
        return TensorStep(next_obs, reward, terminated, truncated, info, ended, obs)

    def _next_obs(self, previous: Any, obs: Any, ended: Tensor, info: Mapping[str, Any]) -> Any:
        name = next((one for one in FINAL_OBS if one in info), None)
        if name is None:  # perhaps because no episode ended
            return _where(ended, previous, obs)
        self.gives_final_obs, final = True, info[name]
        return _where(ended, nested.apply(as_tensor, final if self._key is None else final[self._key]), obs)

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the env and the observations to act on, as tensors and builtins.

        An env has ``state_dict`` and ``load_state_dict``, or ``get_state`` and ``set_state``, or its state is in
        attributes.

        Raises:
            NotPlainError: If the state cannot be read; the message names the attribute.
        """
        from lightning_ding.envs.state.codec import to_plain

        name, env = type(self.env).__name__, self.env
        for read, write in (("state_dict", "load_state_dict"), ("get_state", "set_state")):
            if callable(getattr(env, read, None)) and callable(getattr(env, write, None)):
                return {"obs": self.obs, read: to_plain(getattr(env, read)(), f"{name}.{read}()")}
        fixed = ("single_observation_space", "single_action_space", "observation_space", "action_space")
        own = {key: value for key, value in vars(env).items() if key not in fixed and not callable(value)}
        return {"obs": self.obs, "attributes": {key: to_plain(value, f"{name}.{key}") for key, value in own.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned, after a reset."""
        from lightning_ding.envs.state.codec import from_plain

        device, name = self.device, type(self.env).__name__
        for read, write in (("state_dict", "load_state_dict"), ("get_state", "set_state")):
            if read in state:
                getattr(self.env, write)(from_plain(state[read], None, f"{name}.{read}()"))
        for key, coded in state.get("attributes", {}).items():
            old = getattr(self.env, key, None)
            value = from_plain(coded, old, f"{name}.{key}")
            setattr(self.env, key, value.to(old.device) if isinstance(old, Tensor) else value)
        self.obs = nested.apply(lambda leaf: leaf.to(device), state["obs"])


def as_tensor(value: Any) -> Tensor:
    """Return an array of any library as a tensor that shares its memory; a tensor as it is.

    Raises:
        TypeError: If it has no ``__dlpack__``.
    """
    if isinstance(value, Tensor):
        return value
    if not hasattr(value, "__dlpack__"):
        raise TypeError(
            f'with mode="tensor", an env must give tensors or arrays with __dlpack__, got {type(value).__name__}; '
            'envs with separate arrays run with mode="sync", "async" or "native"'
        )
    tensor: Tensor = torch.from_dlpack(value)  # type: ignore[attr-defined]
    return tensor


def _takes_seed(env: Any) -> bool:
    parameters = inspect.signature(env.reset).parameters
    return "seed" in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())


def _converter(example: Any) -> Callable[[Tensor], Any]:
    """Return the function that makes a tensor an array of the library of ``example``, without a copy."""
    if isinstance(example, Tensor) or not hasattr(example, "__array_namespace__"):
        return _as_it_is
    return functools.partial(_from_dlpack, example.__array_namespace__())


def _from_dlpack(namespace: Any, tensor: Tensor) -> Any:
    return namespace.from_dlpack(tensor.detach().contiguous())


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


def _where(ended: Tensor, final: Any, obs: Any) -> Any:
    """Return the final observations where an episode ended, and the others elsewhere."""
    if isinstance(obs, dict):
        return {name: _where(ended, final[name], leaf) for name, leaf in obs.items()}
    allowed = f"of shape {tuple(obs.shape)}, as the observations"  # others might be broadcast
    require(final.shape == obs.shape, "final observations of env.step", allowed, tuple(final.shape))
    return torch.where(ended.view(-1, *[1] * (obs.ndim - 1)), final, obs)


def _seen_by_policy(space: spaces.Space[Any]) -> tuple[spaces.Space[Any], str | None]:
    """Return the space of what the policy sees, and the key that leads there in a dict of observations."""
    if isinstance(space, spaces.Dict) and POLICY in space.spaces:
        return space[POLICY], POLICY
    return space, None
