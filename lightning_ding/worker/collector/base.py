"""The contract of the collectors that run in the learner's process."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from gymnasium.vector import VectorEnv

from lightning_ding.registry import SERIAL_COLLECTOR_REGISTRY
from lightning_ding.worker.base import Worker
from lightning_ding.worker_config import CollectorConfig


class ISerialCollector(Worker):
    """Acts in a vector env with a policy's collect mode; a context manager that closes what it made.

    Its counters are those of its own rank; who trains on several ranks adds them up.
    """

    config_class: ClassVar[type[CollectorConfig]] = CollectorConfig
    registry = SERIAL_COLLECTOR_REGISTRY
    sample: int
    """Transitions handed over by this collector, on this rank."""

    @abstractmethod
    def reset_env(self, env: VectorEnv | None = None) -> None:
        """Start new episodes, in ``env`` if it is given."""

    @abstractmethod
    def reset_policy(self, policy: Any = None) -> None:
        """Reset the policy's collecting state, after taking ``policy`` if it is given.

        Args:
            policy: A collect mode; a sequence of them where several policies act in one env.
        """

    @abstractmethod
    def reset(self, policy: Any = None, env: VectorEnv | None = None) -> None:
        """Take what is given, restart it or else what is there, and set the counters to zero."""

    @abstractmethod
    def collect(self, target: int | None = None, /, *args: Any, **kwargs: Any) -> Any:
        """Return collected data.

        Args:
            target: How much, in the unit of the collector, transitions or episodes; None asks the policy.
            args: What else the collector takes.
            kwargs: What else the collector takes; every collector knows ``train_iter``, ``random_collect`` and
                ``policy_kwargs``.
        """

    @abstractmethod
    def pop_episodes(self) -> tuple[list[float], list[int]]:
        """Return the returns and lengths of the episodes that ended since the last call."""

    def pop_dropped_episodes(self) -> list[int]:
        """Return the ``episode_id`` of the episodes that were dropped for a fault of their env since the last call."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """Return everything that decides how collecting goes on but the envs' own state, as tensors and builtins.

        Raises:
            NotImplementedError: If the collector cannot say it.
        """
        raise NotImplementedError(f"a {type(self).__name__} does not give its state")

    def load_state_dict(self, state: Mapping[str, Any], goes_on: bool = True) -> None:
        """Take what ``state_dict`` returned.

        Args:
            state: Of a collector of the same kind with as many envs; of another kind only if nothing goes on.
            goes_on: Whether the envs are where they were then; if not, what was known of the episodes under way is left
                out, and ``reset_env`` has to begin new ones.

        Raises:
            NotImplementedError: If the collector cannot take it.
        """
        raise NotImplementedError(f"a {type(self).__name__} does not take a state")

    @property
    @abstractmethod
    def episode(self) -> int:
        """Episodes finished by this collector, on this rank."""

    @property
    @abstractmethod
    def envstep(self) -> int:
        """Environment steps taken by this collector, on this rank; a run that goes on sets it."""

    @envstep.setter
    @abstractmethod
    def envstep(self, value: int) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """Release what the collector made itself; env, policy and logger stay open."""
