"""The bounds of continuous actions: -2..6 is 4 x + 2, and the other dimension 0..1 is x / 2 + 1 / 2."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from lightning_ding.policy.base.action_bounds import ActionBounds, action_bounds

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


def test_actions_are_kept_between_minus_one_and_one_until_bounds_are_set() -> None:
    bounds = ActionBounds(2)
    assert bounds.to_env(torch.tensor(IN_ENV_UNITS)).tolist() == [[-1.0, 0.0], [1.0, 0.5], [1.0, 0.75]]
    assert bounds.from_env(torch.tensor(IN_ENV_UNITS)).tolist() == IN_ENV_UNITS


def test_actions_outside_of_the_box_are_moved_to_its_bounds() -> None:
    assert make_bounds().to_env(torch.tensor([[-1.5, 3.0]])).tolist() == [[-2.0, 1.0]]


def test_rounding_takes_no_action_out_of_the_box() -> None:
    """Of a thousand boxes with two decimals."""
    rng = np.random.default_rng(0)
    low, width = rng.integers(-1000, 1000, 1000) / 100, rng.integers(1, 1000, 1000) / 100
    box = spaces.Box(low.astype(np.float32), (low + width).astype(np.float32))
    bounds = ActionBounds(1000)
    bounds.set(*action_bounds(box))
    for side in (-1.0, 1.0):
        assert box.contains(bounds.to_env(torch.full((1000,), side)).numpy())
    assert np.array_equal(bounds.low.numpy(), box.low)
    assert np.array_equal(bounds.high.numpy(), box.high)


def test_bounds_are_saved_with_the_module() -> None:
    bounds = ActionBounds(2)
    bounds.load_state_dict(make_bounds().state_dict())
    assert bounds.to_env(torch.tensor(NORMALISED)).tolist() == IN_ENV_UNITS


def test_the_dimension_without_bounds_is_named() -> None:
    with pytest.raises(ValueError, match=r"dimension 1 of the action must have finite bounds, got \[0.0, inf\]"):
        ActionBounds(2).set([-1.0, 0.0], [1.0, math.inf])


def test_a_dimension_without_bounds_stays_as_it_is_if_allowed() -> None:
    bounds = ActionBounds(2, allow_unbounded=True)
    bounds.set([-2.0, -math.inf], [6.0, math.inf])
    assert bounds.to_env(torch.tensor([[0.5, -7.0]])).tolist() == [[4.0, -7.0]]


def test_a_dimension_with_one_bound_is_kept_to_it() -> None:
    bounds = ActionBounds(2, allow_unbounded=True)
    bounds.set([0.0, -math.inf], [math.inf, 3.0])
    assert bounds.to_env(torch.tensor([[-0.5, 7.0], [7.0, -5.0]])).tolist() == [[0.0, 3.0], [7.0, -5.0]]


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


def test_each_integer_of_a_box_has_an_equal_part() -> None:
    bounds = ActionBounds(1)
    bounds.set([2.0], [4.0], integer=True)
    drawn = torch.linspace(-1, 1, 3001)[1:-1].unsqueeze(1)
    action = bounds.to_env(drawn)
    assert action.dtype == torch.int64
    assert [int((action == number).sum()) for number in (2, 3, 4)] == pytest.approx([1000] * 3, abs=2)
    assert bounds.to_env(torch.tensor([[-5.0], [5.0]])).tolist() == [[2], [4]]
    assert bounds.to_env(bounds.from_env(action)).equal(action)
