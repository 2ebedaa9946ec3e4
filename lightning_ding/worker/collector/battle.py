"""The common part of the collectors with several policies: acting, counting, episodes, faults, and open moves.

Shapes: N envs, P players, K moves.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from typing_extensions import override

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.envs import Timestep
from lightning_ding.envs.battle_stepper import BattleStep, BattleStepper
from lightning_ding.utils.attributes import policy_of
from lightning_ding.worker.arguments import adapted, also_named
from lightning_ding.worker.collector.base import ISerialCollector, checked_env
from lightning_ding.worker.episodes import FaultCounter
from lightning_ding.worker.players import Output, Players, check_players, gather_actions, random_output

BoolArray = NDArray[np.bool_]
Info = dict[str, Any]
PolicyKwargs = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
Rows = NDArray[np.intp]


class BattleCall(NamedTuple):
    """Arguments and parts that are the same for all steps of one call of ``collect``."""

    stepper: BattleStepper
    players: Players[Any]
    learns: BoolArray
    """Whether the transitions of each player are collected, shape (P,)."""
    train_iter: int
    random: bool
    level_seeds: NDArray[np.int64] | None
    info: list[list[Info]]
    """Episodes of each player that ended during the call."""


class BattleSerialCollector(ISerialCollector[BattleStepper, Sequence[Any]]):
    """Acts in N games of P players with P policies. A subclass keeps the transitions.

    A transition of a player goes from one of its turns to its next one, or to the end of its episode, so the other
    players are part of its environment. Its reward is the sum of the player's rewards in between.

    The attribute ``collect_data`` of a policy determines whether it learns; the default is True. A policy that acts for
    several players is called once for all of them. It gets the observations of the envs in which one of its players is
    active, in the order of the envs; ``reset`` gets the envs whose episode ended.

    An env step is one step of one game, regardless of the number of players that act in it. Counters cover this rank.

    See :class:`ISerialCollector` for the arguments. The env has an axis of players, see ``BattleStepper``.

    Raises:
        TypeError: If ``policy`` is not a sequence.
        ValueError: If there are not as many policies as players, or ``env`` has no axis of players.
    """

    has_players: ClassVar[bool] = True

    # ------------------------------------------------------------------ to implement

    @abstractmethod
    def _keep(self, player: int, transitions: Info) -> None:
        """Keep transitions of a player that learns, nested arrays; those of each player come in chronological order."""

    def _keep_episodes(self, env_ids: NDArray[np.intp]) -> None:
        """Record that the episodes of these envs ended without a fault."""

    @also_named(_env="env")
    @override
    def reset_env(self, env: VectorEnv[Any, Any, Any] | None = None) -> None:
        if env is not None:
            stepper = BattleStepper(checked_env(env))
            if self._policy is not None:
                check_players(self._policy, stepper.num_players)
            self._stepper = stepper
        stepper = self._require_env()
        stepper.stop()  # episodes begin when they are needed
        shape = (stepper.num_envs, stepper.num_players)
        self._moves = OpenMoves(*shape)
        self._return = np.zeros(shape)
        self._length = np.zeros(shape, dtype=np.int64)
        self._steps = np.zeros(stepper.num_envs, dtype=np.int64)
        self._faults = FaultCounter(stepper.num_envs, self.config.env_fault, "finished episode")
        self._episode_id = np.zeros(stepper.num_envs, dtype=np.int64)
        if self._policy is not None:
            Players(self._policy).reset()

    @also_named(_policy="policy")
    @override
    def reset_policy(self, policy: Sequence[Any] | None = None) -> None:
        if policy is not None:
            modes = check_players(policy, None if self._stepper is None else self._stepper.num_players)
            self._policy = [adapted(mode, self.config) for mode in modes]
            if self._stepper is not None:
                self._moves = OpenMoves(self._stepper.num_envs, self._stepper.num_players)
        Players(self._require_policy()).reset()

    @also_named(_policy="policy", _env="env")
    @override
    def reset(self, policy: Sequence[Any] | None = None, env: VectorEnv[Any, Any, Any] | None = None) -> None:
        """Replace policies and env where they are given; reset counters and kept data, and begin new episodes."""
        if policy is not None and env is not None:
            self._stepper = None  # the number of players may change
        super().reset(policy, env)

    # ------------------------------------------------------------------ acting

    def _begin(
        self, train_iter: int, random: bool, policy_kwargs: PolicyKwargs, level_seeds: Sequence[int] | None
    ) -> BattleCall:
        policies, stepper, seeds = self._begin_call(train_iter, policy_kwargs, level_seeds, random_collect=random)
        learns = np.array([policy_of(mode).collect_data for mode in policies])
        require(bool(learns.any()), "collect_data", "true for at least one policy", learns.tolist())
        info: list[list[Info]] = [[] for _ in policies]
        self._report.begin(self)
        return BattleCall(stepper, Players(policies, policy_kwargs), learns, train_iter, random, seeds, info)

    def _finish(self, call: BattleCall) -> None:
        """Write a report if one is due and this rank logs."""
        returns = [[episode["eval_episode_return"] for episode in of_player] for of_player in call.info]
        named = {f"return{player}": values for player, values in enumerate(returns)}
        self._report.finish(self, call.train_iter, named)

    def _step(self, call: BattleCall, wanted: BoolArray) -> None:
        """Step all games, and begin a game in every env of ``wanted``, shape (N,), without a running game."""
        stepper = call.stepper
        self._start(stepper, wanted & ~stepper.is_playing)
        obs, active, is_playing = stepper.obs, stepper.active, stepper.is_playing
        acts_randomly = active & call.learns & call.random
        outputs = list(call.players.act(obs, active & ~acts_randomly))
        random_outputs = [random_output(stepper.env, obs, acts_randomly)] if acts_randomly.any() else []
        action = gather_actions(stepper.env, outputs + random_outputs)
        for is_random, made in ((False, outputs), (True, random_outputs)):
            for output in made:
                if (output.rows & call.learns).any():  # all players of a policy learn, or none
                    self._moves.begin(obs, output, call.train_iter, is_random)
        step = stepper.step(action)
        self._moves.add_reward(step.reward)
        self._return += step.reward
        self._length += active
        self._steps += is_playing
        self.envstep += int(np.count_nonzero(is_playing & ~step.abnormal))
        self._end_moves(call, step)
        if step.over.any():
            self._end_episodes(call, np.flatnonzero(step.over))
        if step.abnormal.any():
            self._drop_episodes(call, step)

    def _start(self, stepper: BattleStepper, envs: BoolArray) -> None:
        if envs.any():
            stepper.start(envs)
            rows = np.flatnonzero(envs)
            self._episode_id[rows] = self.new_episode_ids(len(rows))

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
                transitions["policy_version"] = moves.policy_version[env_ids, player]
                if call.level_seeds is not None:
                    transitions["seed"] = call.level_seeds[env_ids]
                self._keep(player, nested.to_array(transitions))  # type: ignore[arg-type]
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
        self.add_episodes(self._return[env_ids, 0].tolist(), self._steps[env_ids].tolist())
        self._faults.count[env_ids] = 0
        self._keep_episodes(env_ids)
        self._forget(call, env_ids)

    def _drop_episodes(self, call: BattleCall, step: BattleStep) -> None:
        """Drop the episodes that a fault ended, unless the config forbids faults or an env had too many of them."""
        env_ids = np.flatnonzero(step.abnormal)
        self.dropped_episode += len(env_ids)
        self._faults.count[env_ids] += 1
        self._faults.handle(step.abnormal, step.fault.__getitem__)
        self._forget(call, env_ids)

    def _forget(self, call: BattleCall, env_ids: NDArray[np.intp]) -> None:
        self._moves.is_open[env_ids] = False
        self._return[env_ids] = 0
        self._length[env_ids] = 0
        self._steps[env_ids] = 0
        call.players.reset(env_ids.tolist())


class OpenMoves:
    """At most one open move for each player of each env.

    A move is open from a player's turn to its next turn, or to the end of its episode. The reward of the move is the
    sum of the player's rewards in between, and the next observation is the one at the end.

    Args:
        num_envs: Number of envs N.
        num_players: Number of players P.
    """

    def __init__(self, num_envs: int, num_players: int) -> None:
        self.is_open: BoolArray = np.zeros((num_envs, num_players), dtype=bool)
        """Shape (N, P)."""
        self.policy_version = np.zeros((num_envs, num_players), dtype=np.int64)
        """Updates that the policy had made when it moved, shape (N, P)."""
        self._reward = np.zeros((num_envs, num_players))
        self._is_random = np.zeros((num_envs, num_players), dtype=bool)
        self._obs: Any = None
        self._outputs: list[dict[bool, Any]] = [{} for _ in range(num_players)]  # random outputs hold other entries

    def begin(self, obs: Any, output: Output, policy_version: int, is_random: bool) -> None:
        """Keep the moves that a policy made.

        Args:
            obs: Observation of each player, leading axes (N, P).
            output: Output of the policy.
            policy_version: Updates that the policy had made.
            is_random: Whether the moves are random instead of chosen by the policy.
        """
        rows = output.rows
        self.is_open |= rows
        self.policy_version[rows] = policy_version
        self._reward[rows] = 0
        self._is_random[rows] = is_random
        self._obs = _put(self._obs, obs, len(rows), rows, nested.index(obs, rows))
        env_ids, players = np.nonzero(rows)
        values = nested.to_array(output.values)
        for player in np.flatnonzero(rows.any(0)).tolist():
            chosen, known = players == player, self._outputs[player].get(is_random)
            given = nested.index(values, chosen)
            self._outputs[player][is_random] = _put(known, values, len(rows), env_ids[chosen], given)

    def add_reward(self, reward: NDArray[np.float64]) -> None:
        """Add the rewards of the players, shape (N, P)."""
        self._reward += reward

    def end(self, rows: BoolArray, player: int, step: BattleStep) -> Iterator[tuple[Rows, Any, Any, Timestep]]:
        """Yield the moves of a player that end with a step, separately for random moves and moves of the policy.

        Args:
            rows: Whether the move of each player ends, shape (N, P).
            player: Index of the player whose moves to yield.
            step: Result of the step.

        Yields:
            The K envs, observations, outputs and outcomes of the moves, leading axis K.
        """
        for is_random, outputs in self._outputs[player].items():
            env_ids = np.flatnonzero(rows[:, player] & (self._is_random[:, player] == is_random))
            if len(env_ids):
                timestep = Timestep(
                    next_obs=nested.index(step.obs, (env_ids, player)),
                    reward=self._reward[env_ids, player],
                    terminated=step.terminated[env_ids, player],
                    truncated=step.truncated[env_ids, player],
                    info={},
                    valid=np.ones(len(env_ids), dtype=bool),
                    abnormal=np.zeros(len(env_ids), dtype=bool),
                )
                obs = nested.index(self._obs, (env_ids, player))
                yield env_ids, obs, nested.index(outputs, env_ids), timestep


def _put(arrays: Any, like: Any, length: int, rows: Any, values: Any) -> Any:
    """Return ``arrays`` with ``values`` written to ``rows``; if there are none yet, zeros of the length and type."""
    if isinstance(like, dict):
        return {name: _put(arrays and arrays[name], below, length, rows, values[name]) for name, below in like.items()}
    arrays = np.zeros((length, *like.shape[1:]), like.dtype) if arrays is None else arrays
    arrays[rows] = values
    return arrays
