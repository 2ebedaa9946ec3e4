"""What the collectors with several policies have in common: acting, counting, episodes and their faults.

Shapes: N envs, P players.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from lightning_ding import nested
from lightning_ding.config import ConfigLike, require
from lightning_ding.envs.battle_stepper import BattleStep, BattleStepper
from lightning_ding.policy.modes import CollectMode
from lightning_ding.worker.arguments import check_integers, check_level_seeds, check_policy_kwargs, check_switches
from lightning_ding.worker.collector.base import ISerialCollector
from lightning_ding.worker.collector.battle_moves import OpenMoves
from lightning_ding.worker.collector.report import CollectReport
from lightning_ding.worker.log import DEFAULT_EXPERIMENT, WorkerLog
from lightning_ding.worker.players import Players, attribute, check_players, gather_actions, random_output
from lightning_ding.worker_config import CollectorConfig

MAX_FAULTS = 100  # of one env without a finished episode between them; one that never recovers would keep us for ever

BoolArray = NDArray[np.bool_]
Info = dict[str, Any]
PolicyKwargs = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None


class BattleCall(NamedTuple):
    """What holds for all steps of one call of ``collect``."""

    stepper: BattleStepper
    players: Players[CollectMode]
    learns: BoolArray
    """Which players' transitions are collected, shape (P,)."""
    train_iter: int
    random: bool
    level_seeds: NDArray[np.int64] | None
    info: list[list[Info]]
    """Of each player, the episodes that ended."""
    lengths: list[int]
    """Env steps of these."""
    began: tuple[float, int, int]
    """Time, env steps and samples when the call began."""


class BattleSerialCollector(ISerialCollector):
    """Acts in N games of P players with P policies; a subclass says what becomes of the transitions.

    A transition of a player goes from one of its turns to its next one, or to the end of its episode, so that the
    others are part of its environment. Its reward is what the player gained meanwhile.

    A policy says by its attribute ``collect_data`` whether it learns; without one it does. A policy that stands in for
    several players is called once for all of them. It sees the envs in which one of its players is active, and of
    these the rows in the order of the envs; ``reset`` gets the envs whose episode ended.

    An env step is one step of one game, however many players act in it. Counters are those of this rank.

    Args:
        cfg: A ``CollectorConfig``, or a mapping to merge over its defaults.
        env: A vector env with an axis of players, see ``BattleStepper``; its owner closes it.
        policy: The policies' collect modes, P of them.
        tb_logger: Gets a report every ``collect_print_freq`` updates; see ``WorkerLog``. Its owner closes it.
        exp_name: Part of the name of the Python logger that gets the reports too.
        instance_name: Name of this collector in both.

    Raises:
        TypeError: If ``policy`` is no sequence.
        ValueError: If there are not as many policies as players, or ``env`` has no axis of players.
    """

    has_players: ClassVar[bool] = True

    def __init__(
        self,
        cfg: ConfigLike[CollectorConfig] = None,
        env: VectorEnv[Any, Any, Any] | None = None,
        policy: Sequence[CollectMode] | None = None,
        tb_logger: Any = None,
        exp_name: str = DEFAULT_EXPERIMENT,
        instance_name: str = "collector",
    ) -> None:
        self.config: CollectorConfig = self.resolve_config(cfg)
        self._report = CollectReport(WorkerLog(tb_logger, exp_name, instance_name), self.config.collect_print_freq)
        self._policies: Sequence[CollectMode] | None = None
        self._stepper: BattleStepper | None = None
        self._clear()
        if env is not None:
            self.reset_env(env)
        if policy is not None:
            self.reset_policy(policy)

    def _clear(self) -> None:
        self._envstep = 0
        self.sample = 0
        """Transitions handed over, of all players."""
        self._episode = 0
        self.dropped_episode = 0
        """Episodes that a fault of their env ended; they are neither counted nor reported as episodes."""
        self._next_episode_id = 0
        self._returns: list[float] = []
        self._lengths: list[int] = []
        self._report.reset()

    # ------------------------------------------------------------------ to implement

    @abstractmethod
    def _keep(self, player: int, transitions: Info) -> None:
        """Keep transitions of a player that learns, a nested dict of tensors; each player's come in order of time."""

    def _keep_episodes(self, env_ids: NDArray[np.intp]) -> None:
        """Note that the episodes of these envs ended without a fault."""

    # ------------------------------------------------------------------ life

    def reset_env(self, env: VectorEnv[Any, Any, Any] | None = None) -> None:
        """Start new episodes, in ``env`` if it is given; moves whose outcome is not known yet are lost.

        Raises:
            RuntimeError: If there is no env.
            ValueError: If ``env`` has no axis of players, or another number of them than there are policies.
        """
        if env is not None:
            stepper = BattleStepper(env)
            if self._policies is not None:
                check_players(self._policies, stepper.num_players)
            self._stepper = stepper
        stepper = self._require_env()
        stepper.stop()  # episodes begin when they are needed
        shape = (stepper.num_envs, stepper.num_players)
        self._moves = OpenMoves(*shape)
        self._return = np.zeros(shape)
        self._length = np.zeros(shape, dtype=np.int64)
        self._steps = np.zeros(stepper.num_envs, dtype=np.int64)
        self._faults = np.zeros(stepper.num_envs, dtype=np.int64)
        self._episode_id = np.zeros(stepper.num_envs, dtype=np.int64)
        if self._policies is not None:
            Players(self._policies).reset()

    def reset_policy(self, policy: Sequence[CollectMode] | None = None) -> None:
        """Reset the policies' collecting state, after taking other policies if they are given.

        Moves of the ones before whose outcome is not known yet are then lost.

        Raises:
            RuntimeError: If there are no policies.
            TypeError: If ``policy`` is no sequence.
            ValueError: If there are not as many policies as players.
        """
        if policy is not None:
            self._policies = check_players(policy, None if self._stepper is None else self._stepper.num_players)
            if self._stepper is not None:
                self._moves = OpenMoves(self._stepper.num_envs, self._stepper.num_players)
        Players(self._require_policies()).reset()

    def reset(self, policy: Sequence[CollectMode] | None = None, env: VectorEnv[Any, Any, Any] | None = None) -> None:
        """Start over with what is given or else is there: new episodes, counters at zero, nothing kept."""
        self._clear()
        if policy is not None and env is not None:
            self._stepper = None  # the number of players may change
        if policy is not None or self._policies is not None:
            self.reset_policy(policy)
        if env is not None or self._stepper is not None:
            self.reset_env(env)

    def close(self) -> None:
        """Forget env and policies; they and the logger are left open for whoever made them."""
        self._stepper = None
        self._policies = None

    # ------------------------------------------------------------------ counters

    @property
    def envstep(self) -> int:
        """Steps of games taken by this collector, on this rank."""
        return self._envstep

    @envstep.setter
    def envstep(self, value: int) -> None:
        """Set the counter, when a run goes on."""
        self._envstep = value

    @property
    def episode(self) -> int:
        """Episodes finished by this collector, on this rank."""
        return self._episode

    def pop_episodes(self) -> tuple[list[float], list[int]]:
        """Return player 0's returns, and the env steps, of the episodes that ended since the last call."""
        episodes, self._returns, self._lengths = (self._returns, self._lengths), [], []
        return episodes

    # ------------------------------------------------------------------ acting

    def _begin(
        self, train_iter: int, random: bool, policy_kwargs: PolicyKwargs, level_seeds: Sequence[int] | None
    ) -> BattleCall:
        check_integers(train_iter=train_iter)
        check_switches(random_collect=random)
        check_policy_kwargs(policy_kwargs, of_players=True)
        policies, stepper = self._require_policies(), self._require_env()
        if stepper.obs is None:
            raise RuntimeError("the last step of the env failed: call reset_env() to start new episodes")
        learns = np.array([bool(attribute(mode, "collect_data", True)) for mode in policies])
        require(bool(learns.any()), "collect_data", "true for at least one policy", learns.tolist())
        seeds = check_level_seeds(level_seeds, stepper.num_envs)
        began = (time.perf_counter(), self._envstep, self.sample)
        info: list[list[Info]] = [[] for _ in policies]
        players = Players(policies, policy_kwargs)
        return BattleCall(stepper, players, learns, train_iter, random, seeds, info, [], began)

    def _finish(self, call: BattleCall) -> None:
        """Report, if it is time and anybody reads it."""
        if not self._report.is_on:
            return
        began, envstep, sample = call.began
        returns = [[episode["eval_episode_return"] for episode in of_player] for of_player in call.info]
        self._report.add(
            seconds=time.perf_counter() - began,
            envstep=self._envstep - envstep,
            sample=self.sample - sample,
            lengths=call.lengths,
            returns={f"return{player}": values for player, values in enumerate(returns)},
        )
        totals = {"envstep": self._envstep, "train_sample": self.sample, "episode": self._episode}
        self._report.write_if_due(call.train_iter, totals | {"dropped_episode": self.dropped_episode})

    def _step(self, call: BattleCall, wanted: BoolArray) -> None:
        """Step all games, and begin one in every env of ``wanted``, shape (N,), in which none is under way."""
        stepper = call.stepper
        self._start(stepper, wanted & ~stepper.is_playing)
        obs, active, is_playing = stepper.obs, stepper.active, stepper.is_playing
        by_chance = active & call.learns & call.random
        outputs = list(call.players.act(obs, active & ~by_chance))
        random_outputs = [random_output(stepper.env, obs, by_chance)] if by_chance.any() else []
        action = gather_actions(stepper.env, outputs + random_outputs)
        for is_random, made in ((False, outputs), (True, random_outputs)):
            for output in made:
                if (output.rows & call.learns).any():  # of one policy all players learn, or none
                    self._moves.begin(obs, output, call.train_iter, is_random)
        step = stepper.step(action)
        self._moves.add_reward(step.reward)
        self._return += step.reward
        self._length += active
        self._steps += is_playing
        self._envstep += int(np.count_nonzero(is_playing & ~step.abnormal))
        self._end_moves(call, step)
        if step.over.any():
            self._end_episodes(call, np.flatnonzero(step.over))
        if step.abnormal.any():
            self._drop_episodes(call, step)

    def _start(self, stepper: BattleStepper, envs: BoolArray) -> None:
        if envs.any():
            stepper.start(envs)
            rows = np.flatnonzero(envs)
            self._episode_id[rows] = self._next_episode_id + np.arange(len(rows))
            self._next_episode_id += len(rows)

    def _end_moves(self, call: BattleCall, step: BattleStep) -> None:
        moves = self._moves
        ends = step.terminated | step.truncated | call.stepper.active
        rows = moves.is_open & ends & ~step.abnormal[:, None]
        for player in np.flatnonzero(call.learns & rows.any(0)).tolist():
            for env_ids, obs, output, timestep in moves.end(rows, player, step):
                transitions = call.players.modes[player].process_transition(obs, output, timestep)
                transitions["env_id"] = env_ids * call.stepper.num_players + player
                transitions["player"] = np.full(len(env_ids), player)
                transitions["episode_id"] = self._episode_id[env_ids]
                transitions["policy_version"] = moves.version[env_ids, player]
                if call.level_seeds is not None:
                    transitions["seed"] = call.level_seeds[env_ids]
                self._keep(player, nested.to_tensor(transitions))  # type: ignore[arg-type]
        moves.is_open &= ~rows

    def _end_episodes(self, call: BattleCall, env_ids: NDArray[np.intp]) -> None:
        for env_id in env_ids.tolist():
            for player, episodes in enumerate(call.info):
                episodes.append(
                    {
                        "eval_episode_return": float(self._return[env_id, player]),
                        "episode_length": int(self._length[env_id, player]),
                        "env_id": env_id,
                        "seat": int(call.stepper.seat[env_id, player]),
                        "episode_id": int(self._episode_id[env_id]),
                    }
                )
        self._episode += len(env_ids)
        self._faults[env_ids] = 0
        self._returns += self._return[env_ids, 0].tolist()
        self._lengths += self._steps[env_ids].tolist()
        call.lengths.extend(self._steps[env_ids].tolist())
        self._keep_episodes(env_ids)
        self._forget(call, env_ids)

    def _drop_episodes(self, call: BattleCall, step: BattleStep) -> None:
        """Drop episodes that a fault ended, unless it is not to be borne or an env had too many of them."""
        env_ids = np.flatnonzero(step.abnormal)
        first = int(env_ids[0])
        if self.config.env_fault == "raise":
            raise RuntimeError(
                f"env {first} reported a fault: {step.fault[first]}; "
                'with env_fault="drop" the collector drops the episode and goes on'
            )
        self.dropped_episode += len(env_ids)
        self._faults[env_ids] += 1
        worst = int(self._faults.argmax())
        if self._faults[worst] > MAX_FAULTS:
            raise RuntimeError(
                f"env {worst} reported {self._faults[worst]} faults without a finished episode between, the last one: "
                f"{step.fault[worst]}"
            )
        self._forget(call, env_ids)

    def _forget(self, call: BattleCall, env_ids: NDArray[np.intp]) -> None:
        self._moves.is_open[env_ids] = False
        self._return[env_ids] = 0
        self._length[env_ids] = 0
        self._steps[env_ids] = 0
        call.players.reset(env_ids.tolist())

    def _require_env(self) -> BattleStepper:
        if self._stepper is None:
            raise RuntimeError("the collector has no env: pass env to the constructor or call reset_env(env)")
        return self._stepper

    def _require_policies(self) -> Sequence[CollectMode]:
        if self._policies is None:
            raise RuntimeError("the collector has no policies: pass policy to the constructor or call reset_policy")
        return self._policies
