"""The interface of evaluators, functions that make one from a config section, and what those in envs share.

Shapes: N envs, P players, E episodes.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from typing_extensions import override

from lightning_ding.config import ConfigLike
from lightning_ding.envs import EnvStepper
from lightning_ding.registry import SERIAL_EVALUATOR_REGISTRY
from lightning_ding.worker.arguments import check_integers, eval_mode_of
from lightning_ding.worker.base import Worker, get_class
from lightning_ding.worker.evaluator.config import EvaluatorConfig
from lightning_ding.worker.evaluator.plan import EpisodePlan
from lightning_ding.worker.log import DEFAULT_EXPERIMENT, WorkerLog

if TYPE_CHECKING:
    from lightning_ding.envs.battle_stepper import BattleStepper

logger = logging.getLogger(__name__)

SaveFunction = Callable[[str], Any]
StepperT = TypeVar("StepperT", bound="EnvStepper | BattleStepper")
PolicyT = TypeVar("PolicyT")


class ISerialEvaluator(Worker):
    """Measures a policy's eval mode; a context manager that closes what it made.

    Without a Trainer, call :meth:`eval` when :meth:`should_eval` returns True. In a Trainer's validation loop, call
    :meth:`run`, which evaluates this rank's share. It stores and writes nothing, because the Trainer's callbacks do.

    Args:
        cfg: An ``EvaluatorConfig``, or a mapping to merge over its defaults.
        env: The env or data that the policy is evaluated on; its owner closes it.
        policy: A policy or its eval mode; a sequence of P eval modes where several policies act.
        tb_logger: A TensorBoard ``SummaryWriter`` or a Lightning logger; or None.
        exp_name: Part of the name of the Python logger.
        instance_name: Name that distinguishes several evaluators, in logs and names of figures.
    """

    config_class: ClassVar[type[EvaluatorConfig]] = EvaluatorConfig
    registry = SERIAL_EVALUATOR_REGISTRY
    evaluations: int = 0
    """Number of the next evaluation, which decides the seeds of its episodes unless the caller numbers them."""
    best_return: float = -np.inf
    """Highest mean return of an evaluation by :meth:`eval`."""
    steps_made: int = 0
    """Vector steps or batches so far, by which a watchdog detects that an evaluation makes progress."""
    cancel_requested: bool = False
    """Whether a running evaluation should stop early; another thread may set it. While it is true, none runs."""
    _policy: Any = None
    _last_eval_iter: int | None = None

    def __init__(
        self,
        cfg: ConfigLike[EvaluatorConfig] = None,
        env: Any = None,
        policy: Any = None,
        tb_logger: Any = None,
        exp_name: str = DEFAULT_EXPERIMENT,
        instance_name: str = "evaluator",
    ) -> None:
        self.config: EvaluatorConfig = self.resolve_config(cfg)
        self._log = WorkerLog(tb_logger, exp_name, instance_name)
        self._clear()
        if env is not None:
            self.reset_env(env)
        if policy is not None:
            self.reset_policy(policy)

    def _clear(self) -> None:
        """Remove the results of earlier evaluations."""
        self.evaluations = 0
        self.best_return = -np.inf
        self._last_eval_iter = None

    @property
    @abstractmethod
    def env(self) -> Any:
        """The env or data that the policy is evaluated on; None if none was given yet."""

    @property
    def policy(self) -> Any:
        """The eval mode, of several policies a sequence of them; None if none was given yet."""
        return self._policy

    @abstractmethod
    def reset_env(self, env: Any = None) -> None:
        """Replace the env or the data if others are given.

        Raises:
            TypeError: If ``env`` is something else.
            ValueError: If the evaluator cannot act in ``env``, or its number of players differs from the number of
                policies.
        """

    def reset_policy(self, policy: Any = None) -> None:
        """Replace the policy if one is given, and reset its evaluating state.

        Args:
            policy: A policy or its eval mode; a sequence of eval modes where several policies act in one env.

        Raises:
            TypeError: If several policies act and ``policy`` is not a sequence.
            ValueError: If there are not as many policies as players.
        """
        if policy is not None:
            self._policy = eval_mode_of(policy)
        if self._policy is not None:
            self._policy.reset()

    def reset(self, policy: Any = None, env: Any = None) -> None:
        """Replace policy and env where they are given, and remove the results of earlier evaluations."""
        self._clear()
        self.reset_policy(policy)
        self.reset_env(env)

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
        """Evaluate, store the update and the score of the evaluation, and write the results to the loggers.

        If ``torch.distributed`` is initialised, every rank has to call this and does its share; all of them get the
        same result.

        Args:
            save_ckpt_fn: Function called with a file name when the score is the best so far. It is called on every
                rank, because saving may need all of them, as ``Trainer.save_checkpoint`` does.
            train_iter: Updates so far; negative if not known.
            envstep: Environment steps so far.
            n_episode: Number of episodes over all ranks; None means the config's ``n_episode``.

        Returns:
            Whether the score reached ``stop_value`` after at least one update, and the results as plain Python; see
            the classes.

        Raises:
            ValueError: If there are fewer episodes than ranks, or none.
            TypeError: If an argument is of the wrong type.
            RuntimeError: If there is no env or no policy, or the envs report more faults than there are episodes.
        """

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
        """Raise TypeError if an argument of :meth:`eval` is of the wrong type."""
        if save_ckpt_fn is not None and not callable(save_ckpt_fn):
            raise TypeError(f"save_ckpt_fn must be callable or None, got {save_ckpt_fn!r}")
        check_integers(
            train_iter=train_iter, envstep=envstep, **({} if n_episode is None else {"n_episode": n_episode})
        )

    def _note_eval(self, train_iter: int) -> None:
        if train_iter >= 0:
            self._last_eval_iter = train_iter


class EpisodeEvaluator(ISerialEvaluator, Generic[StepperT, PolicyT]):
    """Measures by whole episodes in a vector env. A subclass acts. See :class:`ISerialEvaluator` for other arguments.

    Args:
        seed: Seed of the episodes, together with the number of the evaluation. With ``fixed_starts`` each evaluation
            has the same episodes.
    """

    _stepper: StepperT | None = None
    _policy: PolicyT | None = None
    _has_cut: bool = False

    def __init__(
        self,
        cfg: ConfigLike[EvaluatorConfig] = None,
        env: VectorEnv | None = None,
        policy: PolicyT | None = None,
        tb_logger: Any = None,
        exp_name: str = DEFAULT_EXPERIMENT,
        instance_name: str = "evaluator",
        seed: int = 0,
    ) -> None:
        self.seed = seed
        super().__init__(cfg, env, policy, tb_logger, exp_name, instance_name)
        self.config.stop_return()

    @property
    @override
    def env(self) -> VectorEnv | None:
        return None if self._stepper is None else self._stepper.env

    @override
    def close(self) -> None:
        self._stepper = self._policy = None

    @override
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "best_return": float(self.best_return), "evaluations": self.evaluations}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.best_return = state_dict["best_return"]
        self.evaluations = state_dict["evaluations"]

    # ------------------------------------------------------------------ for subclasses

    def _parts(self) -> tuple[StepperT, PolicyT]:
        if self._stepper is None or self._policy is None:
            raise RuntimeError("the evaluator needs an env and a policy: pass them to the constructor or to reset")
        return self._stepper, self._policy

    def _number(self, number: int | None = None) -> int:
        """Return the number of an evaluation that begins: 0 with ``fixed_starts``, else the given one or its count."""
        if self.config.fixed_starts:
            return 0
        if number is None:
            number = self.evaluations
            self.evaluations += 1
        return number

    def _is_too_long(self, plan: EpisodePlan) -> NDArray[np.bool_]:
        """Return in which envs the episode has reached ``max_episode_steps``, and log it the first time."""
        too_long = plan.is_too_long
        if too_long.any() and not self._has_cut:
            self._has_cut = True
            limit = self.config.max_episode_steps
            logger.warning("an evaluation episode was cut off at max_episode_steps=%d; its return is partial", limit)
        return too_long


def get_serial_evaluator_cls(cfg: Any) -> type[ISerialEvaluator]:
    """Return the class that ``cfg.type`` names, by default ``interaction``; raise KeyError if it is not registered."""
    found: type[ISerialEvaluator] = get_class(SERIAL_EVALUATOR_REGISTRY, cfg, default_type="interaction")
    return found


def create_serial_evaluator(cfg: Any, **kwargs: Any) -> ISerialEvaluator:
    """Return an instance of :func:`get_serial_evaluator_cls`, made with ``cfg`` and ``kwargs``."""
    return get_serial_evaluator_cls(cfg)(cfg, **kwargs)
