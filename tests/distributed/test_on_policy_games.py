"""On-policy algorithms in games against a league: what rollouts contain, and who is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lightning_ding.config import resolve
from lightning_ding.distributed.comm_worker.collector import CommCollector
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.coordinator.settings import ReplaySettings
from tests.distributed.test_on_policy import ENVS, SMALL, config, coordinating, watching
from tests.processes import run

PROGRAM = ["-c", "from lightning_ding.entry.cli import main; main()", "parallel"]
SIZE, COLLECTORS = 32, 2
PPO = {
    "type": "ppo",
    "model": SMALL,
    "learn": {"epoch_per_collect": 1, "batch_size": 16},
    "collect": {"n_sample": SIZE},
}
TICTACTOE = {
    "policy": {
        "type": "ppo",
        "discount_factor": 0.95,
        "model": {"encoder_hidden_size_list": [128, 128]},
        "learn": {"epoch_per_collect": 4, "batch_size": 256, "learning_rate": 1e-3, "entropy_weight": 0.01},
        "collect": {"n_sample": 2048},
    },
    "env": {
        "env_id": "pettingzoo.classic.tictactoe_v3:raw_env",
        "collector_env_num": 32,
        "evaluator_env_num": 32,
        "n_evaluator_episode": 200,
    },
    "max_env_step": 200_000,
}


def game(folder: Path, policy: dict[str, Any], **league: Any) -> dict[str, Any]:
    cfg = config(folder, policy, COLLECTORS, max_train_iter=80)
    cfg["main"]["env"]["env_id"] = "tests.distributed.weight_policy:make_duel"
    cfg["system"]["collector"] = {"type": "marine"}
    cfg["system"]["coordinator"]["commander"] |= {"type": "one_vs_one", "league": league}
    return cfg


@pytest.mark.parametrize(("self_play", "random_play"), [(1.0, 0.0), (0.0, 1.0), (0.3, 0.2)])
def test_rollouts_of_games_have_the_moves_of_the_players_that_learn(
    tmp_path: Path, self_play: float, random_play: float
) -> None:
    shares = {"self_play": self_play, "random_play": random_play}
    cfg = game(tmp_path, PPO, **shares, task_episodes=20, snapshot_interval=6)
    rollouts: list[tuple[int, Any]] = []
    with coordinating(cfg) as (coordinator, start):
        start(watching(rollouts))
        for _ in range(COLLECTORS):
            start(CommCollector)
    assert len(rollouts) >= 20
    assert (status := coordinator.status())["refused"] == status["restarts"] == 0
    players = set()
    for train_iter, rollout in rollouts:
        assert rollout["policy_version"].unique().tolist() == [train_iter]
        assert SIZE <= len(rollout["reward"]) < 2 * SIZE
        assert (rollout["env_id"] % 2).tolist() == rollout["player"].tolist()
        assert int(rollout["env_id"].max()) < COLLECTORS * ENVS * 2
        moves = list(zip(rollout["env_id"].tolist(), rollout["episode_id"].tolist(), strict=True))
        assert len({*moves}) == len(moves)  # each player moves once in a game
        assert rollout["terminated"].all()
        players |= set(rollout["player"].tolist())
    assert players == ({0} if random_play == 1 else {0, 1})
    assert coordinator.scheduler.commander.league.players


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"type": "recurrent_ppo"}, "main.policy must be one without memory with marine collectors"),
        ({"type": "pg", "collect": {"n_episode": 3}}, "main.policy.collect.collector.type must be one that counts tr"),
    ],
)
def test_policies_that_cannot_play_are_refused(tmp_path: Path, policy: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ReplaySettings.of(resolve(ParallelConfig, game(tmp_path, policy)))


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_a_league_of_ppo_beats_a_random_player_in_nine_games_of_ten(tmp_path: Path) -> None:
    commander = {"type": "one_vs_one", "eval_interval": 6.0, "league": {"self_play": 0.25, "random_play": 0.6}}
    system = {
        "collector": {"type": "marine", "num": 2},
        "learner": {"validate": False},
        "coordinator": {"commander": commander},
    }
    file = tmp_path / "run.yaml"
    main = {"exp_name": str(tmp_path / "run"), "seed": 1, **TICTACTOE}
    file.write_text(json.dumps({"main": main, "system": system}))
    run(*PROGRAM, "--config", file, timeout=600)
    evaluations = json.loads((tmp_path / "run" / "result.json").read_text())["evaluations"]
    of_random = [evaluation["result"] for evaluation in evaluations if evaluation["opponent"] == "random"]
    assert of_random[-1]["wins"] / sum(of_random[-1].values()) >= 0.88
