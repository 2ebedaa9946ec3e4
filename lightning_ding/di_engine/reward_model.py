"""DI-engine's ``ding.reward_model``: the base of a reward model that a script trains and asks itself.

The reward models of this package are in :mod:`lightning_ding.reward_model`; a Trainer trains them with the policy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from lightning_ding.registry import REWARD_MODEL_REGISTRY

__all__ = ["BaseRewardModel", "REWARD_MODEL_REGISTRY"]


class BaseRewardModel(ABC):
    """A model that replaces the rewards of transitions."""

    @abstractmethod
    def estimate(self, data: list[Any]) -> Any:
        """Return the transitions with the rewards of the model."""

    @abstractmethod
    def train(self) -> None:
        """Train the model with the collected data."""

    @abstractmethod
    def collect_data(self, data: Any) -> None:
        """Take data to train with."""

    @abstractmethod
    def clear_data(self) -> None:
        """Forget the collected data."""
