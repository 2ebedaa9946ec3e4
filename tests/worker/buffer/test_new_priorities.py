"""Which priority new transitions get: the largest of those that stay."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from lightning_ding.worker import AdvancedReplayBuffer
from lightning_ding.worker.buffer.sum_tree import SumTree
from tests.worker.buffer.priority_toys import buffer_of, prioritised, rows, weights_of

QUICK = settings(max_examples=60, deadline=None, derandomize=True)


def priorities_of(buffer: AdvancedReplayBuffer) -> dict[int, float]:
    """Return the priorities by reward of the transitions that can be drawn."""
    tensors = buffer.state_dict()["tensors"]
    names, priorities = tensors["column/reward"].tolist(), tensors["own/priority"].tolist()
    kept = tensors["own/weight"].tolist()
    return {int(n): round(p, 3) for n, p, weight in zip(names, priorities, kept, strict=True) if weight > 0}


@pytest.mark.parametrize("alpha", [0.6, 1.0])
@pytest.mark.parametrize("compiled", [True, False])
def test_new_transitions_get_the_largest_priority_of_those_that_stay(alpha: float, compiled: bool) -> None:
    if compiled:
        pytest.importorskip("numba")
    buffer = buffer_of(4, alpha=alpha)
    buffer._tree = SumTree(4, compiled)
    buffer.push(rows(0, 1, 2, 3, priority=[1000, 1, 1, 1]))

    for name in range(4, 8):
        buffer.push(rows(name))

    assert set(priorities_of(buffer).values()) == {1.0}


def test_new_transitions_share_a_large_priority_while_it_stays() -> None:
    buffer = prioritised(1, 1, 1000, 1)

    buffer.push(rows(4, 5))
    assert priorities_of(buffer) == {2: 1000, 3: 1, 4: 1000, 5: 1000}


def test_a_push_that_replaces_everything_begins_with_priority_1() -> None:
    buffer = prioritised(1000, 50)

    buffer.push(rows(2, 3, 4))

    assert set(priorities_of(buffer).values()) == {1.0}


def test_new_transitions_in_free_rows_get_the_largest_priority() -> None:
    buffer = buffer_of(8)
    buffer.push(rows(0, 1, priority=[7, 3]))

    buffer.push(rows(2))

    assert priorities_of(buffer)[2] == 7


def test_a_priority_that_was_updated_away_is_no_largest() -> None:
    buffer = prioritised(1, 1000, 1, 1)
    batch = buffer.sample(1)  # the one of 1000, but for one draw in 200
    while batch["reward"].item() != 1:
        batch = buffer.sample(1)
    buffer.update({**batch, "priority": [2.0]})

    buffer.push(rows(4))

    assert priorities_of(buffer)[4] == 2


def drop_episode(buffer: AdvancedReplayBuffer) -> None:
    buffer.drop_episodes([1])


def use_up(buffer: AdvancedReplayBuffer) -> None:
    while 1 in priorities_of(buffer):
        buffer.sample(1)


def make_stale(buffer: AdvancedReplayBuffer) -> None:
    buffer.sample(1, cur_learner_iter=10)


@pytest.mark.parametrize(
    ("remove", "config"), [(drop_episode, {}), (use_up, {"max_use": 1}), (make_stale, {"max_staleness": 10})]
)
def test_a_priority_that_was_removed_is_no_largest(remove: Any, config: Any) -> None:
    buffer = buffer_of(6, **config)
    columns = {"episode_id": [0, 1, 0, 0], "policy_version": [5, 0, 5, 5]}
    buffer.push(rows(0, 1, 2, 3, priority=[1, 1000, 1, 1], **columns))

    remove(buffer)
    buffer.push(rows(4, episode_id=[2], policy_version=[5]))

    assert priorities_of(buffer)[4] == 1


def test_a_cleared_buffer_begins_with_priority_1() -> None:
    buffer = prioritised(1000, 1000)
    buffer.clear()

    buffer.push(rows(2))

    assert priorities_of(buffer) == {2: 1}


def test_a_restored_buffer_gives_new_transitions_the_priorities_that_the_original_does() -> None:
    original, restored = prioritised(1000, 5, 1, 1), buffer_of(4)
    original.push(rows(4))
    restored.load_state_dict(original.state_dict())

    for buffer in (original, restored):
        for name in range(5, 12):
            buffer.push(rows(name))

    assert weights_of(original) == weights_of(restored)
    assert set(priorities_of(original).values()) == {5.0}


@QUICK
@given(st.lists(st.one_of(st.integers(1, 6), st.lists(st.floats(0, 50), min_size=1, max_size=6)), max_size=20))
def test_new_priorities_are_those_of_a_slow_oracle(pushes: list[Any]) -> None:
    buffer, name = buffer_of(5, alpha=1.0), 0
    kept: list[tuple[int, float]] = []
    for push in pushes:
        size = push if isinstance(push, int) else len(push)
        given_with = {} if isinstance(push, int) else {"priority": push}
        buffer.push(rows(*range(name, name + size), **given_with))
        staying = kept[-(5 - size) :] if size < 5 else []
        new = [max([p for _, p in staying], default=1.0)] * size if isinstance(push, int) else [p + 1e-5 for p in push]
        kept = (staying + [(name + place, one) for place, one in enumerate(new)])[-5:]
        name += size

        assert priorities_of(buffer) == pytest.approx(dict(kept), abs=1e-3)
