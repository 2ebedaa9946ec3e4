"""The sum tree against a plain array, and its compiled loops against its array operations."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

from lightning_ding.worker import create_buffer
from lightning_ding.worker.buffer.sum_tree import SumTree

QUICK = settings(max_examples=80, deadline=None, derandomize=True)

# Of whole numbers every sum is exact; the others are rounded, do not overflow, and vanish when added to each other.
WHOLE = st.sampled_from([0.0, 0.0, 1.0, 2.0, 3.0, 100.0])
ROUNDED = st.sampled_from([0.0, 0.1, 1 / 3, 1e-300, 5e-324, 1e-9, 1e9, 1e300, 0.7])
SIZES = st.sampled_from([1, 2, 7, 8, 9, 63, 64, 65, 300, 8 * 64 * 4096 + 1])  # the last has a level more
Writes = list[tuple[list[int], list[float]]]


@st.composite
def writes(draw: Any, weights: Any, sizes: Any = SIZES) -> tuple[int, Writes]:
    """Return a capacity and writes; a row may stand in one of them more than once."""
    capacity = draw(sizes)
    rows = st.lists(st.integers(0, capacity - 1), max_size=12)
    chosen = draw(st.lists(rows, min_size=1, max_size=6))
    return capacity, [(part, draw(st.lists(weights, min_size=len(part), max_size=len(part)))) for part in chosen]


def written(capacity: int, parts: Writes, compiled: bool) -> SumTree:
    tree = SumTree(capacity, compiled)
    for rows, weights in parts:
        tree.write(np.array(rows, dtype=np.int64), np.array(weights))
    return tree


def plain(capacity: int, parts: Writes) -> NDArray[np.float64]:
    leaves = np.zeros(capacity)
    for rows, weights in parts:
        for row, weight in zip(rows, weights, strict=True):
            leaves[row] = weight
    return leaves


@pytest.fixture(params=[False, True], ids=["plain", "compiled"])
def compiled(request: pytest.FixtureRequest) -> bool:
    if request.param:
        pytest.importorskip("numba")
    return bool(request.param)


# ------------------------------------------------------------------ against an array


@pytest.mark.parametrize("compiled", [False, True])
@QUICK
@given(case=writes(WHOLE))
def test_sum_tree_finds_the_leaf_at_a_place_of_the_cumulative_sum(compiled: bool, case: tuple[int, Writes]) -> None:
    if compiled:
        pytest.importorskip("numba")
    leaves, tree = plain(*case), written(*case, compiled)
    places = np.arange(leaves.sum())  # where each unit of weight begins

    assert tree.total == leaves.sum()
    if len(places):
        expected = np.searchsorted(leaves.cumsum(), places, side="right")
        exact = (places + 0.5) / len(places)
        assert tree.find(exact).tolist() == expected.tolist()
        assert tree.smallest == leaves[leaves > 0].min()
    else:
        assert tree.smallest == np.inf
    assert tree.largest == leaves.max()
    assert tree.read(np.arange(len(leaves))).tolist() == leaves.tolist()


@pytest.mark.parametrize("compiled", [False, True])
@QUICK
@given(case=writes(ROUNDED), seed=st.integers(0, 9))
def test_sum_tree_never_finds_a_leaf_without_weight(compiled: bool, case: tuple[int, Writes], seed: int) -> None:
    if compiled:
        pytest.importorskip("numba")
    leaves, tree = plain(*case), written(*case, compiled)
    fraction = np.append(np.random.default_rng(seed).random(200), [0.0, 1 - 2.0**-53])

    if leaves.any():
        assert (leaves[tree.find(fraction)] > 0).all()
    else:
        with pytest.raises(ValueError, match="needs a weight above 0 to draw from, got none"):
            tree.find(fraction)


@QUICK
@given(case=writes(ROUNDED, st.sampled_from([1, 9, 65, 300])), seed=st.integers(0, 99), is_sorted=st.booleans())
def test_sum_tree_gives_the_same_bits_compiled_and_plain(case: tuple[int, Writes], seed: int, is_sorted: bool) -> None:
    pytest.importorskip("numba")
    with_numba, without = written(*case, compiled=True), written(*case, compiled=False)
    fraction = np.append(np.random.default_rng(seed).random(100), [0.0, 1 - 2.0**-53])
    fraction = np.sort(fraction) if is_sorted else fraction

    for name in ("_leaf", "_nodes"):
        assert getattr(with_numba, name).tobytes() == getattr(without, name).tobytes(), name
    if without.total > 0:
        np.testing.assert_array_equal(with_numba.find(fraction), without.find(fraction))


def test_sum_tree_draws_leaves_in_proportion_to_their_weight(compiled: bool) -> None:
    weights = np.random.default_rng(0).random(500)
    tree = SumTree(500, compiled)
    tree.write(np.arange(500), weights)

    found = tree.find(np.random.default_rng(1).random(100_000))

    expected = 100_000 * weights / weights.sum()
    observed = np.bincount(found, minlength=500)
    assert ((observed - expected) ** 2 / expected).sum() < 603  # chi-square, 499 degrees of freedom, p = 0.001


def test_sum_tree_does_not_drift_over_many_writes(compiled: bool) -> None:
    tree, rng = SumTree(200, compiled), np.random.default_rng(0)
    tree.write(np.arange(200), 1e12 * rng.random(200))
    for _ in range(50):
        tree.write(rng.integers(200, size=100), 1e12 * rng.random(100))

    tree.write(np.arange(200), np.ones(200))  # a tree that adds differences would keep a rest of the large weights

    assert (tree.total, tree.smallest, tree.largest) == (200, 1, 1)


# ------------------------------------------------------------------ writing


def test_sum_tree_takes_the_last_weight_of_a_leaf_that_stands_twice(compiled: bool) -> None:
    tree = SumTree(10, compiled)
    tree.write(np.array([3, 5, 3]), np.array([1.0, 2.0, 4.0]))

    assert (tree.total, tree.read([3, 5]).tolist()) == (6, [4, 2])


def test_sum_tree_takes_one_weight_for_all(compiled: bool) -> None:
    tree = SumTree(100, compiled)
    tree.write(np.arange(100), 2.0)
    tree.write(np.arange(90), 0.0)

    assert (tree.total, tree.smallest) == (20, 2)


def test_sum_tree_knows_the_smallest_weight_after_it_rose_again(compiled: bool) -> None:
    tree = SumTree(100, compiled)
    tree.write(np.arange(100), 5.0)
    tree.write(np.array([42]), 1.0)
    before = tree.smallest
    tree.write(np.array([42]), 7.0)

    assert (before, tree.smallest, tree.largest) == (1, 5, 7)


def test_sum_tree_is_empty_after_it_was_cleared(compiled: bool) -> None:
    tree = SumTree(100, compiled)
    tree.write(np.arange(100), 5.0)
    tree.clear()

    assert (tree.total, tree.smallest, tree.largest) == (0, np.inf, 0)


def test_sum_tree_finds_nothing_for_nothing(compiled: bool) -> None:
    tree = SumTree(4, compiled)
    tree.write(np.arange(4), 1.0)

    assert tree.find(np.empty(0)).tolist() == []


def test_sum_tree_needs_little_more_than_its_leaves() -> None:
    tree = SumTree(100_000)
    tree.write(np.arange(100_000), 1.0)

    assert tree.nbytes < 1.45 * 8 * 100_000


def test_sum_tree_uses_memory_only_for_written_entries(compiled: bool) -> None:
    tree = SumTree(1_000_000, compiled)
    assert tree.nbytes < 6000

    tree.write(np.arange(5000), 1.0)

    assert tree.nbytes < 1.5 * 8 * 5000


@pytest.mark.parametrize("rows", [[0], [63, 64], [64], [5000, 3], [100_000 - 1]])
def test_sum_tree_knows_leaves_beyond_those_written_before(compiled: bool, rows: list[int]) -> None:
    tree = SumTree(100_000, compiled)
    tree.write(np.array([1]), 0.0)

    tree.write(np.array(rows), np.arange(1.0, 1 + len(rows)))

    assert (tree.smallest, tree.largest, tree.total) == (1, len(rows), sum(range(1, 1 + len(rows))))
    assert set(tree.find(np.linspace(0, 0.999, 50)).tolist()) == set(rows)


@pytest.mark.parametrize(("others", "expected"), [([], 2.0), ([3_000_000], 5.0), (range(0, 512 * 40, 512), 5.0)])
def test_sum_tree_knows_the_largest_weight_of_other_leaves(compiled: bool, others: list[int], expected: float) -> None:
    tree = SumTree(4_000_000, compiled)
    tree.write(np.arange(100, 110), 2.0)
    for row in (105, *others):
        tree.write(np.array([row]), 5.0)

    assert tree.largest_without(np.array([104, 105])) == expected


# ------------------------------------------------------------------ without numba


def drawn() -> list[float]:
    buffer = create_buffer({"type": "advanced", "replay_buffer_size": 200}, seed=0)
    buffer.push({"reward": np.arange(200.0), "priority": np.random.default_rng(0).random(200)})
    rewards = []
    for _ in range(5):
        batch = buffer.sample(32)
        buffer.update({**batch, "priority": batch["IS"]})
        rewards += batch["reward"].tolist()
    return rewards


def test_buffer_draws_the_same_with_and_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    with_numba = drawn()
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "numba" else find_spec(name))

    assert SumTree(1)._find.__module__ == "lightning_ding.worker.buffer.sum_tree"
    assert drawn() == with_numba


def test_sum_tree_is_compiled_where_numba_is_there() -> None:
    pytest.importorskip("numba")

    assert SumTree(1)._find.__module__ == "lightning_ding.worker.buffer.sum_tree_numba"
