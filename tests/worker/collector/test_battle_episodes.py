"""Whole episodes of several players, and faults of their envs."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from lightning_ding.envs import PettingZooVectorEnv
from lightning_ding.worker import BattleEpisodeSerialCollector, BattleSampleSerialCollector, episodes
from tests.toys.games import RelayGame
from tests.worker.collector.battle_toys import (
    KINDS,
    Player,
    collector_of,
    games,
    players_of,
    relay_env,
    relay_episode,
    rows_of,
)


class FaultyGame(RelayGame):
    """Fails at its third move, but in every third episode of all of its kind."""

    made = itertools.count()

    def step(self, action: Any) -> None:
        super().step(action)
        if len(self.moves) == 3 and self.number % 3:
            raise OSError("lost the connection")

    @classmethod
    def make(cls) -> FaultyGame:
        return cls(next(cls.made))


def share(n_episode: int, num_envs: int, first: int) -> list[int]:
    """Return how many episodes each env owes, dealing them out one by one."""
    owed = [0] * num_envs
    for number in range(n_episode // num_envs * num_envs):
        owed[number % num_envs] += 1
    for number in range(n_episode % num_envs):
        owed[(first + number) % num_envs] += 1
    return owed


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 5), st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_every_env_delivers_its_share_and_its_episodes_without_a_gap(num_envs: int, calls: list[int]) -> None:
    env = relay_env(num_envs)
    collector = collector_of(BattleEpisodeSerialCollector, env)
    delivered: list[list[int]] = [[] for _ in range(num_envs)]
    turn = 0
    for n_episode in calls:
        data, info = collector.collect(n_episode)
        expected = share(n_episode, num_envs, turn % num_envs)
        turn += n_episode
        assert [len(data[0]), len(info[0]), len(info[1])] == [n_episode] * 3
        found = [int(episode["obs"][0, 0]) for episode in data[0]]
        assert [found.count(env_id) for env_id in range(num_envs)] == expected
        for episode in data[0]:
            delivered[int(episode["obs"][0, 0])].append(int(episode["obs"][0, 1]))
    assert delivered == [list(range(len(of_env))) for of_env in delivered]
    assert collector.episode == sum(calls)


def test_short_games_are_not_over_represented() -> None:
    collector = collector_of(BattleEpisodeSerialCollector, relay_env(3))  # 1, 2 to 4 and 3 to 7 moves

    _, info = collector.collect(30)

    assert np.bincount([episode["env_id"] for episode in info[0]]).tolist() == [10, 10, 10]


@pytest.mark.parametrize("num_players", [2, 3])
def test_episodes_are_whole_and_those_of_the_games(num_players: int) -> None:
    env = relay_env(3, num_players, rotate_seats=True)
    collector = collector_of(BattleEpisodeSerialCollector, env)
    for _ in range(2):
        data, info = collector.collect(7)
        for player in range(num_players):
            moved = [one for one in info[player] if one["episode_length"]]
            assert [episode["episode_id"][0].item() for episode in data[player]] == [one["episode_id"] for one in moved]
            for episode, one in zip(data[player], moved, strict=True):
                env_id, number = int(episode["obs"][0, 0]), int(episode["obs"][0, 1])
                expected = relay_episode(env_id, number, player, num_players, one["seat"])
                assert rows_of(episode) == expected
                assert one["seat"] == (player + env_id + number) % num_players
                assert one["env_id"] == env_id
                assert one["episode_length"] == len(expected)


def test_return_counts_what_a_player_gained_before_its_first_move() -> None:
    env = relay_env(1)  # one move: player 0 gets 1, player 1 -1 without having moved
    data, info = collector_of(BattleEpisodeSerialCollector, env).collect(2)

    assert [[one["eval_episode_return"] for one in of_player] for of_player in info] == [[1, 1], [-1, -1]]
    assert [one["episode_length"] for one in info[1]] == [0, 0]
    assert len(data[0]) == 2
    assert data[1] == []  # an episode without a move has no transitions


def test_env_with_a_full_share_stands_still() -> None:
    env = relay_env(3)
    collector = collector_of(BattleEpisodeSerialCollector, env)

    collector.collect(4)

    assert [len(game.seeds) for game in games(env)] == [2, 1, 1]  # episodes that were ever begun
    assert collector.envstep == 2 * 1 + 2 + 5


def test_all_moves_are_of_the_newest_version() -> None:
    collector = collector_of(BattleEpisodeSerialCollector, relay_env(3))
    for train_iter in (3, 4):
        data, _ = collector.collect(4, train_iter=train_iter)
        assert {version for episode in itertools.chain(*data) for version in episode["policy_version"].tolist()} == {
            train_iter
        }


def test_number_of_episodes_is_asked_of_the_first_policy_that_learns() -> None:
    players = [Player(n_episode=2, collect_data=False), Player(n_episode=5)]
    data, info = collector_of(BattleEpisodeSerialCollector, relay_env(), players).collect()

    assert data[0] is None
    assert len(info[0]) == 5


def test_train_samples_of_all_episodes_come_in_one() -> None:
    players = [Player(), Player()]
    collector = collector_of(BattleEpisodeSerialCollector, relay_env(3), players, get_train_sample=True)
    data, info = collector.collect(6)

    for player in range(2):
        lengths = [one["episode_length"] for one in info[player] if one["episode_length"]]
        assert [len(episode["reward"]) for episode in players[player].handed_over] == lengths
        assert data[player]["seen"].tolist() == [1] * sum(lengths)


def test_train_samples_of_nothing_are_empty() -> None:
    data, _ = collector_of(BattleEpisodeSerialCollector, relay_env(1), get_train_sample=True).collect(2)

    assert data[1] == {}


def test_train_samples_are_cut_into_windows_for_policies_with_memory() -> None:
    players = [Player(unroll_len=2), Player()]
    collector = collector_of(BattleEpisodeSerialCollector, relay_env(3), players, get_train_sample=True)
    data, info = collector.collect(3)

    assert [one["episode_length"] for one in info[0]] == [1, 1, 3]
    assert data[0]["mask"].tolist() == [[True, False], [True, False], [True, True], [True, False]]
    assert "mask" not in data[1]


def test_sample_collector_refuses_policies_with_memory() -> None:
    with pytest.raises(ValueError, match=r"collect.unroll_len must be 1 with this collector, got 2"):
        collector_of(BattleSampleSerialCollector, relay_env(), [Player(), Player(unroll_len=2)])


def test_call_that_was_broken_off_leaves_nothing_to_the_next_one() -> None:
    env = relay_env(3)
    players = players_of(env)
    collector = collector_of(BattleEpisodeSerialCollector, env, players)

    def stumble(obs: Any) -> Any:
        if len(players[1].seen) == 1:
            raise KeyboardInterrupt
        return Player.forward(players[1], obs)

    policies = [players[0].mode, players[1].mode._replace(forward=stumble)]
    collector.reset_policy(policies)
    with pytest.raises(KeyboardInterrupt):
        collector.collect(3)
    players[1].seen.append(None)

    data, info = collector.collect(3)

    assert len(info[0]) == 3
    for episode in itertools.chain(*data):
        env_id, number = int(episode["obs"][0, 0]), int(episode["obs"][0, 1])
        player = int(episode["player"][0])
        assert rows_of(episode) == relay_episode(env_id, number, player, 2, player)


def faulty_env(num_envs: int = 2, max_faults: int = 5) -> PettingZooVectorEnv:
    FaultyGame.made = itertools.count()
    return PettingZooVectorEnv(FaultyGame.make, num_envs, max_faults=max_faults)


@pytest.mark.parametrize("kind", KINDS)
def test_fault_is_raised_with_the_env_by_default(kind: Any) -> None:
    collector = collector_of(kind, faulty_env())  # game 0 is good, game 1 fails

    with pytest.raises(RuntimeError, match="env 1 reported a fault: OSError: lost the connection; with env_fault="):
        collector.collect(20)


def test_episode_with_a_fault_is_dropped_and_another_one_comes_for_it() -> None:
    collector = collector_of(BattleEpisodeSerialCollector, faulty_env(), env_fault="drop")

    data, info = collector.collect(6)

    # env 1 fails in games 1 and 2 and is then game 3, which is good
    assert collector.dropped_episode == 2
    assert [one["env_id"] for one in info[0]].count(1) == 3
    assert collector.episode == len(info[0]) == 6
    assert {int(episode["obs"][0, 0]) for episode in itertools.chain(*data)} == {0, 3}
    assert all(len(episode["reward"]) == length for episode, length in zip(data[0], [3] * 6, strict=True))
    assert collector.envstep == 6 * 5 + 2 * 2  # the steps that failed are none


def test_sample_collector_keeps_what_was_good_before_a_fault() -> None:
    collector = collector_of(BattleSampleSerialCollector, faulty_env(), env_fault="drop")

    data, info = collector.collect(20, drop_extra=False)

    assert collector.dropped_episode == 2
    first = data[0]
    for number, moves in ((1, [0.0]), (2, [0.0])):  # player 0's second move was the one that failed
        assert first["obs"][first["obs"][:, 0] == number, 2].tolist() == moves
    assert len(data[1]["obs"][data[1]["obs"][:, 0] == 1]) == 0  # player 1's move was still open
    assert len(info[0]) == collector.episode
    ids = first["episode_id"][first["obs"][:, 0] == 1].tolist()
    assert set(ids).isdisjoint(first["episode_id"][first["obs"][:, 0] != 1].tolist())


def test_policies_are_reset_where_an_episode_was_dropped() -> None:
    players = [Player(), Player()]
    collector = collector_of(BattleEpisodeSerialCollector, faulty_env(), players, env_fault="drop")
    collector.collect(2)

    assert players[0].resets == [None, [1], [0], [1], [1]]  # two faults of env 1 before it is good


def test_env_that_only_fails_does_not_block_a_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episodes, "MAX_FAULTS", 3)
    env = PettingZooVectorEnv(functools.partial(FaultyGame, 1), max_faults=100)
    collector = collector_of(BattleEpisodeSerialCollector, env, env_fault="drop")

    with pytest.raises(RuntimeError, match=r"env 0 reported 4 faults without a finished episode between.*OSError"):
        collector.collect(1)


def test_complete_episode_resets_the_fault_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episodes, "MAX_FAULTS", 2)
    games_to_come = iter([FaultyGame(n) for n in (1, 1, 0)])
    env = PettingZooVectorEnv(lambda: next(games_to_come), max_faults=100)
    collector = collector_of(BattleEpisodeSerialCollector, env, env_fault="drop")

    collector.collect(1)

    assert (collector.dropped_episode, collector._faults.count.tolist()) == (2, [0])


def test_value_that_is_not_finite_raises_with_env_and_player() -> None:
    class NanGame(RelayGame):
        def observe(self, agent: str) -> Any:
            return super().observe(agent) * (np.nan if len(self.moves) == 2 and agent == "player_1" else 1)

    numbers = iter((0, 1))
    env = PettingZooVectorEnv(lambda: NanGame(next(numbers), lengths=(2 - 1, 5)), 2)
    collector = collector_of(BattleSampleSerialCollector, env)

    with pytest.raises(ValueError, match="env 0, player 1: the observation is not finite"):
        collector.collect(20)


def test_collector_says_what_to_do_after_an_env_failed() -> None:
    collector = collector_of(BattleSampleSerialCollector, faulty_env(max_faults=0))
    with pytest.raises(RuntimeError, match="env 1 failed"):
        collector.collect(20)

    with pytest.raises(RuntimeError, match=r"the last step of the env failed: call reset_env\(\)"):
        collector.collect(1)
