"""From gymnasium spaces to the shapes in a model's config."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from lightning_ding.policy.spaces import action_bounds, continuous_action_shape, discrete_action_shape, obs_shape

MOVE = spaces.Discrete(3)


@pytest.mark.parametrize(
    ("space", "shape"),
    [
        (spaces.Box(-1, 1, (4,)), 4),
        (spaces.Box(-1, 1, (1,)), 1),
        (spaces.Box(-1, 1, ()), 1),
        (spaces.Box(-1, 1, (3, 5)), 15),
        (spaces.Box(0, 255, (3, 84, 84), np.uint8), (3, 84, 84)),
        (spaces.Box(0, 255, (84, 84, 3), np.uint8), (84, 84, 3)),
        (spaces.Box(-1, 1, (2, 3, 4, 5)), 120),
        (spaces.MultiBinary(6), 6),
        (spaces.MultiBinary([2, 3]), 6),
        (
            spaces.Dict(
                {"place": spaces.Box(-1, 1, (2,)), "in": spaces.Dict({"pixels": spaces.Box(0, 255, (3, 9, 9))})}
            ),
            {"place": 2, "in": {"pixels": (3, 9, 9)}},
        ),
    ],
)
def test_obs_shape_is_a_size_an_image_or_a_dict_of_them(space: spaces.Space[Any], shape: Any) -> None:
    assert obs_shape(space) == shape


@pytest.mark.parametrize(
    "space",
    [MOVE, spaces.Tuple([spaces.Box(-1, 1, (2,))]), spaces.Text(3), spaces.Dict({"move": MOVE})],
)
def test_obs_shape_refuses_other_spaces_and_says_what_helps(space: spaces.Space[Any]) -> None:
    with pytest.raises(TypeError, match=r"must be a Box, MultiBinary or a Dict of these, got .*FlattenObservation"):
        obs_shape(space)


def test_obs_shape_names_the_space_it_refuses_inside_a_dict() -> None:
    with pytest.raises(TypeError, match=r"got Discrete\(3\)"):
        obs_shape(spaces.Dict({"place": spaces.Box(-1, 1, (2,)), "move": MOVE}))


@pytest.mark.parametrize(
    ("space", "shape"),
    [(spaces.Discrete(3), 3), (spaces.MultiDiscrete([3, 2, 4]), (3, 2, 4)), (spaces.MultiDiscrete([5]), (5,))],
)
def test_discrete_action_shape_counts_the_actions_of_each_dimension(space: spaces.Space[Any], shape: Any) -> None:
    assert discrete_action_shape(space, "dqn") == shape


def test_discrete_action_shape_holds_python_ints() -> None:
    shape = discrete_action_shape(spaces.MultiDiscrete([3, 2]), "dqn")
    assert [type(size) for size in (discrete_action_shape(spaces.Discrete(3), "dqn"), *shape)] == [int, int, int]


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1, 1, (2,)),
        spaces.Discrete(3, start=1),
        spaces.MultiDiscrete([3, 2], start=[0, 1]),
        spaces.MultiDiscrete(np.array([[3, 2], [2, 2]])),
        spaces.MultiBinary(3),
        spaces.Tuple([MOVE, MOVE]),
    ],
)
def test_discrete_action_shape_refuses_other_spaces_and_names_policy_and_space(space: spaces.Space[Any]) -> None:
    with pytest.raises(TypeError) as error:
        discrete_action_shape(space, "c51")
    assert str(error.value) == (f"c51 needs a Discrete or MultiDiscrete action space that counts from 0, got {space}")


def test_a_continuous_action_shape_is_the_number_of_its_dimensions() -> None:
    assert continuous_action_shape(spaces.Box(-1, 1, (3,)), "sac") == 3


@pytest.mark.parametrize(
    "space", [spaces.Discrete(2), spaces.Box(-1, 1, (2, 2)), spaces.Box(-1, 1, ()), spaces.Box(0, 9, (2,), np.int64)]
)
def test_other_spaces_than_vectors_of_floats_are_refused(space: spaces.Space[Any]) -> None:
    with pytest.raises(TypeError, match=r"sac needs a one-dimensional Box of floats .*, got (.|\n)*TransformAction"):
        continuous_action_shape(space, "sac")


def test_action_bounds_are_the_decimals_that_a_user_would_write() -> None:
    space = spaces.Box(np.array([-0.4, 0.1], np.float32), np.array([0.4, np.inf], np.float32))
    assert action_bounds(space) == ([-0.4, 0.1], [0.4, float("inf")])
