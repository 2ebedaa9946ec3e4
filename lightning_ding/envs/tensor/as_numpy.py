"""A batch of tensor envs as a gymnasium vector env of arrays, for evaluations and everything else outside of training.

Shapes: N envs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor
from typing_extensions import override

from lightning_ding import nested
from lightning_ding.envs.tensor.reader import TensorEnv


class TensorsAsNumpy(VectorEnv[Any, Any, Any]):
    """A vector env of arrays that steps N tensor envs.

    A collector of tensors reads ``tensors`` and leaves the rest of this class alone.

    Args:
        env: The env, in one of the forms of :mod:`~lightning_ding.envs.tensor.reader`.
        closes: Whether closing this closes the env too.
        made_with: Description of the arguments that made the env, with which a state has to agree.
    """

    def __init__(self, env: Any, closes: bool = True, made_with: str = "") -> None:
        self._closes, self._made_with = closes, made_with
        self.tensors = TensorEnv(env)
        """The envs."""
        self.num_envs = self.tensors.num_envs
        self.single_observation_space = self.tensors.single_observation_space
        self.single_action_space = self.tensors.single_action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata = {**(getattr(env, "metadata", None) or {}), "autoreset_mode": AutoresetMode.SAME_STEP}
        self.env_name = type(env).__name__

    @override
    def reset(self, *, seed: Any = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start a new episode in every env."""
        return nested.apply(_array, self.tensors.reset(seed)), {}

    @override
    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all envs; the info has ``final_obs`` and the tensors of the env's info that have N numbers."""
        device = self.tensors.device
        with torch.no_grad():
            step = self.tensors.step(nested.apply(lambda one: torch.as_tensor(np.asarray(one), device=device), actions))
        info = {**self._numbers(step.info)}
        info |= {"final_obs": nested.apply(_array, step.next_obs), "_final_obs": _array(step.ended)}
        final = step.info.get("final_info")
        if isinstance(final, Mapping):
            info |= {"final_info": self._numbers(final), "_final_info": info["_final_obs"]}
        reward, terminated, truncated = map(_array, (step.reward, step.terminated, step.truncated))
        return nested.apply(_array, step.obs), reward.astype(np.float64), terminated, truncated, info

    @override
    def close_extras(self, **kwargs: Any) -> None:
        """Close the envs, unless their owner does."""
        close = getattr(self.tensors.env, "close", None)
        if close is not None and self._closes:
            close()

    # ------------------------------------------------------------------ access, as EnvHandle uses it

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any]:
        """Return the result of a method of the batch of envs, or an attribute, as a tuple of one."""
        found = getattr(self.tensors.env, name)
        return (found(*args, **kwargs) if callable(found) else found,)

    def get_attr(self, name: str) -> tuple[Any]:
        """Return an attribute of the batch of envs, as a tuple of one."""
        return (getattr(self.tensors.env, name),)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of the batch of envs.

        Raises:
            AttributeError: If they have none of this name.
        """
        if not hasattr(self.tensors.env, name):
            raise AttributeError(f"{self.env_name} has no attribute {name!r} to set")
        setattr(self.tensors.env, name, values)

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the envs, None before their first reset; see :meth:`TensorEnv.state_dict`."""
        envs = None if self.tensors.obs is None else self.tensors.state_dict()
        made = {"num_envs": self.num_envs, "made_with": self._made_with}
        return {"envs": envs, "action_space": self.action_space.np_random.bit_generator.state, **made}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned.

        Raises:
            NotPlainError: If it is of another number of envs, or of envs made with other arguments.
        """
        from lightning_ding.envs.state.memo import NotPlainError

        for name, now in (("num_envs", self.num_envs), ("made_with", self._made_with)):
            saved = state.get(name, now)  # older states lack them
            if saved != now:
                raise NotPlainError(f"{self.env_name}: {name} must be {saved}, as in the saved state, got {now}")
        if state["envs"] is not None:
            self.tensors.reset()  # so that there is a device, and attributes to set
            self.tensors.load_state_dict(state["envs"])
        self.action_space.np_random.bit_generator.state = state["action_space"]

    def _numbers(self, info: Mapping[str, Any]) -> dict[str, Any]:
        """Return the entries of an info that are a number for each env, as arrays."""
        is_number = {name: isinstance(one, Tensor) and one.numel() == self.num_envs for name, one in info.items()}
        return {name: _array(info[name]).reshape(-1) for name, found in is_number.items() if found and name[0] != "_"}


def _array(tensor: Tensor) -> Any:
    return tensor.numpy(force=True).copy()
