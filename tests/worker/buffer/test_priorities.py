"""Updates of priorities, and the priorities of new transitions."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.worker.buffer.priority_toys import assert_drawn_in_proportion, buffer_of, prioritised, rows, weights_of


def test_update_changes_the_priorities_of_the_sampled_transitions() -> None:
    buffer = prioritised(1, 1, 1, 1, alpha=1.0)
    batch = buffer.sample(4)

    buffer.update({**batch, "priority": torch.tensor([0.0, 1.0, 3.0, 0.0])})

    assert buffer.sample(4)["reward"].tolist() == [1, 2, 2, 2]
    assert buffer.sample(4)["priority"].tolist() == pytest.approx([1, 3, 3, 3], rel=1e-4)


def test_update_of_priority_zero_leaves_a_transition_a_chance() -> None:
    buffer = prioritised(1, 1, 1, alpha=1.0)
    batch = buffer.sample(3)
    buffer.update({**batch, "priority": [0.0, 0.0, 0.0]})

    assert_drawn_in_proportion(buffer, {0: 1, 1: 1, 2: 1})


def test_update_skips_overwritten_transitions() -> None:
    buffer = prioritised(1, 1, 1, 1)
    batch = buffer.sample(4)
    buffer.push(rows(4, 5, priority=[2, 2]))  # in the places of 0 and 1
    before = weights_of(buffer)

    buffer.update({**batch, "priority": [100.0] * 4})

    after = weights_of(buffer)
    assert after[:2] == before[:2]
    assert after[2:] == pytest.approx([100**0.6] * 2, rel=1e-5)


def test_update_skips_transitions_that_were_overwritten_more_than_once() -> None:
    buffer = prioritised(1, 1, 1)
    batch = buffer.sample(3)
    for lap in range(3):
        buffer.push(rows(*range(3 * lap, 3 * lap + 3)))
    before = weights_of(buffer)

    buffer.update({**batch, "priority": [100.0] * 3})

    assert weights_of(buffer) == before


@pytest.mark.parametrize("pushed", [3, 4, 6, 8])
@pytest.mark.parametrize("pushed_again", [0, 1, 3, 4])
def test_update_skips_cleared_transitions(pushed: int, pushed_again: int) -> None:
    """Pushing exactly a buffer full is the case in which a place not written yet could be mistaken for an old one."""
    buffer = buffer_of(4, alpha=1.0)
    buffer.push(rows(*range(pushed)))
    batch = buffer.sample(3, num_batches=5)
    buffer.clear()
    if pushed_again:
        buffer.push(rows(*range(pushed_again)))

    buffer.update({**batch, "priority": torch.full((5, 3), 100.0)})

    assert buffer.count() == pushed_again
    buffer.push(rows(*range(4)))
    assert weights_of(buffer) == [1, 1, 1, 1]


def test_update_takes_the_last_priority_of_a_transition_that_stands_twice() -> None:
    buffer = prioritised(1, 1, alpha=1.0)
    batch = buffer.sample(2)
    twice = {key: torch.cat([batch[key], batch[key]]) for key in ("replay_unique_id", "replay_buffer_idx")}

    buffer.update({**twice, "priority": [9.0, 9.0, 2.0, 3.0]})

    assert weights_of(buffer) == pytest.approx([2, 3], rel=1e-4)


def test_update_takes_minibatches_of_any_shape() -> None:
    buffer = prioritised(1, 1, 1, 1, alpha=1.0)
    batch = buffer.sample(4, num_batches=2)

    buffer.update({**batch, "priority": batch["reward"] + 1})

    assert weights_of(buffer) == pytest.approx([1, 2, 3, 4], rel=1e-4)


def test_update_without_priorities_changes_nothing() -> None:
    buffer = prioritised(1, 2)
    before = weights_of(buffer)
    batch = buffer.sample(2)
    del batch["priority"]

    buffer.update(batch)

    assert weights_of(buffer) == before


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf"), -1.0, 1e39])
def test_update_refuses_a_priority_that_is_none_and_changes_nothing(wrong: float) -> None:
    buffer = prioritised(1, 2, 3)
    before, batch = weights_of(buffer), buffer.sample(3)

    with pytest.raises(ValueError, match="priority must be finite and >= 0, got"):
        buffer.update({**batch, "priority": [5.0, wrong, 5.0]})

    assert weights_of(buffer) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"priority": torch.ones(2)}, r"must have one size, got \(2, 3, 3\)"),
        ({"replay_unique_id": torch.arange(2)}, r"must have one size, got \(3, 2, 3\)"),
        ({"replay_buffer_idx": torch.arange(4)}, r"must have one size, got \(3, 3, 4\)"),
        ({"replay_buffer_idx": torch.tensor([0, 1, 3])}, r"replay_buffer_idx must be in \[0, 3\), got 0 to 3"),
        ({"replay_buffer_idx": torch.tensor([0, -1, 1])}, r"replay_buffer_idx must be in \[0, 3\), got -1 to 1"),
    ],
)
def test_update_refuses_columns_that_do_not_match(change: dict[str, Any], message: str) -> None:
    buffer = prioritised(1, 2, 3)
    before, batch = weights_of(buffer), buffer.sample(3)

    with pytest.raises(ValueError, match=message):
        buffer.update({**batch, "priority": torch.ones(3), **change})

    assert weights_of(buffer) == before


@pytest.mark.parametrize("missing", ["replay_unique_id", "replay_buffer_idx"])
def test_update_needs_to_know_which_transitions_are_meant(missing: str) -> None:
    buffer = prioritised(1, 2, 3)
    batch = buffer.sample(3)
    del batch[missing]

    with pytest.raises(KeyError, match=missing):
        buffer.update(batch)


def test_push_takes_priorities_that_are_given() -> None:
    by_batch, by_list = buffer_of(3, alpha=1.0), buffer_of(3, alpha=1.0)
    by_batch.push(rows(0, 1, 2, priority=[1, 2, 3]))
    by_list.push([{"reward": 0.0, "priority": 1.0}, {"reward": 1.0, "priority": 2.0}, {"reward": 2.0, "priority": 3.0}])

    for buffer in (by_batch, by_list):
        assert weights_of(buffer) == pytest.approx([1, 2, 3], rel=1e-4)
        assert buffer.sample(1).keys() == {
            "reward",
            "discount",
            "IS",
            "priority",
            "replay_unique_id",
            "replay_buffer_idx",
        }


def test_push_of_more_than_fits_takes_the_priorities_of_what_is_kept() -> None:
    buffer = buffer_of(3, alpha=1.0)
    buffer.push(rows(*range(8), priority=range(1, 9)))

    assert_drawn_in_proportion(buffer, {5: 6, 6: 7, 7: 8})


@pytest.mark.parametrize(
    ("priority", "message"),
    [
        ([1.0, float("nan")], "priority must be finite and >= 0, got nan"),
        ([1.0, -1.0], "priority must be finite and >= 0, got -1.0"),
        ([1.0], "priority must be one number for each of 2 transitions, got 1"),
        ([1.0, 1.0, 1.0], "priority must be one number for each of 2 transitions, got 3"),
    ],
)
def test_push_of_wrong_priorities_stores_nothing(priority: list[float], message: str) -> None:
    buffer = prioritised(1, 2, 3)
    before = weights_of(buffer)

    with pytest.raises(ValueError, match=message):
        buffer.push(rows(7, 8, priority=priority))

    assert (buffer.push_count, weights_of(buffer)) == (3, before)
    assert set(buffer.sample(3, num_batches=20)["reward"].flatten().tolist()) == {0, 1, 2}


def test_push_of_nothing_changes_nothing() -> None:
    buffer = prioritised(1, 2, 3)
    before = weights_of(buffer)
    buffer.push([])
    buffer.push(rows(priority=[]))

    assert (buffer.push_count, weights_of(buffer)) == (3, before)


def test_push_changes_neither_the_dict_nor_what_another_buffer_knows_of_it() -> None:
    data = rows(*range(4), priority=[1.0, 2.0, 3.0, 4.0])
    copy = {key: value.copy() for key, value in data.items()}
    first, second = buffer_of(4, alpha=1.0), buffer_of(8, alpha=1.0)
    second.push(rows(9, 9))
    for buffer in (first, second):
        buffer.push(data)
    batch = first.sample(4)
    first.update({**batch, "priority": [0.0] * 4})

    assert data.keys() == copy.keys()
    assert all((data[key] == copy[key]).all() for key in data)
    assert weights_of(second) == pytest.approx([1, 1, 1, 2, 3, 4], rel=1e-4)


def test_sample_is_a_copy() -> None:
    buffer = prioritised(1, 2, 3)
    before = weights_of(buffer)
    for values in buffer.sample(3).values():
        values.fill_(2)

    assert weights_of(buffer) == before
    assert set(buffer.sample(3, num_batches=20)["reward"].flatten().tolist()) == {0, 1, 2}


def test_sample_of_later_does_not_change_a_minibatch_in_use() -> None:
    buffer = prioritised(1, 2, 3, max_use=50)
    batch = buffer.sample(3, cur_learner_iter=0)
    before = {key: value.clone() for key, value in batch.items()}
    buffer.update({**batch, "priority": [9.0, 0.0, 0.0]})
    buffer.push(rows(8))
    buffer.sample(3, cur_learner_iter=9)

    assert all(batch[key].equal(before[key]) for key in before)
