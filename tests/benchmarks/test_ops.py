"""The work of an update and of a round does not grow."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks.ops import CASES, FILE, FrameCounter, OperatorCounter, count, grown, versions

STORED = json.loads(FILE.read_text())


def test_operators_and_their_new_tensors_are_counted() -> None:
    counter = OperatorCounter()
    x = torch.ones(3)
    with counter:
        x.add_(1)  # in place
        y = x + 1
        y.view(3, 1)
    torch.zeros(2)
    assert counter.counts == {"operators": 3, "allocations": 1}


def test_entered_functions_are_counted() -> None:
    counter = FrameCounter()

    def inner() -> None: ...

    def outer() -> None:
        inner()
        inner()

    with counter:
        outer()
    outer()
    assert counter.counts["python_frames"] == 3 + 1  # and __exit__


def test_a_larger_count_is_named_and_a_smaller_one_is_not() -> None:
    stored = {"W1": {"update": {"operators": 10.0, "allocations": 4.0}}}
    new = {"W1": {"update": {"operators": 10.5, "allocations": 3.0}}}
    assert grown(stored, new) == ["W1, update: 10.5 operators, stored are 10.0"]


@pytest.mark.parametrize("case", CASES)
def test_no_count_has_grown(case: str) -> None:
    if versions() != STORED["versions"]:
        pytest.skip(f"the counts are those of {STORED['versions']}")
    more = grown(STORED["counts"], {case: count(CASES[case])})
    assert not more, f"{more}; python -m benchmarks.ops --write stores new counts, if they have to grow"
