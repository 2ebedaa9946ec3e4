"""What all policies that learn from replay with a target network have in common.

Shapes: B batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from lightning_ding.policy.command import CommandModePolicy
from lightning_ding.policy.replay_config import ReplayConfig

NSTEP = 3  # steps of the return where the config leaves them open

ReplayConfigT = TypeVar("ReplayConfigT", bound=ReplayConfig)


class ReplayPolicy(CommandModePolicy[ReplayConfigT]):
    """A policy that learns from a replay buffer; ``_init_learn`` of a subclass makes ``target_model``."""

    target_model: Any

    def _discount(self, batch: Mapping[str, Any]) -> Tensor:
        """Return gamma^n * (1 - terminated), shape (B,): the one place where termination enters."""
        gamma: Tensor | float = self.config.discount_factor
        if "discount" in batch:
            gamma = batch["discount"]
        elif (self.config.nstep or 1) > 1:
            raise KeyError("a batch needs 'discount', gamma to the power of the steps taken, when nstep > 1")
        if self.config.learn.ignore_done:
            return torch.ones_like(batch["reward"]) * gamma
        return torch.logical_not(batch["terminated"]) * gamma

    def _state_dict_learn(self) -> dict[str, Any]:
        return super()._state_dict_learn() | {"target_model": self.target_model.state_dict()}

    def _load_state_dict_learn(self, state: dict[str, Any]) -> None:
        super()._load_state_dict_learn(state)
        self.target_model.load_state_dict(state["target_model"])

    def _get_nstep(self) -> int:
        return self.config.nstep or NSTEP

    def _get_discount_factor(self) -> float:
        return self.config.discount_factor

    def _get_random_collect_size(self) -> int:
        return self.config.random_collect_size

    def _get_update_per_collect(self) -> int:
        return self.config.learn.update_per_collect
