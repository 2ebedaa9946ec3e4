"""Games, players and collectors of several policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch

from lightning_ding.envs import PettingZooVectorEnv
from lightning_ding.utils.modes import CollectMode
from lightning_ding.worker import BattleEpisodeSerialCollector, BattleSampleSerialCollector
from tests.toys.games import RelayGame
from tests.worker.collector.sampling_toys import TRUNCATES, PlacePolicy, Row

LENGTHS = [(1,), (2, 4), (5, 3, 7)]  # lengths of the episodes of env 0, 1, 2; later envs repeat them
KINDS = [BattleSampleSerialCollector, BattleEpisodeSerialCollector]


class Player(PlacePolicy):
    """Its action is the sum of what it sees, and a shift, modulo 4; it remembers how it was called."""

    def __init__(self, shift: int = 0, **attributes: Any) -> None:
        super().__init__()
        self.shift, self.attributes = shift, attributes
        self.seen: list[Any] = []

    def forward(self, obs: Any, **kwargs: Any) -> dict[str, Any]:
        self.seen.append(torch.as_tensor(obs))
        action = (super().forward(obs, **kwargs)["action"] + self.shift) % 4
        return {"action": action, "extra": {"twice": 2.0 * action}}

    def process_transition(self, obs: Any, output: dict[str, Any], timestep: Any) -> dict[str, Any]:
        extra = output.get("extra", {"twice": 2.0 * output["action"]})
        return super().process_transition(obs, output, timestep) | {"twice": extra["twice"]}

    def get_train_sample(self, data: Any) -> Any:
        return {**super().get_train_sample(data), "seen": np.ones(len(data["reward"]))}


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
