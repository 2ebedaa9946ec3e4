from __future__ import annotations

from typing import Any

import pytest
import torch

from lightning_ding.distributed import MarineParallelCollector
from lightning_ding.distributed.collector.marine import find_game
from lightning_ding.distributed.config import EnvConfig
from tests.distributed.weight_policy import POLICY, make_duel

DUEL = "tests.distributed.weight_policy:make_duel"


class Around:
    """Weights of "mine" whose version rises with each message, and of "old", which are given out once."""

    def __init__(self, num_messages: int = 3, old: float = 100.0) -> None:
        self.num_messages = num_messages
        self.version = 1
        self.old = old
        self.looks: list[str] = []
        self.data: list[dict[str, Any]] = []
        self.said: list[dict[str, Any]] = []

    def get_policy_update_info(self, path: str, serial: int) -> dict[str, Any] | None:
        self.looks.append(path)
        newest, value = (self.version, float(self.version)) if path == "mine" else (7, self.old)
        if serial >= newest:
            return None
        model = {"first": torch.full((1,), value), "second": torch.full((1,), value)}
        return {"model": model, "iter": newest, "serial": newest}

    def send_stepdata(self, data: Any) -> int:
        self.data.append(data)
        return len(self.data) - 1

    def send_metadata(self, metadata: dict[str, Any]) -> dict[str, Any]:
        self.said.append(metadata)
        self.version += metadata["data_id"] is not None
        answer = {"close": len(self.data) >= self.num_messages, "policy": {"mine": self.version, "old": 9}}
        return {**answer, "random": False, "collect_setting": {}}


def make(around: Around, opponent: str | None, learns: bool = False, **changes: Any) -> MarineParallelCollector:
    paths, flags = (["mine"], [True]) if opponent is None else (["mine", opponent], [True, learns])
    env = {"env_id": DUEL, "collector_env_num": 2, "evaluator_env_num": 2, **changes.pop("env", {})}
    cfg = {"policy": POLICY, "env": env, "n_sample": 4, "policy_update_path": paths, "policy_update_flag": flags}
    names = ("get_policy_update_info", "send_stepdata", "send_metadata")
    return MarineParallelCollector(cfg | changes, **{name: getattr(around, name) for name in names})


def test_only_the_main_player_is_learned_from_and_renewed_against_a_former_self() -> None:
    around = Around()
    collector = make(around, "old")
    collector.start()
    for number, data in enumerate(around.data):
        assert data["player"].tolist() == [0] * 4
        assert data["policy_version"].tolist() == [number + 1] * 4
        assert data["action"].flatten().tolist() == [number + 1] * 4
        assert data["reward"].tolist() == [-1.0] * 4  # each game is one move of each, and 100 beats all
    assert around.looks.count("old") == 1
    info = collector.get_finish_info()
    assert info["result"] == {"wins": 0, "draws": 0, "losses": 12}
    assert info["opponent"] == "old"
    assert (info["train_iter"], info["real_episode_count"], info["reward_mean"]) == (3, 12, -1.0)


def test_the_opponents_own_weights_are_loaded() -> None:
    around = Around(old=-100.0)
    collector = make(around, "old")
    collector.start()
    assert collector.get_finish_info()["result"] == {"wins": 12, "draws": 0, "losses": 0}


def test_both_players_of_self_play_are_in_one_message_with_separate_env_ids() -> None:
    around = Around()
    collector = make(around, "mine", learns=True)
    collector.start()
    data = around.data[1]
    assert data["player"].tolist() == [0] * 4 + [1] * 4
    assert data["env_id"].tolist() == [0, 2, 0, 2, 1, 3, 1, 3]
    assert data["policy_version"].tolist() == [2] * 8
    assert data["action"].flatten().tolist() == [2] * 8
    assert collector.get_finish_info()["result"] == {"wins": 0, "draws": 12, "losses": 0}
    assert around.said[-1]["cur_sample"] == 24
    assert sum(said["env_step"] for said in around.said) == 24
    assert around.looks.count("mine") == 3  # one network, not two


def test_the_main_player_may_meet_its_own_first_weights_and_learn_alone() -> None:
    around = Around()
    collector = make(around, "mine", learns=False)
    collector.start()
    assert around.data[2]["player"].tolist() == [0] * 4
    assert collector.get_finish_info()["result"] == {"wins": 8, "draws": 4, "losses": 0}  # 2 and 3 beat 1


@pytest.mark.parametrize("opponent", ["random", None])
def test_a_random_player_is_no_policy_and_asks_for_no_weights(opponent: str | None) -> None:
    around = Around()
    collector = make(around, opponent)
    collector.start()
    assert set(around.looks) == {"mine"}
    assert collector.get_finish_info()["opponent"] == "random"
    assert len(around.data) == 3


def test_games_end_after_some_episodes_so_that_the_opponent_may_change() -> None:
    around = Around(100)
    collector = make(around, "old", n_episode=8)
    collector.start()
    assert collector.get_finish_info()["real_episode_count"] == 8


@pytest.mark.parametrize(("old", "wins"), [(3.0, 5), (100.0, 0)])
def test_an_evaluation_counts_the_games_that_the_main_player_wins(old: float, wins: int) -> None:
    around = Around(old=old)
    around.version = 4
    collector = make(around, "old", eval_flag=True, n_episode=5)
    collector.start()
    info = collector.get_finish_info()
    assert info["result"] == {"wins": wins, "draws": 0, "losses": 5 - wins}
    assert (info["train_iter"], info["opponent"], info["real_episode_count"]) == (4, "old", 5)
    assert info["reward_mean"] == (1.0 if wins else -1.0)
    assert around.data == []


def test_games_against_a_random_player_can_be_evaluated() -> None:
    around = Around()
    around.version = 100
    collector = make(around, "random", eval_flag=True, n_episode=20)
    collector.start()
    assert collector.get_finish_info()["result"]["wins"] == 20


def test_seats_are_taken_in_turn() -> None:
    around = Around(1)
    make(around, "old").start()
    assert sorted(around.data[0]["obs"][:, 0].tolist()) == [0.0, 0.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("opponent", "changes"),
    [
        ("random", {"policy_update_flag": [True, True]}),
        ("random", {"env": {"mode": "async"}}),
        ("random", {"env": {"env_id": "CartPole-v1"}}),
        ("random", {"env": {"env_id": "tests.distributed.weight_policy:nobody"}}),
        ("random", {"policy_update_path": ["mine", "a", "b"], "policy_update_flag": [True, False, False]}),
    ],
)
def test_games_that_cannot_be_played_are_refused(opponent: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"env_id|mode|policy_update"):
        make(Around(), opponent, **changes).start()


def test_games_are_found_by_the_path_of_their_function() -> None:
    for env_id in (DUEL, DUEL.replace(":", "."), {"class_path": DUEL}):
        make_game = find_game(EnvConfig(env_id=env_id))
        assert getattr(make_game, "func") is make_duel  # noqa: B009 - of a functools.partial
    with pytest.raises(ValueError, match="No module named 'no_such_module'"):
        find_game(EnvConfig(env_id="no_such_module:make"))
    with pytest.raises(ValueError, match=r"env\.env_id must be the path of a function .*, got 'CartPole-v1'"):
        find_game(EnvConfig(env_id="CartPole-v1"))
