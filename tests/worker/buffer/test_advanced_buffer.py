"""The prioritised buffer: sampling frequencies, importance weights, and removal of transitions."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from lightning_ding.worker import AdvancedReplayBuffer, NaiveReplayBuffer
from tests.worker.buffer.priority_toys import (
    assert_drawn_in_proportion,
    buffer_of,
    prioritised,
    rows,
    set_priorities,
    walk,
)


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


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"batch_size must be at most the 2 transitions kept, .* got 3"):
        prioritised(1, 1, 1, 1).sample(3, sample_range=slice(-2, None))
    buffer = prioritised(1, 16, anneal_step=1.0, anneal_unit="budget")
    with pytest.raises(ValueError, match="set max_env_step on the datamodule"):
        buffer.sample(2)


def test_beta_does_not_depend_on_how_often_is_sampled() -> None:
    buffer = prioritised(1, 1, beta=0.5, anneal_step=100)
    for _ in range(200):
        buffer.sample(1, 10)

    assert buffer.beta == pytest.approx(0.55)


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


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"alpha": 1.1}, r"alpha must be in \[0, 1\], got 1\.1"),
        ({"beta": -0.1}, r"beta must be in \[0, 1\], got -0\.1"),
        ({"anneal_step": -1}, "anneal_step must be >= 0, got -1"),
        ({"anneal_step": 0, "anneal_unit": "budget"}, "anneal_unit must be left at its default with anneal_step 0"),
        ({"max_use": 0}, "max_use must be an int >= 1 or None, got 0"),
        ({"max_staleness": 0}, "max_staleness must be an int >= 1 or None, got 0"),
        ({"sequence_length": 4}, "config key 'sequence_length' does nothing in AdvancedReplayBuffer, got 4; its keys:"),
        ({"deepcopy": True}, "config key 'deepcopy' does not exist here: a buffer always stores and returns copies"),
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
    with pytest.raises(KeyError, match=f"update needs {missing} in addition to priority"):
        buffer.update(batch)
