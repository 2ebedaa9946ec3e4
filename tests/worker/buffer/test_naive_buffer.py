"""The uniform buffer: what it draws, how often, and what survives saving."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lightning_ding import nested
from lightning_ding.worker import NaiveReplayBuffer, SequenceReplayBuffer, create_buffer
from lightning_ding.worker.buffer import sampling
from tests.worker.buffer.uniform_toys import assert_equal, buffer_of, filled, steps


def test_push_keeps_the_newest() -> None:
    buffer = buffer_of(4)
    for start in range(0, 6, 2):
        buffer.push(steps(start, 2))

    assert sorted(buffer.sample(4)["reward"].tolist()) == [2, 3, 4, 5]


def test_push_counts_what_is_kept_and_what_ever_came() -> None:
    buffer = buffer_of(4)
    buffer.push(steps(0, 3))
    before = buffer.count(), buffer.push_count
    buffer.push(steps(3, 6))

    assert (before, buffer.count(), buffer.push_count) == ((3, 3), 4, 9)


def test_push_of_a_list_is_push_of_the_batch() -> None:
    batch = steps(0, 6, num_envs=2)
    by_batch, by_list = buffer_of(8), buffer_of(8)

    by_batch.push(batch)
    by_list.push([{name: column[i] for name, column in batch.items()} for i in range(12)])

    sample = {"num_batches": 3, "n_step": 2, "discount_factor": 0.5}
    assert_equal(by_batch.sample(5, **sample), by_list.sample(5, **sample))  # type: ignore[arg-type]


def test_push_takes_a_list_of_python_numbers() -> None:
    buffer = buffer_of(4)

    buffer.push([{"reward": 0.5, "env_id": 3, "terminated": True}, {"reward": 1.5, "env_id": 3, "terminated": False}])

    got = buffer.sample(2)
    assert sorted(zip(got["reward"].tolist(), got["terminated"].tolist(), strict=True)) == [(0.5, True), (1.5, False)]


def test_push_takes_tensors_as_it_takes_arrays() -> None:
    of_arrays, of_tensors = buffer_of(4), buffer_of(4)

    of_arrays.push(steps(0, 6))
    of_tensors.push({name: torch.from_numpy(column) for name, column in steps(0, 6).items()})

    assert_equal(of_arrays.sample(4), of_tensors.sample(4))


def test_push_takes_a_copy() -> None:
    buffer, batch = buffer_of(4), steps(0, 4)
    buffer.push(batch)
    for column in batch.values():
        column[...] = 0

    assert sorted(buffer.sample(4)["next_obs"][:, 1].tolist()) == [1, 2, 3, 4]


def test_push_of_nothing_changes_nothing() -> None:
    buffer = buffer_of(4)
    buffer.push([])
    buffer.push(steps(0, 0))

    assert (buffer.count(), buffer.push_count) == (0, 0)


@pytest.mark.parametrize("size", [3, 8])
def test_push_in_parts_is_push_at_once(size: int) -> None:
    at_once, in_parts = buffer_of(size), buffer_of(size)
    batch = steps(0, 5, num_envs=2)

    at_once.push(batch)
    for part in nested.split(batch, 3):
        in_parts.push(part)  # type: ignore[arg-type]

    # The rows lie elsewhere, so the same draws give others; all of them together are the same.
    rewards = [buffer.sample(size, n_step=2, discount_factor=0.5)["reward"].tolist() for buffer in (at_once, in_parts)]
    assert sorted(rewards[0]) == sorted(rewards[1])


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"env_id": np.array([0, -1])}, "env_id must be >= 0, got -1"),
        ({"env_id": np.array([0.0, 1.0])}, r"env_id must be an integer for each transition, got 'float32 \(\)'"),
        ({"env_id": np.array([[0], [1]])}, r"env_id must be an integer for each transition, got 'int64 \(1,\)'"),
        ({"info": np.array([None, None])}, "info must be numbers, got 'object'"),
        ({"info": np.array(["a", "b"])}, "info must be numbers, got '<U1'"),
    ],
)
def test_push_refuses_invalid_columns_before_it_stores_anything(column: dict[str, Any], message: str) -> None:
    buffer = buffer_of(4)

    with pytest.raises(ValueError, match=message):
        buffer.push(steps(0, 2) | column)

    assert (buffer.count(), buffer.push_count) == (0, 0)
    buffer.push(steps(7, 2))
    assert sorted(buffer.sample(2)["reward"].tolist()) == [7, 8]


def test_push_refuses_a_negative_env_later_too_and_evicts_nothing() -> None:
    buffer = filled(4)

    with pytest.raises(ValueError, match="env_id must be >= 0, got -3"):
        buffer.push(steps(4, 2) | {"env_id": np.array([1, -3])})

    assert sorted(buffer.sample(4)["reward"].tolist()) == [0, 1, 2, 3]
    assert (buffer.push_count, buffer.pop_metrics()["removed_per_second"]) == (4, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"extra": np.zeros(2)}, "a transition must hold"),
        ({"reward": np.zeros((2, 1))}, r"reward must have the shape \(\), got \(1,\)"),
        ({"obs": np.zeros((2, 3))}, r"obs must have the shape \(2,\), got \(3,\)"),
        ({"reward": np.zeros(3)}, "the same leading axis"),
        ({"env_id": np.zeros(2)}, "env_id must be of a type that fits int64, got float32"),
    ],
)
def test_push_refuses_data_that_does_not_fit(change: dict[str, Any], message: str) -> None:
    buffer = buffer_of(4)
    buffer.push(steps(0, 2))

    with pytest.raises(ValueError, match=message):
        buffer.push(steps(2, 2) | change)


@pytest.mark.parametrize("num_batches", [None, 1, 40])
@pytest.mark.parametrize("batch_size", [1, 3, 9, 10])
def test_sample_holds_a_transition_once_in_a_minibatch(batch_size: int, num_batches: int | None) -> None:
    rewards = filled(10).sample(batch_size, num_batches=num_batches)["reward"].reshape(-1, batch_size)

    assert len(rewards) == (num_batches or 1)
    assert all(len(set(row)) == batch_size for row in rewards.tolist())


@pytest.mark.parametrize("batch_size", [2, 6])
def test_sample_draws_its_minibatches_independently(batch_size: int) -> None:
    rewards = filled(10).sample(batch_size, num_batches=30)["reward"]

    assert len({frozenset(row) for row in rewards.tolist()}) > 10


def test_sample_gives_another_minibatch_at_the_next_call() -> None:
    buffer = filled(1000)

    assert set(buffer.sample(10)["reward"].tolist()) != set(buffer.sample(10)["reward"].tolist())


@pytest.mark.parametrize(("batch_size", "replace"), [(2, False), (6, False), (4, True), (30, True)])
def test_sample_draws_all_transitions_equally_often(batch_size: int, replace: bool) -> None:
    buffer = buffer_of(10)
    buffer.push(steps(0, 14))  # the ring has wrapped

    rewards = buffer.sample(batch_size, num_batches=6000 // batch_size, replace=replace)["reward"]

    observed = np.bincount(rewards.flatten().int().numpy(), minlength=14)[4:]
    assert ((observed - 600) ** 2 / 600).sum() < 27.88  # chi-square, 9 degrees of freedom, p = 0.001


def test_sample_draws_from_a_partly_filled_ring_what_is_there() -> None:
    buffer = buffer_of(1000)
    buffer.push(steps(5, 3))

    assert set(buffer.sample(200, replace=True)["reward"].tolist()) == {5, 6, 7}


def test_sample_with_replacement_may_hold_a_transition_more_than_once() -> None:
    assert len(filled(3).sample(50, replace=True)["reward"]) == 50


RANGES = [
    slice(None),
    slice(-3, None),
    slice(0, 2),
    slice(2, 5),
    slice(-5, -2),
    slice(None, None, 3),
    slice(None, None, -1),
    slice(6, 1, -2),
    slice(-100, 100),
    slice(7, None, 5),
]


@pytest.mark.parametrize("ages", RANGES, ids=str)
@pytest.mark.parametrize("pushed", [8, 10, 14, 23], ids=["partly full", "full", "wrapped", "wrapped twice"])
def test_sample_range_counts_by_age(pushed: int, ages: slice) -> None:
    buffer = buffer_of(10)
    for start in range(pushed):
        buffer.push(steps(start, 1))
    expected = list(range(pushed))[-10:][ages]

    exactly = buffer.sample(len(expected), sample_range=ages)["reward"].tolist()
    often = buffer.sample(1, num_batches=300, sample_range=ages)["reward"].flatten().tolist()

    assert sorted(exactly) == sorted(expected)
    assert set(often) == set(expected)


def test_sample_range_draws_its_transitions_equally_often() -> None:
    buffer = buffer_of(10)
    buffer.push(steps(0, 14))

    rewards = buffer.sample(2, num_batches=2000, sample_range=slice(1, -1, 2))["reward"].flatten().tolist()

    assert sum((rewards.count(name) - 1000) ** 2 / 1000 for name in (5, 7, 9, 11)) < 16.3  # 3 degrees, p = 0.001


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("ages", [slice(0, 0), slice(5, 2), slice(20, None), slice(-1, 0)], ids=str)
def test_sample_range_may_not_be_empty(ages: slice, replace: bool) -> None:
    with pytest.raises(ValueError, match="batch_size must be at most the 0 transitions kept"):
        filled(10).sample(1, sample_range=ages, replace=replace)


def test_sample_range_may_not_be_smaller_than_a_minibatch_unless_it_may_be_replaced() -> None:
    buffer = filled(10)

    with pytest.raises(ValueError, match=r"batch_size must be at most the 3 transitions kept, .* got 4"):
        buffer.sample(4, sample_range=slice(-3, None))
    assert set(buffer.sample(40, sample_range=slice(-3, None), replace=True)["reward"].tolist()) == {7, 8, 9}


def test_sample_keeps_the_columns_of_a_transition_together() -> None:
    buffer = buffer_of(50)
    buffer.push(steps(0, 40, num_envs=2))

    got = buffer.sample(20, num_batches=4)

    env_id, step = got["env_id"], got["obs"][..., 1]
    assert got["obs"][..., 0].equal(env_id.float())
    assert got["next_obs"].equal(torch.stack([env_id, step + 1], dim=-1))
    assert got["reward"].equal(10.0 * env_id + step)


def test_sample_gives_the_discount_of_one_step() -> None:
    assert filled(3).sample(3, discount_factor=0.9)["discount"].tolist() == pytest.approx([0.9] * 3, rel=1e-6)


def test_sample_sums_the_rewards_of_several_steps() -> None:
    got = filled(3).sample(3, n_step=2, discount_factor=0.5)

    # Rewards 0, 1, 2: 0 + 1/2, 1 + 2/2, and 2 alone because its follower is not there.
    by_first = {row[1]: values for row, *values in zip(*(got[n].tolist() for n in ("obs", "reward", "discount")))}  # noqa: B905
    assert by_first == {0: [0.5, 0.25], 1: [2.0, 0.25], 2: [2.0, 0.5]}


def test_sample_is_a_copy() -> None:
    buffer = filled(5)
    for values in buffer.sample(5).values():
        values.zero_()

    assert sorted(buffer.sample(5)["reward"].tolist()) == [0, 1, 2, 3, 4]
    assert sorted(buffer.sample(5)["next_obs"][:, 1].tolist()) == [1, 2, 3, 4, 5]


def test_sample_is_reproducible_from_the_seed() -> None:
    first, second = filled(100, seed=3), filled(100, seed=3)

    assert_equal(first.sample(7, num_batches=2), second.sample(7, num_batches=2))


def test_sample_differs_with_the_seed() -> None:
    first, second = filled(100, seed=3), filled(100, seed=4)

    assert first.sample(20)["reward"].tolist() != second.sample(20)["reward"].tolist()


@pytest.mark.parametrize("replace", [False, True])
def test_sample_refuses_an_empty_buffer(replace: bool) -> None:
    with pytest.raises(ValueError, match="batch_size must be at most the 0 transitions kept"):
        buffer_of(5).sample(1, replace=replace)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size must be >= 1, got 0"),
        ({"batch_size": 1, "n_step": 0}, "n_step must be >= 1, got 0"),
        ({"batch_size": 1, "num_batches": 0}, "num_batches must be >= 1 or None, got 0"),
    ],
)
def test_sample_refuses_numbers_that_are_none(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        filled(5).sample(**arguments)  # type: ignore[arg-type]


def test_update_says_that_there_are_no_priorities() -> None:
    with pytest.raises(TypeError, match="stores no priorities"):
        filled(5).update({"priority": torch.ones(2)})


@pytest.mark.parametrize("kind", ["naive", "advanced", "sequence", "episode"])
def test_full_buffer_keeps_replay_buffer_size_transitions(kind: str) -> None:
    cfg = {"type": kind, "replay_buffer_size": 12} | ({"sequence_length": 2} if kind == "sequence" else {})
    buffer = create_buffer(cfg)
    data: Any = steps(0, 6) | {"terminated": np.arange(6) == 5}
    for _ in range(5):
        buffer.push([data] if kind == "episode" else data)

    assert buffer.count() == (2 if kind == "episode" else 12)


def test_buffer_is_a_context_that_keeps_its_data() -> None:
    with filled(5) as buffer:
        pass

    assert buffer.count() == 5


@pytest.mark.parametrize("state", [{}, {"tensors": {}, "counters": {}}])
def test_load_state_dict_refuses_invalid_states(state: dict[str, Any]) -> None:
    buffer = NaiveReplayBuffer({"replay_buffer_size": 3})
    with pytest.raises(ValueError, match="state must be what state_dict returned, with tensors, counters and rng"):
        buffer.load_state_dict(state)


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"every item must have the keys \['reward'\], got \['action'\]"):
        buffer_of(4).push([{"reward": 1.0}, {"action": 1}])
    with pytest.raises(
        ValueError, match="batch_size must be at most the 5 transitions kept, without replacement, got 6"
    ):
        filled(5).sample(6)
    with pytest.raises(ValueError, match="monitor_freq must be >= 1, got 0"):
        NaiveReplayBuffer({"monitor_freq": 0})
    with pytest.raises(ValueError, match="replay_buffer_size must be >= 1, got 0"):
        buffer_of(0)
    state = SequenceReplayBuffer({"replay_buffer_size": 3, "sequence_length": 2}).state_dict()
    with pytest.raises(ValueError, match="state must be the state of a NaiveReplayBuffer, got 'SequenceReplayBuffer'"):
        NaiveReplayBuffer({"replay_buffer_size": 3}).load_state_dict(state)


@pytest.mark.parametrize(("num_batches", "batch_size", "count"), [(1, 32, 70), (5, 8, 1000), (3, 20, 45)])
def test_number_that_repeats_another_of_its_minibatch_is_drawn_again(
    num_batches: int, batch_size: int, count: int
) -> None:
    rows = np.random.default_rng(0).integers(count, size=(num_batches, batch_size))
    expected = np.zeros(rows.shape, dtype=bool)
    for minibatch, row in enumerate(rows):
        order = row.argsort()
        for place in range(1, batch_size):
            expected[minibatch, order[place]] = row[order[place]] == row[order[place - 1]]

    again = sampling._repeats(rows)

    np.testing.assert_array_equal(again if again is not None else np.zeros(rows.shape, dtype=bool), expected)
