"""The contract of evaluators."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from gymnasium.vector import VectorEnv

from lightning_ding.policy.modes import EvalMode
from lightning_ding.registry import SERIAL_EVALUATOR_REGISTRY
from lightning_ding.worker.base import Worker
from lightning_ding.worker_config import EvaluatorConfig


class ISerialEvaluator(Worker):
    """Measures a policy's eval mode; a context manager that closes what it made."""

    config_class: ClassVar[type[EvaluatorConfig]] = EvaluatorConfig
    registry = SERIAL_EVALUATOR_REGISTRY

    @abstractmethod
    def reset_env(self, env: VectorEnv | None = None) -> None:
        """Start new episodes, in ``env`` if it is given."""

    @abstractmethod
    def reset_policy(self, policy: EvalMode | None = None) -> None:
        """Reset the policy's evaluating state, after taking ``policy`` if it is given."""

    @abstractmethod
    def reset(self, policy: EvalMode | None = None, env: VectorEnv | None = None) -> None:
        """Reset env, policy and what was remembered of earlier evaluations."""

    @abstractmethod
    def should_eval(self, train_iter: int) -> bool:
        """Return whether an evaluation is due."""

    @abstractmethod
    def eval(
        self,
        save_ckpt_fn: Callable[[str], Any] | None = None,
        train_iter: int = -1,
        envstep: int = -1,
        n_episode: int | None = None,
    ) -> tuple[bool, dict[str, Any]]:
        """Evaluate; return whether the run may stop, and what was measured."""
