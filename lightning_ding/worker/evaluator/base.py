"""The contract of evaluators, and what all of them remember."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lightning_ding.policy.modes import EvalMode
from lightning_ding.registry import SERIAL_EVALUATOR_REGISTRY
from lightning_ding.worker.arguments import check_integers
from lightning_ding.worker.base import Worker
from lightning_ding.worker_config import EvaluatorConfig

logger = logging.getLogger(__name__)

SaveFunction = Callable[[str], Any]


class ISerialEvaluator(Worker):
    """Measures a policy's eval mode; a context manager that closes what it made.

    By hand, ask :meth:`should_eval` and call :meth:`eval`. In a Trainer's validation loop call :meth:`run`, which
    measures this rank's share and neither remembers nor writes anything; the Trainer's callbacks do that.
    """

    config_class: ClassVar[type[EvaluatorConfig]] = EvaluatorConfig
    registry = SERIAL_EVALUATOR_REGISTRY
    config: EvaluatorConfig
    _policy: EvalMode | None = None
    _last_eval_iter: int | None = None
    evaluations: int = 0
    """Number of the next evaluation, from which the seeds of its episodes come, unless the caller numbers them."""
    _has_cut: bool = False
    steps_made: int = 0
    """Vector steps or batches so far; a watchdog sees by them that an evaluation goes on."""

    @property
    @abstractmethod
    def env(self) -> Any:
        """What the policy is evaluated on; None if nothing was given yet."""

    @property
    def policy(self) -> EvalMode | None:
        """The policy's eval mode; None if none was given yet."""
        return self._policy

    @abstractmethod
    def reset_env(self, env: Any = None) -> None:
        """Start anew, on ``env`` if it is given."""

    @abstractmethod
    def reset_policy(self, policy: EvalMode | None = None) -> None:
        """Reset the policy's evaluating state, after taking ``policy`` if it is given."""

    @abstractmethod
    def reset(self, policy: EvalMode | None = None, env: Any = None) -> None:
        """Reset env, policy and what was remembered of earlier evaluations."""

    def should_eval(self, train_iter: int) -> bool:
        """Return whether ``eval_freq`` updates have passed since the last evaluation, or there was none.

        Asking changes nothing; :meth:`eval` notes when it was called, if it is told the ``train_iter``.
        """
        return self._last_eval_iter is None or train_iter - self._last_eval_iter >= self.config.eval_freq

    @abstractmethod
    def eval(
        self,
        save_ckpt_fn: SaveFunction | None = None,
        train_iter: int = -1,
        envstep: int = -1,
        n_episode: int | None = None,
    ) -> tuple[bool, dict[str, Any]]:
        """Evaluate; return whether the run may stop, and what was measured, as plain Python."""

    @abstractmethod
    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Measure, and return what was measured."""

    def state_dict(self) -> dict[str, Any]:
        """Return what survives a checkpoint; here when the last evaluation was."""
        return {"last_eval_iter": self._last_eval_iter}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what survives a checkpoint; nothing has changed if this raises.

        Raises:
            ValueError: If an entry is missing.
        """
        missing = sorted(self.state_dict().keys() - state_dict.keys())
        if missing:
            raise ValueError(f"the state of a {type(self).__name__} lacks {missing}, got {sorted(state_dict)}")
        self._last_eval_iter = state_dict["last_eval_iter"]

    def _check_eval_arguments(
        self, save_ckpt_fn: SaveFunction | None, train_iter: int, envstep: int, n_episode: int | None
    ) -> None:
        """Raise if an argument of :meth:`eval` is of the wrong type.

        Raises:
            TypeError: If it is.
        """
        if save_ckpt_fn is not None and not callable(save_ckpt_fn):
            raise TypeError(f"save_ckpt_fn must be callable or None, got {save_ckpt_fn!r}")
        check_integers(
            train_iter=train_iter, envstep=envstep, **({} if n_episode is None else {"n_episode": n_episode})
        )

    def _number(self, number: int | None = None) -> int:
        """Return the number of an evaluation that begins: 0 with ``fixed_starts``, else the given one or its count."""
        if self.config.fixed_starts:
            return 0
        if number is None:
            number = self.evaluations
            self.evaluations += 1
        return number

    def _is_too_long(self, steps: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which episodes have reached ``max_episode_steps``, and say so the first time.

        Args:
            steps: Env steps of the episodes so far.
        """
        limit = self.config.max_episode_steps
        if limit is None:
            return np.zeros(len(steps), dtype=bool)
        too_long: NDArray[np.bool_] = steps >= limit
        if too_long.any() and not self._has_cut:
            self._has_cut = True
            logger.warning(
                "an evaluation episode was cut off at max_episode_steps=%d; its return is that so far", limit
            )
        return too_long

    def _note_eval(self, train_iter: int) -> None:
        if train_iter >= 0:
            self._last_eval_iter = train_iter
