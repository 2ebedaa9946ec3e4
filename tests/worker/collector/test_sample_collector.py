"""The sample collector: exactly what was asked for, each transition once, the same in every autoreset mode."""

from __future__ import annotations

import functools
import inspect
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from lightning_ding import nested
from lightning_ding.worker import NaiveReplayBuffer, SampleSerialCollector
from lightning_ding.worker.config import ReplayBufferConfig
from tests.toys.envs import CountingEnv
from tests.worker.collector.sampling_toys import (
    LENGTHS,
    MODES,
    TRUNCATES,
    Metronome,
    PlacePolicy,
    Row,
    collect,
    collector_of,
    counting_envs,
    logs,
)


def rows_of_envs(batches: list[dict[str, Any]], num_envs: int) -> list[list[Row]]:
    """Return what was collected, env by env, in the order in which it was handed over."""
    rows: list[list[Row]] = [[] for _ in range(num_envs)]
    names = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
    for batch in batches:
        values = zip(*(batch[name].tolist() for name in names), strict=True)
        for env_id, row in zip(batch["env_id"].tolist(), values, strict=True):
            rows[env_id].append(cast(Row, row))
    return rows


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_envs", [1, 3, 5])
@pytest.mark.parametrize("n_sample", [1, 5, 13])
def test_collect_returns_exactly_the_number_asked_for(mode: AutoresetMode, num_envs: int, n_sample: int) -> None:
    collector = collector_of(counting_envs(mode, num_envs))

    lengths = [{len(leaf) for leaf in nested.leaves(collect(collector, n_sample))} for _ in range(4)]

    assert lengths == [{n_sample}] * 4


@pytest.mark.parametrize("mode", MODES)
def test_collect_neither_drops_nor_repeats_a_transition(mode: AutoresetMode) -> None:
    env = counting_envs(mode)
    collector = collector_of(env)

    rows = rows_of_envs([collect(collector, n_sample) for n_sample in (1, 7, 3, 12, 5, 2, 30)], num_envs=3)

    assert sum(map(len, logs(env))) - sum(map(len, rows)) < 3  # what waits for the next call
    for of_env, log in zip(rows, logs(env), strict=True):
        assert of_env == log[: len(of_env)]


def test_collect_hands_over_what_the_last_call_left_before_stepping_again() -> None:
    env = counting_envs()
    collector = collector_of(env)
    collect(collector, 1)  # one vector step gives three transitions

    collect(collector, 2)

    assert [len(log) for log in logs(env)] == [1, 1, 1]


def test_collect_gives_the_same_transitions_in_every_autoreset_mode() -> None:
    same, following, disabled = (
        rows_of_envs([collect(collector_of(counting_envs(mode)), 90)], num_envs=3) for mode in MODES
    )

    for i in range(3):
        shortest = min(len(rows[i]) for rows in (same, following, disabled))
        assert shortest >= 20
        assert same[i][:shortest] == following[i][:shortest] == disabled[i][:shortest]


def test_collect_gives_the_same_transitions_from_one_process_and_from_many() -> None:
    makers = [functools.partial(CountingEnv, i, LENGTHS[i], TRUNCATES[i]) for i in range(3)]
    parallel = AsyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)

    many = rows_of_envs([collect(collector_of(parallel), 30)], num_envs=3)
    parallel.close()

    assert many == rows_of_envs([collect(collector_of(counting_envs()), 30)], num_envs=3)


@pytest.mark.parametrize("mode", MODES)
def test_collect_tells_termination_from_truncation(mode: AutoresetMode) -> None:
    data = collect(collector_of(counting_envs(mode, num_envs=1)), 4)

    # Episodes of one step, truncated and terminated in turn.
    assert data["terminated"].tolist() == [False, True, False, True]
    assert data["truncated"].tolist() == [True, False, True, False]


@pytest.mark.parametrize("mode", MODES)
def test_collect_keeps_true_final_observations(mode: AutoresetMode) -> None:
    data = collect(collector_of(counting_envs(mode, num_envs=1)), 3)

    # Number, episode, step: every step ends an episode, and no next observation is of the next episode.
    assert data["next_obs"].tolist() == [[0, 0, 1], [0, 1, 1], [0, 2, 1]]


@pytest.mark.parametrize("mode", MODES)
def test_collect_says_which_env_a_transition_is_from(mode: AutoresetMode) -> None:
    data = collect(collector_of(counting_envs(mode)), 40)

    assert data["env_id"].tolist() == data["obs"][:, 0].tolist()


@pytest.mark.parametrize("mode", MODES)
def test_collect_gives_every_episode_its_own_id(mode: AutoresetMode) -> None:
    collector = collector_of(counting_envs(mode))
    data = [collect(collector, 40) for _ in range(2)]

    place = [tuple(row) for batch in data for row in batch["obs"][:, :2].tolist()]  # number and episode
    ids = [episode_id for batch in data for episode_id in batch["episode_id"].tolist()]

    assert len(set(place)) == len(set(ids)) == len(set(zip(place, ids, strict=True)))


def test_collect_never_gives_the_id_of_an_episode_that_a_reset_broke_off_again() -> None:
    collector = collector_of(counting_envs())
    before = collect(collector, 6)["episode_id"]

    collector.reset_env()
    after = collect(collector, 6)["episode_id"]

    assert not set(before.tolist()) & set(after.tolist())


def test_collect_marks_transitions_with_the_update_that_acted() -> None:
    collector = collector_of(counting_envs())
    versions = [collect(collector, 2, train_iter)["policy_version"].tolist() for train_iter in (10, 20, 30)]

    # Three transitions a step: the third of the first step waits, and still says which weights made it.
    assert versions == [[10, 10], [10, 20], [20, 20]]


@pytest.mark.parametrize("mode", MODES)
def test_collect_returns_separate_memory(mode: AutoresetMode) -> None:
    edited, left_alone = collector_of(counting_envs(mode)), collector_of(counting_envs(mode))
    for _ in range(8):
        data, expected = collect(edited, 3), collect(left_alone, 3)

        assert all(data[name].tolist() == values.tolist() for name, values in expected.items())
        for values in data.values():
            values.fill(1)


def test_collect_keeps_the_leaves_of_dict_observations() -> None:
    class HalfPolicy(PlacePolicy):
        def forward(self, obs: Any, **kwargs: Any) -> dict[str, Any]:
            return super().forward(obs["place"], **kwargs)

    space = gym.spaces.Dict({"place": gym.spaces.Box(0, 99, (3,)), "half": gym.spaces.Box(0, 99, (3,))})
    env = gym.wrappers.TransformObservation(CountingEnv(), lambda obs: {"place": obs, "half": obs / 2}, space)

    data = collect(collector_of(SyncVectorEnv([lambda: env]), HalfPolicy()), 3)

    assert (
        (2 * data["next_obs"]["half"]).tolist() == data["next_obs"]["place"].tolist() == [[0, 0, i] for i in (1, 2, 3)]
    )


def test_collect_hands_the_policy_its_arguments() -> None:
    policy = PlacePolicy()

    collect(collector_of(counting_envs(), policy), 6, policy_kwargs={"eps": 0.25})

    assert policy.kwargs == [{"eps": 0.25}, {"eps": 0.25}]


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_collect_resets_the_policy_where_an_episode_ended(mode: AutoresetMode) -> None:
    policy = PlacePolicy()
    collector = collector_of(counting_envs(mode), policy)
    policy.resets.clear()

    collect(collector, 6 * 3)

    # Env 0 ends at every step, env 1 after 2 and after 2 + 4, env 2 after 5 steps.
    assert policy.resets == [[0], [0, 1], [0], [0], [0, 2], [0, 1]]


@pytest.mark.parametrize("mode", MODES)
def test_collect_gives_a_policy_with_memory_the_same_episodes_in_every_mode(mode: AutoresetMode) -> None:
    data = collect(collector_of(counting_envs(mode), Metronome()), 60)

    assert data["action"].tolist() == data["obs"][:, 2].tolist()  # the steps done in the episode


def test_collect_gives_the_policy_what_it_hands_over() -> None:
    class FirstOnly(PlacePolicy):
        def get_train_sample(self, data: Any) -> Any:
            super().get_train_sample(data)
            return {"first": data["reward"][0]}

    policy = FirstOnly()

    data = collect(collector_of(counting_envs(), policy), 5)

    assert [len(given["reward"]) for given in policy.handed_over] == [5]
    assert data == {"first": 1.0}


def test_collect_asks_the_policy_for_the_number() -> None:
    assert len(collect(collector_of(counting_envs(), PlacePolicy(n_sample=4)))["reward"]) == 4


@pytest.mark.parametrize("n_sample", [0, -1, 2.0])
def test_collect_refuses_a_number_that_is_none(n_sample: Any) -> None:
    with pytest.raises(ValueError, match=f"n_sample must be an int >= 1, got {n_sample}"):
        collector_of(counting_envs()).collect(n_sample)


def test_collect_refuses_a_policy_that_does_not_know_the_number_either() -> None:
    with pytest.raises(ValueError, match="n_sample must be an int >= 1, got None"):
        collector_of(counting_envs()).collect()


def test_collect_says_which_shape_actions_must_have() -> None:
    class Short(PlacePolicy):
        def forward(self, obs: Any, **kwargs: Any) -> dict[str, Any]:
            return {"action": torch.zeros(2, dtype=torch.int64)}

    with pytest.raises(ValueError, match=r"actions of shape \(3,\), got \(2,\)"):
        collector_of(counting_envs(), Short()).collect(1)


class MaskedEnv(gym.Env[Any, Any]):
    """One step an episode; of the five actions 1, 3 and 4 are legal."""

    observation_space = gym.spaces.Dict(
        {"observation": gym.spaces.Box(0, 1, (1,)), "action_mask": gym.spaces.MultiBinary(5)}
    )
    action_space: gym.Space[Any] = gym.spaces.Discrete(5)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        mask = np.array([0, 1, 0, 1, 1], dtype=np.int8)
        return {"observation": np.zeros(1, np.float32), "action_mask": mask}, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.reset()[0], 0.0, True, False, {}


class TwoMaskedEnv(MaskedEnv):
    """Two actions at once: of the first two 1 is legal, of the other three 1 and 2."""

    action_space = gym.spaces.MultiDiscrete([2, 3])


def random_actions(env: VectorEnv, amount: int) -> NDArray[Any]:
    env.action_space.seed(0)
    return cast("NDArray[Any]", collect(collector_of(env), amount, random_collect=True)["action"])


def chi_square(actions: NDArray[Any], legal: list[int]) -> float:
    """Return the statistic of a test that the legal actions come equally often."""
    observed = np.bincount(actions, minlength=max(legal) + 1)[legal]
    expected = len(actions) / len(legal)
    return float(((observed - expected) ** 2 / expected).sum())


def test_random_collect_takes_all_actions_equally_often() -> None:
    actions = random_actions(counting_envs(), 3000)

    assert chi_square(actions, [0, 1, 2, 3]) < 16.27  # p = 0.001 at 3 degrees of freedom


def test_random_collect_takes_legal_actions_only() -> None:
    actions = random_actions(SyncVectorEnv([MaskedEnv] * 3), 300)

    assert set(actions.tolist()) == {1, 3, 4}


def test_random_collect_takes_legal_actions_equally_often() -> None:
    actions = random_actions(SyncVectorEnv([MaskedEnv] * 3), 3000)

    assert chi_square(actions, [1, 3, 4]) < 13.82  # p = 0.001 at 2 degrees of freedom


def test_random_collect_takes_legal_parts_of_several_actions() -> None:
    actions = random_actions(SyncVectorEnv([TwoMaskedEnv] * 3), 300)

    assert set(map(tuple, actions.tolist())) == {(1, 1), (1, 2)}


def test_random_collect_leaves_the_policy_out_of_it() -> None:
    policy = PlacePolicy()

    collect(collector_of(counting_envs(), policy), 6, random_collect=True)

    assert policy.kwargs == []


def test_random_collect_follows_the_seed_of_the_action_space() -> None:
    first, second = (random_actions(counting_envs(), 60) for _ in range(2))

    assert first.tolist() == second.tolist()


def test_collect_takes_its_arguments_in_this_order() -> None:
    names = list(inspect.signature(SampleSerialCollector.collect).parameters)

    first = ["self", "n_sample", "train_iter", "drop_extra", "random_collect", "record_random_collect"]
    assert names == [*first, "policy_kwargs", "level_seeds"]


@pytest.mark.parametrize("mode", MODES)
def test_collect_without_dropping_hands_over_all_there_is(mode: AutoresetMode) -> None:
    env = counting_envs(mode)
    collector = collector_of(env)

    batches = [collect(collector, n_sample, drop_extra=False) for n_sample in (1, 4, 6, 7)]

    if mode != AutoresetMode.NEXT_STEP:  # there, an env that is reset gives nothing
        assert [len(batch["reward"]) for batch in batches] == [3, 6, 6, 9]
    assert rows_of_envs(batches, 3) == logs(env)
    assert collector.sample == collector.envstep


def test_collect_without_dropping_hands_over_what_waits_too() -> None:
    collector = collector_of(counting_envs())
    collect(collector, 1)

    data = collect(collector, 3, drop_extra=False)

    assert data["env_id"].tolist() == [1, 2, 0, 1, 2]
    assert collect(collector, 3)["env_id"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(("record", "reported"), [(True, True), (False, False)])
def test_random_collect_reports_its_episodes_only_if_it_is_asked_to(record: bool, reported: bool) -> None:
    collector = collector_of(counting_envs())

    collect(collector, 30, random_collect=True, record_random_collect=record)

    returns, lengths = collector.pop_episodes()
    assert collector.episode == 10 + 3 + 3 + 0  # of env 0, 1 (2, 4, 2 steps) and 2 (5, 3, 1 steps), in ten steps each
    assert (bool(returns), bool(lengths)) == (reported, reported)


def test_collect_reports_the_episodes_of_the_policy_always() -> None:
    collector = collector_of(counting_envs())

    collect(collector, 30, record_random_collect=False)

    assert len(collector.pop_episodes()[0]) == collector.episode


@pytest.mark.parametrize("mode", MODES)
def test_collect_marks_transitions_with_the_level_of_their_env(mode: AutoresetMode) -> None:
    data = collect(collector_of(counting_envs(mode)), 40, level_seeds=[70, 80, 90])

    assert data["seed"].tolist() == [70 + 10 * env_id for env_id in data["env_id"].tolist()]


def test_collect_without_levels_marks_none() -> None:
    assert "seed" not in collect(collector_of(counting_envs()), 3)


@pytest.mark.parametrize("level_seeds", [[1, 2], [1, 2, 3, 4], 7, [1.5, 2.5, 3.5], ["a", "b", "c"]])
def test_collect_refuses_levels_that_are_not_one_int_for_each_env(level_seeds: Any) -> None:
    with pytest.raises(ValueError, match="level_seeds must be one int for each of 3 envs, got"):
        collector_of(counting_envs()).collect(3, level_seeds=level_seeds)


@pytest.mark.parametrize(("first", "then"), [([1, 2, 3], None), (None, [1, 2, 3])])
def test_collect_refuses_levels_that_come_and_go_while_transitions_wait(first: Any, then: Any) -> None:
    collector = collector_of(counting_envs())
    collect(collector, 1, level_seeds=first)

    with pytest.raises(ValueError, match="level_seeds must be given or not as for the 2 transitions that wait"):
        collector.collect(1, level_seeds=then)

    collect(collector, 2, level_seeds=first)
    assert len(collect(collector, 3, level_seeds=then)["reward"]) == 3


def test_collect_in_small_pieces_never_shortens_an_n_step_return() -> None:
    lengths = [(4,), (2, 7)]
    env = SyncVectorEnv([functools.partial(CountingEnv, i, lengths[i]) for i in range(2)])
    collector, buffer = collector_of(env), NaiveReplayBuffer(ReplayBufferConfig(replay_buffer_size=200))
    for _ in range(60):
        buffer.push(collect(collector, 1))  # less than a vector step

    data = buffer.sample(50, 0, n_step=3, discount_factor=0.5)

    newest = {i: data["obs"][data["env_id"] == i][:, 1].max().item() for i in range(2)}
    for (number, episode, step), env_id, reward, discount in zip(
        data["obs"].tolist(), data["env_id"].tolist(), data["reward"].tolist(), data["discount"].tolist(), strict=True
    ):
        if episode == newest[env_id]:
            continue  # not at its end yet
        left = int(lengths[int(number)][int(episode) % len(lengths[int(number)])] - step)
        window = range(min(3, left))  # step t gives the reward t + 1
        assert reward == sum(0.5**k * (step + 1 + k) for k in window)
        assert discount == 0.5 ** len(window)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n_sample", [1, 3, 30])
def test_collect_copies_observations_that_an_env_writes_into_the_same_memory(
    mode: AutoresetMode, n_sample: int
) -> None:
    makers = [functools.partial(CountingEnv, i, LENGTHS[i], TRUNCATES[i]) for i in range(3)]
    collectors = [collector_of(SyncVectorEnv(makers, copy=copy, autoreset_mode=mode)) for copy in (False, True)]

    reused, own = ([collect(one, n_sample) for _ in range(12)] for one in collectors)

    assert rows_of_envs(reused, num_envs=3) == rows_of_envs(own, num_envs=3)
