"""Battle collectors take the collect modes of policies in DI-engine's form, in any combination with others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from easydict import EasyDict

from lightning_ding.worker import BattleEpisodeSerialCollector, BattleSampleSerialCollector
from tests.worker.collector.battle_toys import KINDS, Player, relay_env, relay_episode
from tests.worker.collector.by_env_toys import ByEnvPolicy, row_of
from tests.worker.collector.test_by_env import BaseEnvManager


def expected(env_id: int, episode: int, player: int) -> list[Any]:
    """Return a player's transitions of an episode in the form of ``row_of``; its action is the sum it sees modulo 4."""
    rows = relay_episode(env_id, episode, player, 2, player)
    return [(obs, int(sum(obs)) % 4, reward, after, end or cut) for obs, _, reward, after, end, cut in rows]


def test_episodes_of_each_player_are_lists_of_transitions() -> None:
    policies = [ByEnvPolicy(n_episode=6), ByEnvPolicy(n_episode=6)]
    collector = BattleEpisodeSerialCollector(env=relay_env(), policy=[one.collect_mode for one in policies])

    data, info = collector.collect(None, 5, {"eps": 0.5})

    assert [len(episodes) for episodes in info] == [6, 6]
    for player in (0, 1):
        for episode in data[player]:
            env_id, number = (int(value) for value in episode[0]["obs"][:2])
            assert [row_of(one) for one in episode] == expected(env_id, number, player)
            assert {(one["env_id"], one["player"], one["collect_iter"]) for one in episode} == {
                (env_id * 2 + player, player, 5)
            }
        assert policies[player].kwargs == [{"eps": 0.5}] * len(policies[player].kwargs)


def test_samples_of_each_player_are_a_list() -> None:
    policies = [ByEnvPolicy(n_sample=8), ByEnvPolicy(n_sample=8)]
    collector = BattleSampleSerialCollector(env=relay_env(), policy=[one.collect_mode for one in policies])

    data = [collector.collect(None, number, True, {"eps": 0.5})[0] for number in range(3)]

    for player in (0, 1):
        assert [len(part[player]) for part in data] == [8, 8, 8]
        rows = [row_of(one) for part in data for one in part[player]]
        for env_id in range(3):
            own = [row for row in rows if row[0][0] == env_id]
            known = [row for episode in range(20) for row in expected(env_id, episode, player)]
            assert own == known[: len(own)]


@pytest.mark.parametrize("kind", KINDS)
def test_one_mode_of_two_players_is_called_for_each_with_the_envs_in_which_it_acts(kind: Any) -> None:
    mode = (policy := ByEnvPolicy()).collect_mode

    kind(env=relay_env(), policy=[mode, mode]).collect(4)

    assert len(policy.seen) > 4
    for seen in policy.seen:
        assert {int(obs[0]) for obs in seen.values()} == set(seen)  # the first entry is the number of the env
        assert len({int(obs[3]) for obs in seen.values()}) == 1  # the last one is the seat


@pytest.mark.parametrize("kind", KINDS)
def test_mode_without_collect_data_learns_and_one_with_false_gives_an_empty_list(kind: Any) -> None:
    silent = EasyDict(ByEnvPolicy().collect_mode._asdict(), collect_data=False)

    data, info = kind(env=relay_env(), policy=[ByEnvPolicy().collect_mode, silent]).collect(4)

    assert len(data[0]) >= 4
    assert data[1] == []
    assert len(info) == 2


def test_policies_of_both_forms_play_against_each_other() -> None:
    collector = BattleSampleSerialCollector(env=relay_env(), policy=[ByEnvPolicy().collect_mode, Player().mode])

    data, _ = collector.collect(6)

    assert (type(data[0]), len(data[0])) == (list, 6)
    assert data[1]["obs"].shape == (6, 4)


def test_random_players_get_actions_of_their_own_shape() -> None:
    policies = [ByEnvPolicy(), ByEnvPolicy()]
    collector = BattleSampleSerialCollector(env=relay_env(), policy=[one.collect_mode for one in policies])

    data, _ = collector.collect(20, random_collect=True)

    assert {one["action"].shape for one in data[0]} == {(1,)}
    assert len({int(one["action"]) for one in data[0]}) > 1
    assert not policies[0].seen


def test_episode_collector_returns_training_samples_in_one_list() -> None:
    policies = [ByEnvPolicy(), ByEnvPolicy()]
    modes = [one.collect_mode for one in policies]

    data, _ = BattleEpisodeSerialCollector({"get_train_sample": True}, relay_env(), modes).collect(6)

    assert [id(one) for one in data[0]] == [id(one) for piece in policies[0].pieces for one in piece]
    assert isinstance(data[0][0]["obs"], torch.Tensor)


@pytest.mark.parametrize("kind", KINDS)
def test_amount_is_read_from_the_config_of_the_policy(kind: Any) -> None:
    policies = [ByEnvPolicy(n_sample=5, n_episode=5), ByEnvPolicy(n_sample=5, n_episode=5)]
    for one in policies:
        del one.attributes["n_sample"], one.attributes["n_episode"]

    data, _ = kind(env=relay_env(), policy=[one.collect_mode for one in policies]).collect()

    assert len(data[0]) <= 5  # an episode without a move of a player is left out
    assert len(data[0]) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_single_namedtuple_is_no_sequence_of_modes(kind: Any) -> None:
    with pytest.raises(TypeError, match="policy must be a sequence with the mode of each player, got CollectFunctions"):
        kind(env=relay_env(), policy=ByEnvPolicy().collect_mode)


@pytest.mark.parametrize("kind", KINDS)
def test_an_env_manager_is_refused(kind: Any) -> None:
    with pytest.raises(TypeError, match=r"got BaseEnvManager; .* PettingZooVectorEnv those of games"):
        kind(env=BaseEnvManager())
