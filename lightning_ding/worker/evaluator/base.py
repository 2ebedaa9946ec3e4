"""The interface of evaluators, functions that make one from a config section, and evaluation on several ranks.

Shapes: E episodes, K numbers for each of them.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_ding.config import require
from lightning_ding.modes import EvalMode
from lightning_ding.ranks import rank_and_world_size, sum_over_ranks
from lightning_ding.registry import SERIAL_EVALUATOR_REGISTRY
from lightning_ding.worker.arguments import check_integers
from lightning_ding.worker.base import Worker, get_class
from lightning_ding.worker.episodes import speed
from lightning_ding.worker.evaluator.config import EvaluatorConfig
from lightning_ding.worker.log import WorkerLog

logger = logging.getLogger(__name__)

SaveFunction = Callable[[str], Any]


class ISerialEvaluator(Worker):
    """Measures a policy's eval mode; a context manager that closes what it made.

    Without a Trainer, call :meth:`eval` when :meth:`should_eval` returns True. In a Trainer's validation loop, call
    :meth:`run`, which evaluates this rank's share. It stores and writes nothing, because the Trainer's callbacks do.
    """

    config_class: ClassVar[type[EvaluatorConfig]] = EvaluatorConfig
    registry = SERIAL_EVALUATOR_REGISTRY
    config: EvaluatorConfig
    evaluations: int = 0
    """Number of the next evaluation, which decides the seeds of its episodes unless the caller numbers them."""
    best_return: float = -np.inf
    """Highest mean return of an evaluation by :meth:`eval`."""
    steps_made: int = 0
    """Vector steps or batches so far, by which a watchdog detects that an evaluation makes progress."""
    cancel_requested: bool = False
    """Whether a running evaluation should stop early; another thread may set it. While it is true, none runs."""
    _policy: EvalMode | None = None
    _last_eval_iter: int | None = None
    _has_cut: bool = False

    @property
    @abstractmethod
    def env(self) -> Any:
        """The env or data that the policy is evaluated on; None if none was given yet."""

    @property
    def policy(self) -> EvalMode | None:
        """The policy's eval mode; None if none was given yet."""
        return self._policy

    @abstractmethod
    def reset_env(self, env: Any = None) -> None:
        """Start again, on ``env`` if it is given."""

    @abstractmethod
    def reset_policy(self, policy: EvalMode | None = None) -> None:
        """Replace the policy if one is given, and reset its evaluating state."""

    @abstractmethod
    def reset(self, policy: EvalMode | None = None, env: Any = None) -> None:
        """Reset env and policy, and remove the results of earlier evaluations."""

    def should_eval(self, train_iter: int) -> bool:
        """Return whether ``eval_freq`` updates have passed since the last evaluation, or there was none.

        The call changes nothing. :meth:`eval` stores its argument ``train_iter``.
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
        """Evaluate; return whether the run may stop, and the results as plain Python."""

    @abstractmethod
    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate and return the results."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint holds: the update of the last evaluation."""
        return {"last_eval_iter": self._last_eval_iter}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of a checkpoint; nothing has changed if this raises.

        Raises:
            ValueError: If an entry is missing.
        """
        missing = sorted(self.state_dict().keys() - state_dict.keys())
        if missing:
            raise ValueError(f"the state of a {type(self).__name__} lacks {missing}, got {sorted(state_dict)}")
        self._last_eval_iter = state_dict["last_eval_iter"]

    # ------------------------------------------------------------------ for subclasses

    def _check_eval_arguments(
        self, save_ckpt_fn: SaveFunction | None, train_iter: int, envstep: int, n_episode: int | None
    ) -> None:
        """Check the types of the arguments of :meth:`eval`.

        Raises:
            TypeError: If an argument is of the wrong type.
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

    def _is_too_long(self, steps: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which episodes have reached ``max_episode_steps``, and log it the first time.

        Args:
            steps: Env steps of the episodes so far.
        """
        limit = self.config.max_episode_steps
        if limit is None:
            return np.zeros(len(steps), dtype=bool)
        too_long: NDArray[np.bool_] = steps >= limit
        if too_long.any() and not self._has_cut:
            self._has_cut = True
            logger.warning("an evaluation episode was cut off at max_episode_steps=%d; its return is partial", limit)
        return too_long

    def _note_eval(self, train_iter: int) -> None:
        if train_iter >= 0:
            self._last_eval_iter = train_iter

    def _conclude(
        self,
        log: WorkerLog,
        values: Mapping[str, float],
        lengths: Sequence[int],
        seconds: float,
        train_iter: int,
        envstep: int,
        save_ckpt_fn: SaveFunction | None,
    ) -> bool:
        """Write and store the results of an evaluation, and save the policy if it is the best so far.

        Args:
            log: The log to write to.
            values: Results with ``return_mean``.
            lengths: Env steps of the episodes.
            seconds: Duration of the evaluation.
            train_iter: Updates so far; negative if not known.
            envstep: Environment steps so far.
            save_ckpt_fn: See :meth:`eval`.

        Returns:
            Whether the mean return reached ``stop_value`` after at least one update.
        """
        log.write({**speed(lengths, seconds), **values}, train_iter, envstep)
        self._note_eval(train_iter)
        mean = values["return_mean"]
        if mean > self.best_return:
            self.best_return = mean
            if save_ckpt_fn is not None:
                save_ckpt_fn("ckpt_best.ckpt")
        return self.config.stop_value is not None and mean >= self.config.stop_value and train_iter > 0


def get_serial_evaluator_cls(cfg: Any) -> type[ISerialEvaluator]:
    """Return the class that ``cfg.type`` names; by default that of ``interaction``.

    Raises:
        KeyError: If the type is not registered.
    """
    found: type[ISerialEvaluator] = get_class(SERIAL_EVALUATOR_REGISTRY, cfg, default_type="interaction")
    return found


def create_serial_evaluator(cfg: Any, **kwargs: Any) -> ISerialEvaluator:
    """Return the evaluator that ``cfg.type`` names, by default ``interaction``, made with ``cfg`` and ``kwargs``.

    Raises:
        KeyError: If the type is not registered.
    """
    return get_serial_evaluator_cls(cfg)(cfg, **kwargs)  # type: ignore[call-arg]


def run_sharded(run: Callable[[Sequence[int]], Any], n_episode: int) -> NDArray[np.float64]:
    """Run the episodes 0 to n_episode - 1, each on one rank, and return the results of all of them.

    Rank r of W runs the episodes r, r + W, ... All ranks work at the same time and return the same results.
    A single rank would get the same results if ``run`` depends only on the numbers of the episodes. A Trainer does not
    need this function, because the datamodule distributes the episodes and Lightning joins the results.

    Args:
        run: Function that is called once with the numbers of this rank's E >= 1 episodes, and returns K rows of E
            numbers.
        n_episode: Episodes over all ranks, at least one for each.

    Returns:
        Numbers of all episodes, shape (K, n_episode), in the order of the episodes.

    Raises:
        ValueError: If there are fewer episodes than ranks.
    """
    rank, world_size = rank_and_world_size()
    enough = ">= 1" if world_size == 1 else f"at least one for each of {world_size} ranks"
    require(n_episode >= world_size, "n_episode", enough, n_episode)
    share = range(n_episode)[rank::world_size]
    rows = np.asarray(run(share), dtype=np.float64)
    table = np.zeros((len(rows), n_episode))
    table[:, share] = rows
    return sum_over_ranks(torch.from_numpy(table)).numpy()
