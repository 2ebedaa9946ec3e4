"""Collecting a number of whole episodes of several players.

Shapes: N envs, P players, E requested episodes, T moves of an episode, S moves of all of them, W windows of L moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from typing_extensions import override

from lightning_ding import nested
from lightning_ding.registry import SERIAL_COLLECTOR_REGISTRY
from lightning_ding.utils.attributes import policy_of
from lightning_ding.utils.modes import CollectMode
from lightning_ding.worker.arguments import also_named, check_amount
from lightning_ding.worker.collector.battle import BattleCall, BattleSerialCollector, Info, PolicyKwargs
from lightning_ding.worker.collector.episode import train_sample
from lightning_ding.worker.episodes import share_out


@SERIAL_COLLECTOR_REGISTRY.register("episode_1v1")
class BattleEpisodeSerialCollector(BattleSerialCollector):
    """Collects E whole episodes a call, equally many in each env.

    The first E episodes to end would mostly be short ones. Each env therefore has a quota of E // N episodes, plus one
    for the envs whose turn it is, and is paused once it has delivered its quota.

    With ``env_fault="drop"`` an episode in which an env reports a fault is dropped and counted in ``dropped_episode``,
    and the env has to deliver another one.
    """

    config_keys: ClassVar[frozenset[str]] = frozenset(
        {"collect_print_freq", "env_fault", "get_train_sample", "deepcopy_obs", "transform_obs"}
    )

    def _clear(self) -> None:
        super()._clear()
        self._turn = 0
        self._parts: dict[int, list[Any]] = {}

    @also_named(_env="env")
    @override
    def reset_env(self, env: VectorEnv[Any, Any, Any] | None = None) -> None:
        super().reset_env(env)
        self._parts = {}
        self._delivered = np.zeros(self._require_env().num_envs, dtype=np.int64)
        if env is not None:
            self._turn = 0

    @override
    def collect(
        self,
        n_episode: int | None = None,
        train_iter: int = 0,
        policy_kwargs: PolicyKwargs = None,
        *,
        random_collect: bool = False,
        level_seeds: Sequence[int] | None = None,
    ) -> tuple[list[Any], list[list[Info]]]:
        """Return E episodes of every player that learns; see also :class:`ISerialCollector`.

        Args:
            n_episode: Number of episodes E, >= 1; None means ``n_episode`` of the first policy that learns.
            train_iter: Updates so far; each move carries it as ``policy_version``.
            policy_kwargs: Arguments of the policies' ``forward``, such as ``eps``: a mapping for all, or one for each.
            random_collect: Take uniformly random actions for the players that learn, legal ones where the observation
                has an ``action_mask``. The other players act as usual.
            level_seeds: Level of each of the N envs; each move carries its env's as ``seed``.

        Returns:
            Two lists with an entry for each player. First, the episodes in the order of their ends, without those in
            which the player never moved, or None for a player that does not learn. An episode holds the columns that
            the policy's ``process_transition`` gives, and ``env_id``, ``player``, ``episode_id`` and
            ``policy_version``: nested numpy arrays with leading axis T. ``env_id`` is env * P + player, so that moves
            of several players may go into one buffer. With the config's ``get_train_sample``, the policy's training
            samples of all episodes together: leading axis S, or leading axes (W, L) and a ``mask`` as of
            :func:`cut_windows` if the policy's ``unroll_len`` L is above 1. Second, a list of all E episodes, in the
            order of their ends; each is a dict with ``eval_episode_return``, ``episode_length`` in moves of this
            player, ``env_id`` (0 to N - 1), ``seat`` and ``episode_id``.

        Raises:
            ValueError: If no policy learns.
        """
        call = self._begin(train_iter, random_collect, policy_kwargs, level_seeds)
        asked = call.players.modes[int(call.learns.argmax())]
        wanted = check_amount("n_episode", policy_of(asked).n_episode if n_episode is None else n_episode)
        if call.stepper.is_playing.any():
            self.reset_env()  # the last call was interrupted
        quota = share_out(wanted, call.stepper.num_envs, self._turn)
        self._turn += wanted
        self._delivered[:] = 0
        while (lacks := self._delivered < quota).any():
            self._step(call, lacks)
        data = [self._data(call, player) for player in range(len(call.info))]
        self._parts = {}
        self._finish(call)
        return data, call.info

    def _keep(self, player: int, transitions: Info) -> None:
        self._parts.setdefault(player, []).append(transitions)

    def _keep_episodes(self, env_ids: NDArray[np.intp]) -> None:
        self._delivered[env_ids] += 1

    def _data(self, call: BattleCall, player: int) -> Any:
        """Return the data of a player from the episodes that ended."""
        mode = call.players.modes[player]
        if not call.learns[player]:
            return None if isinstance(mode, CollectMode) else []
        parts = self._parts.get(player, [])
        episode_ids = np.array([episode["episode_id"] for episode in call.info[player]])
        episodes = _cut(nested.concatenate_arrays(parts), episode_ids) if parts else []
        self.sample += sum(nested.length(episode) for episode in episodes)
        if not isinstance(mode, CollectMode):
            episodes = [mode.transitions(episode) for episode in episodes]
        return train_sample(mode, episodes) if self.config.get_train_sample else episodes


def _cut(data: Any, episode_ids: NDArray[np.int64]) -> list[Any]:
    """Return the moves of each of these episodes; episodes without moves are left out."""
    found = data["episode_id"]
    by_id = np.argsort(episode_ids)
    place = by_id[np.searchsorted(episode_ids, found, sorter=by_id).clip(max=len(by_id) - 1)]
    place = np.where(episode_ids[place] == found, place, len(episode_ids))  # moves of dropped episodes go to the end
    order, sizes = np.argsort(place, kind="stable"), np.bincount(place, minlength=len(episode_ids))
    ends = np.cumsum(sizes)
    data = nested.index(data, order)
    pieces = zip(ends - sizes, ends, strict=True)
    return [nested.index(data, slice(start, end)) for start, end in list(pieces)[: len(episode_ids)] if end > start]
