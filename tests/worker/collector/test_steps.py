"""Quotas, tables of steps, and windows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from lightning_ding.worker.collector.episode import StepTable, cut_windows
from lightning_ding.worker.collector.sample import TransitionQueue
from lightning_ding.worker.episodes import share_out


@given(st.integers(1, 200), st.integers(1, 20), st.integers(0, 100))
def test_share_out_deals_out_one_by_one(n_episode: int, num_envs: int, turn: int) -> None:
    dealt = [0] * num_envs
    for card in range(n_episode):
        dealt[(turn + card) % num_envs] += 1

    assert share_out(n_episode, num_envs, turn).tolist() == dealt


@pytest.mark.parametrize(("n_episode", "num_envs", "name"), [(0, 1, "n_episode"), (1, 0, "num_envs")])
def test_share_out_refuses_numbers_that_are_none(n_episode: int, num_envs: int, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be >= 1, got 0"):
        share_out(n_episode, num_envs)


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_step_table_gives_the_newest_steps_of_an_env(data: st.DataObject) -> None:
    table, everything = StepTable(capacity=data.draw(st.integers(1, 8))), np.empty((0, 2, 1))
    alive = 0
    for place in range(data.draw(st.integers(1, 60))):
        everything = np.concatenate([everything, [[[place], [-place]]]])
        table.append({"a": {"b": np.array([[place], [-place]])}}, alive)
        alive = data.draw(st.integers(0, alive + 1))
        env_id, length = data.draw(st.integers(0, 1)), data.draw(st.integers(0, alive))
        expected = everything[len(everything) - length :, env_id]
        assert table.cut(env_id, length)["a"]["b"].tolist() == expected.tolist()


def test_step_table_gives_a_copy() -> None:
    table = StepTable()
    table.append({"a": np.array([1.0])}, alive=0)
    table.cut(0, 1)["a"].fill(9)

    assert table.cut(0, 1)["a"].tolist() == [1.0]


@given(st.integers(1, 30), st.integers(1, 12))
def test_cut_windows_gives_every_step_once_and_fills_up_with_the_last(steps: int, length: int) -> None:
    windows = cut_windows({"a": {"b": np.arange(steps)}}, length)

    values, mask = windows["a"]["b"], windows["mask"]
    assert values.shape == mask.shape == (-(-steps // length), length)
    assert values[mask].tolist() == list(range(steps))
    assert set(values[~mask].tolist()) <= {steps - 1}


@pytest.mark.parametrize(
    ("episode", "length", "message"),
    [
        ({"a": np.zeros(3)}, 0, "length must be >= 1, got 0"),
        ({"mask": np.zeros(3)}, 2, r"episode must be without an entry 'mask', .* got \['mask'\]"),
    ],
)
def test_cut_windows_refuses_what_it_cannot_cut(episode: dict[str, Any], length: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cut_windows(episode, length)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_queue_returns_transitions_in_order_whatever_is_wanted(data: st.DataObject) -> None:
    queue, came, taken = TransitionQueue(), 0, 0
    for _ in range(data.draw(st.integers(1, 12))):
        wanted = data.draw(st.integers(1, 20))
        while queue.lacks(wanted):
            numbers = np.arange(came, came + data.draw(st.integers(1, 7)))
            kind = data.draw(st.sampled_from([np.int64, np.int32, np.float32]))
            queue.append({"a": {"b": numbers.astype(kind)}, "c": np.stack([numbers, -numbers], axis=1)})
            came = int(numbers[-1]) + 1
        amount = data.draw(st.integers(1, queue.count))
        some = queue.take(amount)
        assert some["a"]["b"].tolist() == some["c"][:, 0].tolist() == list(range(taken, taken + amount))
        taken += amount
        assert queue.count == came - taken


def test_queue_copies_each_transition_once() -> None:
    queue = TransitionQueue()
    queue.lacks(4)
    steps = [{"obs": np.full((2, 3), number)} for number in range(2)]
    for step in steps:
        queue.append(step)
    taken = queue.take(4)["obs"]

    assert taken.base is not None
    assert taken.base.shape == (6, 3)
    assert not any(np.shares_memory(taken, step["obs"]) for step in steps)


def test_queue_does_not_copy_a_step_that_is_enough() -> None:
    queue, step = TransitionQueue(), {"obs": np.zeros((4, 3))}
    queue.lacks(4)
    queue.append(step)

    assert queue.take(4)["obs"] is step["obs"]


def test_queue_joins_transitions_of_different_types_as_numpy_does() -> None:
    queue = TransitionQueue()
    for column in (np.array([1, 2]), np.array([0.5], dtype=np.float32), np.array([3])):
        queue.lacks(4)
        queue.append({"a": column})
    taken = queue.take(4)["a"]

    assert taken.tolist() == [1.0, 2.0, 0.5, 3.0]
    assert taken.dtype == np.float64


def test_mistakes_are_named() -> None:
    table = StepTable()
    table.append({"obs": {"a": np.zeros(1)}}, alive=0)
    with pytest.raises(ValueError, match=r"obs must have the keys \['a'\], got \['b'\]"):
        table.append({"obs": {"b": np.zeros(1)}}, alive=1)
    queue = TransitionQueue()
    queue.lacks(2)
    queue.append({"a": np.zeros(1)})
    queue.append({"b": np.zeros(1)})
    with pytest.raises(ValueError, match=r"must have the keys \['a'\], got \['b'\]"):
        queue.take(2)
