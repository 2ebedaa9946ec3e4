"""Evaluating several policies against each other.

Shapes: N envs, P players, E episodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from typing_extensions import override

from lightning_ding.envs.battle_stepper import BattleStepper
from lightning_ding.registry import SERIAL_EVALUATOR_REGISTRY
from lightning_ding.utils.modes import EvalMode
from lightning_ding.worker.evaluator.base import EpisodeEvaluator, SaveFunction
from lightning_ding.worker.evaluator.config import BATTLE_KEYS
from lightning_ding.worker.evaluator.direct import conclude, run_sharded
from lightning_ding.worker.evaluator.plan import EpisodePlan
from lightning_ding.worker.players import Players, check_players, gather_actions


@SERIAL_EVALUATOR_REGISTRY.register("battle_interaction")
class BattleInteractionSerialEvaluator(EpisodeEvaluator[BattleStepper, Sequence[EvalMode]]):
    """Lets P policies play a fixed quota of episodes in each env, and measures player 0.

    The number of an episode determines its seed and, with an env that rotates seats, its seating. The result therefore
    does not depend on the number of envs or ranks that share the work. An episode that an env fault cuts short is
    played again.

    The results of :meth:`eval` are ``eval_episode_return`` of player 0 in each episode and ``return_mean``,
    ``return_std``, ``return_min``, ``return_max`` of these; ``eval_episode_return_by_player``, P lists;
    ``eval_episode_length`` in env steps; ``win_rate``, the share of episodes in which player 0's return is above all
    others'; ``train_iter`` and ``envstep``. The mean return of player 0 is the score.

    See :class:`EpisodeEvaluator` for the arguments. The env has an axis of players, see ``BattleStepper``.

    Raises:
        TypeError: If ``policy`` is not a sequence.
        ValueError: If there are not as many policies as players, or ``env`` has no axis of players.
    """

    config_keys: ClassVar[frozenset[str]] = BATTLE_KEYS

    @override
    def reset_env(self, env: VectorEnv[Any, Any, Any] | None = None) -> None:
        if env is not None:
            stepper = BattleStepper(env)
            if self._policy is not None:
                check_players(self._policy, stepper.num_players)
            self._stepper = stepper

    @override
    def reset_policy(self, policy: Sequence[EvalMode] | None = None) -> None:
        if policy is not None:
            self._policy = check_players(policy, None if self._stepper is None else self._stepper.num_players)
        if self._policy is not None:
            Players(self._policy).reset()

    @override
    def reset(self, policy: Sequence[EvalMode] | None = None, env: VectorEnv[Any, Any, Any] | None = None) -> None:
        """Replace policies and env where they are given; reset the best return and all evaluations."""
        if policy is not None and env is not None:
            self._stepper = None  # the number of players may change
        super().reset(policy, env)

    @override
    def eval(
        self,
        save_ckpt_fn: SaveFunction | None = None,
        train_iter: int = -1,
        envstep: int = -1,
        n_episode: int | None = None,
    ) -> tuple[bool, dict[str, Any]]:
        self._check_eval_arguments(save_ckpt_fn, train_iter, envstep, n_episode)
        returns, lengths, seconds = run_sharded(self.run, self.config.n_episode if n_episode is None else n_episode)
        values = self.config.summary(returns[0]) | {"win_rate": float(np.mean(returns[0] > returns[1:].max(0)))}
        episodes = {
            "eval_episode_return": returns[0].tolist(),
            "eval_episode_return_by_player": returns.tolist(),
            "eval_episode_length": lengths,
        }
        of_players = {f"return{player}_mean": float(of_player.mean()) for player, of_player in enumerate(returns)}
        return conclude(self, episodes, values, seconds, save_ckpt_fn, train_iter, envstep, **of_players)

    @override
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
        stepper, policies = self._parts()
        players = Players(policies)
        plan = EpisodePlan(self.config, episodes, stepper.num_envs, self.seed, self._number(), (stepper.num_players,))
        players.reset()
        stepper.stop()
        _start(stepper, plan, ~stepper.is_playing)
        while (is_playing := stepper.is_playing).any():
            self.steps_made += 1
            step = stepper.step(gather_actions(stepper.env, players.act(stepper.obs, stepper.active)))
            plan.add(step.reward, is_playing)
            ended = step.over | step.abnormal
            cut = self._is_too_long(plan) & is_playing & ~ended
            if cut.any():
                stepper.stop(cut)
                ended |= cut
            if ended.any():
                plan.record(ended, step.abnormal, step.fault.__getitem__)
                players.reset(np.flatnonzero(ended).tolist())
                _start(stepper, plan, ended)
        return plan.returns.T.tolist(), plan.lengths.tolist()


def _start(stepper: BattleStepper, plan: EpisodePlan, envs: NDArray[np.bool_]) -> None:
    """Begin the next episode of the envs of ``envs``, shape (N,), where there is one left."""
    mask = envs & np.array([position is not None for position in plan.running])
    if mask.any():
        numbers = np.array([plan.episodes[position or 0] for position in plan.running], dtype=np.int64)
        stepper.start(mask, plan.first_seeds(), numbers)
