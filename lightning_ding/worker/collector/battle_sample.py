"""Collecting a number of transitions of each player.

Shapes: N envs, P players, S requested transitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from lightning_ding.config import require
from lightning_ding.registry import SERIAL_COLLECTOR_REGISTRY
from lightning_ding.utils.attributes import policy_of
from lightning_ding.utils.modes import CollectMode
from lightning_ding.worker.arguments import also_named, check_amount, check_switches
from lightning_ding.worker.collector.battle import BattleCall, BattleSerialCollector, Info, PolicyKwargs
from lightning_ding.worker.collector.sample import queue_for
from lightning_ding.worker.players import check_players

MAX_IDLE_EPISODES = 1000  # without a move of a player that lacks transitions; otherwise it could block the run


@SERIAL_COLLECTOR_REGISTRY.register("sample_1v1")
class BattleSampleSerialCollector(BattleSerialCollector):
    """Collects S transitions of every player that learns; episodes continue from one call to the next.

    If a player has more than S transitions when the last player reaches S, the surplus is kept for the next call.

    With ``env_fault="drop"`` an episode in which an env reports a fault ends there. Moves that were complete before are
    kept.
    """

    config_keys: ClassVar[frozenset[str]] = frozenset(
        {"collect_print_freq", "env_fault", "deepcopy_obs", "transform_obs"}
    )

    def _clear(self) -> None:
        super()._clear()
        self._kept: dict[int, Any] = {}

    @also_named(_policy="policy")
    @override
    def reset_policy(self, policy: Sequence[Any] | None = None) -> None:
        for mode in check_players(policy, None) if policy is not None else ():
            unroll_len = policy_of(mode).unroll_len if isinstance(mode, CollectMode) else 1
            require(unroll_len == 1, "collect.unroll_len", "1 with this collector", unroll_len)
        super().reset_policy(policy)

    @override
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
        """Return S transitions of every player that learns; see also :class:`ISerialCollector`.

        Args:
            n_sample: Number of transitions S of each player, >= 1; None means ``n_sample`` of each player's policy.
            train_iter: Updates so far; each transition carries it as ``policy_version``.
            drop_extra: Return exactly S transitions and keep the others for the next call; otherwise return all, S or
                more.
            policy_kwargs: Arguments of the policies' ``forward``, such as ``eps``: a mapping for all, or one for each.
            random_collect: Take uniformly random actions for the players that learn, legal ones where the observation
                has an ``action_mask``. The other players act as usual.
            level_seeds: Level of each of the N envs; each transition carries its env's as ``seed``.

        Returns:
            Two lists with an entry for each player. First, the transitions, or None for a player that does not learn:
            the columns that its policy's ``process_transition`` gives, and ``env_id``, ``player``, ``episode_id`` and
            ``policy_version``, nested numpy arrays with leading axis S. ``env_id`` is env * P + player, so that
            transitions of several players may go into one buffer. Second, a list of the episodes that ended during
            the call, in the order of their ends; each is a dict with ``eval_episode_return``, ``episode_length`` in
            moves of this player, ``env_id`` (0 to N - 1), ``seat`` and ``episode_id``.

        Raises:
            RuntimeError: If a player that learns never has a turn.
            ValueError: If no policy learns.
        """
        check_switches(drop_extra=drop_extra)
        call = self._begin(train_iter, random_collect, policy_kwargs, level_seeds)
        wanted = {player: self._wanted(call, player, n_sample) for player in np.flatnonzero(call.learns).tolist()}
        for player in wanted:
            mode, num_envs = call.players.modes[player], call.stepper.num_envs
            self._kept[player] = queue_for(mode, num_envs, self._kept.get(player))
        for player, kept in self._kept.items():
            if kept.count:
                kept.check_levels(f"the {kept.count} transitions of player {player} that wait", level_seeds)
        everywhere = np.ones(call.stepper.num_envs, dtype=bool)
        lacking, last_success = self._lacking(wanted), self.episode
        while lacking:
            self._step(call, everywhere)
            before, lacking = lacking, self._lacking(wanted)
            if lacking != before:
                last_success = self.episode
            elif self.episode - last_success > MAX_IDLE_EPISODES:
                raise RuntimeError(
                    f"player(s) {sorted(lacking)} made no move in {self.episode - last_success} episodes, so n_sample "
                    "will never be reached"
                )
        data: list[Any] = [None if isinstance(mode, CollectMode) else [] for mode in call.players.modes]
        for player, amount in wanted.items():
            amount = amount if drop_extra else self._kept[player].count
            transitions = self._kept[player].take(amount)
            self.sample += amount
            mode = call.players.modes[player]
            data[player] = mode.get_train_sample(transitions) if isinstance(mode, CollectMode) else transitions
        self._finish(call)
        return data, call.info

    def _wanted(self, call: BattleCall, player: int, n_sample: int | None) -> int:
        asked = policy_of(call.players.modes[player]).n_sample if n_sample is None else n_sample
        return check_amount(f"n_sample of player {player}", asked)

    def _lacking(self, wanted: dict[int, int]) -> dict[int, int]:
        """Return the number of transitions that each player still lacks, if any."""
        lacking = {player: amount for player, amount in wanted.items() if self._kept[player].lacks(amount)}
        return {player: amount - self._kept[player].count for player, amount in lacking.items()}

    def _keep(self, player: int, transitions: Info) -> None:
        self._kept[player].append(transitions)
