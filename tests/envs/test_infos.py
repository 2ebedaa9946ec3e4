"""The infos of several envs are joined, whatever the envs return."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorEnv

from lightning_ding.envs import ProcessVectorEnv
from lightning_ding.envs.sync import _SyncVectorEnv
from tests.envs.attacking import InfoEnv

SAME = AutoresetMode.SAME_STEP


@pytest.fixture(scope="module", params=["sync", "process"])
def envs(request: pytest.FixtureRequest) -> Iterator[VectorEnv]:
    if request.param == "sync":
        made: VectorEnv = _SyncVectorEnv([InfoEnv] * 3, SAME)
    else:
        made = ProcessVectorEnv([InfoEnv] * 3, SAME, envs_per_process=3)
    yield made
    made.close()


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


def test_numbers_stay_an_array_of_numbers(envs: VectorEnv) -> None:
    found = infos_of(envs, {"x": 3}, {"x": 4}, {})
    assert found["x"].dtype == np.int64
    assert found["x"].tolist() == [3, 4, 0]
