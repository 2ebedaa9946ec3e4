"""Evaluating several policies against each other.

Shapes: N envs, P players, E episodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any, ClassVar

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from lightning_ding.config import ConfigLike
from lightning_ding.envs.battle_stepper import BattleStep, BattleStepper
from lightning_ding.modes import EvalMode
from lightning_ding.registry import SERIAL_EVALUATOR_REGISTRY
from lightning_ding.worker.evaluator.base import ISerialEvaluator, SaveFunction, run_sharded
from lightning_ding.worker.evaluator.config import BATTLE_KEYS, EvaluatorConfig
from lightning_ding.worker.evaluator.monitor import EpisodePlan
from lightning_ding.worker.log import DEFAULT_EXPERIMENT, WorkerLog
from lightning_ding.worker.players import Players, check_players, gather_actions


@SERIAL_EVALUATOR_REGISTRY.register("battle_interaction")
class BattleInteractionSerialEvaluator(ISerialEvaluator):
    """Lets P policies play a fixed quota of episodes in each env, and measures player 0.

    The number of an episode determines its seed and, with an env that rotates seats, its seating. So the result
    does not depend on the number of envs or ranks that share the work. An episode that a fault of its
    env cuts short is played again.

    Args:
        cfg: An ``EvaluatorConfig``, or a mapping to merge over its defaults.
        env: A vector env with an axis of players, see ``BattleStepper``; its owner closes it.
        policy: Sequence of the P eval modes of the policies.
        tb_logger: A TensorBoard ``SummaryWriter`` or a Lightning logger; or None.
        exp_name: Part of the name of the logger of Python's logging.
        instance_name: Name that distinguishes several evaluators in logs.
        seed: Seed of the episodes, together with the number of the evaluation, which counts the calls of :meth:`run`.
            With ``fixed_starts`` each evaluation has the same episodes.

    Raises:
        TypeError: If ``policy`` is not a sequence.
        ValueError: If there are not as many policies as players, or ``env`` has no axis of players.
    """

    config_keys: ClassVar[frozenset[str]] = BATTLE_KEYS

    def __init__(
        self,
        cfg: ConfigLike[EvaluatorConfig] = None,
        env: VectorEnv[Any, Any, Any] | None = None,
        policy: Sequence[EvalMode] | None = None,
        tb_logger: Any = None,
        exp_name: str = DEFAULT_EXPERIMENT,
        instance_name: str = "evaluator",
        seed: int = 0,
    ) -> None:
        self.config: EvaluatorConfig = self.resolve_config(cfg)
        self.seed = seed
        self._log = WorkerLog(tb_logger, exp_name, instance_name)
        self._stepper: BattleStepper | None = None
        self._policies: Sequence[EvalMode] | None = None
        if env is not None:
            self.reset_env(env)
        if policy is not None:
            self.reset_policy(policy)

    @property
    def env(self) -> VectorEnv[Any, Any, Any] | None:
        """The vector env; None if none was given yet."""
        return None if self._stepper is None else self._stepper.env

    @property
    def policy(self) -> Sequence[EvalMode] | None:  # type: ignore[override]
        """The policies' eval modes; None if none were given yet."""
        return self._policies

    def reset_env(self, env: VectorEnv[Any, Any, Any] | None = None) -> None:
        """Replace the env if one is given; episodes begin with the next evaluation.

        Raises:
            ValueError: If ``env`` has no axis of players, or another number of them than there are policies.
        """
        if env is not None:
            stepper = BattleStepper(env)
            if self._policies is not None:
                check_players(self._policies, stepper.num_players)
            self._stepper = stepper

    def reset_policy(self, policy: Sequence[EvalMode] | None = None) -> None:  # type: ignore[override]
        """Replace the policies if others are given, and reset their evaluating state.

        Raises:
            TypeError: If ``policy`` is not a sequence.
            ValueError: If there are not as many policies as players.
        """
        if policy is not None:
            self._policies = check_players(policy, None if self._stepper is None else self._stepper.num_players)
        if self._policies is not None:
            Players(self._policies).reset()

    def reset(  # type: ignore[override]
        self, policy: Sequence[EvalMode] | None = None, env: VectorEnv[Any, Any, Any] | None = None
    ) -> None:
        """Replace policies and env where they are given; reset the best return and all evaluations."""
        self.evaluations = 0
        self.best_return = -np.inf
        self._last_eval_iter = None
        if policy is not None and env is not None:
            self._stepper = None  # the number of players may change
        self.reset_policy(policy)
        self.reset_env(env)

    def eval(
        self,
        save_ckpt_fn: SaveFunction | None = None,
        train_iter: int = -1,
        envstep: int = -1,
        n_episode: int | None = None,
    ) -> tuple[bool, dict[str, Any]]:
        """Evaluate, store the update and the score of the evaluation, and write the results to the loggers.

        If ``torch.distributed`` is initialised, every rank has to call this and runs its share of the episodes; all of
        them get the same result.

        Args:
            save_ckpt_fn: Function called on every rank with a file name when player 0's mean return is the best so far.
            train_iter: Updates so far; negative if not known.
            envstep: Environment steps so far.
            n_episode: Number of episodes over all ranks; None takes the config's ``n_episode``.

        Returns:
            Whether player 0's mean return reached ``stop_value`` after at least one update, and plain Python numbers:
            ``eval_episode_return`` of player 0 in each episode and ``return_mean``, ``return_std``, ``return_min``,
            ``return_max`` of these; ``eval_episode_return_by_player``, P lists; ``eval_episode_length`` in env steps;
            ``win_rate``, the share of episodes in which player 0's return is above all others'; ``train_iter`` and
            ``envstep``.

        Raises:
            ValueError: If there are fewer episodes than ranks, or none.
            TypeError: If an argument is of the wrong type.
            RuntimeError: If there is no env or no policy, or the envs report more faults than there are episodes.
        """
        self._check_eval_arguments(save_ckpt_fn, train_iter, envstep, n_episode)
        started = perf_counter()
        table = run_sharded(self._run_rows, self.config.n_episode if n_episode is None else n_episode)
        seconds = perf_counter() - started
        returns, lengths = table[:-1], table[-1].astype(int).tolist()
        values = self.config.summary(returns[0]) | {"win_rate": float(np.mean(returns[0] > returns[1:].max(0)))}
        of_players = {f"return{player}_mean": float(of_player.mean()) for player, of_player in enumerate(returns)}
        logged = values | of_players
        stop = self._conclude(self._log, logged, lengths, seconds, train_iter, envstep, save_ckpt_fn)
        episodes = {"eval_episode_return": returns[0].tolist(), "eval_episode_return_by_player": returns.tolist()}
        info = {**episodes, "eval_episode_length": lengths, **values}
        return stop, {**info, "train_iter": train_iter, "envstep": envstep}

    def run(self, episodes: Sequence[int]) -> tuple[list[list[float]], list[int]]:
        """Run episodes and return their returns and lengths.

        Args:
            episodes: Numbers of the episodes, E >= 1; they determine seeds and seatings.

        Returns:
            For each player E returns, and E lengths in env steps, in the order of ``episodes``.

        Raises:
            RuntimeError: If there is no env or no policy, or the envs report more faults than there are episodes.
            ValueError: If ``episodes`` is empty.
        """
        if self._stepper is None or self._policies is None:
            raise RuntimeError("the evaluator needs an env and policies: pass them to the constructor or to reset")
        stepper, players = self._stepper, Players(self._policies)
        plan = EpisodePlan(episodes, stepper.num_envs, self.seed, self._number())
        numbers = np.array(episodes, dtype=np.int64)
        returns, lengths = np.zeros((len(episodes), stepper.num_players)), np.zeros(len(episodes), dtype=np.int64)
        players.reset()
        stepper.stop()
        place = _start(stepper, plan, np.ones(stepper.num_envs, dtype=bool), numbers)
        while (is_playing := stepper.is_playing).any():
            self.steps_made += 1
            rows = np.flatnonzero(is_playing)
            step = stepper.step(gather_actions(stepper.env, players.act(stepper.obs, stepper.active)))
            returns[place[rows]] += step.reward[rows]
            lengths[place[rows]] += 1
            ended = step.over | step.abnormal
            cut = np.zeros_like(ended)
            cut[rows] = self._is_too_long(lengths[place[rows]]) & ~ended[rows]
            if cut.any():
                stepper.stop(cut)
                ended |= cut
            if ended.any():
                returns[place[step.abnormal]] = lengths[place[step.abnormal]] = 0
                _end(plan, ended, step)
                players.reset(np.flatnonzero(ended).tolist())
                place = _start(stepper, plan, ended, numbers)
        return returns.T.tolist(), lengths.tolist()

    def close(self) -> None:
        """Release env and policies. The owner of the env closes it."""
        self._stepper = None
        self._policies = None

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint holds: the counters and the best return."""
        return {**super().state_dict(), "best_return": float(self.best_return), "evaluations": self.evaluations}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        super().load_state_dict(state_dict)
        self.best_return = state_dict["best_return"]
        self.evaluations = state_dict["evaluations"]

    def _run_rows(self, episodes: Sequence[int]) -> list[list[float]]:
        returns, lengths = self.run(episodes)
        return [*returns, [float(length) for length in lengths]]


def _start(
    stepper: BattleStepper, plan: EpisodePlan, envs: NDArray[np.bool_], numbers: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Begin the next episode of some envs, where there is one left.

    Args:
        stepper: Stepper of the envs.
        plan: The episodes that the envs run.
        envs: Whether each env begins an episode, shape (N,).
        numbers: Numbers of the episodes, shape (E,).

    Returns:
        Position of the episode that each env runs, shape (N,); -1 for an env without an episode.
    """
    place = np.array([-1 if position is None else position for position in plan.running])
    mask = envs & (place >= 0)
    if mask.any():
        stepper.start(mask, plan.first_seeds(), numbers[place])
    return place


def _end(plan: EpisodePlan, ended: NDArray[np.bool_], step: BattleStep) -> None:
    """Record the episodes that ended with a step, in the envs of ``ended``, shape (N,)."""
    for env_id in np.flatnonzero(ended).tolist():
        if step.abnormal[env_id]:
            plan.fail(env_id, step.fault[env_id])
        else:
            plan.end(env_id)
