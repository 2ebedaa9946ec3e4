"""Numbers of transitions collected from several players, and buffers that take them."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from lightning_ding.envs import PettingZooVectorEnv
from lightning_ding.worker import BattleSampleSerialCollector, NaiveReplayBuffer
from lightning_ding.worker.collector import battle_sample
from tests.toys.games import RelayGame
from tests.worker.collector.battle_toys import KINDS, Player, collector_of, games, relay_env, relay_episode, rows_of


@pytest.mark.parametrize("rotate_seats", [False, True])
@pytest.mark.parametrize("num_players", [2, 3])
def test_transitions_over_many_calls_are_those_of_the_games_each_once(num_players: int, rotate_seats: bool) -> None:
    env = relay_env(4, num_players, rotate_seats)
    collector = collector_of(BattleSampleSerialCollector, env)

    batches = [collector.collect(amount)[0] for amount in (1, 7, 40, 3, 29)]

    for player in range(num_players):
        data = [batch[player] for batch in batches]
        assert [len(one["reward"]) for one in data] == [1, 7, 40, 3, 29]
        for env_id in range(4):
            found = [row for one in data for row, i in zip(rows_of(one), one["env_id"].tolist(), strict=True)
                     if i == env_id * num_players + player]  # fmt: skip
            expected = [
                row
                for episode in range(400)
                for row in relay_episode(
                    env_id, episode, player, num_players, (player + (env_id + episode) * rotate_seats) % num_players
                )
            ]
            assert found == expected[: len(found)]
            assert len(found) > 1 or env_id % 3 == 0  # where most players are never in turn


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 5), st.integers(2, 4), st.lists(st.integers(1, 12), min_size=1, max_size=4))
def test_exactly_what_was_asked_for_comes_for_every_player(num_envs: int, num_players: int, amounts: list[int]) -> None:
    collector = collector_of(BattleSampleSerialCollector, relay_env(num_envs, num_players, True))
    for amount in amounts:
        data, _ = collector.collect(amount)
        assert [len(one["reward"]) for one in data] == [amount] * num_players
        assert [set(one["player"].tolist()) for one in data] == [{player} for player in range(num_players)]
    assert collector.sample == num_players * sum(amounts)


def test_all_there_is_comes_without_dropping_what_is_beyond() -> None:
    collector = collector_of(BattleSampleSerialCollector, relay_env(3))

    (first, second), _ = collector.collect(2, drop_extra=False)

    assert len(first["reward"]) > 2
    assert len(second["reward"]) >= 2
    assert collector.sample == len(first["reward"]) + len(second["reward"])
    assert [len(one["reward"]) for one in collector.collect(1)[0]] == [1, 1]


def test_more_players_than_samples_lose_none_of_their_data() -> None:
    data, _ = collector_of(BattleSampleSerialCollector, relay_env(3, num_players=4)).collect(1)

    assert [len(one["reward"]) for one in data] == [1, 1, 1, 1]


def test_every_player_gets_what_its_own_policy_asks_for() -> None:
    players = [Player(n_sample=3), Player(n_sample=8)]
    data, _ = collector_of(BattleSampleSerialCollector, relay_env(), players).collect()

    assert [len(one["reward"]) for one in data] == [3, 8]


@pytest.mark.parametrize("asked", [0, -1, 2.0, None])
@pytest.mark.parametrize("kind", KINDS)
def test_amount_out_of_range_is_refused(kind: Any, asked: Any) -> None:
    players = [Player(n_sample=asked, n_episode=asked) for _ in range(2)]
    name = "n_sample of player 0" if kind is BattleSampleSerialCollector else "n_episode"

    with pytest.raises(ValueError, match=f"{name} must be an int >= 1, got {asked}"):
        collector_of(kind, relay_env(), players).collect()


@pytest.mark.parametrize("kind", KINDS)
def test_amount_may_be_a_numpy_integer_but_no_bool(kind: Any) -> None:
    name = "n_sample of player 0" if kind is BattleSampleSerialCollector else "n_episode"
    collector = collector_of(kind, relay_env())

    (data, _), _ = collector.collect(np.int64(3))

    assert len(data["reward"] if isinstance(data, dict) else data) == 3
    with pytest.raises(ValueError, match=f"{name} must be an int >= 1, got True"):
        collector.collect(True)


@pytest.mark.parametrize("kind", KINDS)
def test_amount_that_neither_call_nor_policy_says_is_an_error_that_names_it(kind: Any) -> None:
    name = "n_sample of player 0" if kind is BattleSampleSerialCollector else "n_episode"
    with pytest.raises(ValueError, match=f"{name} must be an int >= 1, got None"):
        collector_of(kind, relay_env()).collect()


def test_what_the_policy_gave_stays_with_its_move() -> None:
    data, _ = collector_of(BattleSampleSerialCollector, relay_env(4)).collect(30)

    for one in data:
        assert one["twice"].tolist() == (2 * one["action"]).tolist()
        assert one["seen"].tolist() == [1] * 30  # went through get_train_sample


def test_move_carries_the_version_that_made_it_though_it_ends_in_a_later_call() -> None:
    env = relay_env(2)
    for game in games(env):
        game.lengths = (40,)
    collector = collector_of(BattleSampleSerialCollector, env)
    collector.collect(1, train_iter=5)  # player 1's second move waits for player 0
    assert collector._moves.is_open.any()

    data, _ = collector.collect(4, train_iter=6, drop_extra=False)

    assert sorted(set(data[0]["policy_version"].tolist() + data[1]["policy_version"].tolist())) == [5, 6]


def test_player_that_never_moves_does_not_block_a_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(battle_sample, "MAX_IDLE_EPISODES", 20)
    collector = collector_of(BattleSampleSerialCollector, relay_env(1))  # episodes of one move

    with pytest.raises(RuntimeError, match=r"player\(s\) \[1\] made no move in 21 episodes"):
        collector.collect(1)


def test_player_that_is_seldom_in_turn_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(battle_sample, "MAX_IDLE_EPISODES", 20)
    env = PettingZooVectorEnv(functools.partial(RelayGame, lengths=(*[1] * 15, 2)))

    data, _ = collector_of(BattleSampleSerialCollector, env).collect(4)

    assert data[1]["obs"][:, 1].tolist() == [15, 31, 47, 63]


def test_transitions_of_all_players_may_go_into_one_buffer() -> None:
    env = relay_env(3)
    collector = collector_of(BattleSampleSerialCollector, env)
    buffer = NaiveReplayBuffer({"replay_buffer_size": 1000}, seed=0)
    for _ in range(20):
        for transitions in collector.collect(7)[0]:
            buffer.push({name: transitions[name] for name in transitions if name != "seen"})

    batch: Any = buffer.sample(200, n_step=2, discount_factor=0.5)

    whole = 0
    for row in range(200):
        player, env_id = batch["player"][row].item(), batch["env_id"][row].item() // 2
        episode = relay_episode(env_id, int(batch["obs"][row, 1]), player, 2, player)
        place = [one[0] for one in episode].index(batch["obs"][row].tolist())
        window = episode[place : place + 2]
        if batch["discount"][row] == 0.5 and len(window) == 2:
            continue  # the newest one, whose next one is not there yet
        whole += len(window) == 2
        assert batch["reward"][row] == sum(0.5**k * one[2] for k, one in enumerate(window))
        assert batch["next_obs"][row].tolist() == window[-1][3]
    assert whole > 20
