"""The evaluator of several players: a fixed quota, and results that do not depend on envs, ranks or seats."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from pettingzoo.classic import rps_v2, tictactoe_v3

from lightning_ding.envs import PettingZooVectorEnv
from lightning_ding.policy.random import random_eval_mode
from lightning_ding.utils.modes import EvalMode
from lightning_ding.worker import BattleInteractionSerialEvaluator, create_serial_evaluator
from lightning_ding.worker.evaluator import direct as sharding
from lightning_ding.worker.evaluator.config import EvaluatorConfig
from tests.toys.games import RelayGame


class SeedGame(RelayGame):
    """Its seed says how long an episode is, 1 to 7 moves."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        super().reset(seed)
        self.lengths = (int(np.random.default_rng(seed).integers(1, 8)),)


class StillPolicy:
    """Always takes action 0; remembers what it saw and its resets."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.resets: list[Sequence[int] | None] = []

    def forward(self, obs: Any) -> dict[str, Any]:
        self.seen.append(obs)
        return {"action": torch.zeros(len(obs), dtype=torch.int64)}

    def reset(self, data_id: Sequence[int] | None = None) -> None:
        self.resets.append(data_id)

    @property
    def mode(self) -> EvalMode:
        def nothing(*_: Any) -> Any:
            raise AssertionError("an evaluator must not touch this")

        def attribute(name: str) -> bool:
            assert name == "has_memory"
            return False

        return EvalMode(self.forward, self.reset, attribute, nothing, nothing, nothing)


class FirstLegal(StillPolicy):
    """Takes the first legal action; or the last one."""

    def __init__(self, last: bool = False) -> None:
        super().__init__()
        self.last = last

    def forward(self, obs: Any) -> dict[str, Any]:
        mask = torch.as_tensor(obs["action_mask"])
        return {"action": 8 - mask.flip(1).argmax(1) if self.last else mask.argmax(1)}


def env_of(num_envs: int = 1, game: Any = SeedGame, **kwargs: Any) -> PettingZooVectorEnv:
    return PettingZooVectorEnv(functools.partial(game, **kwargs), num_envs, rotate_seats=True)


def evaluator_of(env: Any, policies: Sequence[StillPolicy] | None = None, seed: int = 0, **cfg: Any) -> Any:
    policies = policies or [StillPolicy() for _ in range(env.num_players)]
    return BattleInteractionSerialEvaluator(cfg, env=env, policy=[one.mode for one in policies], seed=seed)


def relay_return(length: int, seat: int, num_players: int = 2) -> float:
    return float(sum(move if (move - 1) % num_players == seat else -move for move in range(1, length + 1)))


def expected_games(episodes: Sequence[int], seed: int = 0, num_players: int = 2) -> tuple[list[list[float]], list[int]]:
    """Return the returns of each player and the lengths, worked out from seeds and seats."""
    lengths = []
    for episode in episodes:
        drawn = int(np.random.SeedSequence([seed, episode]).generate_state(1)[0])
        lengths.append(int(np.random.default_rng(drawn).integers(1, 8)))
    returns = [
        [
            relay_return(length, (player + episode) % num_players, num_players)
            for episode, length in zip(episodes, lengths, strict=True)
        ]
        for player in range(num_players)
    ]
    return returns, lengths


# ------------------------------------------------------------------ which games, and what comes of them


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 5), st.lists(st.integers(0, 30), min_size=1, max_size=9, unique=True), st.integers(2, 3))
def test_games_depend_on_their_numbers_only(num_envs: int, episodes: list[int], num_players: int) -> None:
    evaluator = evaluator_of(env_of(num_envs, num_players=num_players), seed=3)

    assert evaluator.run(episodes) == expected_games(episodes, seed=3, num_players=num_players)


@pytest.mark.parametrize("fixed_starts", [False, True])
def test_games_of_an_evaluation_follow_from_its_seed_and_its_number_unless_starts_are_fixed(fixed_starts: bool) -> None:
    evaluator, same = (evaluator_of(env_of(3), n_episode=8, fixed_starts=fixed_starts) for _ in range(2))

    first, second = evaluator.eval()[1], evaluator.eval()[1]

    assert (first == second) == fixed_starts
    assert [same.eval()[1] for _ in range(2)] == [first, second]
    assert evaluator_of(env_of(3), seed=1, n_episode=8).eval()[1] != first


def test_information_says_what_player_0_reached_and_all_others() -> None:
    returns, lengths = expected_games(range(9))
    evaluator = evaluator_of(env_of(2), n_episode=4)

    _, info = evaluator.eval(train_iter=7, envstep=70, n_episode=9)

    assert info == {
        "eval_episode_return": returns[0],
        "eval_episode_return_by_player": returns,
        "eval_episode_length": lengths,
        "return_mean": pytest.approx(np.mean(returns[0])),
        "return_std": pytest.approx(np.std(returns[0])),
        "return_min": min(returns[0]),
        "return_max": max(returns[0]),
        "win_rate": np.mean([own > other for own, other in zip(*returns, strict=True)]),
        "train_iter": 7,
        "envstep": 70,
    }
    assert 0 < info["win_rate"] < 1
    assert len(evaluator.eval()[1]["eval_episode_return"]) == 4  # what the config says


def test_moving_first_in_turn_is_fair() -> None:
    env = PettingZooVectorEnv(tictactoe_v3.env, num_envs=3, rotate_seats=True)
    evaluator = evaluator_of(env, [FirstLegal(), FirstLegal()], n_episode=10)

    _, info = evaluator.eval()

    # 0 2 4 6 by who moves first, which is a line
    assert info["eval_episode_return"] == [1, -1] * 5
    assert info["eval_episode_length"] == [7] * 10
    assert info["win_rate"] == 0.5


def test_draw_is_no_win() -> None:
    env = PettingZooVectorEnv(functools.partial(rps_v2.parallel_env, max_cycles=2), num_envs=2)
    _, info = evaluator_of(env, n_episode=4).eval()  # rock against rock

    assert info["eval_episode_return_by_player"] == [[0] * 4, [0] * 4]
    assert info["win_rate"] == 0


def test_win_of_three_takes_more_than_any_other() -> None:
    _, info = evaluator_of(env_of(2, num_players=3), n_episode=20).eval()
    returns = info["eval_episode_return_by_player"]

    assert info["win_rate"] == np.mean([a > max(b, c) for a, b, c in zip(*returns, strict=True)])
    assert 0 < info["win_rate"] < 1


def test_short_games_do_not_count_more_often() -> None:
    env = PettingZooVectorEnv(RelayGame, num_envs=2)
    env._games[0].env.lengths, env._games[1].env.lengths = (1,), (6,)
    evaluator = evaluator_of(env, n_episode=8)

    assert sorted(evaluator.eval()[1]["eval_episode_length"]) == [1] * 4 + [6] * 4


def test_policies_see_games_under_way_only_and_are_reset_where_one_ends() -> None:
    env = PettingZooVectorEnv(RelayGame, num_envs=3)
    games = [game.env for game in env._games]
    for game, length in zip(games, (2, 4, 6), strict=True):
        game.lengths = (length,)
    policies = [StillPolicy(), StillPolicy()]
    evaluator = evaluator_of(env, policies)
    policies[0].resets.clear()

    evaluator.run(range(3))

    assert [len(rows) for rows in policies[0].seen] == [3, 2, 1]
    assert policies[0].resets == [None, [0], [1], [2]]
    assert [game.episode for game in games] == [0, 0, 0]  # no game but those that count


def test_env_without_a_share_is_left_alone() -> None:
    env = env_of(4)
    evaluator_of(env).run(range(2))

    assert [len(game.env.seeds) for game in env._games] == [1, 1, 0, 0]


# ------------------------------------------------------------------ when, how well, and the end


def test_should_eval_at_the_start_then_after_eval_freq_updates_and_never_twice() -> None:
    evaluator = evaluator_of(env_of(), eval_freq=10, n_episode=1)
    assert evaluator.should_eval(0)
    assert evaluator.should_eval(0)  # asking changes nothing

    evaluator.eval(train_iter=0)

    assert [evaluator.should_eval(train_iter) for train_iter in (0, 9, 10)] == [False, False, True]
    evaluator.eval(train_iter=12)
    assert [evaluator.should_eval(train_iter) for train_iter in (12, 21, 22)] == [False, False, True]


@pytest.mark.parametrize(
    ("stop_value", "train_iter", "stops"), [(1.0, 5, True), (1.0, 0, False), (1.1, 5, False), (None, 5, False)]
)
def test_run_may_stop_when_player_0_reaches_the_stop_value_after_an_update(
    stop_value: float | None, train_iter: int, stops: bool
) -> None:
    env = PettingZooVectorEnv(functools.partial(RelayGame, lengths=(1,)))  # 1 to player 0, -1 to the other
    evaluator = evaluator_of(env, stop_value=stop_value, n_episode=2)

    assert evaluator.eval(train_iter=train_iter)[0] is stops


def test_checkpoint_is_saved_only_when_player_0_is_better_than_ever() -> None:
    env = PettingZooVectorEnv(RelayGame)
    game = env._games[0].env
    evaluator = evaluator_of(env, n_episode=1)
    saved: list[tuple[str, int]] = []
    for length in (2, 1, 1, 4, 3):  # returns of player 0: -1, 1, 1, -2, 2
        game.lengths = (length,)
        evaluator.eval(lambda name, length=length: saved.append((name, length)))

    assert saved == [("ckpt_best.ckpt", 2), ("ckpt_best.ckpt", 1), ("ckpt_best.ckpt", 3)]


def test_state_survives_a_checkpoint() -> None:
    env = PettingZooVectorEnv(functools.partial(RelayGame, lengths=(3,)))
    evaluator, other = evaluator_of(env, n_episode=1), evaluator_of(env, n_episode=1)
    saved: list[str] = []
    evaluator.eval(train_iter=4)

    other.load_state_dict(evaluator.state_dict())
    other.eval(saved.append, train_iter=2000)

    assert saved == []
    assert evaluator.state_dict() == {"last_eval_iter": 4, "best_return": 2.0, "evaluations": 1}


def test_reset_forgets_what_was() -> None:
    evaluator = evaluator_of(env_of(), n_episode=1)
    saved: list[str] = []
    evaluator.eval(train_iter=5)

    evaluator.reset()
    _, info = evaluator.eval(saved.append)

    assert evaluator.best_return == info["return_mean"]
    assert saved == ["ckpt_best.ckpt"]
    assert evaluator.should_eval(0)


# ------------------------------------------------------------------ ranks


def test_ranks_share_the_games_and_come_to_the_same_end(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = evaluator_of(env_of(2), n_episode=7).eval()[1]
    tables: list[torch.Tensor] = []

    def keep(values: torch.Tensor) -> torch.Tensor:
        tables.append(values)
        return values

    monkeypatch.setattr(sharding, "sum_over_ranks", keep)
    for rank in range(2):
        monkeypatch.setattr(sharding, "rank_and_world_size", lambda rank=rank: (rank, 2))
        evaluator_of(env_of(3), n_episode=7).eval()

    *returns, lengths = (tables[0] + tables[1]).tolist()
    assert returns == alone["eval_episode_return_by_player"]
    assert lengths == alone["eval_episode_length"]


# ------------------------------------------------------------------ faults


class FaultyGame(SeedGame):
    """The first game that is made fails at its first move."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        self.is_bad = FaultyGame.made < 1
        FaultyGame.made += 1

    def step(self, action: Any) -> None:
        super().step(action)
        if self.is_bad:
            raise OSError("gone")


def test_game_with_a_fault_is_played_again() -> None:
    FaultyGame.made = 0
    evaluator = evaluator_of(PettingZooVectorEnv(FaultyGame, 2, rotate_seats=True, max_faults=3))

    assert evaluator.run(range(5)) == expected_games(range(5))
    assert FaultyGame.made == 3


def test_env_that_only_fails_does_not_block_an_evaluator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FaultyGame, "made", -1000)
    evaluator = evaluator_of(PettingZooVectorEnv(FaultyGame, max_faults=100))

    with pytest.raises(RuntimeError, match=r"reported 4 faults in an evaluation of 3.*one in env 0: OSError: gone"):
        evaluator.run(range(3))


# ------------------------------------------------------------------ life


def test_evaluator_may_be_made_with_nothing() -> None:
    evaluator = BattleInteractionSerialEvaluator()
    assert evaluator.env is None
    assert evaluator.policy is None
    with pytest.raises(RuntimeError, match="the evaluator needs an env and a policy"):
        evaluator.eval()
    env = env_of()
    evaluator.reset([StillPolicy().mode] * 2, env)

    assert evaluator.env is env
    assert len(evaluator.eval(n_episode=3)[1]["eval_episode_return"]) == 3
    evaluator.close()
    assert evaluator.env is None
    assert not env._games[0].env.is_closed


def test_number_of_policies_must_be_that_of_the_players() -> None:
    three = [StillPolicy().mode for _ in range(3)]
    with pytest.raises(ValueError, match="as many modes as the env has players, 2, got 3"):
        BattleInteractionSerialEvaluator(env=env_of(), policy=three)
    with pytest.raises(ValueError, match="as many modes as the env has players, 2, got 3"):
        BattleInteractionSerialEvaluator(policy=three).reset_env(env_of())
    with pytest.raises(TypeError, match="policy must be a sequence with the mode of each player, got EvalMode"):
        BattleInteractionSerialEvaluator(policy=three[0])  # type: ignore[arg-type]
    evaluator = evaluator_of(env_of())
    evaluator.reset(three, env_of(num_players=3))
    assert len(evaluator.eval(n_episode=1)[1]["eval_episode_return_by_player"]) == 3


def test_evaluation_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="n_episode must be >= 1, got 0"):
        evaluator_of(env_of()).eval(n_episode=0)
    with pytest.raises(ValueError, match="n_episode must be >= 1, got 0"):
        evaluator_of(env_of()).run([])


def test_evaluator_is_made_by_name() -> None:
    env = env_of()
    config = EvaluatorConfig(type="battle_interaction", n_episode=2)
    evaluator: Any = create_serial_evaluator(config, env=env, policy=[random_eval_mode(env.single_action_space)] * 2)

    assert type(evaluator) is BattleInteractionSerialEvaluator
    assert len(evaluator.eval()[1]["eval_episode_return"]) == 2


def test_numbers_are_written_for_all_players(caplog: pytest.LogCaptureFixture) -> None:
    written: dict[str, Any] = {}

    class Writer:
        def add_scalar(self, name: str, value: float, step: int) -> None:
            written[name] = (value, step)

    policies = [StillPolicy().mode] * 2
    evaluator = BattleInteractionSerialEvaluator({"n_episode": 6}, env_of(2), policies, Writer(), "games", "judge")
    with caplog.at_level(logging.INFO, "lightning_ding.games.judge"):
        _, info = evaluator.eval(train_iter=3, envstep=50)

    returns = info["eval_episode_return_by_player"]
    assert written["judge_iter/return_mean"] == (pytest.approx(np.mean(returns[0])), 3)
    assert written["judge_step/return1_mean"] == (pytest.approx(np.mean(returns[1])), 50)
    assert written["judge_iter/win_rate"] == (info["win_rate"], 3)
    assert written["judge_iter/envstep_count"] == (sum(info["eval_episode_length"]), 3)
    assert written["judge_iter/avg_envstep_per_episode"][0] == pytest.approx(np.mean(info["eval_episode_length"]))
    assert "win_rate" in caplog.text


@pytest.mark.parametrize("num_envs", [1, 3])
def test_games_are_cut_off_at_max_episode_steps(num_envs: int, caplog: pytest.LogCaptureFixture) -> None:
    returns, lengths = evaluator_of(env_of()).run(range(5))
    assert max(lengths) > 3 > min(lengths)

    evaluator = evaluator_of(env_of(num_envs), max_episode_steps=3)
    with caplog.at_level(logging.WARNING):
        cut_returns, cut_lengths = evaluator.run(range(5))

    assert cut_lengths == [min(length, 3) for length in lengths]
    for i, length in enumerate(lengths):
        same = [of_player[i] for of_player in cut_returns] == [of_player[i] for of_player in returns]
        assert same == (length <= 3)
    assert len([record for record in caplog.records if "max_episode_steps=3" in record.message]) == 1
