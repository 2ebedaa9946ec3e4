"""Data sets with actions that the env does not have, or that the mask of their row excludes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from lightning_ding.datamodules import Dataset, OfflineDataModule, load_dataset
from tests.toys.datasets import counting_steps

SEEN = spaces.Box(-100, 100, (2,))


def with_action(action: Any) -> dict[str, Any]:
    return {**counting_steps(), "action": np.asarray(action)}


@pytest.mark.parametrize(
    ("space", "action", "message"),
    [
        (spaces.Discrete(2), [0, 1, 0, 1, 1, 2, 0, -1, 0], "from -1 to 2; 2 in row 5, the first of 2 such rows"),
        (spaces.Discrete(3, start=1), [1, 2, 3, 1, 0, 1, 1, 1, 1], "from 0 to 3; 0 in row 4, the first of 1 such"),
        (spaces.MultiDiscrete([2, 3]), [[1, 2]] * 8 + [[1, 3]], r"to \[1, 3\]; \[1, 3\] in row 8, the first of 1"),
        (spaces.MultiBinary(2), [[1, 0]] * 7 + [[2, 0]] * 2, r"\[2, 0\] in row 7, the first of 2"),
        (spaces.Box(-2, 2, (1,)), [[0.0]] * 3 + [[2.5]] * 6, r"\[2.5\] in row 3, the first of 6"),
        (spaces.Box(-np.inf, 1, (1,)), [[-1e9]] * 8 + [[1.5]], r"\[1.5\] in row 8, the first of 1"),
    ],
)
def test_first_row_outside_of_the_action_space_is_named(space: spaces.Space[Any], action: Any, message: str) -> None:
    with pytest.raises(ValueError, match=rf"dataset's action must be in {type(space).__name__}\(.*, got .*{message}"):
        Dataset(with_action(action), SEEN, space)


@pytest.mark.parametrize(
    ("space", "value"), [(spaces.Box(-2, 2, (1,)), 2.0001), (spaces.Box(-np.inf, 2, (1,)), 2.0001)]
)
def test_an_action_may_be_outside_of_the_box_by_rounding(space: spaces.Box, value: float) -> None:
    assert len(Dataset(with_action([[0.0]] * 8 + [[value]]), SEEN, space)) == 9


def test_row_is_counted_in_the_source_and_not_in_the_order_of_episodes() -> None:
    steps = with_action([0, 0, 0, 0, 0, 5, 0, 5, 0])
    in_turns = {**steps, "env_id": np.array([1, 1, 1, 1, 1, 1, 0, 0, 0])}
    with pytest.raises(ValueError, match="5 in row 5, the first of 2 such rows"):
        Dataset(in_turns, SEEN, spaces.Discrete(2))


def test_first_row_with_nan_is_named() -> None:
    with pytest.raises(ValueError, match="action must be finite, got 'NaN or infinite numbers, first in row 6"):
        Dataset(with_action([[0.0]] * 6 + [[np.nan]] + [[0.0]] * 2))


def masked(mask: Any, action: Any) -> dict[str, Any]:
    steps = with_action(action)
    return {**steps, **{name: {"pos": steps[name], "action_mask": np.asarray(mask)} for name in ("obs", "next_obs")}}


@pytest.mark.parametrize(
    ("space", "mask", "action", "found"),
    [
        (spaces.Discrete(3, start=1), [[1, 0, 1]] * 9, [1, 3, 1, 2, 1, 1, 1, 2, 1], "2 in row 3, the first of 2"),
        # the second dimension has the last three entries: its choice 0 is excluded
        (spaces.MultiDiscrete([2, 3]), [[1, 1, 0, 1, 1]] * 9, [[0, 1]] * 7 + [[0, 0]] * 2, r"\[0, 0\] in row 7, .* 2"),
        (spaces.MultiBinary(2), [[1, 1, 1, 0]] * 9, [[1, 0]] * 8 + [[1, 1]], r"\[1, 1\] in row 8, the first of 1"),
    ],
)
def test_action_that_the_mask_of_its_row_excludes_is_refused(
    space: spaces.Space[Any], mask: Any, action: Any, found: str
) -> None:
    steps = masked(mask, action)
    seen = Dataset({**steps, "action": np.zeros_like(steps["action"])}).observation_space
    with pytest.raises(ValueError, match=f"action must be one that the action_mask of its observation allows.*{found}"):
        Dataset(steps, seen, space)
    legal = steps["action"].copy()
    legal[:] = steps["action"][0]
    assert len(Dataset({**steps, "action": legal}, seen, space)) == 9


def test_masks_are_not_read_by_a_space_that_is_made_from_the_data(tmp_path: Path) -> None:
    # the actions of an env with Discrete(3, start=1), of which the last is not in the data
    steps = masked([[1, 1, 0]] * 9, [1, 2, 1, 2, 1, 1, 1, 2, 1])
    data = Dataset(steps)
    data.check(data.observation_space, spaces.Discrete(3, start=1))
    with pytest.raises(ValueError, match="2 in row 1, the first of 3"):
        data.check(data.observation_space, spaces.Discrete(3))
    flat = {name: value for name, value in steps.items() if not isinstance(value, dict)}
    nested = {f"{name}/{key}": below for name in ("obs", "next_obs") for key, below in steps[name].items()}
    np.savez(tmp_path / "own.npz", **flat, **nested)
    loaded = load_dataset(tmp_path / "own.npz")
    with pytest.raises(ValueError, match=r"2 in row 1, the first of 3 such rows' \(in .*own\.npz\)"):
        loaded.check(loaded.observation_space, spaces.Discrete(3))
    with pytest.raises(ValueError, match=r"obs/action_mask must be of shape \(2,\).*, got \(3,\)"):
        Dataset({**steps, "action": steps["action"] - 1}).check(data.observation_space, spaces.Discrete(2))


def test_offline_datamodule_names_the_file_and_the_row(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", **with_action([0, 1, 0, 2, 0, 0, 0, 0, 0]), action_n=2, action_start=0)
    with pytest.raises(ValueError, match=r"action must be in Discrete\(2\), got .*2 in row 3.*own\.npz"):
        OfflineDataModule(tmp_path / "own.npz", max_train_iter=1)
