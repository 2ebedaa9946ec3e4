"""The collectors of several players: right transitions, exact amounts, quotas, faults, one forward pass a step."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch
from pettingzoo.classic import connect_four_v3, rps_v2, tictactoe_v3

from lightning_ding import nested
from lightning_ding.envs import PettingZooVectorEnv
from lightning_ding.policy import DQNPolicy, R2D2Policy
from lightning_ding.policy.random import random_collect_mode
from lightning_ding.worker import BattleEpisodeSerialCollector, BattleSampleSerialCollector, create_serial_collector
from lightning_ding.worker.config import CollectorConfig
from lightning_ding.worker.players import check_players
from tests.toys.games import RelayGame
from tests.worker.collector.battle_toys import KINDS, Player, collector_of, games, modes, players_of, relay_env, rows_of


class ScriptedPlayer(Player):
    """Makes the given moves, one a turn."""

    def __init__(self, *moves: int) -> None:
        super().__init__()
        self.moves = iter(moves)

    def forward(self, obs: Any, **kwargs: Any) -> dict[str, Any]:
        return {"action": torch.tensor([next(self.moves)])}


def board(data: Any, row: int) -> list[int]:
    """Return what a player saw of a tic-tac-toe board: 1 its own marks, 2 the other's."""
    planes = data["observation"][row]
    return cast("list[int]", (planes[..., 0] + 2 * planes[..., 1]).flatten().tolist())


@pytest.mark.parametrize("kind", KINDS)
def test_both_players_of_tic_tac_toe_get_their_transitions_and_the_end(kind: Any) -> None:
    env = PettingZooVectorEnv(tictactoe_v3.env)
    players = [ScriptedPlayer(0, 1, 2), ScriptedPlayer(3, 4)]  # the first player fills a line
    collector = kind(env=env, policy=modes(players))

    data, info = collector.collect(2) if kind is BattleSampleSerialCollector else collector.collect(1)
    if kind is BattleSampleSerialCollector:
        (first, second), _ = (data, info)
        rest = collector._kept[0].state()[0]
        first = nested.concatenate_arrays([{name: first[name] for name in rest}, rest])
    else:
        (first,), (second,) = data

    assert first["action"].tolist() == [0, 1, 2]
    assert first["reward"].tolist() == [0, 0, 1]
    assert first["terminated"].tolist() == [False, False, True]
    assert [board(first["obs"], row) for row in range(3)] == [
        [0, 0, 0, 0, 0, 0, 0, 0, 0],
        [1, 0, 0, 2, 0, 0, 0, 0, 0],
        [1, 1, 0, 2, 2, 0, 0, 0, 0],
    ]
    assert [board(first["next_obs"], row) for row in range(3)] == [
        [1, 0, 0, 2, 0, 0, 0, 0, 0],
        [1, 1, 0, 2, 2, 0, 0, 0, 0],
        [1, 1, 1, 2, 2, 0, 0, 0, 0],
    ]
    assert second["action"].tolist() == [3, 4]
    assert second["reward"].tolist() == [0, -1]  # the other one's last move comes to its own last one
    assert second["terminated"].tolist() == [False, True]
    assert [board(second["obs"], row) for row in range(2)] == [
        [2, 0, 0, 0, 0, 0, 0, 0, 0],
        [2, 2, 0, 1, 0, 0, 0, 0, 0],
    ]
    assert [board(second["next_obs"], row) for row in range(2)] == [
        [2, 2, 0, 1, 0, 0, 0, 0, 0],
        [2, 2, 2, 1, 1, 0, 0, 0, 0],
    ]
    assert second["next_obs"]["action_mask"][0].tolist() == [0, 0, 1, 0, 1, 1, 1, 1, 1]
    kept = ("eval_episode_return", "episode_length", "env_id", "seat")
    assert [[tuple(one[name] for name in kept) for one in of_player] for of_player in info] == [
        [(1.0, 3, 0, 0)],
        [(-1.0, 2, 0, 1)],
    ]


def test_both_players_of_connect_four_get_the_end() -> None:
    players = [ScriptedPlayer(0, 0, 0, 6), ScriptedPlayer(3, 3, 3, 3)]  # the second player fills a column
    collector = BattleEpisodeSerialCollector(env=PettingZooVectorEnv(connect_four_v3.env), policy=modes(players))

    ((first,), (second,)), _ = collector.collect(1)

    assert first["reward"].tolist() == [0, 0, 0, -1]
    assert second["reward"].tolist() == [0, 0, 0, 1]
    assert first["terminated"].tolist() == second["terminated"].tolist() == [False, False, False, True]
    assert second["obs"]["observation"][:, :, 3, 0].sum(1).tolist() == [0, 1, 2, 3]
    assert first["next_obs"]["observation"][:, :, 3, 1].sum(1).tolist() == [1, 2, 3, 4]


def test_illegal_move_ends_the_game_for_both_players() -> None:
    players = [ScriptedPlayer(0, 1), ScriptedPlayer(0)]
    collector = BattleEpisodeSerialCollector(env=PettingZooVectorEnv(tictactoe_v3.env), policy=modes(players))

    ((first,), (second,)), info = collector.collect(1)

    assert (first["reward"].tolist(), second["reward"].tolist()) == ([0], [-1])
    assert (first["terminated"].tolist(), second["terminated"].tolist()) == ([True], [True])
    assert [of_player[0]["eval_episode_return"] for of_player in info] == [0, -1]


def test_parallel_game_gives_the_usual_transitions() -> None:
    env = PettingZooVectorEnv(functools.partial(rps_v2.parallel_env, max_cycles=3))
    players = [ScriptedPlayer(0, 0, 1), ScriptedPlayer(1, 2, 1)]  # paper, scissors, draw
    collector = BattleEpisodeSerialCollector(env=env, policy=modes(players))

    ((first,), (second,)), info = collector.collect(1)

    assert (first["obs"].tolist(), first["next_obs"].tolist()) == ([3, 1, 2], [1, 2, 1])
    assert (second["obs"].tolist(), second["next_obs"].tolist()) == ([3, 0, 0], [0, 0, 1])
    assert (first["reward"].tolist(), second["reward"].tolist()) == ([-1, 1, 0], [1, -1, 0])
    for data in (first, second):
        assert data["truncated"].tolist() == [False, False, True]
        assert not data["terminated"].any()
    assert collector.envstep == 3  # one for each step of the game, though two act
    assert [of_player[0]["episode_length"] for of_player in info] == [3, 3]


def test_only_players_that_learn_give_data_and_all_give_information() -> None:
    players = [Player(), Player(collect_data=False), Player(collect_data=True)]
    data, info = collector_of(BattleSampleSerialCollector, relay_env(3, 3), players).collect(6)

    assert [None if one is None else len(one["reward"]) for one in data] == [6, None, 6]
    assert len({len(of_player) for of_player in info}) == 1
    assert len(info[1]) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_somebody_must_learn(kind: Any) -> None:
    with pytest.raises(ValueError, match=r"collect_data must be true for at least one policy, got \[False, False\]"):
        collector_of(kind, relay_env(), [Player(collect_data=False) for _ in range(2)]).collect(1)


def test_policy_says_whether_it_learns_and_may_be_told() -> None:
    policy = DQNPolicy({"model": {"obs_shape": 4, "action_shape": 4}})
    assert policy.collect_mode.get_attribute("collect_data") is True

    policy.collect_mode.set_attribute("collect_data", False)

    collector = BattleSampleSerialCollector(env=relay_env(), policy=[policy.collect_mode, Player().mode])
    data, _ = collector.collect(4, policy_kwargs={"eps": 0.5})
    assert data[0] is None
    assert len(data[1]["reward"]) == 4


def test_move_from_before_a_policy_stopped_learning_does_not_come_back_afterwards() -> None:
    env = PettingZooVectorEnv(functools.partial(RelayGame, lengths=(30,)))
    players = players_of(env)
    collector = collector_of(BattleSampleSerialCollector, env, players)
    collector.collect(2)
    players[0].attributes["collect_data"] = False
    collector.collect(3)
    players[0].attributes["collect_data"] = True

    data, _ = collector.collect(3)

    moves, after = data[0]["obs"][:, 2], data[0]["next_obs"][:, 2]
    assert (after - moves).tolist() == [2, 2, 2]
    assert data[0]["reward"].tolist() == [-1, -1, -1]  # t - (t + 1)


def test_policy_sees_once_a_step_the_envs_in_which_it_is_in_turn() -> None:
    env = relay_env(3, rotate_seats=True)
    for game in games(env):
        game.lengths = (6,)
    players = players_of(env)
    collector_of(BattleEpisodeSerialCollector, env, players).collect(3)

    for player in range(2):
        seen = [sorted(rows[:, 0].tolist()) for rows in players[player].seen]
        # player 0 sits first in envs 0 and 2, second in env 1, and the games go on in step
        assert seen == [[0, 2], [1]] * 3 if player == 0 else seen == [[1], [0, 2]] * 3


def test_policy_in_several_seats_is_called_once_for_all() -> None:
    env = relay_env(3, rotate_seats=True)
    for game in games(env):
        game.lengths = (6,)
    player = Player()
    collector = BattleEpisodeSerialCollector(env=env, policy=[player.mode] * 2)
    data, _ = collector.collect(3)

    assert [rows[:, 0].tolist() for rows in player.seen] == [[0, 1, 2]] * 6
    for number, of_player in enumerate(data):
        for episode in of_player:
            env_id = episode["obs"][0, 0].item()
            assert np.unique(episode["obs"][:, 3]).tolist() == [(number + env_id) % 2]
            assert episode["env_id"].tolist() == [2 * env_id + number] * 3
            assert episode["action"].tolist() == (episode["obs"].sum(1) % 4).tolist()


def test_policy_that_plays_itself_is_called_once_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = DQNPolicy({"model": {"obs_shape": 4, "action_shape": 4}})
    rows: list[int] = []
    act = policy._forward_collect

    def counted(obs: Any, **kwargs: Any) -> Any:
        rows.append(len(obs))
        return act(obs, **kwargs)

    monkeypatch.setattr(policy, "_forward_collect", counted)
    env = relay_env(4, rotate_seats=True)
    collector = BattleSampleSerialCollector(env=env, policy=[policy.collect_mode, policy.collect_mode])

    collector.collect(5, policy_kwargs={"eps": 0.1})

    assert set(rows) == {4}
    assert sum(rows) == collector.envstep


def test_arguments_of_forward_are_for_all_players_or_for_each() -> None:
    player, other = Player(), Player()
    collector = BattleSampleSerialCollector(env=relay_env(), policy=[player.mode, other.mode])

    collector.collect(1, policy_kwargs={"eps": 0.25})
    assert player.kwargs[-1] == other.kwargs[-1] == {"eps": 0.25}
    collector.collect(5, policy_kwargs=[{"eps": 0.5}, {}])
    assert (player.kwargs[-1], other.kwargs[-1]) == ({"eps": 0.5}, {})


def test_policy_in_several_seats_is_called_for_each_of_them_if_their_arguments_differ() -> None:
    env, player = relay_env(2, rotate_seats=True), Player()
    collector = BattleSampleSerialCollector(env=env, policy=[player.mode] * 2)

    collector.collect(1, policy_kwargs=[{"eps": 0.5}, {"eps": 0.75}])

    assert {kwargs["eps"] for kwargs in player.kwargs} == {0.5, 0.75}
    for rows, kwargs in zip(player.seen, player.kwargs, strict=True):
        seats = {((rows[:, 3] - rows[:, 0] - rows[:, 1]) % 2).tolist()[0]}
        assert seats == {0 if kwargs["eps"] == 0.5 else 1}


def test_arguments_for_another_number_of_players_are_refused() -> None:
    with pytest.raises(ValueError, match="policy_kwargs must be a mapping, or one for each of 2 players"):
        collector_of(BattleSampleSerialCollector, relay_env()).collect(1, policy_kwargs=[{}])


@pytest.mark.parametrize(
    ("output", "says"),
    [
        ({"action": torch.zeros(3, 1)}, r"player 1: the actions must be of shape \(\d,\), got \(3, 1\)"),
        ({"logit": torch.zeros(3)}, r"player 1: the policy's forward must return 'action', got \['logit'\]"),
        (torch.zeros(3), "player 1: the policy's forward must return 'action', got Tensor"),
    ],
)
def test_output_without_right_actions_is_refused_with_the_player(output: Any, says: str) -> None:
    player = Player()
    mode = player.mode._replace(forward=lambda obs: output)

    with pytest.raises(ValueError, match=says):
        BattleSampleSerialCollector(env=relay_env(), policy=[player.mode, mode]).collect(5)


def test_policies_are_reset_where_an_episode_ended() -> None:
    env = relay_env(2)
    players = players_of(env)
    collector = collector_of(BattleEpisodeSerialCollector, env, players)
    collector.collect(2)

    # env 0's episode has one move, env 1's two; the whole policy was reset when the collector got it
    assert players[0].resets == players[1].resets == [None, [0], [1]]


def test_random_collecting_is_for_those_that_learn() -> None:
    env = relay_env(4)
    env.action_space.seed(0)
    players = [Player(), Player(collect_data=False)]
    data, _ = collector_of(BattleSampleSerialCollector, env, players).collect(200, random_collect=True)

    assert players[0].seen == []
    assert len(players[1].seen) > 0
    assert np.bincount(data[0]["action"]).min() > 20
    assert set(data[0]) >= {"obs", "action", "reward", "next_obs", "twice", "env_id", "policy_version"}


def test_random_actions_are_legal() -> None:
    env = PettingZooVectorEnv(tictactoe_v3.env, num_envs=4)
    policy = [random_collect_mode(env.single_action_space) for _ in range(2)]
    for mode in policy:
        mode.set_attribute("collect_data", True)
        assert mode.get_attribute("collect_data") is True
    data, info = BattleEpisodeSerialCollector(env=env, policy=policy).collect(20, random_collect=True)

    for episode in itertools.chain(*data):
        assert np.take_along_axis(episode["obs"]["action_mask"], episode["action"][:, None], 1).all()
    assert all(5 <= sum(one["episode_length"] for one in pair) <= 9 for pair in zip(*info, strict=True))


def test_moves_by_chance_and_by_policy_do_not_mix() -> None:
    env = relay_env(3)
    for game in games(env):
        game.lengths = (50,)
    collector = collector_of(BattleSampleSerialCollector, env)
    for turn in range(12):
        data, _ = collector.collect(2, random_collect=turn % 2 == 0)
        for one in data:
            assert one["twice"].tolist() == (2 * one["action"]).tolist()


def test_each_transition_contains_the_level_of_its_env() -> None:
    collector = collector_of(BattleSampleSerialCollector, relay_env(3))

    data, _ = collector.collect(9, level_seeds=[10, 20, 30])

    for one in data:
        assert one["seed"].tolist() == [10 * (env_id // 2 + 1) for env_id in one["env_id"].tolist()]
    with pytest.raises(ValueError, match="level_seeds must be one int for each of 3 envs"):
        collector.collect(1, level_seeds=[1])


@pytest.mark.parametrize("kind", KINDS)
def test_levels_that_are_no_ints_are_refused(kind: Any) -> None:
    with pytest.raises(ValueError, match="level_seeds must be one int for each of 3 envs"):
        collector_of(kind, relay_env(3)).collect(1, level_seeds=[1.5, 2.5, 3.5])


@pytest.mark.parametrize(("first", "then"), [([1, 2, 3], None), (None, [1, 2, 3])])
def test_levels_that_come_and_go_while_transitions_wait_are_refused_before_a_step(first: Any, then: Any) -> None:
    collector = collector_of(BattleSampleSerialCollector, relay_env(3))
    collector.collect(1, level_seeds=first)
    envstep = collector.envstep

    with pytest.raises(ValueError, match=r"level_seeds must be given or not as for the \d+ transitions of player \d"):
        collector.collect(9, level_seeds=then)

    assert collector.envstep == envstep


@pytest.mark.parametrize(("first", "then"), [([1, 2, 3], None), (None, [1, 2, 3])])
def test_levels_may_come_and_go_between_calls_that_give_whole_episodes(first: Any, then: Any) -> None:
    collector = collector_of(BattleEpisodeSerialCollector, relay_env(3))
    collector.collect(3, level_seeds=first)

    data, _ = collector.collect(3, level_seeds=then)

    assert all(("seed" in episode) == (then is not None) for of_player in data for episode in of_player)


def test_counters_add_up_and_can_be_set() -> None:
    collector = collector_of(BattleEpisodeSerialCollector, relay_env(3))
    collector.envstep = 1000

    collector.collect(3)

    assert collector.envstep == 1000 + 1 + 2 + 5
    assert collector.episode == 3
    # one move 1; two moves 1 - 2; five moves 1 - 2 + 3 - 4 + 5
    assert collector.pop_episodes() == ([1.0, -1.0, 3.0], [1, 2, 5])
    assert collector.pop_episodes() == ([], [])


def test_reset_env_begins_new_episodes_and_keeps_what_was_collected() -> None:
    env = relay_env(2)
    for game in games(env):
        game.lengths = (30,)
    collector = collector_of(BattleSampleSerialCollector, env)
    collector.collect(1)
    assert collector._moves.is_open.any()

    collector.reset_env()
    data, _ = collector.collect(4)

    for one in data:
        assert one["obs"][:, 1].tolist() == sorted(one["obs"][:, 1].tolist())
        assert set(one["obs"][:, 1].tolist()) == {0.0, 1.0}
        rows = rows_of(one)
        assert all(row[0][1] == row[3][1] for row in rows)  # no transition from one episode to another
    assert collector.envstep > 4


def test_reset_starts_over() -> None:
    env = relay_env(2)
    collector = collector_of(BattleSampleSerialCollector, env)
    collector.collect(5)

    collector.reset()

    counters = (collector.envstep, collector.episode, collector.sample, collector.dropped_episode)
    assert counters == (0, 0, 0, 0)
    assert collector.pop_episodes() == ([], [])
    data, _ = collector.collect(1)
    assert data[0]["episode_id"].tolist() == [0]


def test_reset_takes_another_env_with_another_number_of_players() -> None:
    collector = collector_of(BattleSampleSerialCollector, relay_env(2))
    env = relay_env(2, num_players=3, rotate_seats=True)

    collector.reset(modes(players_of(env)), env)

    assert len(collector.collect(1)[0]) == 3


def test_reset_policy_takes_other_policies_and_forgets_the_open_moves_of_the_old_ones() -> None:
    env = relay_env(2)
    for game in games(env):
        game.lengths = (30,)
    collector = collector_of(BattleSampleSerialCollector, env)
    collector.collect(1)
    new = [Player(shift=2), Player(shift=3)]

    collector.reset_policy(modes(new))
    collector._kept.clear()
    data, _ = collector.collect(6)

    for shift, one in zip((2, 3), data, strict=True):
        assert one["action"].tolist() == ((one["obs"].sum(1) + shift) % 4).tolist()


def test_reset_policy_alone_resets_what_is_there() -> None:
    env = relay_env(2)
    players = players_of(env)
    collector = collector_of(BattleSampleSerialCollector, env, players)
    collector.reset_policy()

    assert players[0].resets == [None, None]


@pytest.mark.parametrize("kind", KINDS)
def test_collector_may_be_made_with_nothing(kind: Any) -> None:
    collector = kind()
    with pytest.raises(RuntimeError, match="no policy"):
        collector.collect(1)
    collector.reset_policy([Player().mode, Player().mode])
    with pytest.raises(RuntimeError, match="no env"):
        collector.collect(1)
    collector.reset_env(relay_env())

    assert len(collector.collect(1)[0]) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_number_of_policies_must_be_that_of_the_players(kind: Any) -> None:
    three = [Player().mode for _ in range(3)]
    with pytest.raises(ValueError, match="as many modes as the env has players, 2, got 3"):
        kind(env=relay_env(), policy=three)
    with pytest.raises(ValueError, match="as many modes as the env has players, 2, got 3"):
        kind(policy=three).reset_env(relay_env())
    with pytest.raises(ValueError, match="policy must be a sequence of at least two modes, got '1 of them'"):
        kind(policy=three[:1])
    with pytest.raises(TypeError, match="policy must be a sequence with the mode of each player, got CollectMode"):
        kind(policy=three[0])


def test_close_leaves_the_env_open() -> None:
    env = relay_env()
    with collector_of(BattleSampleSerialCollector, env) as collector:
        collector.collect(1)

    assert not games(env)[0].is_closed
    with pytest.raises(RuntimeError, match="no policy"):
        collector.collect(1)


@pytest.mark.parametrize(("name", "kind"), [("sample_1v1", KINDS[0]), ("episode_1v1", KINDS[1])])
def test_collectors_are_made_by_name(name: str, kind: type) -> None:
    env = relay_env()
    collector: Any = create_serial_collector(CollectorConfig(type=name), env=env, policy=modes(players_of(env)))

    assert len(collector.collect(2)[0]) == 2
    assert type(collector) is kind


def test_report_says_what_every_player_gained(caplog: pytest.LogCaptureFixture) -> None:
    written: list[tuple[str, float, int]] = []

    class Writer:
        def add_scalar(self, name: str, value: float, step: int) -> None:
            written.append((name, value, step))

    env = relay_env(3)
    collector = BattleEpisodeSerialCollector(
        {"collect_print_freq": 5}, env, modes(players_of(env)), Writer(), "games", "duel"
    )
    collector.collect(3, train_iter=4)
    assert written == []
    with caplog.at_level(logging.INFO, "lightning_ding.games.duel"):
        collector.collect(3, train_iter=5)

    values = {name: value for name, value, step in written if step == 5}
    # episodes: 1 | 1 - 2 | 3, and then 1 | 1 - 2 + 3 - 4 | 1 - 2 + 3
    assert values["duel_iter/return0_mean"] == pytest.approx(np.mean([1, -1, 3, 1, -2, 2]))
    assert values["duel_iter/return1_mean"] == pytest.approx(np.mean([-1, 1, -3, -1, 2, -2]))
    assert (values["duel_iter/return0_min"], values["duel_iter/return0_max"]) == (-2, 3)
    assert values["duel_iter/episode_count"] == 6
    assert values["duel_iter/avg_envstep_per_episode"] == pytest.approx((1 + 2 + 5 + 1 + 4 + 3) / 6)
    assert values["duel_iter/total_envstep_count"] == 16
    assert values["duel_iter/train_sample_count"] == 16  # moves of both players
    assert "return0_mean" in caplog.text
    assert {step for name, _, step in written if name.startswith("duel_step/")} == {16}


def test_report_waits_for_its_time() -> None:
    counts: list[float] = []

    class Writer:
        def add_scalar(self, name: str, value: float, step: int) -> None:
            if name.endswith("iter/episode_count"):
                counts.append(value)

    env = relay_env(3)
    collector: Callable[..., Any] = BattleEpisodeSerialCollector(
        {"collect_print_freq": 10}, env, modes(players_of(env)), Writer()
    ).collect
    for train_iter in range(1, 31):
        collector(3, train_iter=train_iter)

    assert counts == [30, 30, 30]


def test_players_with_memory_are_refused() -> None:
    policy = R2D2Policy({"model": {"obs_shape": 4, "action_shape": 2}})
    for both in ([policy.collect_mode] * 2, [policy.eval_mode] * 2):
        with pytest.raises(ValueError, match="policy of player 0 must be one without memory"):
            check_players(both, 2)
