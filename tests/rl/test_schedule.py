"""Values that change during a run."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from lightning_ding.rl import Schedule

POINTS = [[0.25, 1.0], [0.5, 2.0], [0.75, 0.0]]


@pytest.mark.parametrize(
    ("kind", "step", "expected"),
    [
        ("constant", 10**9, 0.9),
        # from 0.9 to 0.1 with decay 100; linear: 0.9 - 0.8 * x / 100
        ("linear", 0, 0.9),
        ("linear", 25, 0.7),
        ("linear", 50, 0.5),
        ("linear", 100, 0.1),
        ("linear", 10**9, 0.1),
        # exp: 0.1 + 0.8 * e^(-x / 100)
        ("exp", 0, 0.9),
        ("exp", 50, 0.1 + 0.8 * 0.6065306597),
        ("exp", 100, 0.1 + 0.8 * 0.3678794412),
        ("exp", 10**9, 0.1),
        # cosine: 0.1 + 0.8 * (1 + cos(pi * x / 100)) / 2
        ("cosine", 0, 0.9),
        ("cosine", 25, 0.1 + 0.4 * 1.7071067812),
        ("cosine", 50, 0.5),
        ("cosine", 100, 0.1),
        ("cosine", 10**9, 0.1),
    ],
)
@pytest.mark.parametrize("unit", ["env_step", "budget"])
def test_schedule_goes_from_start_to_end(kind: Any, step: int, expected: float, unit: Any) -> None:
    decay = 100 if unit == "env_step" else 0.5  # of a budget of 200
    value = Schedule(kind, start=0.9, end=0.1, decay=decay, unit=unit).value(step, budget=200)
    assert math.isclose(value, expected, rel_tol=1e-9)


@pytest.mark.parametrize(("kind", "middle"), [("linear", 0.5), ("exp", 0.9 - 0.8 * 0.6065306597), ("cosine", 0.5)])
def test_schedule_can_rise(kind: Any, middle: float) -> None:
    schedule = Schedule(kind, start=0.1, end=0.9, decay=100)
    assert np.allclose([schedule.value(step) for step in (0, 50, 10**9)], [0.1, middle, 0.9], rtol=1e-9)


def test_piecewise_schedule_interpolates_between_its_points() -> None:
    # flat before 0.25, up by 1 to 0.5, down by 2 to 0.75, flat after it
    schedule = Schedule("piecewise", 1.0, 0.0, unit="budget", points=POINTS)
    found = [schedule.value(step, budget=100) for step in (0, 25, 30, 50, 60, 75, 100, 1000)]
    assert np.allclose(found, [1.0, 1.0, 1.2, 2.0, 1.2, 0.0, 0.0, 0.0], atol=1e-12)


@pytest.mark.parametrize(
    ("schedule", "is_over"),
    [
        (Schedule("constant", 1.0, 0.0), [False, False, False]),
        (Schedule("linear", 1.0, 0.0, 100), [False, False, True]),
        (Schedule("cosine", 1.0, 0.0, 0.5, "budget"), [False, False, True]),
        (Schedule("exp", 1.0, 0.0, 10), [False, False, False]),
        (Schedule("piecewise", 1.0, 0.0, points=[[0, 1.0], [100, 0.0]]), [False, False, True]),
    ],
)
def test_schedule_is_over_once_the_run_goes_past_its_end(schedule: Schedule, is_over: list[bool]) -> None:
    assert [schedule.is_over(step, budget=200) for step in (0, 100, 101)] == is_over


@pytest.mark.parametrize("method", ["value", "is_over"])
def test_error_of_a_schedule_without_budget_names_the_option_to_set(method: str) -> None:
    with pytest.raises(ValueError, match=r"set max_env_step on the datamodule .* or use unit='env_step'"):
        getattr(Schedule("linear", 1.0, 0.0, unit="budget"), method)(5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"type": "step"}, "type must be one of 'constant', 'linear', 'exp', 'cosine', 'piecewise', got 'step'"),
        ({"unit": "train_iter"}, "unit must be 'env_step' or 'budget', got 'train_iter'"),
        ({"decay": 0}, "decay must be > 0, got 0"),
        ({"decay": -1}, "decay must be > 0, got -1"),
        ({"type": "piecewise"}, "points must be set with type='piecewise'"),
        ({"points": POINTS}, "points must be set with type='piecewise' and with no other"),
        ({"type": "piecewise", "points": [[0.5, 1.0], [0.25, 0.0]]}, "increasing x >= 0"),
        ({"type": "piecewise", "points": [[0.5, 1.0], [0.5, 0.0]]}, "increasing x >= 0"),
        ({"type": "piecewise", "points": [[-0.5, 1.0], [0.5, 0.0]]}, "increasing x >= 0"),
        ({"type": "piecewise", "points": [[-1.0, 1.0]]}, "increasing x >= 0"),
        ({"type": "piecewise", "points": [[0.0, 1.0, 2.0]]}, "pairs"),
    ],
)
def test_schedule_refuses_what_makes_none(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Schedule(**{"type": "linear", "start": 1.0, "end": 0.0, **arguments})
