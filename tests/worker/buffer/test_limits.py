"""Limits of use and of age in a prioritised buffer."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from tests.worker.buffer.priority_toys import buffer_of, prioritised, rows

QUICK = settings(max_examples=60, deadline=None, derandomize=True)


@pytest.mark.parametrize("max_use", [1, 2, 5])
@pytest.mark.parametrize("num_batches", [None, 1, 3])
def test_transition_is_sampled_exactly_max_use_times(max_use: int, num_batches: int | None) -> None:
    buffer = prioritised(*range(1, 31), max_use=max_use)
    counts: Counter[float] = Counter()
    while buffer.count():
        batch_size = 5 if buffer.count() >= 15 else 1
        batch = buffer.sample(batch_size, num_batches=num_batches if buffer.count() >= 15 else None)
        counts.update(batch["reward"].flatten().tolist())
        buffer.update({**batch, "priority": 100 * batch["IS"]})  # brings nothing back
        assert buffer.count() == 30 - sum(count == max_use for count in counts.values())

    assert counts == dict.fromkeys(range(30), max_use)
    with pytest.raises(ValueError, match="batch_size must be at most the 0 transitions kept"):
        buffer.sample(1)


def test_max_use_holds_within_one_minibatch_too() -> None:
    buffer = prioritised(1000, 1, 1, 1, alpha=1.0, max_use=2)

    got = buffer.sample(4)["reward"].tolist()

    assert Counter(got)[0] == 2


def test_max_use_draws_what_is_left_in_proportion() -> None:
    def second_of_two(seed: int) -> float:
        """Return the second transition of a minibatch of two, whose first one is nearly always the same."""
        names = prioritised(1e6, 1, 2, 3, alpha=1.0, max_use=1, seed=seed).sample(2)["reward"].tolist()
        return float(sum(names))

    counts = Counter(second_of_two(seed) for seed in range(600))

    expected = {1: 100, 2: 200, 3: 300}
    assert sum((counts[name] - number) ** 2 / number for name, number in expected.items()) < 13.8  # p = 0.001


@QUICK
@given(
    steps=st.lists(st.tuples(st.sampled_from(["push", "sample", "update", "range"]), st.integers(1, 6)), max_size=25),
    max_use=st.integers(1, 3),
    seed=st.integers(0, 9),
)
def test_max_use_is_never_exceeded_whatever_happens(steps: list[tuple[str, int]], max_use: int, seed: int) -> None:
    buffer, counts, name = buffer_of(7, seed, max_use=max_use), Counter[float](), 0
    pushed: list[float] = []
    batch: dict[str, Any] = {}
    for what, amount in steps:
        if what == "push":
            new = [float(name + i) for i in range(amount)]
            buffer.push(rows(*new))
            name, pushed = name + amount, pushed + new
        elif what == "update" and batch:
            buffer.update({**batch, "priority": torch.full((len(batch["reward"]),), 10.0 * amount)})
        elif what in ("sample", "range") and amount <= buffer.count():
            batch = buffer.sample(amount, sample_range=slice(-amount, None) if what == "range" else None)
            counts.update(batch["reward"].tolist())
        alive = [kept for kept in pushed[-7:] if counts[kept] < max_use]
        assert buffer.count() == len(alive)
        assert set(batch["reward"].tolist() if batch else []) <= set(pushed)
    assert max(counts.values(), default=0) <= max_use


def test_sample_refuses_more_than_the_uses_left_and_uses_none() -> None:
    buffer = prioritised(1, 1, 1, 1, max_use=2)

    with pytest.raises(ValueError, match="batch_size must be at most the 8 uses left before max_use, got 9"):
        buffer.sample(3, num_batches=3)

    assert sorted(buffer.sample(4, num_batches=2)["reward"].flatten().tolist()) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_transition_that_was_used_up_makes_room_like_any_other() -> None:
    buffer = buffer_of(3, max_use=1)
    for lap in range(4):
        buffer.push(rows(*range(3 * lap, 3 * lap + 3)))
        assert buffer.count() == 3
        assert sorted(buffer.sample(3)["reward"].tolist()) == [3 * lap, 3 * lap + 1, 3 * lap + 2]
        assert buffer.count() == 0


def test_transition_leaves_when_its_policy_is_max_staleness_updates_old() -> None:
    buffer = buffer_of(10, max_staleness=3)
    buffer.push(rows(0, 1, 2, 3, policy_version=[0, 1, 2, 3]))

    buffer.sample(1, cur_learner_iter=2)
    before = buffer.count()
    got = buffer.sample(2, cur_learner_iter=4, num_batches=20)

    assert (before, buffer.count()) == (4, 2)
    assert set(got["reward"].flatten().tolist()) == {2, 3}


@QUICK
@given(
    versions=st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=8), min_size=1, max_size=8),
    lags=st.lists(st.integers(-3, 4), min_size=8, max_size=8),
    max_staleness=st.integers(1, 6),
    max_use=st.sampled_from([None, None, 1, 2]),
)
def test_stale_transition_is_never_returned_whatever_the_order_of_versions(
    versions: list[list[int]], lags: list[int], max_staleness: int, max_use: int | None
) -> None:
    buffer = buffer_of(12, max_staleness=max_staleness, max_use=max_use)
    train_iter = 0
    for part, lag in zip(versions, lags, strict=False):
        buffer.push(rows(*part, policy_version=part))
        train_iter = max(0, train_iter + lag)
        for batch_size, num_batches in ((1, None), (2, 2)):
            try:
                batch = buffer.sample(batch_size, train_iter, num_batches=num_batches)
            except ValueError:
                continue
            assert (train_iter - batch["policy_version"]).max() < max_staleness


def test_stale_transitions_are_not_counted_once_they_were_dropped() -> None:
    buffer = buffer_of(5000, max_staleness=10)
    for version in range(30):
        buffer.push({"reward": np.zeros(100), "policy_version": np.full(100, version)})

    counts = []
    for train_iter in (5, 12, 25, 20, 30):
        buffer.sample(8, train_iter)
        counts.append(buffer.count())

    # Of version v are dropped those with train_iter - v >= 10; a smaller train_iter brings none back.
    assert counts == [3000, 2700, 1400, 1400, 900]


def test_max_staleness_holds_for_what_is_pushed_after_an_older_one() -> None:
    buffer = buffer_of(3000, max_staleness=5)
    for version, amount in ((9, 2000), (0, 500)):  # stale ones are looked for from the oldest up to a fresh one
        buffer.push({"reward": np.zeros(amount), "policy_version": np.full(amount, version)})

    got = buffer.sample(64, cur_learner_iter=10)

    assert got["policy_version"].tolist() == [9] * 64
    assert 2000 <= buffer.count() < 2500


def test_max_staleness_applies_to_transitions_redrawn_because_of_max_use() -> None:
    buffer = buffer_of(3000, alpha=1.0, max_staleness=5, max_use=1)
    for version, amount, priority in ((9, 1, 1e6), (9, 2000, 1.0), (0, 500, 1.0)):
        columns = {"policy_version": np.full(amount, version), "priority": np.full(amount, priority)}
        buffer.push({"reward": np.zeros(amount), **columns})

    got = buffer.sample(64, cur_learner_iter=10)  # nearly all of it was first the transition of priority 1e6

    assert got["policy_version"].tolist() == [9] * 64
    assert buffer.count() == 2001 - 64


def test_stale_transitions_are_searched_again_after_loading_a_state() -> None:
    original, restored = buffer_of(2000, max_staleness=5), buffer_of(2000, max_staleness=5)
    original.push({"reward": np.zeros(50), "policy_version": np.repeat([0, 9], 25)})
    restored.push({"reward": np.zeros(2000), "policy_version": np.repeat([0, 9], [1500, 500])})
    restored.sample(8, cur_learner_iter=10)

    restored.load_state_dict(original.state_dict())
    restored.sample(8, cur_learner_iter=10)

    assert restored.count() == 25


def test_stale_transition_is_not_brought_back_by_an_update() -> None:
    buffer = buffer_of(4, max_staleness=5)
    buffer.push(rows(0, 1, policy_version=[0, 9]))
    batch = buffer.sample(2, cur_learner_iter=0)
    buffer.sample(1, cur_learner_iter=9)
    buffer.update({**batch, "priority": [100.0, 100.0]})

    assert set(buffer.sample(1, cur_learner_iter=0, num_batches=20)["reward"].flatten().tolist()) == {1}


def test_mistakes_are_named() -> None:
    with pytest.raises(
        ValueError, match=r"data must be transitions with a policy_version or a collect_iter, got \['reward'\]"
    ):
        buffer_of(4, max_staleness=5).push(rows(0))
    buffer = buffer_of(4, max_staleness=5)
    buffer.push(rows(0, 1, 2, policy_version=[0, 0, 9]))
    with pytest.raises(ValueError, match=r"at most the 1 transitions kept within max_staleness, .* got 2"):
        buffer.sample(2, cur_learner_iter=9)
