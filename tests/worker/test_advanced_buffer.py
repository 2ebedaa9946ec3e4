"""The prioritised buffer: how often it draws what, with which weights, and what leaves it when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_ding.worker import AdvancedReplayBuffer, NaiveReplayBuffer

QUICK = settings(max_examples=60, deadline=None, derandomize=True)
SaveAndLoad = Callable[[AdvancedReplayBuffer, AdvancedReplayBuffer], None]


def buffer_of(size: int, seed: int | None = 0, **config: Any) -> AdvancedReplayBuffer:
    return AdvancedReplayBuffer({"replay_buffer_size": size, **config}, seed=seed)


def rows(*names: float, **columns: Any) -> dict[str, Any]:
    """Return transitions that are known by their reward."""
    return {"reward": np.array(names, dtype=float), **{key: np.array(value) for key, value in columns.items()}}


def prioritised(*priorities: float, **config: Any) -> AdvancedReplayBuffer:
    """Return a full buffer of rewards 0, 1, 2, ... with these priorities."""
    buffer = buffer_of(len(priorities), **config)
    buffer.push(rows(*range(len(priorities)), priority=priorities))
    return buffer


def set_priorities(buffer: AdvancedReplayBuffer, priorities: dict[float, float]) -> None:
    """Sample until each of these rewards was there, and update it."""
    missing = dict(priorities)
    while missing:
        batch = buffer.sample(1)
        name = batch["reward"].item()
        if name in missing:
            buffer.update({**batch, "priority": [missing.pop(name)]})


def weights_of(buffer: AdvancedReplayBuffer) -> list[float]:
    weights: list[float] = buffer.state_dict()["tensors"]["own/weight"].tolist()
    return weights


def assert_drawn_in_proportion(buffer: AdvancedReplayBuffer, weights: dict[float, float], **arguments: Any) -> None:
    """Compare 12,000 draws with weights by reward, which are not to be more than 25."""
    got = buffer.sample(3, num_batches=4000, **arguments)["reward"].flatten().tolist()
    counts, total = Counter(got), sum(weights.values())
    expected = {name: len(got) * weight / total for name, weight in weights.items()}
    assert set(counts) <= set(expected)
    # Draws of one minibatch are not independent but stratified, which only makes the statistic smaller.
    statistic = sum((counts[name] - number) ** 2 / number for name, number in expected.items())
    assert statistic < 2 * len(weights) + 12  # chi-square: p < 0.001 for up to 25 weights


# ------------------------------------------------------------------ how often


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_sample_draws_in_proportion_to_priority_to_the_power_of_alpha(alpha: float) -> None:
    priorities = [0.5, 1, 2, 4, 8, 16, 1, 3]
    buffer = prioritised(*priorities, alpha=alpha)

    assert_drawn_in_proportion(buffer, {i: p**alpha for i, p in enumerate(priorities)})


def test_sample_draws_in_proportion_after_wrap_around_updates_and_removals() -> None:
    buffer = buffer_of(12, alpha=1.0, max_staleness=10)
    for start in range(0, 20, 4):  # 8 to 19 are kept
        names = range(start, start + 4)
        version = [0 if name in (13, 14) else 5 for name in names]
        buffer.push(rows(*names, priority=[1.0 + name for name in names], policy_version=version))
    set_priorities(buffer, {8: 40, 19: 5, 11: 0.5, 13: 9})
    buffer.push(rows(20, priority=[7], policy_version=[5]))  # 8 leaves
    assert_drawn_in_proportion(
        buffer,
        {9: 10, 10: 11, 11: 0.5, 12: 13, 15: 16, 16: 17, 17: 18, 18: 19, 19: 5, 20: 7},  # 13 and 14 are too stale
        cur_learner_iter=10,
    )


def test_sample_draws_from_a_partly_filled_buffer_what_is_there() -> None:
    buffer = buffer_of(1000, alpha=1.0)
    buffer.push(rows(0, 1, 2, priority=[1, 2, 3]))

    assert_drawn_in_proportion(buffer, {0: 1, 1: 2, 2: 3})


def test_sample_takes_each_of_its_draws_from_an_equal_share_of_the_total_weight() -> None:
    buffer = prioritised(3, 1, 1, 1, 1, 1, alpha=1.0)  # 8 in all, so a draw for each 2

    got = buffer.sample(4, num_batches=300)["reward"]

    assert [set(draw.tolist()) for draw in got.unbind(1)] == [{0}, {0, 1}, {2, 3}, {4, 5}]


def test_sample_draws_its_minibatches_independently() -> None:
    got = prioritised(*[1.0] * 50).sample(5, num_batches=30)["reward"]

    assert len({tuple(batch) for batch in got.tolist()}) > 25


def test_sample_is_reproducible_from_the_seed() -> None:
    def drawn(seed: int) -> list[float]:
        rewards: list[float] = prioritised(*range(1, 60), seed=seed).sample(20)["reward"].tolist()
        return rewards

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


# ------------------------------------------------------------------ ranges of age


@pytest.mark.parametrize(
    ("ages", "weights"),
    [
        (slice(-3, None), {7: 8, 8: 9, 9: 10}),
        (slice(None, 2), {4: 5, 5: 6}),
        (slice(0, 1), {4: 5}),
        (slice(-4, -2), {6: 7, 7: 8}),
        (slice(None, None, 2), {4: 5, 6: 7, 8: 9}),
        (slice(None), {4: 5, 5: 6, 6: 7, 7: 8, 8: 9, 9: 10}),
    ],
)
def test_sample_range_counts_by_age_also_after_wrap_around(ages: slice, weights: dict[float, float]) -> None:
    buffer = buffer_of(6, alpha=1.0)
    for name in range(10):
        buffer.push(rows(name, priority=[1.0 + name]))

    batch = buffer.sample(1, num_batches=2000, sample_range=ages)

    counts = Counter(batch["reward"].flatten().tolist())
    assert set(counts) == set(weights)
    expected = {name: 2000 * weight / sum(weights.values()) for name, weight in weights.items()}
    statistic = sum((counts[name] - number) ** 2 / number for name, number in expected.items())
    assert statistic < 2 * len(weights) + 12  # chi-square: p < 0.001


def test_sample_range_makes_importance_weights_of_the_range_alone() -> None:
    buffer = prioritised(1, 8, 2, alpha=1.0, beta=1.0, anneal_step=0)
    batch = buffer.sample(2, num_batches=50, sample_range=slice(1, None))

    by_name = dict(zip(batch["reward"].flatten().tolist(), batch["IS"].flatten().tolist(), strict=True))
    assert by_name == pytest.approx({1: 0.25, 2: 1.0}, rel=1e-4)


def test_sample_range_passes_over_what_has_left() -> None:
    buffer = buffer_of(6, max_staleness=5)
    buffer.push(rows(*range(6), policy_version=[9, 9, 0, 0, 9, 9]))

    got = buffer.sample(2, cur_learner_iter=10, num_batches=20, sample_range=slice(1, 3))

    assert set(got["reward"].flatten().tolist()) == {1, 4}


def test_sample_range_may_not_hold_less_than_a_minibatch() -> None:
    with pytest.raises(ValueError, match=r"batch_size must be at most the 2 transitions kept, .* got 3"):
        prioritised(1, 1, 1, 1).sample(3, sample_range=slice(-2, None))


# ------------------------------------------------------------------ importance weights


def slow_importance_weights(priorities: dict[float, float], alpha: float, beta: float) -> dict[float, float]:
    """Return (N p_i)^-beta, divided by the largest, with p_i = priority_i^alpha / sum."""
    total = sum(priority**alpha for priority in priorities.values())
    weights = {name: (len(priorities) * priority**alpha / total) ** -beta for name, priority in priorities.items()}
    return {name: weight / max(weights.values()) for name, weight in weights.items()}


@pytest.mark.parametrize(("alpha", "beta"), [(0.6, 0.4), (1.0, 1.0), (0.3, 0.0), (0.0, 0.7), (1.0, 0.5)])
def test_importance_weights_are_those_of_a_slow_oracle(alpha: float, beta: float) -> None:
    buffer = buffer_of(8, alpha=alpha, beta=beta, anneal_step=0)
    priorities = {float(name): 0.1 + name % 5 for name in range(12)}
    for name, priority in priorities.items():
        buffer.push(rows(name, priority=[priority]))
    set_priorities(buffer, {7: 30.0, 10: 0.02})
    priorities |= {7: 30.0, 10: 0.02}
    kept = {name: priority + 1e-5 for name, priority in priorities.items() if name >= 4}

    batch = buffer.sample(4, num_batches=200)

    expected = slow_importance_weights(kept, alpha, beta)
    for name, weight in zip(batch["reward"].flatten().tolist(), batch["IS"].flatten().tolist(), strict=True):
        assert weight == pytest.approx(expected[name], rel=1e-5)


def test_importance_weights_are_relative_to_the_buffer_not_to_the_minibatch() -> None:
    buffer = prioritised(1, 4, 4, 4, alpha=1.0, beta=1.0)
    batch = buffer.sample(1, sample_range=slice(None))
    while batch["reward"].item() == 0:
        batch = buffer.sample(1)

    assert batch["IS"].item() == pytest.approx(0.25, rel=1e-4)


def test_importance_weights_are_one_for_equal_priorities() -> None:
    assert prioritised(2, 2, 2).sample(3)["IS"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("anneal_step", "train_iter", "beta"),
    [(10, 0, 0.4), (10, 5, 0.7), (10, 10, 1.0), (10, 1000, 1.0), (0, 0, 0.4), (0, 1000, 0.4), (40, 10, 0.55)],
)
def test_beta_goes_to_one_over_the_updates_asked_for(anneal_step: int, train_iter: int, beta: float) -> None:
    buffer = prioritised(1, 16, alpha=1.0, beta=0.4, anneal_step=anneal_step)

    batch = buffer.sample(2, train_iter, num_batches=20)

    assert buffer.beta == pytest.approx(beta)
    assert batch["IS"].min().item() == pytest.approx(16**-beta, rel=1e-4)


@pytest.mark.parametrize(("unit", "anneal_step"), [("env_step", 40), ("budget", 0.5)])
def test_beta_goes_to_one_over_the_env_steps_asked_for(unit: str, anneal_step: float) -> None:
    buffer = prioritised(1, 16, alpha=1.0, beta=0.4, anneal_step=anneal_step, anneal_unit=unit)
    buffer.budget = 80

    found = []
    for env_step in (0, 20, 40, 1000):
        buffer.push(rows(1), env_step)
        buffer.sample(2, cur_learner_iter=10**6)
        found.append(buffer.beta)

    assert found == pytest.approx([0.4, 0.7, 1.0, 1.0])
    other = prioritised(1, 16, alpha=1.0, beta=0.4, anneal_step=anneal_step, anneal_unit=unit)
    other.budget = 80
    other.load_state_dict(buffer.state_dict())
    assert other.beta == 1.0


def test_beta_in_shares_of_no_budget_is_refused() -> None:
    buffer = prioritised(1, 16, anneal_step=1.0, anneal_unit="budget")
    with pytest.raises(ValueError, match="set max_env_step on the datamodule"):
        buffer.sample(2)


def test_beta_does_not_depend_on_how_often_is_sampled() -> None:
    buffer = prioritised(1, 1, beta=0.5, anneal_step=100)
    for _ in range(200):
        buffer.sample(1, 10)

    assert buffer.beta == pytest.approx(0.55)


# ------------------------------------------------------------------ updates


def test_update_changes_the_priorities_of_what_was_sampled() -> None:
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


def test_update_passes_over_what_was_overwritten() -> None:
    buffer = prioritised(1, 1, 1, 1)
    batch = buffer.sample(4)
    buffer.push(rows(4, 5, priority=[2, 2]))  # in the places of 0 and 1
    before = weights_of(buffer)

    buffer.update({**batch, "priority": [100.0] * 4})

    after = weights_of(buffer)
    assert after[:2] == before[:2]
    assert after[2:] == pytest.approx([100**0.6] * 2, rel=1e-5)


def test_update_passes_over_what_was_overwritten_more_than_once() -> None:
    buffer = prioritised(1, 1, 1)
    batch = buffer.sample(3)
    for lap in range(3):
        buffer.push(rows(*range(3 * lap, 3 * lap + 3)))
    before = weights_of(buffer)

    buffer.update({**batch, "priority": [100.0] * 3})

    assert weights_of(buffer) == before


@pytest.mark.parametrize("pushed", [3, 4, 6, 8])
@pytest.mark.parametrize("pushed_again", [0, 1, 3, 4])
def test_update_passes_over_what_was_cleared(pushed: int, pushed_again: int) -> None:
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
def test_update_refuses_what_does_not_belong_together(change: dict[str, Any], message: str) -> None:
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


# ------------------------------------------------------------------ new transitions


def test_new_transitions_get_the_largest_priority_in_the_buffer() -> None:
    buffer = prioritised(1, 5, 2, 3, alpha=0.5)
    buffer.push(rows(10))  # in the place of 0

    assert_drawn_in_proportion(buffer, {10: 5**0.5, 1: 5**0.5, 2: 2**0.5, 3: 3**0.5})


def test_new_transitions_get_less_again_when_the_largest_priority_fell() -> None:
    buffer = prioritised(1, 5, 2, 3, alpha=1.0)
    buffer.push(rows(10))  # in the place of 0
    set_priorities(buffer, {10: 2.5, 1: 1})
    buffer.push(rows(11))  # in the place of 1

    assert_drawn_in_proportion(buffer, {10: 2.5, 11: 3, 2: 2, 3: 3})


def test_new_transitions_get_less_again_when_the_largest_was_overwritten() -> None:
    buffer = prioritised(5, 1, 2, alpha=1.0)
    buffer.push(rows(10, priority=[1]))
    buffer.push(rows(11, priority=[1]))
    buffer.push(rows(12))

    assert_drawn_in_proportion(buffer, {10: 1, 11: 1, 12: 1})  # it replaced the one of 2


def test_first_transitions_have_priority_one() -> None:
    buffer = buffer_of(5)
    buffer.push(rows(0, 1))

    assert buffer.sample(2)["priority"].tolist() == [1, 1]


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


# ------------------------------------------------------------------ limits of use


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
        """Return what stands in a minibatch of two beside the one that is nearly always drawn first."""
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


# ------------------------------------------------------------------ limits of age


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


def test_max_staleness_holds_for_what_is_drawn_anew_because_of_max_use() -> None:
    buffer = buffer_of(3000, alpha=1.0, max_staleness=5, max_use=1)
    for version, amount, priority in ((9, 1, 1e6), (9, 2000, 1.0), (0, 500, 1.0)):
        columns = {"policy_version": np.full(amount, version), "priority": np.full(amount, priority)}
        buffer.push({"reward": np.zeros(amount), **columns})

    got = buffer.sample(64, cur_learner_iter=10)  # nearly all of it was first the transition of priority 1e6

    assert got["policy_version"].tolist() == [9] * 64
    assert buffer.count() == 2001 - 64


def test_stale_transitions_are_looked_for_anew_after_a_state_was_loaded() -> None:
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


def test_max_staleness_needs_a_policy_version() -> None:
    with pytest.raises(ValueError, match=r"data must be transitions with a policy_version, got \['reward'\]"):
        buffer_of(4, max_staleness=5).push(rows(0))


def test_sample_refuses_when_too_few_are_fresh() -> None:
    buffer = buffer_of(4, max_staleness=5)
    buffer.push(rows(0, 1, 2, policy_version=[0, 0, 9]))

    with pytest.raises(ValueError, match=r"at most the 1 transitions kept within max_staleness, .* got 2"):
        buffer.sample(2, cur_learner_iter=9)


# ------------------------------------------------------------------ n steps


def walk(start: int, amount: int) -> dict[str, Any]:
    """Return vector steps of two envs; env 0 ends every fifth step, env 1 never."""
    step, env_id = np.repeat(np.arange(start, start + amount), 2), np.tile([0, 1], amount)
    return {
        "obs": np.stack([env_id, step], axis=1).astype(np.float32),
        "next_obs": np.stack([env_id, step + 1], axis=1).astype(np.float32),
        "reward": (1.0 + step + 10 * env_id),
        "terminated": (env_id == 0) & (step % 5 == 4),
        "truncated": np.zeros(len(step), dtype=bool),
        "env_id": env_id,
    }


def test_n_step_returns_are_those_of_the_uniform_buffer() -> None:
    uniform, prioritised_buffer = NaiveReplayBuffer({"replay_buffer_size": 20}, seed=0), buffer_of(20)
    for start in range(0, 14, 2):  # 28 transitions: both wrap
        for buffer in (uniform, prioritised_buffer):
            buffer.push(walk(start, 2))
    windows = {"n_step": 3, "discount_factor": 0.5}

    def by_first(batch: dict[str, Any]) -> dict[tuple[float, ...], list[Any]]:
        keys = ("reward", "discount", "next_obs", "terminated", "truncated")
        flat = zip(*(batch[key].flatten(0, 1).tolist() for key in ("obs", *keys)), strict=True)
        return {tuple(obs): rest for obs, *rest in flat}

    expected = by_first(uniform.sample(20, num_batches=1, **windows))  # type: ignore[arg-type]
    got = by_first(prioritised_buffer.sample(20, num_batches=20, **windows))  # type: ignore[arg-type]

    assert len(expected) == 20
    assert got == expected


# ------------------------------------------------------------------ metrics


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Stand in for the clock; ``clock.now`` is the time."""
    clock = SimpleNamespace(now=0.0)
    clock.perf_counter = lambda: clock.now
    monkeypatch.setattr("lightning_ding.worker.buffer.stored.time", clock)
    return clock


def test_pop_metrics_gives_rates_and_means_of_the_newest_minibatch(clock: SimpleNamespace) -> None:
    buffer = buffer_of(4, alpha=1.0, beta=0.5, anneal_step=10, max_use=3, max_staleness=100)
    buffer.push(rows(*range(6), priority=[1, 1, 1, 1, 1, 1], policy_version=[0, 0, 2, 2, 4, 4]))
    buffer.sample(2, 4)
    batch = buffer.sample(4, 4)
    buffer.update({**batch, "priority": [2.0, 4.0, 6.0, 8.0]})
    clock.now = 2.0

    assert buffer.pop_metrics() == {
        "count": 4,
        "pushed_per_second": 3,
        "sampled_per_second": 3,
        "removed_per_second": 1,
        "beta": pytest.approx(0.7),
        "waited_seconds": 0,
        "priority_mean": pytest.approx(5, rel=1e-4),
        "use_mean": 1.5,  # two of the four were sampled twice
        "staleness_mean": 1,
    }
    clock.now = 3.0
    assert buffer.pop_metrics()["pushed_per_second"] == 0


def test_pop_metrics_counts_what_was_used_up_and_what_was_stale_as_removed(clock: SimpleNamespace) -> None:
    buffer = buffer_of(10, max_use=1, max_staleness=5)
    buffer.push(rows(*range(10), policy_version=[0] * 3 + [9] * 7))
    buffer.sample(4, 9)  # three are stale, four used up
    clock.now = 1.0

    assert (buffer.pop_metrics()["removed_per_second"], buffer.count()) == (7, 3)
    buffer.push(rows(*range(10), policy_version=[9] * 10))  # three more leave; seven had left
    clock.now = 2.0
    assert (buffer.pop_metrics()["removed_per_second"], buffer.count()) == (3, 10)


def test_pop_metrics_knows_of_no_minibatch_after_clear() -> None:
    buffer = prioritised(1, 2, 3)
    buffer.sample(3)
    buffer.clear()

    assert "priority_mean" not in buffer.pop_metrics()


def test_pop_metrics_does_not_depend_on_what_is_done_to_a_minibatch() -> None:
    buffer = prioritised(1, 2, 3)
    before = buffer.sample(3)["replay_buffer_idx"].fill_(10**9)

    assert before.tolist() == [10**9] * 3
    assert buffer.pop_metrics()["priority_mean"] > 1


# ------------------------------------------------------------------ tracking what leaves


def test_used_data_is_what_was_overwritten_used_up_stale_or_cleared_each_once() -> None:
    buffer = buffer_of(6, max_use=1, max_staleness=5, enable_track_used_data=True)

    def used() -> list[int]:
        return sorted(buffer.pop_used_data().tolist())

    buffer.push(rows(*range(6), data_id=range(6), policy_version=[0, 0, 9, 9, 9, 9]))
    assert used() == []
    first = buffer.sample(2, cur_learner_iter=9)["data_id"].tolist()
    assert used() == [0, 1, *sorted(first)]
    buffer.push(rows(*range(4), data_id=range(6, 10), policy_version=[9] * 4))  # over 0 to 3
    assert used() == sorted({2, 3} - set(first))
    buffer.push(rows(*range(9), data_id=range(10, 19), policy_version=[9] * 9))  # three of them never stand anywhere
    assert used() == sorted({4, 5, *range(6, 13)} - set(first))
    buffer.clear()
    assert used() == [13, 14, 15, 16, 17, 18]


# ------------------------------------------------------------------ state


@pytest.fixture(params=["state_dict", "file", "torch.save"])
def hand_over(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SaveAndLoad]:
    """Copy one buffer's state to another, in memory or through a file."""

    def copy(source: AdvancedReplayBuffer, target: AdvancedReplayBuffer) -> None:
        if request.param == "file":
            source.save_data(tmp_path / "buffer.safetensors")
            target.load_data(tmp_path / "buffer.safetensors")
            return
        state = source.state_dict()
        if request.param == "torch.save":
            torch.save(state, tmp_path / "buffer.pt")
            state = torch.load(tmp_path / "buffer.pt", weights_only=True)
        target.load_state_dict(state)

    yield copy  # noqa: PT022


def pushed(start: int, amount: int) -> dict[str, Any]:
    names = np.arange(start, start + amount)
    return walk(start, amount) | {"policy_version": np.repeat(names // 4, 2), "priority": 1.0 + np.repeat(names % 3, 2)}


@pytest.mark.parametrize("steps", [3, 14], ids=["partly full", "wrapped"])
@pytest.mark.parametrize("limits", [{}, {"max_use": 2, "max_staleness": 3}], ids=["whole", "with removed rows"])
def test_saving_restores_everything_that_later_samples_depend_on(
    hand_over: SaveAndLoad, steps: int, limits: dict[str, int]
) -> None:
    config = {"beta": 0.5, "anneal_step": 20, **limits}
    original, restored = buffer_of(16, seed=1, **config), buffer_of(16, seed=2, **config)
    restored.push(pushed(50, 8))
    restored.sample(8, 14)
    original.push(pushed(0, steps))
    train_iter = (steps + 1) // 4  # that of the newest policy, or one behind it
    batch = original.sample(2, train_iter)
    original.update({**batch, "priority": [9.0, 0.1]})

    hand_over(original, restored)

    assert (restored.count(), restored.push_count, restored.beta) == (original.count(), 2 * steps, original.beta)
    for later in (train_iter, train_iter + 1):
        samples = [buffer.sample(2, later, n_step=2, discount_factor=0.5) for buffer in (original, restored)]
        assert samples[0].keys() == samples[1].keys()
        assert all(samples[0][key].equal(samples[1][key]) for key in samples[0])
        for buffer in (original, restored):
            buffer.update({**samples[0], "priority": [3.0, 4.0]})
            buffer.update({**batch, "priority": [7.0, 7.0]})  # of before it was saved
            buffer.push(pushed(steps, 2))
        assert weights_of(original) == weights_of(restored)
        assert original.count() == restored.count()


def test_saving_without_a_limit_of_use_lets_a_limited_buffer_begin_to_count(hand_over: SaveAndLoad) -> None:
    original, restored = prioritised(1, 1, 1), prioritised(1, 1, 1, max_use=2)
    restored.sample(3)

    hand_over(original, restored)

    counts = Counter(restored.sample(3, num_batches=2)["reward"].flatten().tolist())
    assert counts == {0: 2, 1: 2, 2: 2}


@pytest.mark.parametrize("prioritised_first", [False, True])
def test_saving_refuses_the_state_of_another_type_of_buffer(prioritised_first: bool) -> None:
    uniform = NaiveReplayBuffer({"replay_buffer_size": 3})
    uniform.push(rows(5, 6))
    source: Any
    target: Any
    source, target = (prioritised(1, 2, 3), uniform) if prioritised_first else (uniform, prioritised(1, 2, 3))
    count = target.count()

    with pytest.raises(ValueError, match=r"state must be that of a .*Buffer, got '.*Buffer'"):
        target.load_state_dict(source.state_dict())

    assert target.count() == count


def test_clear_forgets_transitions_and_priorities() -> None:
    buffer = prioritised(1, 2, 30)
    buffer.sample(3)
    buffer.clear()

    assert (buffer.count(), buffer.push_count) == (0, 0)
    with pytest.raises(ValueError, match="at most the 0 transitions kept"):
        buffer.sample(1)
    buffer.push(rows(7, 8))
    assert set(buffer.sample(2, num_batches=20)["reward"].flatten().tolist()) == {7, 8}


# ------------------------------------------------------------------ config and memory


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"alpha": 1.1}, r"alpha must be in \[0, 1\], got 1\.1"),
        ({"beta": -0.1}, r"beta must be in \[0, 1\], got -0\.1"),
        ({"anneal_step": -1}, "anneal_step must be >= 0, got -1"),
        ({"anneal_step": 0, "anneal_unit": "budget"}, "anneal_unit must be left alone with anneal_step 0"),
        ({"max_use": 0}, "max_use must be >= 1 or None, got 0"),
        ({"max_staleness": 0}, "max_staleness must be >= 1 or None, got 0"),
        ({"sequence_length": 4}, "config key 'sequence_length' does nothing in AdvancedReplayBuffer, got 4; its keys:"),
        ({"deepcopy": True}, "config key 'deepcopy' does not exist here: a buffer always keeps and returns copies"),
    ],
)
def test_buffer_refuses_a_config_that_makes_no_sense(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        buffer_of(4, **config)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size must be >= 1, got 0"),
        ({"batch_size": 1, "n_step": 0}, "n_step must be >= 1, got 0"),
        ({"batch_size": 1, "num_batches": 0}, "num_batches must be >= 1 or None, got 0"),
        ({"batch_size": 4}, "batch_size must be at most the 3 transitions kept, .* got 4"),
    ],
)
def test_sample_refuses_numbers_that_make_no_sense(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prioritised(1, 2, 3).sample(**arguments)  # type: ignore[arg-type]


def test_full_buffer_needs_hardly_more_memory_than_the_columns_of_its_transitions() -> None:
    """Although ``next_obs`` is a column, and priorities, weights and links are none."""
    rng, size = np.random.default_rng(0), 20_000
    obs = rng.normal(size=(size // 8 + 1, 8, 4)).astype(np.float32)
    buffer = buffer_of(size)
    for step in range(size // 8):
        ended = rng.random(8) < 0.05
        after = np.where(ended[:, None], rng.normal(size=(8, 4)), obs[step + 1]).astype(np.float32)
        columns = {"obs": obs[step], "next_obs": after, "action": np.zeros(8, int), "reward": np.ones(8, np.float32)}
        columns |= {"terminated": ended, "truncated": np.zeros(8, bool), "env_id": np.arange(8)}
        columns |= {"episode_id": np.arange(8), "policy_version": np.full(8, step)}
        buffer.push(columns)

    of_columns = size // 8 * sum(column.nbytes for column in columns.values())
    assert buffer.nbytes <= 1.1 * of_columns


def test_loaded_priorities_count_as_the_own_alpha_says() -> None:
    source = AdvancedReplayBuffer({"replay_buffer_size": 4, "alpha": 1.0}, seed=0)
    source.push({"reward": np.arange(4.0), "priority": np.array([1.0, 1.0, 1.0, 97.0])})
    uniform = AdvancedReplayBuffer({"replay_buffer_size": 4, "alpha": 0.0}, seed=0)
    uniform.load_state_dict(source.state_dict())

    drawn = uniform.sample(4, num_batches=50)["reward"]

    assert [int((drawn == value).sum()) for value in range(4)] == [50, 50, 50, 50]  # each B-th of the total is one


@pytest.mark.parametrize("missing", ["replay_unique_id", "replay_buffer_idx"])
def test_update_says_which_id_it_lacks(missing: str) -> None:
    buffer = AdvancedReplayBuffer({"replay_buffer_size": 4}, seed=0)
    buffer.push({"reward": np.arange(4.0)})
    batch = buffer.sample(2)
    del batch[missing]
    with pytest.raises(KeyError, match=f"update needs {missing} beside priority"):
        buffer.update(batch)
