"""From gymnasium spaces to the shapes in a model's config."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import lightning_ding.policy  # noqa: F401 - registers the algorithms
from lightning_ding.policy.base.action_bounds import action_bounds, actor_shapes, continuous_action
from lightning_ding.policy.base.saved_spaces import from_plain, to_plain
from lightning_ding.policy.base.spaces import discrete_action, obs_shape
from lightning_ding.registry import POLICY_REGISTRY
from tests.algorithms.test_spaces import DISCRETE, HYBRID, INTEGERS, OBSERVATIONS

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
    ("space", "shape"),
    [
        (spaces.Discrete(5, start=2), {"kind": "one_hot", "sizes": (5,), "start": (2,)}),
        (
            spaces.MultiDiscrete(np.array([[3, 2], [2, 4]]), start=np.array([[0, 1], [0, -1]])),
            {"kind": "one_hot", "sizes": (3, 2, 2, 4), "start": (0, 1, 0, -1)},
        ),
        (spaces.Dict({"move": MOVE}), {"move": {"kind": "one_hot", "sizes": (3,), "start": (0,)}}),
        (
            spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.Tuple([MOVE])]),
            {"0": 2, "1": {"0": {"kind": "one_hot", "sizes": (3,), "start": (0,)}}},
        ),
        (spaces.Box(0, 9, (3,), np.int64), 3),
        (spaces.MultiBinary([7, 8, 2]), (7, 8, 2)),
    ],
)
def test_obs_shape_describes_integers_by_their_values(space: spaces.Space[Any], shape: Any) -> None:
    assert obs_shape(space) == shape
    if not isinstance(space, spaces.Tuple):
        assert not isinstance(shape, dict) or obs_shape(spaces.Dict({"in": space})) == {"in": shape}


@pytest.mark.parametrize(
    ("shape", "high", "described"),
    [
        ((128,), 255, {"kind": "bytes", "shape": (128,)}),
        ((4, 128), 255, {"kind": "bytes", "shape": (512,)}),
        ((84, 80), 255, {"kind": "bytes", "shape": (84, 80)}),
        ((128,), 9, 128),
        ((10, 10, 4), 1, {"kind": "bytes", "shape": (10, 10, 4), "high": 1}),
        ((4, 84, 84, 3), 255, (4, 84, 84, 3)),
        ((4, 3, 84, 84), 255, (4, 3, 84, 84)),
    ],
)
def test_obs_shape_says_how_bytes_are_scaled(shape: Any, high: int, described: Any) -> None:
    assert obs_shape(spaces.Box(0, high, shape, np.uint8)) == described


@pytest.mark.parametrize("shape", [(4, 84, 84, 9), (2, 4, 84, 84, 3), (100, 100)])
def test_obs_shape_refuses_many_numbers_in_several_axes_and_says_what_helps(shape: Any) -> None:
    with pytest.raises(TypeError, match=r"neither an image .* nor a stack .*ReshapeObservation .*FlattenObservation"):
        obs_shape(spaces.Box(0, 1, shape))


@pytest.mark.parametrize("space", [spaces.Text(3), spaces.Sequence(MOVE)])
def test_obs_shape_refuses_other_spaces_and_says_what_helps(space: spaces.Space[Any]) -> None:
    with pytest.raises(TypeError, match=r"must be made of Box, Discrete, .*, got .*TransformObservation"):
        obs_shape(spaces.Dict({"place": spaces.Box(-1, 1, (2,)), "other": space}))


@pytest.mark.parametrize(
    ("space", "shape", "start"),
    [
        (MOVE, 3, 0),
        (spaces.Discrete(3, start=-1), 3, -1),
        (spaces.MultiDiscrete([3, 2, 4]), (3, 2, 4), (0, 0, 0)),
        (spaces.MultiDiscrete([5], start=[2]), (5,), (2,)),
        (spaces.MultiBinary(3), (2, 2, 2), (0, 0, 0)),
    ],
)
def test_discrete_action_counts_the_actions_of_each_dimension(space: spaces.Space[Any], shape: Any, start: Any) -> None:
    found = discrete_action(space, "dqn")
    assert found == {"action_shape": shape, "action_start": start}
    assert {type(number) for number in (shape if isinstance(found["action_shape"], tuple) else [shape])} == {int}


@pytest.mark.parametrize(
    "space",
    [
        spaces.MultiDiscrete(np.array([[3, 2], [2, 2]])),
        spaces.MultiBinary([2, 3]),
        spaces.Tuple([MOVE, MOVE]),
    ],
)
def test_discrete_action_refuses_other_spaces_and_names_policy_and_space(space: spaces.Space[Any]) -> None:
    with pytest.raises(TypeError) as error:
        discrete_action(space, "c51")
    assert str(error.value).startswith("c51 needs a Discrete action space, or a MultiDiscrete or MultiBinary with one ")
    assert str(error.value).endswith(f"got {space}")


def test_continuous_action_tells_integers_and_their_bounds() -> None:
    real = {"action_shape": 1, "action_low": [-2.0], "action_high": [0.5], "action_integer": False}
    whole = {"action_shape": 2, "action_low": [-3.0] * 2, "action_high": [5.0] * 2, "action_integer": True}
    assert continuous_action(spaces.Box(-2, 0.5, (1,)), "sac") == real
    assert continuous_action(spaces.Box(-3, 5, (2,), np.int16), "sac") == whole
    assert actor_shapes(spaces.Box(-3, 5, (2,), np.int16), "ppo") == {**whole, "action_space": "continuous"}


def test_integers_without_a_bound_have_an_infinite_one() -> None:
    space = spaces.Box(-np.inf, 5, (1,), np.int64)
    assert action_bounds(space) == ([float("-inf")], [5.0])


@pytest.mark.parametrize(
    ("space", "hint"),
    [
        (spaces.Discrete(2), "; dqn, discrete_sac and ppo take it, and docs/algorithms.md lists more"),
        (spaces.MultiDiscrete([3, 2]), "; dqn, ppo and a2c take it, and docs/algorithms.md lists more"),
        (spaces.MultiBinary(2), "; dqn, ppo and a2c take it, and docs/algorithms.md lists more"),
        (spaces.Box(-1, 1, (2, 2)), "TransformAction"),
        (spaces.Box(-1, 1, ()), "TransformAction"),
    ],
)
def test_continuous_action_refuses_spaces_that_are_not_vectors(space: spaces.Space[Any], hint: str) -> None:
    with pytest.raises(TypeError, match=rf"sac needs a one-dimensional Box .*, got (.|\n)*{hint}"):
        continuous_action(space, "sac")


def test_mistakes_are_named() -> None:
    with pytest.raises(TypeError, match="use a MultiDiscrete in place of a Box of integers"):
        discrete_action(spaces.Box(0, 3, (2,), np.int32), "dqn")
    with pytest.raises(
        TypeError, match=r"dqn needs a Discrete action space.*; ppo, a2c, pg, ddpg, td3 and sac take a Box"
    ):
        discrete_action(spaces.Box(-1, 1, (2,)), "dqn")


def test_action_bounds_are_the_decimals_that_a_user_would_write() -> None:
    space = spaces.Box(np.array([-0.4, 0.1], np.float32), np.array([0.4, np.inf], np.float32))
    assert action_bounds(space) == ([-0.4, 0.1], [0.4, float("inf")])


@pytest.mark.parametrize(
    ("name", "space"),
    [(name, spaces.Discrete(2)) for name in ("dqn", "discrete_sac", "ppo")]
    + [
        (name, space)
        for name in ("dqn", "ppo", "a2c")
        for space in (spaces.MultiDiscrete([3, 2]), spaces.MultiBinary(2))
    ],
)
def test_policies_that_the_refusals_name_take_the_space(name: str, space: spaces.Space[Any]) -> None:
    policy = POLICY_REGISTRY.get(name)()
    policy.build(spaces.Box(-1, 1, (3,)), space)
    assert space.contains(policy.predict(np.zeros(3, np.float32)))


SPACES: list[spaces.Space[Any]] = [
    *OBSERVATIONS.values(),
    *DISCRETE.values(),
    HYBRID,
    INTEGERS,
    spaces.Box(0, 255, (4, 84, 84), np.uint8),
    spaces.Box(np.array([-1.0, -np.inf]), np.array([np.inf, 0.1]), dtype=np.float64),
    spaces.Box(-0.1, 0.3, (2, 3), np.float32),
    spaces.Discrete(3, start=1, dtype=np.int32),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_space_is_the_same_after_writing_it_as_json(space: spaces.Space[Any]) -> None:
    text = json.dumps(to_plain(space), allow_nan=False)
    found = from_plain(json.loads(text))
    assert found == space
    assert found.dtype == space.dtype


def test_bounds_of_an_image_are_one_number() -> None:
    assert to_plain(spaces.Box(0, 255, (4, 84, 84), np.uint8)) == {
        "type": "Box",
        "low": 0,
        "high": 255,
        "shape": [4, 84, 84],
        "dtype": "uint8",
    }


def test_other_spaces_are_refused() -> None:
    with pytest.raises(TypeError, match=r"must be made of Box, .* got Text"):
        to_plain(spaces.Text(3))
    with pytest.raises(ValueError, match=r"must be one of .*'Box'.*, got 'Text'"):
        from_plain({"type": "Text"})
