"""The base of batched envs in torch: time limit, autoreset in the step, random starts and exact state.

Shapes: N envs, K numbers of the state of an env.
"""

from __future__ import annotations

import copy
import functools
from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor
from typing_extensions import override

from lightning_ding.config import require

if TYPE_CHECKING:
    from lightning_ding.utils.compiled import CompiledFunction


NOT_OWN = ("num_envs", "max_episode_steps", "state", "elapsed", "_compiled", "_generator")
"""Attributes of this class, which are no part of ``own`` in the state of an env."""


class BatchedEnv(VectorEnv[Any, Any, Any]):
    """N envs of one kind as tensors on one device, with gymnasium's same-step autoreset.

    A subclass sets the spaces and the time limit, and implements the dynamics of N envs at once. Its methods are pure
    functions of tensors: no number of an env is read on the host, so a step waits for nothing.

    Args:
        num_envs: Number of envs N, >= 1.
        device: Device of all tensors.
        max_episode_steps: Steps after which an episode is truncated, >= 1; None means the limit of gymnasium.

    Raises:
        ValueError: If a number is out of range.
    """

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.SAME_STEP}  # type: ignore[misc]
    time_limit: ClassVar[int]
    """Steps after which gymnasium truncates an episode."""
    state: Tensor
    """State of the envs, shape (K, N)."""
    elapsed: Tensor
    """Steps of the running episodes, shape (N,)."""

    def __init__(
        self, num_envs: int = 1, device: str | torch.device = "cpu", max_episode_steps: int | None = None
    ) -> None:
        require(num_envs >= 1, "num_envs", ">= 1", num_envs)
        limit = self.time_limit if max_episode_steps is None else max_episode_steps
        require(limit >= 1, "max_episode_steps", ">= 1 or None", max_episode_steps)
        self.num_envs, self.device, self.max_episode_steps = num_envs, torch.device(device), limit
        self.single_observation_space, self.single_action_space = self._spaces()
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.state = torch.zeros(self.size, num_envs, device=self.device)
        self.elapsed = torch.zeros(num_envs, dtype=torch.int32, device=self.device)
        self._compiled: CompiledFunction | None = None
        self._generator = torch.Generator(self.device)
        self._generator.seed()

    # ------------------------------------------------------------------ to implement

    @abstractmethod
    def _spaces(self) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
        """Return the observation and the action space of one env."""

    @abstractmethod
    def _first_state(self, uniform: Tensor) -> Tensor:
        """Return states at the start of an episode, shape (K, N), for random numbers in [0, 1), shape (K, N)."""

    @abstractmethod
    def _advance(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the next states, shape (K, N), the rewards and whether a state is terminal, shape (N,)."""

    @abstractmethod
    def _observe(self, state: Tensor) -> Tensor:
        """Return the observations of states, shape (N, ...)."""

    size: ClassVar[int]
    """Numbers of the state of an env, K."""

    # ------------------------------------------------------------------ gymnasium

    @override
    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Start a new episode in every env, and return the observations and an empty info.

        Args:
            seed: Seed of all random numbers from now on; None continues them.
            options: Not used.
        """
        if seed is not None:
            self._generator.manual_seed(seed)
        self.state = self._new_states()
        self.elapsed = torch.zeros(self.num_envs, dtype=torch.int32, device=self.device)
        return self._observe(self.state), {}

    @override
    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        """Step all envs, and start a new episode where one ended.

        Args:
            actions: Actions, leading axis N.

        Returns:
            Observations, rewards, terminated, truncated, and an info with ``final_obs``: the observations before envs
            were reset, leading axis N, and ``_final_obs``: where an episode ended, shape (N,).
        """
        code = self._compiled
        found = self._stepped(actions) if code is None or code.has_failed else self._compiled_step(code, actions)
        self.state, self.elapsed, obs, reward, terminated, truncated, final_obs, ended = found
        return obs, reward, terminated, truncated, {"final_obs": final_obs, "_final_obs": ended}

    def _stepped(self, actions: Tensor) -> tuple[Tensor, ...]:
        """Return the state and the elapsed steps after a step of all envs, and its results."""
        state, reward, terminated = self._advance(self.state, actions)
        elapsed = self.elapsed + 1
        truncated = elapsed >= self.max_episode_steps
        ended = terminated | truncated
        later = torch.where(ended, self._new_states(), state)
        elapsed = elapsed.masked_fill_(ended, 0)
        return later, elapsed, self._observe(later), reward, terminated, truncated, self._observe(state), ended

    def _new_states(self) -> Tensor:
        return self._first_state(self._uniform())

    def _uniform(self) -> Tensor:
        return torch.rand(self.size, self.num_envs, generator=self._generator, device=self.device)

    # ------------------------------------------------------------------ compiled steps

    def compile_steps(self, graphs: bool = False) -> CompiledFunction:
        """Step by compiled code from now on, and return it; the results are the same up to rounding.

        An attribute that is set to another value that is no tensor has the code compiled again.

        Args:
            graphs: Whether calls on a CUDA device are CUDA graphs.
        """
        from lightning_ding.utils.compiled import CompiledFunction

        code = CompiledFunction(f"steps of {type(self).__name__}", functools.partial(_step_of, self), graphs=graphs)
        if type(self)._new_states is not BatchedEnv._new_states:
            code.give_up("it has its own _new_states")
        self._compiled = code
        return code

    def step_eagerly(self) -> None:
        """Step by eager code from now on."""
        self._compiled = None

    def _compiled_step(self, code: CompiledFunction, actions: Tensor) -> tuple[Tensor, ...]:
        own = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        uniform = self._uniform()
        found: tuple[Tensor, ...] | None = code({"own": own, "actions": actions, "uniform": uniform})
        if found is None:  # it cannot be compiled, and these random numbers are drawn
            vars(self)["_uniform"] = lambda: uniform
            try:
                found = self._stepped(actions)
            finally:
                del vars(self)["_uniform"]
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; compiled code has those that are no tensors as constants."""
        code, old = vars(self).get("_compiled"), vars(self).get(name)
        super().__setattr__(name, value)
        is_same = value is old or (isinstance(value, (int, float, str)) and type(value) is type(old) and value == old)
        if code is not None and name != "_compiled" and not isinstance(value, Tensor) and not is_same:
            code.forget()

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Return all that determines the next steps; ``own`` has the attributes that a subclass added."""
        own = {name: one for name, one in vars(self).items() if name not in NOT_OWN and not _is_constant(one)}
        return {"state": self.state, "elapsed": self.elapsed, "generator": self._generator.get_state(), "own": own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned; of a device of another kind, without the random numbers."""
        self.state, self.elapsed = (state[name].to(self.device, copy=True) for name in ("state", "elapsed"))
        for name, value in state.get("own", {}).items():  # older states lack them
            setattr(self, name, value.to(self.device, copy=True) if isinstance(value, Tensor) else copy.deepcopy(value))
        generator = state["generator"].cpu()
        if generator.shape == self._generator.get_state().shape:
            self._generator.set_state(generator)


def _is_constant(value: Any) -> bool:
    return callable(value) or isinstance(value, (spaces.Space, torch.device, torch.dtype))


def _step_of(env: BatchedEnv, batch: dict[str, Any], given: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """Return what a step of an env gives for its attributes that are tensors, actions and random numbers.

    Raises:
        RuntimeError: If the step sets an attribute, which compiled code would not do.
    """
    shadow = copy.copy(env)
    vars(shadow).update(batch["own"], _uniform=lambda: batch["uniform"])
    before = dict(vars(shadow))
    found = shadow._stepped(batch["actions"])
    changed = [name for name, value in vars(shadow).items() if value is not before.get(name)]
    if changed:
        raise RuntimeError(f"a step sets {', '.join(changed)}")
    return found
