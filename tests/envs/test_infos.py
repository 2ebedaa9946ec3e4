"""The infos of several envs are joined, whatever the envs return."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorEnv

from lightning_ding.envs import EnvProcessError, ProcessVectorEnv
from lightning_ding.envs.sync import _SyncVectorEnv
from tests.envs.attacking import InfoEnv

SAME = AutoresetMode.SAME_STEP


@pytest.fixture(scope="module", params=[0, 1, 2, 3], ids="{} workers".format)
def envs(request: pytest.FixtureRequest) -> Iterator[VectorEnv]:
    if not request.param:
        made: VectorEnv = _SyncVectorEnv([InfoEnv] * 3, SAME)
    else:
        made = ProcessVectorEnv([InfoEnv] * 3, SAME, num_workers=request.param)
    yield made
    made.close()


def plain(value: Any) -> Any:
    """Return a value with numpy's numbers and arrays as Python's numbers and lists."""
    return value.tolist() if hasattr(value, "tolist") else value


def infos_of(envs: Any, *infos: dict[str, Any]) -> Any:
    envs.reset()
    envs.set_attr("info", list(infos))
    return envs.step(np.zeros(3, dtype=np.int64))[4]


@pytest.mark.parametrize("values", [(3, None, 2.5), (3, "left", None), (None, 3, 4)])
def test_values_of_different_types_are_joined_as_objects(envs: VectorEnv, values: Any) -> None:
    found = infos_of(envs, *({"x": value} for value in values))
    assert tuple(found["x"]) == values
    assert found["_x"].tolist() == [True] * 3


def test_arrays_of_different_lengths_are_joined_as_objects(envs: VectorEnv) -> None:
    moves = [np.array([1, 2]), np.array([0, 1, 2]), np.array([], dtype=np.int64)]
    found = infos_of(envs, {"of": {"moves": moves[0]}}, {"of": {"moves": moves[1]}}, {"of": {"moves": moves[2]}})
    assert [one.tolist() for one in found["of"]["moves"]] == [[1, 2], [0, 1, 2], []]


def test_env_without_the_value_has_none(envs: VectorEnv) -> None:
    found = infos_of(envs, {"x": 3}, {}, {"x": "left"})
    assert found["x"].tolist() == [3, None, "left"]
    assert found["_x"].tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ((1, 2.5, 3), np.float64),
        ((1, 2, 2.5), np.float64),
        ((True, 3, False), np.int64),
        ((np.float32(1), 0.1, 2), np.float64),
        ((np.uint8(255), np.int8(-1), np.uint8(0)), np.int16),
        ((np.arange(2), np.array([0.5, 1.5]), np.arange(2)), np.float64),
    ],
)
def test_numbers_of_different_types_are_joined_without_a_change(envs: VectorEnv, values: Any, kind: Any) -> None:
    found = infos_of(envs, *({"x": value, "of": {"y": value}} for value in values))
    for column in (found["x"], found["of"]["y"]):
        assert column.dtype == kind
        assert column.tolist() == list(map(plain, values))


@pytest.mark.parametrize(
    "values", [(3, "4", 5), (3, 10**30, 4), (10**30, 3, 4), (3, 4, np.arange(1)), (np.arange(2), 3, 4), (3, [4], 5)]
)
def test_values_that_no_array_of_numbers_holds_are_joined_as_objects(envs: VectorEnv, values: Any) -> None:
    found = infos_of(envs, *({"x": value} for value in values))
    assert found["x"].dtype == object
    assert list(map(plain, found["x"])) == list(map(plain, values))


def test_value_that_is_a_dict_in_some_envs_only_is_refused(envs: VectorEnv) -> None:
    with pytest.raises((TypeError, EnvProcessError), match=r"the info 'x' must be a dict in all envs or in none, got "):
        infos_of(envs, {"x": 3}, {"x": {"y": 1}}, {})


def test_numbers_stay_an_array_of_numbers(envs: VectorEnv) -> None:
    found = infos_of(envs, {"x": 3}, {"x": 4}, {})
    assert found["x"].dtype == np.int64
    assert found["x"].tolist() == [3, 4, 0]
