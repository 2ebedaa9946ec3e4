"""The contract of evaluators."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Any, ClassVar

from easydict import EasyDict
from gymnasium.vector import VectorEnv

from lightning_ding.config import to_easydict
from lightning_ding.policy.modes import EvalMode
from lightning_ding.worker_config import EvaluatorConfig


class ISerialEvaluator(ABC):
    """Measures a policy's eval mode; a context manager that closes what it made."""

    config_class: ClassVar[type[EvaluatorConfig]] = EvaluatorConfig

    @classmethod
    def default_config(cls) -> EasyDict:
        """Return the defaults as an ``EasyDict``."""
        return EasyDict(to_easydict(cls.config_class()), cfg_type=f"{cls.__name__}Dict")

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

    @abstractmethod
    def close(self) -> None:
        """Release what the evaluator made itself; the env belongs to whoever made it."""

    def __enter__(self) -> ISerialEvaluator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
