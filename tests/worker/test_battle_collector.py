"""The collectors of several players: right transitions, exact amounts, quotas, faults, one forward pass a step."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pettingzoo.classic import connect_four_v3, rps_v2, tictactoe_v3

from lightning_ding.envs import PettingZooVectorEnv
from lightning_ding.envs.toy_games import RelayGame
from lightning_ding.policy import DQNPolicy
from lightning_ding.policy.modes import CollectMode
from lightning_ding.policy.random import random_collect_mode
from lightning_ding.worker import (
    BattleEpisodeSerialCollector,
    BattleSampleSerialCollector,
    NaiveReplayBuffer,
    create_serial_collector,
)
from lightning_ding.worker.collector import battle, battle_sample
from lightning_ding.worker_config import CollectorConfig

Row = tuple[list[float], int, float, list[float], bool, bool]  # obs, action, reward, next_obs, terminated, truncated
LENGTHS = [(1,), (2, 4), (5, 3, 7)]  # of the episodes of env 0, 1, 2; later envs take turns
TRUNCATES = [(True, False), (False,), (False, True)]
KINDS = [BattleSampleSerialCollector, BattleEpisodeSerialCollector]


class Player:
    """Its action is the sum of what it sees modulo 4; it remembers how it was called."""

    def __init__(self, shift: int = 0, **attributes: Any) -> None:
        self.shift = shift
        self.attributes = attributes
        self.seen: list[Any] = []
        self.kwargs: list[dict[str, Any]] = []
        self.resets: list[Sequence[int] | None] = []
        self.handed_over: list[Any] = []

    def forward(self, obs: Any, **kwargs: Any) -> dict[str, Any]:
        self.seen.append(torch.as_tensor(obs))
        self.kwargs.append(kwargs)
        action = (self.seen[-1].sum(1).long() + self.shift) % 4
        return {"action": action, "extra": {"twice": 2.0 * action}}

    def process_transition(self, obs: Any, output: dict[str, Any], timestep: Any) -> dict[str, Any]:
        named = {name: getattr(timestep, name) for name in ("reward", "next_obs", "terminated", "truncated")}
        extra = {"twice": output["extra"]["twice"]} if "extra" in output else {"twice": 2.0 * output["action"]}
        return {"obs": obs, "action": output["action"], **extra, **named}

    def get_train_sample(self, data: Any) -> Any:
        self.handed_over.append(data)
        return {**data, "seen": torch.ones(len(data["reward"]))}

    def reset(self, data_id: Sequence[int] | None = None) -> None:
        self.resets.append(data_id)

    def get_attribute(self, name: str) -> Any:
        if name not in self.attributes:
            raise NotImplementedError(name)
        return self.attributes[name]

    @property
    def mode(self) -> CollectMode:
        def nothing(*_: Any) -> Any:
            raise AssertionError("a collector must not touch this")

        functions = (self.forward, self.process_transition, self.get_train_sample, self.reset, self.get_attribute)
        return CollectMode(*functions, nothing, nothing, nothing)


class ScriptedPlayer(Player):
    """Makes the given moves, one a turn."""

    def __init__(self, *moves: int) -> None:
        super().__init__()
        self.moves = iter(moves)

    def forward(self, obs: Any, **kwargs: Any) -> dict[str, Any]:
        return {"action": torch.tensor([next(self.moves)])}


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


def relay_env(num_envs: int = 3, num_players: int = 2, rotate_seats: bool = False) -> PettingZooVectorEnv:
    numbers = iter(range(num_envs))

    def make() -> RelayGame:
        number = next(numbers)
        return RelayGame(number, num_players, LENGTHS[number % 3], TRUNCATES[number % 3])

    return PettingZooVectorEnv(make, num_envs, rotate_seats)


def games(env: PettingZooVectorEnv) -> list[RelayGame]:
    return [game.env for game in env._games]


def players_of(env: PettingZooVectorEnv) -> list[Player]:
    return [Player(shift) for shift in range(env.num_players)]


def modes(players: Sequence[Player]) -> list[CollectMode]:
    return [player.mode for player in players]


def collector_of(kind: Any, env: PettingZooVectorEnv, players: Sequence[Player] | None = None, **cfg: Any) -> Any:
    return kind(cfg, env=env, policy=modes(players_of(env) if players is None else players))


def relay_episode(number: int, episode: int, player: int, num_players: int, seat: int) -> list[Row]:
    """Return a player's transitions of an episode of a relay game, worked out turn by turn."""
    lengths, truncates = LENGTHS[number % 3], TRUNCATES[number % 3]
    length, is_cut = lengths[episode % len(lengths)], truncates[episode % len(truncates)]
    rows: list[Row] = []
    for turn in range(seat, length, num_players):
        until = min(turn + num_players, length)
        reward = sum(move if (move - 1) % num_players == seat else -move for move in range(turn + 1, until + 1))
        ended = until == length
        obs, next_obs = ([float(number), float(episode), float(moves), float(seat)] for moves in (turn, until))
        action = (int(sum(obs)) + player) % 4
        rows.append((obs, action, float(reward), next_obs, ended and not is_cut, ended and is_cut))
    return rows


def rows_of(data: dict[str, Any]) -> list[Row]:
    names = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
    return cast("list[Row]", list(zip(*(data[name].tolist() for name in names), strict=True)))


def board(data: Any, row: int) -> list[int]:
    """Return what a player saw of a tic-tac-toe board: 1 its own marks, 2 the other's."""
    planes = data["observation"][row]
    return cast("list[int]", (planes[..., 0] + 2 * planes[..., 1]).flatten().tolist())


# ------------------------------------------------------------------ games worked out by hand


@pytest.mark.parametrize("kind", KINDS)
def test_both_players_of_tic_tac_toe_get_their_transitions_and_the_end(kind: Any) -> None:
    env = PettingZooVectorEnv(tictactoe_v3.env)
    players = [ScriptedPlayer(0, 1, 2), ScriptedPlayer(3, 4)]  # the first player fills a line
    collector = kind(env=env, policy=modes(players))

    data, info = collector.collect(2) if kind is BattleSampleSerialCollector else collector.collect(1)
    if kind is BattleSampleSerialCollector:
        (first, second), _ = (data, info)
        rest = collector._kept[0][0]
        first = {name: torch.cat([first[name], rest[name]]) for name in ("action", "reward", "terminated")} | {
            "obs": {name: torch.cat([first["obs"][name], rest["obs"][name]]) for name in first["obs"]},
            "next_obs": {name: torch.cat([first["next_obs"][name], rest["next_obs"][name]]) for name in first["obs"]},
        }
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


# ------------------------------------------------------------------ samples


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


def test_player_that_is_never_in_turn_does_not_keep_a_collector_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(battle_sample, "MAX_IDLE_EPISODES", 20)
    collector = collector_of(BattleSampleSerialCollector, relay_env(1))  # episodes of one move

    with pytest.raises(RuntimeError, match=r"player\(s\) \[1\] made no move in 21 episodes"):
        collector.collect(1)


def test_player_that_is_seldom_in_turn_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(battle_sample, "MAX_IDLE_EPISODES", 20)
    env = PettingZooVectorEnv(functools.partial(RelayGame, lengths=(*[1] * 15, 2)))

    data, _ = collector_of(BattleSampleSerialCollector, env).collect(4)

    assert data[1]["obs"][:, 1].tolist() == [15, 31, 47, 63]


# ------------------------------------------------------------------ buffers


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


# ------------------------------------------------------------------ who learns, who is called


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
            assert episode["obs"][:, 3].unique().tolist() == [(number + env_id) % 2]
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


# ------------------------------------------------------------------ random actions and levels


def test_random_collecting_is_for_those_that_learn() -> None:
    env = relay_env(4)
    env.action_space.seed(0)
    players = [Player(), Player(collect_data=False)]
    data, _ = collector_of(BattleSampleSerialCollector, env, players).collect(200, random_collect=True)

    assert players[0].seen == []
    assert len(players[1].seen) > 0
    assert np.bincount(data[0]["action"].numpy()).min() > 20
    assert set(data[0]) >= {"obs", "action", "reward", "next_obs", "twice", "env_id", "policy_version"}


def test_random_actions_are_legal() -> None:
    env = PettingZooVectorEnv(tictactoe_v3.env, num_envs=4)
    policy = [random_collect_mode(env.single_action_space) for _ in range(2)]
    for mode in policy:
        mode.set_attribute("collect_data", True)
        assert mode.get_attribute("collect_data") is True
    data, info = BattleEpisodeSerialCollector(env=env, policy=policy).collect(20, random_collect=True)

    for episode in itertools.chain(*data):
        assert episode["obs"]["action_mask"].gather(1, episode["action"][:, None]).all()
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


def test_level_of_the_env_stands_beside_each_transition() -> None:
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


# ------------------------------------------------------------------ whole episodes


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


# ------------------------------------------------------------------ faults


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


def test_env_that_only_fails_does_not_keep_a_collector_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(battle, "MAX_FAULTS", 3)
    env = PettingZooVectorEnv(functools.partial(FaultyGame, 1), max_faults=100)
    collector = collector_of(BattleEpisodeSerialCollector, env, env_fault="drop")

    with pytest.raises(RuntimeError, match=r"env 0 reported 4 faults without a finished episode between.*OSError"):
        collector.collect(1)


def test_faults_are_counted_anew_after_a_good_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(battle, "MAX_FAULTS", 2)
    games_to_come = iter([FaultyGame(n) for n in (1, 1, 0)])
    env = PettingZooVectorEnv(lambda: next(games_to_come), max_faults=100)
    collector = collector_of(BattleEpisodeSerialCollector, env, env_fault="drop")

    collector.collect(1)

    assert (collector.dropped_episode, collector._faults.tolist()) == (2, [0])


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


# ------------------------------------------------------------------ counters and life


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
    collector._kept, collector._kept_count = {}, {}
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
    with pytest.raises(RuntimeError, match="no policies"):
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
    with pytest.raises(RuntimeError, match="no policies"):
        collector.collect(1)


def test_default_config_names_the_keys_that_do_something() -> None:
    common = {"type", "import_names", "cfg_type", "collect_print_freq", "env_fault"}

    assert set(BattleSampleSerialCollector.default_config()) == common
    assert set(BattleEpisodeSerialCollector.default_config()) == {*common, "get_train_sample"}
    assert BattleSampleSerialCollector.default_config().type == "sample_1v1"
    assert BattleEpisodeSerialCollector.default_config().type == "episode_1v1"


def test_key_of_another_collector_is_refused() -> None:
    with pytest.raises(ValueError, match="'get_train_sample' does nothing in BattleSampleSerialCollector"):
        BattleSampleSerialCollector({"get_train_sample": True})
    with pytest.raises(ValueError, match="'reward_shaping' does nothing in BattleEpisodeSerialCollector"):
        BattleEpisodeSerialCollector({"reward_shaping": True})


@pytest.mark.parametrize(("name", "kind"), [("sample_1v1", KINDS[0]), ("episode_1v1", KINDS[1])])
def test_collectors_are_made_by_name(name: str, kind: type) -> None:
    env = relay_env()
    collector: Any = create_serial_collector(CollectorConfig(type=name), env=env, policy=modes(players_of(env)))

    assert len(collector.collect(2)[0]) == 2
    assert type(collector) is kind


# ------------------------------------------------------------------ reports


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
