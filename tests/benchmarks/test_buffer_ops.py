"""The work of a push to a replay buffer and of a draw from it does not grow."""

from __future__ import annotations

import json

import pytest

from benchmarks.buffer_ops import FILE, CallCounter, count, packages
from benchmarks.ops import grown

STORED = json.loads(FILE.read_text())


def test_python_and_builtin_functions_are_counted() -> None:
    counter = CallCounter()

    def inner() -> int:
        return len([])

    with counter:
        inner()
        inner()
    inner()
    assert counter.counts == {"python_frames": 2 + 1, "builtin_calls": 2 + 1}  # and __exit__ with its setprofile


def test_no_count_of_a_buffer_has_grown() -> None:
    pytest.importorskip("numba")
    if packages() != STORED["versions"]:
        pytest.skip(f"the counts are those of {STORED['versions']}")
    more = grown(STORED["counts"], count())
    assert not more, f"{more}; python -m benchmarks.buffer_ops --write stores new counts, if they have to grow"
