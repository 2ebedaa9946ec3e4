"""One learner, whose policy plays against itself, its former selves and a random player: a league.

Opponents among its former selves are drawn by prioritised fictitious self-play (Vinyals et al. 2019,
https://doi.org/10.1038/s41586-019-1724-z, "Grandmaster level in StarCraft II", Methods): an opponent that it beats with
probability p gets the weight (1 - p)^2, so that strong opponents are drawn often and beaten ones rarely.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from typing_extensions import override

from lightning_ding.config import ConfigLike
from lightning_ding.distributed.commander.base import TaskInfo
from lightning_ding.distributed.commander.solo import SoloParallelCommander
from lightning_ding.distributed.config import LeagueConfig, ParallelConfig
from lightning_ding.distributed.transport import Role
from lightning_ding.registry import PARALLEL_COMMANDER_REGISTRY


@PARALLEL_COMMANDER_REGISTRY.register("one_vs_one")
class OneVsOneParallelCommander(SoloParallelCommander):
    """Makes tasks in which the main player meets an opponent of the league.

    A collecting task ends after ``league.task_episodes`` games, so that the opponent changes. In games against itself,
    the policy learns from both sides; in other games, from the main player's side.

    Evaluations are alternately against a random player and against the strongest former self. The run is over when two
    conditions hold: the last evaluation against a random player reached ``main.env.stop_value``, and the main player
    won a share of at least ``league.win_rate`` of the games in the last evaluation against a former self.
    """

    collector_type: ClassVar[str] = "marine"
    has_league: ClassVar[bool] = True

    def __init__(self, cfg: ConfigLike[ParallelConfig] = None) -> None:
        super().__init__(cfg)
        self.league = League(self.config.system.coordinator.commander.league, self.config.main.seed)
        self._next_is_random = True  # opponent of the next evaluation
        self._reached = False
        self._beaten = False

    @override
    def _collecting_task(self, policy_id: str, buffer_id: str) -> TaskInfo:
        kind, former = self.league.draw()
        opponent = {"itself": policy_id, "random": RANDOM, "former": former}[kind]
        paths, flags = [policy_id, str(opponent)], [True, kind == "itself"]
        return self._collector_task(buffer_id, paths, flags, self.league.config.task_episodes)

    @override
    def _evaluation_task(self, policy_id: str, buffer_id: str) -> TaskInfo:
        hardest = self.league.hardest()
        opponent = RANDOM if self._next_is_random or hardest is None else hardest
        self._next_is_random = opponent != RANDOM
        return self._collector_task(buffer_id, [policy_id, opponent], [True, False], evaluates=True)

    @override
    def needed_policies(self, tasks: Collection[TaskInfo]) -> set[str]:
        opponents = {task["opponent"] for task in tasks} - {RANDOM}
        return super().needed_policies(tasks) | set(self.league.players) | opponents

    @override
    def wants_snapshot(self, policy_id: str, policy_version: int) -> str | None:
        super().wants_snapshot(policy_id, policy_version)
        return self.league.add(policy_id, policy_version) if policy_id == self._policy_id else None

    @override
    def finish(self, role: Role, task: TaskInfo, info: Mapping[str, Any]) -> bool:
        if "result" in info:
            self.league.record(task["opponent"], info["result"])
        return super().finish(role, task, info)

    @override
    def _is_over(self, task: TaskInfo, info: Mapping[str, Any]) -> bool:
        if task["opponent"] == RANDOM:
            self._reached = super()._is_over(task, info)
        else:
            result = info["result"]
            games = result["wins"] + result["draws"] + result["losses"]
            self._beaten = result["wins"] >= self.league.config.win_rate * games
        return self._reached and self._beaten

    @override
    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "league": self.league.state_dict(),
            "next_is_random": self._next_is_random,
            "reached": self._reached,
            "beaten": self._beaten,
        }

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.league.load_state_dict(state["league"])
        self._next_is_random = state["next_is_random"]
        self._reached, self._beaten = state["reached"], state["beaten"]

    @override
    def reopen(self) -> None:
        super().reopen()
        self._reached = self._beaten = False


RANDOM = "random"
"""Policy id of the player that moves at random and has no weights."""
MEMORY = 0.9  # weight of earlier games is multiplied by this at each result, since the main player changes
Kind = Literal["itself", "random", "former"]


class League:
    """The former selves of one player, its win rates against them, and the choice of its next opponent.

    Args:
        cfg: Config of the league.
        seed: Seed for drawing opponents.
    """

    def __init__(self, cfg: LeagueConfig, seed: int = 0) -> None:
        self.config = cfg
        self._seed = seed
        self._draws = 0
        self._snapshot_policy_version = 0
        self._games: dict[str, list[float]] = {}  # wins and games against each former self, the oldest first

    @property
    def players(self) -> list[str]:
        """Policy ids of the former selves, the oldest first."""
        return list(self._games)

    def win_rate(self, player: str) -> float:
        """Return the share of games that the main player has won against a former self; 0 without a game."""
        wins, games = self._games[player]
        return wins / games if games > 0 else 0.0

    def hardest(self) -> str | None:
        """Return the former self with the lowest win rate, the oldest in case of a tie; None without former selves."""
        return min(self._games, key=self.win_rate) if self._games else None

    def weights(self) -> dict[str, float]:
        """Return the probability of drawing each former self; they are equal if the main player always wins."""
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
        """Record games against a former self. Games against a removed former self are ignored.

        Args:
            player: Policy id of the former self.
            result: ``wins``, ``draws`` and ``losses`` of the main player.
        """
        if player in self._games:
            wins, games = self._games[player]
            new_wins, new_games = result["wins"], result["wins"] + result["draws"] + result["losses"]
            self._games[player] = [MEMORY * wins + new_wins, MEMORY * games + new_games]

    def add(self, main_player: str, policy_version: int) -> str | None:
        """Add newly published weights as a former self, if the last one is old enough.

        Args:
            main_player: Policy id of the weights.
            policy_version: Number of updates that produced the weights.

        Returns:
            The policy id of the new former self; None if there is none.
        """
        if policy_version < self._snapshot_policy_version + self.config.snapshot_interval:
            return None
        self._snapshot_policy_version = policy_version
        if len(self._games) >= self.config.max_players:
            del self._games[max(self._games, key=self.win_rate)]
        player = f"{main_player}_at_{policy_version}"
        self._games[player] = [0.0, 0.0]
        return player

    def state_dict(self) -> dict[str, Any]:
        """Return players, results and the number of drawn opponents as builtins."""
        games = {player: list(counts) for player, counts in self._games.items()}
        return {"games": games, "draws": self._draws, "last_version": self._snapshot_policy_version}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that ``state_dict`` returned."""
        self._games = {player: list(counts) for player, counts in state["games"].items()}
        self._draws, self._snapshot_policy_version = state["draws"], state["last_version"]
