"""One learner, whose policy plays against itself, its former selves and a random player."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from typing_extensions import override

from lightning_ding.config import ConfigLike
from lightning_ding.distributed.commander.base import TaskInfo
from lightning_ding.distributed.commander.league import RANDOM, League
from lightning_ding.distributed.commander.solo import SoloParallelCommander
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.registry import PARALLEL_COMMANDER_REGISTRY


@PARALLEL_COMMANDER_REGISTRY.register("one_vs_one")
class OneVsOneParallelCommander(SoloParallelCommander):
    """Hands out tasks in which the main player meets an opponent of the league.

    A collecting task ends after ``league.task_episodes`` games, so that opponents change. Against itself, both sides'
    games are learned from; against others, those of the main player.

    Evaluations are against a random player and the former self that is beaten least, in turn. The run is over when the
    last one against a random player reached ``main.env.stop_value`` and the last one against a former self was won in
    a share of ``league.win_rate`` of its games.
    """

    collector_type: ClassVar[str] = "marine"
    has_league: ClassVar[bool] = True

    def __init__(self, cfg: ConfigLike[ParallelConfig] = None) -> None:
        super().__init__(cfg)
        self.league = League(self.config.system.coordinator.commander.league, self.config.main.seed)
        self._opponents: dict[str, str] = {}  # of the tasks under way
        self._next_is_random = True  # of the evaluations
        self._reached = False
        self._beaten = False

    # ------------------------------------------------------------------ tasks

    @override
    def _collecting_task(self, task_id: str, policy_id: str, buffer_id: str) -> TaskInfo:
        kind, former = self.league.draw()
        opponent = {"itself": policy_id, "random": RANDOM, "former": former}[kind]
        paths, flags = [policy_id, str(opponent)], [True, kind == "itself"]
        return self._battle(task_id, buffer_id, paths, flags, self.league.config.task_episodes, evaluates=False)

    @override
    def _evaluation_task(self, task_id: str, policy_id: str, buffer_id: str) -> TaskInfo:
        hardest = self.league.hardest()
        opponent = RANDOM if self._next_is_random or hardest is None else hardest
        self._next_is_random = opponent != RANDOM
        n_episode = self.config.main.env.n_evaluator_episode
        return self._battle(task_id, buffer_id, [policy_id, opponent], [True, False], n_episode, evaluates=True)

    @override
    def needed_policies(self) -> set[str]:
        return super().needed_policies() | set(self.league.players) | (set(self._opponents.values()) - {RANDOM})

    @override
    def wants_snapshot(self, policy_id: str, version: int) -> str | None:
        super().wants_snapshot(policy_id, version)
        return self.league.add(policy_id, version) if policy_id == self._policy_id else None

    # ------------------------------------------------------------------ what becomes of them

    @override
    def finish_collector_task(self, task_id: str, info: Mapping[str, Any]) -> bool:
        opponent = self._opponents.pop(task_id, None)
        if opponent is not None and "result" in info:
            self.league.record(opponent, info["result"])
        return super().finish_collector_task(task_id, {**info, "opponent": opponent})

    @override
    def notify_fail_collector_task(self, task_id: str) -> None:
        self._opponents.pop(task_id, None)
        super().notify_fail_collector_task(task_id)

    @override
    def _is_over(self, task_id: str, info: Mapping[str, Any]) -> bool:
        if info["opponent"] == RANDOM:
            self._reached = self._reaches_stop_value(info)
        else:
            result = info["result"]
            games = result["wins"] + result["draws"] + result["losses"]
            self._beaten = result["wins"] >= self.league.config.win_rate * games
        return self._reached and self._beaten

    # ------------------------------------------------------------------ state

    @override
    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "league": self.league.state_dict(),
            "opponents": dict(self._opponents),
            "next_is_random": self._next_is_random,
            "reached": self._reached,
            "beaten": self._beaten,
        }

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.league.load_state_dict(state["league"])
        self._opponents = dict(state["opponents"])
        self._next_is_random = state["next_is_random"]
        self._reached, self._beaten = state["reached"], state["beaten"]

    def _battle(
        self, task_id: str, buffer_id: str, paths: list[str], flags: list[bool], n_episode: int, evaluates: bool
    ) -> TaskInfo:
        self._opponents[task_id] = paths[1]
        task = self._collector_task(task_id, buffer_id, paths, flags, n_episode, evaluates)
        return {**task, "opponent": paths[1]}
