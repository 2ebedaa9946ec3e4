"""The base of batched envs in torch: time limit, autoreset in the step, random starts and exact state.

Shapes: N envs, K numbers of the state of an env.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor
from typing_extensions import override

from lightning_ding.config import require


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
        state, reward, terminated = self._advance(self.state, actions)
        elapsed = self.elapsed + 1
        truncated = elapsed >= self.max_episode_steps
        ended = terminated | truncated
        self.state = torch.where(ended, self._new_states(), state)
        self.elapsed = elapsed.masked_fill_(ended, 0)
        info = {"final_obs": self._observe(state), "_final_obs": ended}
        return self._observe(self.state), reward, terminated, truncated, info

    def _new_states(self) -> Tensor:
        return self._first_state(torch.rand(self.size, self.num_envs, generator=self._generator, device=self.device))

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Return all that determines the next steps, as tensors."""
        return {"state": self.state, "elapsed": self.elapsed, "generator": self._generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        self.state, self.elapsed = (state[name].to(self.device, copy=True) for name in ("state", "elapsed"))
        self._generator.set_state(state["generator"].cpu())
