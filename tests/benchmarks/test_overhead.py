"""The table of where a round's time goes."""

from __future__ import annotations

import time

import pytest

from benchmarks.overhead import LIGHTNING, NOT_OVERHEAD, PARTS, Clock, measure


def test_the_parts_of_a_round_add_up_to_its_time() -> None:
    parts = measure("W1", 800, skipped=5)
    total = parts.pop("total")
    assert sum(parts.values()) == pytest.approx(total)
    assert set(PARTS) | {LIGHTNING} == set(parts)
    assert set(NOT_OVERHEAD) < set(parts)
    assert parts["updates"] > 100  # microseconds
    assert all(parts.values())  # each function that is timed is called


def test_the_clock_leaves_out_the_first_rounds() -> None:
    clock = Clock(skipped=2)
    learn = clock.timed("learning", lambda: time.sleep(0.01))
    for _ in range(2):
        learn()
    assert (clock.rounds, clock.total, dict(clock.seconds)) == (0, 0.0, {})
    learn()
    assert clock.rounds == 1
    assert clock.total >= clock.seconds["learning"] >= 0.01
