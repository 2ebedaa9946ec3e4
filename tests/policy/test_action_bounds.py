"""The bounds of continuous actions: -2..6 is 4 x + 2, and the other dimension 0..1 is x / 2 + 1 / 2."""

from __future__ import annotations

import math

import pytest
import torch

from lightning_ding.policy.action_bounds import ActionBounds

NORMALISED = [[-1.0, -1.0], [0.0, 0.0], [1.0, 0.5]]
IN_ENV_UNITS = [[-2.0, 0.0], [2.0, 0.5], [6.0, 0.75]]


def make_bounds() -> ActionBounds:
    bounds = ActionBounds(2)
    bounds.set([-2.0, 0.0], [6.0, 1.0])
    return bounds


def test_actions_are_mapped_to_the_box_of_the_env() -> None:
    assert make_bounds().to_env(torch.tensor(NORMALISED)).tolist() == IN_ENV_UNITS


def test_actions_of_the_env_are_mapped_back() -> None:
    assert make_bounds().from_env(torch.tensor(IN_ENV_UNITS)).tolist() == NORMALISED


def test_actions_stay_as_they_are_until_bounds_are_set() -> None:
    bounds = ActionBounds(2)
    assert bounds.to_env(torch.tensor(IN_ENV_UNITS)).tolist() == IN_ENV_UNITS
    assert bounds.from_env(torch.tensor(IN_ENV_UNITS)).tolist() == IN_ENV_UNITS


def test_bounds_are_saved_with_the_module() -> None:
    bounds = ActionBounds(2)
    bounds.load_state_dict(make_bounds().state_dict())
    assert bounds.to_env(torch.tensor(NORMALISED)).tolist() == IN_ENV_UNITS


def test_the_dimension_without_bounds_is_named() -> None:
    with pytest.raises(ValueError, match=r"dimension 1 of the action must have finite bounds, got \[0.0, inf\]"):
        ActionBounds(2).set([-1.0, 0.0], [1.0, math.inf])


def test_a_dimension_without_bounds_stays_as_it_is_if_allowed() -> None:
    bounds = ActionBounds(2, allow_unbounded=True)
    bounds.set([-2.0, 0.0], [6.0, math.inf])
    assert bounds.to_env(torch.tensor([[0.5, 7.0]])).tolist() == [[4.0, 7.0]]


@pytest.mark.parametrize(
    ("low", "high", "message"),
    [
        ([-1.0], [1.0], "action_low and action_high must be of 2 dimensions"),
        ([-1.0, 1.0], [1.0, 1.0], r"action_low\[1\] must be below action_high \(1.0\)"),
    ],
)
def test_bounds_that_make_no_box_are_refused(low: list[float], high: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ActionBounds(2).set(low, high)
