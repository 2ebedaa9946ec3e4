"""Evaluating several policies against each other.

Shapes: N envs, P players, E episodes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from lightning_ding.config import ConfigLike, require
from lightning_ding.envs.battle_stepper import BattleStep, BattleStepper
from lightning_ding.policy.modes import EvalMode
from lightning_ding.registry import SERIAL_EVALUATOR_REGISTRY
from lightning_ding.worker.evaluator.base import ISerialEvaluator, SaveFunction
from lightning_ding.worker.evaluator.plan import episode_seeds
from lightning_ding.worker.evaluator.sharding import run_sharded
from lightning_ding.worker.log import DEFAULT_EXPERIMENT, WorkerLog
from lightning_ding.worker.players import Players, check_players, gather_actions
from lightning_ding.worker_config import EvaluatorConfig


@SERIAL_EVALUATOR_REGISTRY.register("battle_interaction")
class BattleInteractionSerialEvaluator(ISerialEvaluator):
    """Lets P policies play a fixed quota of episodes in each env; player 0 is the one that is measured.

    The number of an episode gives its seed and, with an env that rotates seats, its seating, so that it does not matter
    how many envs or ranks share the work. An episode that a fault of its env cuts short is played again.

    Args:
        cfg: An ``EvaluatorConfig``, or a mapping to merge over its defaults.
        env: A vector env with an axis of players, see ``BattleStepper``; its owner closes it.
        policy: The policies' eval modes, P of them.
        tb_logger: A TensorBoard ``SummaryWriter`` or a Lightning logger; or None.
        exp_name: Part of the name of the logger of Python's logging.
        instance_name: Tells several evaluators apart.
        seed: Of the episodes, together with the number of the evaluation, which counts the calls of :meth:`run`; with
            ``fixed_starts`` each evaluation has the same episodes.

    Raises:
        TypeError: If ``policy`` is no sequence.
        ValueError: If there are not as many policies as players, or ``env`` has no axis of players.
    """

    config_keys: ClassVar[frozenset[str]] = frozenset(
        {"eval_freq", "n_episode", "stop_value", "fixed_starts", "max_episode_steps"}
    )

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
        self.best_return = -np.inf
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
        """Take ``env`` if it is given; episodes begin with the next evaluation.

        Raises:
            ValueError: If ``env`` has no axis of players, or another number of them than there are policies.
        """
        if env is not None:
            stepper = BattleStepper(env)
            if self._policies is not None:
                check_players(self._policies, stepper.num_players)
            self._stepper = stepper

    def reset_policy(self, policy: Sequence[EvalMode] | None = None) -> None:  # type: ignore[override]
        """Reset the policies' evaluating state, after taking other policies if they are given.

        Raises:
            TypeError: If ``policy`` is no sequence.
            ValueError: If there are not as many policies as players.
        """
        if policy is not None:
            self._policies = check_players(policy, None if self._stepper is None else self._stepper.num_players)
        if self._policies is not None:
            Players(self._policies).reset()

    def reset(  # type: ignore[override]
        self, policy: Sequence[EvalMode] | None = None, env: VectorEnv[Any, Any, Any] | None = None
    ) -> None:
        """Take what is given and forget the best return and all evaluations."""
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
        """Evaluate, remember when and how well, and write it to the loggers.

        If ``torch.distributed`` is initialised, every rank has to call this and runs its share of the episodes; all of
        them get the same answer.

        Args:
            save_ckpt_fn: Called with a file name when player 0's mean return is the best so far; on every rank.
            train_iter: Updates done; a negative number says nothing of when it was.
            envstep: Environment steps done.
            n_episode: Episodes over all ranks; None takes the config's.

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
        started = time.perf_counter()
        total = self.config.n_episode if n_episode is None else n_episode
        table = run_sharded(self._run_rows, total)
        returns, lengths = table[:-1], table[-1].astype(int).tolist()
        summary = _summary(returns)
        self._write(summary, returns, lengths, time.perf_counter() - started, train_iter, envstep)
        self._note_eval(train_iter)
        mean = summary["return_mean"]
        if mean > self.best_return:
            self.best_return = mean
            if save_ckpt_fn is not None:
                save_ckpt_fn("ckpt_best.ckpt")
        stop = self.config.stop_value is not None and mean >= self.config.stop_value and train_iter > 0
        episodes = {"eval_episode_return": returns[0].tolist(), "eval_episode_return_by_player": returns.tolist()}
        info = {**episodes, "eval_episode_length": lengths, **summary}
        return stop, {**info, "train_iter": train_iter, "envstep": envstep}

    def run(self, episodes: Sequence[int]) -> tuple[list[list[float]], list[int]]:
        """Run episodes and return their returns and lengths.

        Args:
            episodes: Their numbers, from which their seeds and seatings come; E >= 1 of them.

        Returns:
            For each player E returns, and E lengths in env steps, in the order of ``episodes``.

        Raises:
            RuntimeError: If there is no env or no policy, or the envs report more faults than there are episodes.
            ValueError: If ``episodes`` is empty.
        """
        require(len(episodes) >= 1, "n_episode", ">= 1", len(episodes))
        if self._stepper is None or self._policies is None:
            raise RuntimeError("the evaluator needs an env and policies: pass them to the constructor or to reset")
        stepper, players = self._stepper, Players(self._policies)
        players.reset()
        stepper.stop()
        queue = _Queue(episodes, stepper.num_envs, episode_seeds(episodes, self.seed, self._number()))
        returns, lengths = np.zeros((len(episodes), stepper.num_players)), np.zeros(len(episodes), dtype=np.int64)
        everywhere = np.ones(stepper.num_envs, dtype=bool)
        queue.start(stepper, everywhere, again=~everywhere)
        while (is_playing := stepper.is_playing).any():
            self.steps_made += 1
            rows = np.flatnonzero(is_playing)
            step = stepper.step(gather_actions(stepper.env, players.act(stepper.obs, stepper.active)))
            returns[queue.place[rows]] += step.reward[rows]
            lengths[queue.place[rows]] += 1
            if step.abnormal.any():
                queue.bear(step)
                returns[queue.place[step.abnormal]] = lengths[queue.place[step.abnormal]] = 0
            ended = step.over | step.abnormal
            cut = np.zeros_like(ended)
            cut[rows] = self._is_too_long(lengths[queue.place[rows]]) & ~ended[rows]
            if cut.any():
                stepper.stop(cut)
                ended |= cut
            if ended.any():
                players.reset(np.flatnonzero(ended).tolist())
                queue.start(stepper, ended, again=step.abnormal)
        return returns.T.tolist(), lengths.tolist()

    def close(self) -> None:
        """Forget env and policies; the env is left open for whoever made it."""
        self._stepper = None
        self._policies = None

    def state_dict(self) -> dict[str, Any]:
        """Return what survives a checkpoint: the evaluations so far and their best return."""
        return {**super().state_dict(), "best_return": float(self.best_return), "evaluations": self.evaluations}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what survives a checkpoint."""
        super().load_state_dict(state_dict)
        self.best_return = state_dict["best_return"]
        self.evaluations = state_dict["evaluations"]

    def _run_rows(self, episodes: Sequence[int]) -> list[list[float]]:
        returns, lengths = self.run(episodes)
        return [*returns, [float(length) for length in lengths]]

    def _write(
        self,
        summary: dict[str, float],
        returns: NDArray[np.float64],
        lengths: list[int],
        seconds: float,
        train_iter: int,
        envstep: int,
    ) -> None:
        n_episode, n_envstep = len(lengths), sum(lengths)
        values = {
            "episode_count": n_episode,
            "envstep_count": n_envstep,
            "avg_envstep_per_episode": n_envstep / n_episode,
            "evaluate_time": seconds,
            "avg_time_per_episode": seconds / n_episode,
            "avg_envstep_per_sec": n_envstep / seconds,
        }
        of_players = {f"return{player}_mean": float(of_player.mean()) for player, of_player in enumerate(returns)}
        self._log.write({**values, **summary, **of_players}, train_iter, envstep)


class _Queue:
    """Which episodes each env plays: i, i + N, ... of those given, in this order."""

    def __init__(self, episodes: Sequence[int], num_envs: int, seeds: list[int]) -> None:
        self.place = np.arange(num_envs) - num_envs
        """Place of the episode that each env plays among those given, shape (N,)."""
        self._numbers = np.array(episodes, dtype=np.int64)
        self._faults = 0
        self._seeds = seeds

    def bear(self, step: BattleStep) -> None:
        """Count faults.

        Raises:
            RuntimeError: If there were more of them than there are episodes.
        """
        self._faults += int(np.count_nonzero(step.abnormal))
        if self._faults > len(self._numbers):
            env_id = int(step.abnormal.argmax())
            raise RuntimeError(
                f"the envs reported {self._faults} faults in {len(self._numbers)} episodes, the last one env {env_id}: "
                f"{step.fault[env_id]}"
            )

    def start(self, stepper: BattleStepper, envs: NDArray[np.bool_], again: NDArray[np.bool_]) -> None:
        """Begin the next episode of some envs, shape (N,), where there is one left; or the last one ``again``."""
        self.place[envs & ~again] += len(self.place)
        mask = envs & (self.place < len(self._numbers))
        if mask.any():
            place = np.where(mask, self.place, 0)
            stepper.start(mask, [self._seeds[i] for i in place.tolist()], self._numbers[place])


def _summary(returns: NDArray[np.float64]) -> dict[str, float]:
    """Return what player 0 reached; returns of shape (P, E)."""
    own, best_other = returns[0], returns[1:].max(0)
    numbers = {"mean": own.mean(), "std": own.std(), "min": own.min(), "max": own.max()}
    named = {f"return_{name}": float(value) for name, value in numbers.items()}
    return {**named, "win_rate": float(np.mean(own > best_other))}
