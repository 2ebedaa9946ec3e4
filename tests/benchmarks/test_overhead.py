"""The table of where a round's time goes."""

from __future__ import annotations

import pytest

from benchmarks.overhead import NOT_OVERHEAD, PARTS, measure


def test_the_parts_of_a_round_add_up_to_its_time() -> None:
    parts = measure("W1", 800)
    total = parts.pop("total")
    assert sum(parts.values()) == pytest.approx(total)
    assert set(PARTS) | {"Lightning and the start"} == set(parts)
    assert set(NOT_OVERHEAD) < set(parts)
    assert parts["updates together"] < 100 < parts["updates one by one"]  # microseconds; nothing is compiled
