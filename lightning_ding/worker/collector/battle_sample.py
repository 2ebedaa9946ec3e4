"""Collecting a number of transitions of each player.

Shapes: N envs, P players, S transitions asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.policy.modes import CollectMode
from lightning_ding.registry import SERIAL_COLLECTOR_REGISTRY
from lightning_ding.worker.arguments import check_amount, check_levels_go_on, check_switches
from lightning_ding.worker.collector.battle import BattleCall, BattleSerialCollector, Info, PolicyKwargs
from lightning_ding.worker.players import attribute, check_players

MAX_IDLE_EPISODES = 1000  # without a move of a player that lacks some; one that never moves would keep us for ever


@SERIAL_COLLECTOR_REGISTRY.register("sample_1v1")
class BattleSampleSerialCollector(BattleSerialCollector):
    """Collects S transitions of every player that learns, episodes going on from one call to the next.

    What one player gives beyond S while another still lacks some is kept for the next call; nothing is dropped.

    With ``env_fault="drop"`` an episode in which an env reports a fault ends there; the moves whose outcome was known
    before stay.
    """

    config_keys: ClassVar[frozenset[str]] = frozenset({"collect_print_freq", "env_fault"})

    def _clear(self) -> None:
        super()._clear()
        self._kept: dict[int, list[Any]] = {}
        self._kept_count: dict[int, int] = {}

    def reset_policy(self, policy: Sequence[CollectMode] | None = None) -> None:
        """Reset the policies' collecting state, after taking other policies if they are given.

        Moves of the ones before whose outcome is not known yet are then lost.

        Raises:
            RuntimeError: If there are no policies.
            TypeError: If ``policy`` is no sequence.
            ValueError: If there are not as many policies as players, or the ``unroll_len`` of one is above 1.
        """
        for mode in check_players(policy, None) if policy is not None else ():
            unroll_len = attribute(mode, "unroll_len", 1)
            require(unroll_len == 1, "collect.unroll_len", "1 with this collector", unroll_len)
        super().reset_policy(policy)

    def collect(
        self,
        n_sample: int | None = None,
        train_iter: int = 0,
        drop_extra: bool = True,
        policy_kwargs: PolicyKwargs = None,
        *,
        random_collect: bool = False,
        level_seeds: Sequence[int] | None = None,
    ) -> tuple[list[Any], list[list[Info]]]:
        """Return S transitions of every player that learns.

        Args:
            n_sample: S, >= 1, for all players; None asks the policy of each player that learns.
            train_iter: Updates done so far; each transition carries it as ``policy_version``.
            drop_extra: Return exactly S, and what is beyond with the next call; else return all there is, S or more.
            policy_kwargs: Arguments of the policies' forward, such as ``eps``: a mapping for all, or one for each.
            random_collect: Let the players that learn take uniformly random actions, legal ones where the observation
                has an ``action_mask``; the others act as always.
            level_seeds: The level that each env plays, N of them; each transition carries its env's as ``seed``.

        Returns:
            Two lists with an entry for each player. First None for a player that does not learn, else what its policy's
            ``process_transition`` gives, and ``env_id``, ``player``, ``episode_id`` and ``policy_version``, all with
            leading axis S. ``env_id`` is env * P + player, so that transitions of several players may go into one
            buffer. Second the episodes that ended during the call, one dict for each, in the order of their ends:
            ``eval_episode_return``, ``episode_length`` in moves of this player, ``env_id`` (0 to N - 1), ``seat`` and
            ``episode_id``.

        Raises:
            RuntimeError: If there is no env or no policy, or an env reports a fault with ``env_fault="raise"``, or one
                after the other, or a player that learns is never in turn.
            ValueError: If an argument is out of range, no policy learns, a policy gives no actions or of a wrong shape,
                or a value is not finite.
            TypeError: If an argument is of the wrong type.
        """
        check_switches(drop_extra=drop_extra)
        call = self._begin(train_iter, random_collect, policy_kwargs, level_seeds)
        wanted = {player: self._wanted(call, player, n_sample) for player in np.flatnonzero(call.learns).tolist()}
        for player, kept in self._kept.items():
            if kept:
                waiting = f"the {self._kept_count[player]} transitions of player {player} that wait"
                check_levels_go_on(waiting, "seed" in kept[0], level_seeds)
        everywhere = np.ones(call.stepper.num_envs, dtype=bool)
        lacking, last_success = self._lacking(wanted), self._episode
        while lacking:
            self._step(call, everywhere)
            before, lacking = lacking, self._lacking(wanted)
            if lacking != before:
                last_success = self._episode
            elif self._episode - last_success > MAX_IDLE_EPISODES:
                raise RuntimeError(
                    f"player(s) {sorted(lacking)} made no move in {self._episode - last_success} episodes, so that the "
                    "n_sample transitions will never come together"
                )
        data: list[Any] = [None] * len(call.info)
        for player, amount in wanted.items():
            transitions = self._take(player, amount if drop_extra else self._kept_count[player])
            data[player] = call.players.modes[player].get_train_sample(transitions)
        self._finish(call)
        return data, call.info

    def _wanted(self, call: BattleCall, player: int, n_sample: int | None) -> int:
        asked = attribute(call.players.modes[player], "n_sample", None) if n_sample is None else n_sample
        return check_amount(f"n_sample of player {player}", asked)

    def _lacking(self, wanted: dict[int, int]) -> dict[int, int]:
        """Return how many transitions each player still lacks, if any."""
        lacking = {player: amount - self._kept_count.get(player, 0) for player, amount in wanted.items()}
        return {player: amount for player, amount in lacking.items() if amount > 0}

    def _keep(self, player: int, transitions: Info) -> None:
        self._kept.setdefault(player, []).append(transitions)
        self._kept_count[player] = self._kept_count.get(player, 0) + nested.length(transitions)

    def _take(self, player: int, amount: int) -> Any:
        """Return a player's oldest transitions and keep the others."""
        data = nested.concatenate(self._kept[player])
        extra = self._kept_count[player] - amount
        self._kept[player] = [nested.index(data, slice(amount, None))] if extra else []
        self._kept_count[player] = extra
        self.sample += amount
        return nested.index(data, slice(amount)) if extra else data
