"""The contract of the collectors that run in the learner's process."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from gymnasium.vector import VectorEnv

from lightning_ding.policy.modes import CollectMode
from lightning_ding.registry import SERIAL_COLLECTOR_REGISTRY
from lightning_ding.worker.base import Worker
from lightning_ding.worker_config import CollectorConfig


class ISerialCollector(Worker):
    """Acts in a vector env with a policy's collect mode; a context manager that closes what it made."""

    config_class: ClassVar[type[CollectorConfig]] = CollectorConfig
    registry = SERIAL_COLLECTOR_REGISTRY

    @abstractmethod
    def reset_env(self, env: VectorEnv | None = None) -> None:
        """Start new episodes, in ``env`` if it is given."""

    @abstractmethod
    def reset_policy(self, policy: CollectMode | None = None) -> None:
        """Reset the policy's collecting state, after taking ``policy`` if it is given."""

    @abstractmethod
    def reset(self, policy: CollectMode | None = None, env: VectorEnv | None = None) -> None:
        """Reset env, policy and counters."""

    @abstractmethod
    def collect(
        self,
        n_sample: int | None = None,
        train_iter: int = 0,
        random_collect: bool = False,
        policy_kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return collected data."""

    @abstractmethod
    def pop_episodes(self) -> tuple[list[float], list[int]]:
        """Return the returns and lengths of the episodes that ended since the last call."""

    @property
    @abstractmethod
    def episode(self) -> int:
        """Episodes finished by this collector."""

    @property
    @abstractmethod
    def envstep(self) -> int:
        """Environment steps taken by this collector."""
