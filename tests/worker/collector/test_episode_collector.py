"""The episode collector: whole episodes, no env preferred, each step once and in order."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from hypothesis import given, settings, strategies as st

from lightning_ding.worker import EpisodeSerialCollector
from tests.toys.envs import CountingEnv
from tests.worker.collector.episode_toys import LENGTHS, Lengths, PlacePolicy, collect, collector_of, each_mode, envs
from tests.worker.collector.sampling_toys import MODES, Metronome

pausing = pytest.mark.parametrize("can_pause", [True, False], ids=["pausable", "not_pausable"])


def whole_episode(number: int, episode: int, lengths: Lengths) -> list[list[float]]:
    """Return the rows of an episode, from the definition of CountingEnv: obs, next_obs, reward, ends."""
    length = lengths[number][episode % len(lengths[number])]
    return [[number, episode, t, number, episode, t + 1, t + 1, t + 1 == length] for t in range(length)]


def rows(episode: dict[str, Any]) -> list[list[float]]:
    named = [episode["obs"], episode["next_obs"], episode["reward"][:, None], episode["terminated"][:, None]]
    table: list[list[float]] = np.concatenate([column.astype(np.float32) for column in named], axis=1).tolist()
    return table


def deal(n_episodes: Sequence[int], num_envs: int) -> list[list[tuple[int, int]]]:
    """Return which episode of which env is handed over by each call: dealt out one by one, turn by turn."""
    turn, given, calls = 0, [0] * num_envs, []
    for n_episode in n_episodes:
        dealt = []
        for _ in range(n_episode):
            dealt.append((turn % num_envs, given[turn % num_envs]))
            given[turn % num_envs] += 1
            turn += 1
        calls.append(sorted(dealt))
    return calls


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.lists(st.integers(1, 7), min_size=1, max_size=3), min_size=1, max_size=4),
    n_episodes=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    mode=st.sampled_from(MODES),
    can_pause=st.booleans(),
)
def test_every_env_hands_over_its_share_of_episodes_whole_and_in_order(
    lengths: list[list[int]], n_episodes: list[int], mode: AutoresetMode, can_pause: bool
) -> None:
    collector = collector_of(envs(lengths, mode, can_pause))

    for n_episode, dealt in zip(n_episodes, deal(n_episodes, len(lengths)), strict=True):
        episodes = collect(collector, n_episode)

        assert [rows(episode) for episode in episodes] == [whole_episode(*place, lengths) for place in dealt]


@each_mode
def test_short_episodes_are_not_over_represented(mode: AutoresetMode) -> None:
    collector = collector_of(envs([(1,), (10,)], mode))

    lengths = [len(episode["reward"]) for _ in range(5) for episode in collect(collector, 4)]

    assert sorted(lengths) == [1] * 10 + [10] * 10  # the first 20 to end would be 19 of one step and one of ten


@each_mode
def test_no_env_is_preferred_in_the_long_run(mode: AutoresetMode) -> None:
    collector = collector_of(envs(mode=mode))

    env_ids = [int(episode["env_id"][0]) for _ in range(6) for episode in collect(collector, 2)]

    assert env_ids == [0, 1, 0, 2, 1, 2] * 2


@pausing
@each_mode
def test_collect_gives_the_same_episodes_from_many_processes(mode: AutoresetMode, can_pause: bool) -> None:
    parallel = envs(mode=mode, can_pause=can_pause, vector_class=AsyncVectorEnv)
    many, one = collector_of(parallel), collector_of(envs(mode=mode, can_pause=can_pause))

    for n_episode in (1, 5, 3):
        from_many, from_one = collect(many, n_episode), collect(one, n_episode)
        assert [rows(episode) for episode in from_many] == [rows(episode) for episode in from_one]
    parallel.close()


@each_mode
def test_envs_that_can_be_paused_waste_no_step_and_give_nothing_old(mode: AutoresetMode) -> None:
    collector = collector_of(envs(mode=mode))
    for train_iter, n_episode in enumerate([1, 4, 2, 7]):
        episodes = collect(collector, n_episode, train_iter)
        assert {version for episode in episodes for version in episode["policy_version"].tolist()} == {train_iter}

    assert collector.envstep == collector.sample
    assert collector.episode == 14


@each_mode
def test_envs_that_cannot_be_paused_continue_and_lose_nothing(mode: AutoresetMode) -> None:
    collector = collector_of(envs([(1,), (6,)], mode, can_pause=False))

    first = collect(collector, 2, train_iter=1)
    before = collector.envstep
    second = collect(collector, 1, train_iter=2)  # of env 0, which has gone on

    assert [rows(episode) for episode in first] == [whole_episode(i, 0, [(1,), (6,)]) for i in (0, 1)]
    assert rows(second[0]) == whole_episode(0, 1, [(1,), (6,)])
    assert second[0]["policy_version"].tolist() == [1]
    assert collector.envstep == before


def test_collector_warns_once_of_envs_that_cannot_be_paused(caplog: pytest.LogCaptureFixture) -> None:
    for can_pause in (True, False):
        collector = collector_of(envs(can_pause=can_pause))
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                collect(collector, 3)

    assert [record.getMessage()[:37] for record in caplog.records] == ["envs that cannot be paused continued "]


@each_mode
def test_collector_leaves_no_env_paused(mode: AutoresetMode) -> None:
    env = envs([(2,), (9,)], mode)
    collect(collector_of(env), 2)

    env.step(np.zeros(2, dtype=np.int64))
    obs = env.step(np.zeros(2, dtype=np.int64))[0]

    assert (obs[:, 2] > 0).all() or (obs[:, 1] > 1).any()
    assert env.get_attr("paused") == (False, False)  # type: ignore[attr-defined]


@each_mode
def test_an_env_in_the_middle_of_an_episode_is_not_paused(mode: AutoresetMode) -> None:
    class Stumbling(PlacePolicy):
        def forward(self, obs: Any, **kwargs: Any) -> dict[str, Any]:
            if len(self.kwargs) == 5:
                self.kwargs.append({})
                raise ArithmeticError
            return super().forward(obs)

    lengths = [(2, 4), (9,)]
    collector = collector_of(envs(lengths, mode), Stumbling())
    with pytest.raises(ArithmeticError):
        collect(collector, 4)  # env 0 has ended an episode, owes a second one and is in the middle of it

    assert [rows(episode) for episode in collect(collector, 2)] == [whole_episode(i, 0, lengths) for i in (0, 1)]
    assert [rows(episode) for episode in collect(collector, 2)] == [whole_episode(i, 1, lengths) for i in (0, 1)]


@each_mode
@pausing
def test_collect_gives_a_policy_with_memory_the_same_episodes_in_every_mode(
    mode: AutoresetMode, can_pause: bool
) -> None:
    collector = collector_of(envs(mode=mode, can_pause=can_pause), Metronome())

    for _ in range(4):
        for episode in collect(collector, 5):
            assert episode["action"].tolist() == list(range(len(episode["action"])))


def test_collect_gives_episodes_longer_than_there_was_room_for() -> None:
    lengths = [(300,), (3,), (70, 5)]
    collector = collector_of(envs(lengths, can_pause=False))

    episodes = collect(collector, 3) + collect(collector, 3)

    expected = [whole_episode(i, episode, lengths) for episode in (0, 1) for i in range(3)]
    assert [rows(episode) for episode in episodes] == expected


def test_collect_says_which_env_and_which_episode_a_step_is_from() -> None:
    collector = collector_of(envs())
    episodes = collect(collector, 7) + collect(collector, 5)

    assert all((episode["env_id"] == episode["obs"][:, 0]).all() for episode in episodes)
    ids = [set(episode["episode_id"].tolist()) for episode in episodes]
    assert all(len(one) == 1 for one in ids)
    assert len(set.union(*ids)) == 12


def test_collect_says_of_each_step_which_weights_acted() -> None:
    collector = collector_of(envs([(1,), (3,)], can_pause=False))
    collect(collector, 1, train_iter=10)  # one step, of which env 1 keeps its own

    _, episode = collect(collector, 3, train_iter=20)[0:2]

    assert episode["policy_version"].tolist() == [10, 20, 20]


def test_collect_marks_steps_with_the_level_of_their_env() -> None:
    episodes = collect(collector_of(envs()), 3, level_seeds=[70, 80, 90])

    assert [set(episode["seed"].tolist()) for episode in episodes] == [{70}, {80}, {90}]


@pytest.mark.parametrize(("first", "then"), [([1, 2], None), (None, [1, 2])])
def test_collect_refuses_levels_that_come_and_go_in_an_episode_before_it_steps(first: Any, then: Any) -> None:
    collector = collector_of(envs([(1,), (5,)], can_pause=False))
    collect(collector, 1, level_seeds=first)
    envstep = collector.envstep

    with pytest.raises(ValueError, match="level_seeds must be given or not as for the episodes that are unfinished"):
        collect(collector, 3, level_seeds=then)

    assert collector.envstep == envstep
    assert len(collect(collector, 3, level_seeds=first)) == 3


@pytest.mark.parametrize(("first", "then"), [([1, 2], None), (None, [1, 2])])
def test_levels_may_come_and_go_where_no_episode_is_under_way(first: Any, then: Any) -> None:
    collector = collector_of(envs([(1,), (5,)]))
    collect(collector, 2, level_seeds=first)

    assert all(("seed" in episode) == (then is not None) for episode in collect(collector, 2, level_seeds=then))


@each_mode
def test_collect_returns_separate_memory(mode: AutoresetMode) -> None:
    edited, left_alone = collector_of(envs(mode=mode)), collector_of(envs(mode=mode))
    for _ in range(4):
        episodes, expected = collect(edited, 4), collect(left_alone, 4)

        assert [rows(episode) for episode in episodes] == [rows(episode) for episode in expected]
        for values in (column for episode in episodes for column in episode.values()):
            values.fill(1)


@each_mode
def test_collect_copies_observations_that_an_env_writes_into_the_same_memory(mode: AutoresetMode) -> None:
    makers = [functools.partial(CountingEnv, i, of_env) for i, of_env in enumerate(LENGTHS)]
    collector = collector_of(SyncVectorEnv(makers, copy=False, autoreset_mode=mode))

    episodes = collect(collector, 6)

    assert [rows(e) for e in episodes] == [whole_episode(i, episode, LENGTHS) for i in range(3) for episode in (0, 1)]


def test_collect_keeps_the_leaves_of_dict_observations() -> None:
    class HalfPolicy(PlacePolicy):
        def forward(self, obs: Any, **kwargs: Any) -> dict[str, Any]:
            return super().forward(obs["place"], **kwargs)

    space = gym.spaces.Dict({"place": gym.spaces.Box(0, 99, (3,)), "half": gym.spaces.Box(0, 99, (3,))})
    env = gym.wrappers.TransformObservation(CountingEnv(), lambda obs: {"place": obs, "half": obs / 2}, space)

    (episode,) = collect(collector_of(SyncVectorEnv([lambda: env]), HalfPolicy()), 1)

    half, place = episode["next_obs"]["half"], episode["next_obs"]["place"]
    assert (2 * half).tolist() == place.tolist() == [[0, 0, i] for i in (1, 2, 3)]


def test_collect_asks_the_policy_for_the_number() -> None:
    assert len(collect(collector_of(envs(), PlacePolicy(n_episode=4)))) == 4


@pytest.mark.parametrize("n_episode", [0, -1, 2.0, None])
def test_collect_refuses_a_number_that_is_none(n_episode: Any) -> None:
    with pytest.raises(ValueError, match=f"n_episode must be an int >= 1, got {n_episode}"):
        collect(collector_of(envs()), n_episode)


@pausing
def test_random_collect_counts_episodes_too(can_pause: bool) -> None:
    policy = PlacePolicy()

    episodes = collect(collector_of(envs(can_pause=can_pause), policy), 5, random_collect=True)

    assert [len(episode["reward"]) for episode in episodes] == [1, 1, 9, 2, 5]
    assert policy.kwargs == []


def test_random_collect_follows_the_seed_of_the_action_space() -> None:
    actions = []
    for seed in (0, 0, 1):
        env = envs([(40,)])
        env.action_space.seed(seed)
        actions.append(collect(collector_of(env), 1, random_collect=True)[0]["action"].tolist())

    assert actions[0] == actions[1] != actions[2]


def test_random_collect_reports_its_episodes_only_if_it_is_asked_to() -> None:
    reported = []
    for record in (True, False):
        collector = collector_of(envs())
        collect(collector, 5, random_collect=True, record_random_collect=record)
        reported.append((collector.episode, len(collector.pop_episodes()[0])))

    assert reported == [(5, 5), (5, 0)]


def test_collect_hands_the_policy_its_arguments() -> None:
    policy = PlacePolicy()

    collect(collector_of(envs([(2,)]), policy), 1, policy_kwargs={"eps": 0.25})

    assert policy.kwargs == [{"eps": 0.25}, {"eps": 0.25}]


@pausing
def test_collector_counts_steps_samples_and_episodes(can_pause: bool) -> None:
    collector = collector_of(envs([(2,), (6,)], can_pause=can_pause))
    collect(collector, 2)

    # Six vector steps; env 0 waits, or ends two episodes more.
    assert collector.sample == 8
    assert collector.envstep == (8 if can_pause else 12)
    assert collector.episode == (2 if can_pause else 4)
    assert collector.pop_episodes()[1] == ([2, 6] if can_pause else [2, 2, 2, 6])
    assert collector.pop_episodes() == ([], [])


def test_collector_reports_an_interval_to_the_logger() -> None:
    class Sink:
        rows: list[dict[str, float]] = []  # noqa: RUF012

        def log_metrics(self, metrics: dict[str, float], step: int) -> None:
            self.rows.append(metrics)

    cfg = {"collect_print_freq": 5}
    collector = EpisodeSerialCollector(cfg, envs([(2,), (6,)]), PlacePolicy().mode, Sink(), instance_name="mine")
    for train_iter in (0, 4, 5, 6):
        collect(collector, 2, train_iter)

    (row,) = Sink.rows
    assert (row["mine/episode_count"], row["mine/envstep_count"], row["mine/train_sample_count"]) == (6, 24, 24)
    assert (row["mine/return_mean"], row["mine/avg_envstep_per_episode"]) == ((3 + 21) / 2, 4)


@pausing
@each_mode
def test_reset_env_never_joins_two_episodes(mode: AutoresetMode, can_pause: bool) -> None:
    lengths = [(1,), (5,)]
    collector = collector_of(envs(lengths, mode, can_pause))
    for _ in range(3):
        collect(collector, 1)
        collector.reset_env()

    for episode in collect(collector, 4):
        assert rows(episode) == whole_episode(int(episode["env_id"][0]), int(episode["obs"][0, 1]), lengths)


def test_reset_env_keeps_whole_episodes_that_wait() -> None:
    collector = collector_of(envs([(1,), (3,)], can_pause=False))
    collect(collector, 2)

    collector.reset_env()

    assert [rows(e) for e in collect(collector, 1)] == [whole_episode(0, 1, [(1,)])]


def test_another_env_has_nothing_waiting_and_begins_with_its_first_env() -> None:
    collector = collector_of(envs([(1,), (3,)], can_pause=False))
    collect(collector, 4)

    collector.reset_env(envs([(2,), (2,), (2,)], can_pause=False))

    assert [rows(e) for e in collect(collector, 1)] == [whole_episode(0, 0, [(2,)])]


def test_reset_forgets_what_waits_whose_turn_it_is_and_what_was_counted() -> None:
    collector = collector_of(envs([(1,), (3,)], can_pause=False))
    collect(collector, 3)

    collector.reset()

    counts = (collector.envstep, collector.sample, collector.episode, collector.dropped_episode)
    assert (counts, collector.pop_episodes()) == ((0, 0, 0, 0), ([], []))
    assert collect(collector, 1)[0]["env_id"].tolist() == [0]
    assert collector.envstep == 2
