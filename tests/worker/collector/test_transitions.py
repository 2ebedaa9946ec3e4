"""Transitions as dicts of tensors: correct values, sharing only of equal observations, unchanged input."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from lightning_ding.worker import to_tensor_transitions


def chain(*places: tuple[float, float]) -> list[dict[str, Any]]:
    """Return transitions from one number to another."""
    return [
        {
            "obs": np.array([here, 0.0]),
            "next_obs": np.array([there, 0.0]),
            "action": np.int64(3),
            "reward": 0.5,
            "terminated": False,
        }
        for here, there in places
    ]


def numbers(transitions: list[dict[str, Any]]) -> list[tuple[float, float]]:
    return [(float(one["obs"][0]), float(one["next_obs"][0])) for one in transitions]


def test_to_tensor_transitions_makes_tensors_of_arrays() -> None:
    (made,) = to_tensor_transitions(
        [{"obs": np.array([1.5, 2.5]), "mask": np.array([True]), "count": np.array([3], dtype=np.int16)}]
    )

    assert {name: (value.dtype, value.tolist()) for name, value in made.items()} == {
        "obs": (torch.float32, [1.5, 2.5]),
        "mask": (torch.bool, [True]),
        "count": (torch.int16, [3]),
    }


@pytest.mark.parametrize("value", [True, np.True_, 3, np.int64(3), 0.5, np.float32(0.5), np.float64(0.5), None, "far"])
def test_to_tensor_transitions_leaves_scalars_as_they_are(value: Any) -> None:
    (made,) = to_tensor_transitions([{"x": value}])

    assert made["x"] == value
    assert type(made["x"]) in (bool, int, float, str, type(None))


def test_to_tensor_transitions_goes_into_dicts_and_lists() -> None:
    (made,) = to_tensor_transitions([{"obs": {"place": np.zeros(2), "seen": [np.ones(1), (2, np.ones(1))]}}])

    assert made["obs"]["place"].tolist() == [0, 0]
    assert made["obs"]["seen"][0].tolist() == [1]
    assert made["obs"]["seen"][1][0] == 2
    assert made["obs"]["seen"][1][1].tolist() == [1]


def test_to_tensor_transitions_shares_the_next_observation_with_the_transition_behind() -> None:
    made = to_tensor_transitions(chain((0, 1), (1, 2), (2, 3)))

    assert made[0]["next_obs"] is made[1]["obs"]
    assert made[1]["next_obs"] is made[2]["obs"]
    assert numbers(made) == [(0, 1), (1, 2), (2, 3)]


def test_to_tensor_transitions_shares_nested_observations() -> None:
    first, second = chain((0, 1), (1, 2))
    nested = [{"obs": {"a": one["obs"], "n": 1}, "next_obs": {"a": one["next_obs"], "n": 1}} for one in (first, second)]

    made = to_tensor_transitions(nested)

    assert made[0]["next_obs"]["a"] is made[1]["obs"]["a"]


def test_to_tensor_transitions_makes_up_no_transition_over_a_gap_or_an_end() -> None:
    # 0 -> 1, a gap, 5 -> 6, the end of the episode, 0 -> 1.
    places = [(0.0, 1.0), (5.0, 6.0), (0.0, 1.0)]

    made = to_tensor_transitions(chain(*places))

    assert numbers(made) == places
    assert made[0]["next_obs"] is not made[1]["obs"]


@pytest.mark.parametrize(
    "other", [np.array([1, 0], dtype=np.int64), np.array([1.0]), {"a": np.array([1.0, 0.0])}, None]
)
def test_to_tensor_transitions_shares_only_what_is_of_the_same_kind(other: Any) -> None:
    data = chain((0, 1), (1, 2))
    data[1]["obs"] = other

    made = to_tensor_transitions(data)

    assert made[0]["next_obs"].tolist() == [1.0, 0.0]
    assert made[0]["next_obs"].dtype == torch.float32


def test_to_tensor_transitions_shares_only_what_has_the_same_entries() -> None:
    data = [{"next_obs": {"a": np.ones(1)}}, {"obs": {"a": np.ones(1), "b": np.ones(1)}}]

    assert to_tensor_transitions(data)[0]["next_obs"].keys() == {"a"}


def test_to_tensor_transitions_shares_nothing_if_asked_not_to() -> None:
    made = to_tensor_transitions(chain((0, 1), (1, 2)), shallow_copy_next_obs=False)

    made[1]["obs"] += 100

    assert numbers(made) == [(0, 1), (101, 2)]


def test_to_tensor_transitions_looks_for_a_next_observation_in_every_transition() -> None:
    data = chain((0, 1), (1, 2), (2, 3))
    del data[0]["next_obs"]

    made = to_tensor_transitions(data)

    assert "next_obs" not in made[0]
    assert made[1]["next_obs"] is made[2]["obs"]


def test_to_tensor_transitions_leaves_its_input_alone() -> None:
    data = chain((0, 1), (1, 2))
    before = copy.deepcopy(data)
    made = to_tensor_transitions(data)

    for one in made:
        one["obs"] += 100
        one["terminated"] = True

    assert numbers(data) == numbers(before)
    assert data[0].keys() == before[0].keys()
    assert not data[0]["terminated"]


def test_to_tensor_transitions_does_not_follow_an_env_that_writes_into_its_last_observation() -> None:
    obs = np.zeros(2, dtype=np.float32)
    made = to_tensor_transitions([{"obs": obs, "t": torch.from_numpy(obs)}])

    obs[:] = 7

    assert made[0]["obs"].tolist() == made[0]["t"].tolist() == [0, 0]


def test_to_tensor_transitions_of_nothing_is_nothing() -> None:
    assert to_tensor_transitions([]) == []


@pytest.mark.parametrize(
    ("value", "got"), [(object(), "object"), (np.array([object()]), "an array of object"), ({1, 2}, "set")]
)
def test_to_tensor_transitions_says_what_it_cannot_take_and_where(value: Any, got: str) -> None:
    with pytest.raises(TypeError, match=rf"info\.things\[0\] must be an array, .* got {got}"):
        to_tensor_transitions([{"info": {"things": [value]}}])
