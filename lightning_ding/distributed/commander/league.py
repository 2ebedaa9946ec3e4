"""Whom the main player plays against: itself, a random player, and what it was before.

Opponents among its former selves are drawn by prioritised fictitious self-play (Vinyals et al. 2019,
https://doi.org/10.1038/s41586-019-1724-z, "Grandmaster level in StarCraft II", Methods): one that it beats with
probability p gets the weight (1 - p)^2, so that hard ones come often and beaten ones hardly ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from lightning_ding.distributed.config import LeagueConfig

RANDOM = "random"
"""Path of the player that moves at random; it has no weights."""
MEMORY = 0.9  # weight of former games after each result; the main player learns, and former games say less and less
Kind = Literal["itself", "random", "former"]


class League:
    """The former selves of one player, how often it beats each, and whom it plays next.

    Args:
        cfg: Shares and sizes.
        seed: Of the opponents that are drawn.
    """

    def __init__(self, cfg: LeagueConfig, seed: int = 0) -> None:
        self.config = cfg
        self._seed = seed
        self._draws = 0
        self._last_version = 0
        self._games: dict[str, list[float]] = {}  # wins and games of each former self, in the order of their making

    @property
    def players(self) -> list[str]:
        """Policy ids of the former selves, the oldest first."""
        return list(self._games)

    def win_rate(self, player: str) -> float:
        """Return the share of games that the main player won against a former self; 0 if it has not met it."""
        wins, games = self._games[player]
        return wins / games if games > 0 else 0.0

    def hardest(self) -> str | None:
        """Return the former self that is beaten least; of several the oldest, None if there is none."""
        return min(self._games, key=self.win_rate) if self._games else None

    def weights(self) -> dict[str, float]:
        """Return the probability of each former self among them; equal ones if all are beaten always."""
        raw = {player: (1.0 - self.win_rate(player)) ** 2 for player in self._games}
        total = sum(raw.values())
        return {player: weight / total if total > 0 else 1.0 / len(raw) for player, weight in raw.items()}

    def draw(self) -> tuple[Kind, str | None]:
        """Return the kind of the next opponent, and the policy id of a former self."""
        rng = np.random.default_rng([self._seed, self._draws])
        self._draws += 1
        number = rng.random()
        if number < self.config.random_play:
            return "random", None
        if number < self.config.random_play + self.config.self_play or not self._games:
            return "itself", None
        weights = self.weights()
        return "former", str(rng.choice(list(weights), p=list(weights.values())))

    def record(self, player: str, result: Mapping[str, int]) -> None:
        """Note games against a former self; of one that is there no more nothing is kept.

        Args:
            player: Its policy id.
            result: ``wins``, ``draws`` and ``losses`` of the main player.
        """
        if player in self._games:
            wins, games = self._games[player]
            new_wins, new_games = result["wins"], result["wins"] + result["draws"] + result["losses"]
            self._games[player] = [MEMORY * wins + new_wins, MEMORY * games + new_games]

    def add(self, main_player: str, version: int) -> str | None:
        """Make a former self of newly published weights, if it is time.

        Args:
            main_player: Policy id of the weights.
            version: Updates that made them.

        Returns:
            The policy id of the former self; None if it is not time yet.
        """
        if version < self._last_version + self.config.snapshot_interval:
            return None
        self._last_version = version
        if len(self._games) >= self.config.max_players:
            del self._games[max(self._games, key=self.win_rate)]
        player = f"{main_player}_at_{version}"
        self._games[player] = [0.0, 0.0]
        return player

    def state_dict(self) -> dict[str, Any]:
        """Return players, results and how many opponents were drawn, as builtins."""
        games = {player: list(counts) for player, counts in self._games.items()}
        return {"games": games, "draws": self._draws, "last_version": self._last_version}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take what ``state_dict`` returned."""
        self._games = {player: list(counts) for player, counts in state["games"].items()}
        self._draws, self._last_version = state["draws"], state["last_version"]
