"""Operations on nested dicts of tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lightning_ding import nested


@pytest.fixture
def data() -> dict[str, Any]:
    """Three rows."""
    return {"obs": {"a": torch.arange(6.0).reshape(3, 2), "b": torch.tensor([7, 8, 9])}, "reward": torch.arange(3.0)}


def as_lists(data: Any) -> Any:
    """Return tensors as lists, so that nested data can be compared with `==`."""
    return nested.apply(lambda leaf: leaf.tolist(), data)


def test_apply_keeps_the_structure(data: dict[str, Any]) -> None:
    assert as_lists(nested.apply(lambda leaf: leaf[:1] + 1, data)) == {
        "obs": {"a": [[1.0, 2.0]], "b": [8]},
        "reward": [1.0],
    }


def test_apply_works_on_a_leaf_alone() -> None:
    assert nested.apply(lambda leaf: leaf + 1, 2) == 3


def test_leaves_come_in_the_order_of_the_keys() -> None:
    assert nested.leaves({"b": 1, "a": {"d": 2, "c": 3}}) == [1, 2, 3]


def test_length_is_the_leading_axis(data: dict[str, Any]) -> None:
    assert nested.length(data) == 3


@pytest.mark.parametrize(
    ("leaf", "dtype"),
    [
        (np.zeros(2), torch.float32),
        (np.zeros(2, dtype=np.float32), torch.float32),
        (np.zeros(2, dtype=np.uint8), torch.uint8),
        (np.zeros(2, dtype=np.int64), torch.int64),
        (np.zeros(2, dtype=bool), torch.bool),
        (1.5, torch.float32),
        (np.float64(1.5), torch.float32),
        (3, torch.int64),
        (np.int32(3), torch.int32),
        (True, torch.bool),
        ([1.0, 2.0], torch.float32),
        (torch.zeros(2, dtype=torch.float64), torch.float64),
    ],
)
def test_to_tensor_keeps_types_but_for_float64_arrays(leaf: Any, dtype: torch.dtype) -> None:
    tensor = nested.to_tensor({"x": leaf})
    assert isinstance(tensor, dict)
    assert isinstance(tensor["x"], Tensor)
    assert tensor["x"].dtype == dtype


@pytest.mark.parametrize("leaf", [1.25, np.float32(-3.5), 7, True, np.array([[1.5, 2.5]]), np.array(4.0)])
def test_to_tensor_keeps_values_and_shapes(leaf: Any) -> None:
    assert as_lists(nested.to_tensor(leaf)) == np.asarray(leaf).tolist()


def test_to_tensor_shares_memory_with_an_array() -> None:
    array = np.zeros(2, dtype=np.float32)
    tensor = nested.to_tensor({"x": array})
    array[0] = 5
    assert as_lists(tensor) == {"x": [5.0, 0.0]}


def test_to_numpy_gives_arrays_of_gradient_carrying_tensors_too() -> None:
    arrays: Any = nested.to_numpy({"x": torch.ones(2, requires_grad=True), "y": {"z": torch.tensor([1])}})
    assert (arrays["x"].tolist(), arrays["y"]["z"].tolist()) == ([1.0, 1.0], [1])


def test_to_moves_every_leaf(data: dict[str, Any]) -> None:
    assert {leaf.device.type for leaf in nested.leaves(nested.to(data, "meta"))} == {"meta"}


def test_index_takes_the_same_rows_of_every_leaf(data: dict[str, Any]) -> None:
    rows = nested.index(data, torch.tensor([2, 0]))
    assert as_lists(rows) == {"obs": {"a": [[4.0, 5.0], [0.0, 1.0]], "b": [9, 7]}, "reward": [2.0, 0.0]}


def test_stack_of_rows_gives_the_data_back(data: dict[str, Any]) -> None:
    rows = [nested.index(data, row) for row in range(3)]
    assert as_lists(nested.stack(rows)) == as_lists(data)


def test_stack_takes_scalars_arrays_and_tensors() -> None:
    items = [{"x": 1.0, "y": np.zeros(2)}, {"x": np.float32(2), "y": torch.ones(2)}]
    assert as_lists(nested.stack(items)) == {"x": [1.0, 2.0], "y": [[0.0, 0.0], [1.0, 1.0]]}


def test_stack_joins_along_the_axis_asked_for() -> None:
    stacked = nested.stack([torch.tensor([1, 2]), torch.tensor([3, 4])], axis=1)
    assert as_lists(stacked) == [[1, 3], [2, 4]]


def test_concatenate_of_parts_gives_the_data_back(data: dict[str, Any]) -> None:
    assert as_lists(nested.concatenate(nested.split(data, 2))) == as_lists(data)


def test_concatenate_of_one_item_copies_nothing(data: dict[str, Any]) -> None:
    assert nested.concatenate([data]) is data


def test_split_makes_the_last_part_smaller(data: dict[str, Any]) -> None:
    assert [as_lists(part)["reward"] for part in nested.split(data, 2)] == [[0.0, 1.0], [2.0]]


@pytest.mark.parametrize("join", [nested.stack, nested.concatenate])
def test_joining_nothing_is_an_error(join: Any) -> None:
    with pytest.raises(ValueError, match="at least one entry"):
        join([])


@pytest.mark.parametrize("join", [nested.stack, nested.concatenate])
@pytest.mark.parametrize("other", [{"a": {"c": torch.zeros(2)}}, {"a": torch.zeros(2)}, {"a": {}}])
def test_joining_names_the_place_where_keys_differ(join: Any, other: Any) -> None:
    with pytest.raises(ValueError, match=r"a: every item must have the keys \['b'\]"):
        join([{"a": {"b": torch.zeros(2)}}, other])


@pytest.mark.parametrize("join", [nested.stack, nested.concatenate])
def test_joining_a_tensor_and_a_dict_is_an_error(join: Any) -> None:
    with pytest.raises(ValueError, match="a: every item must be a tensor"):
        join([{"a": torch.zeros(2)}, {"a": {"b": torch.zeros(2)}}])


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="got an empty dict"):
        nested.length({"obs": {}})
    with pytest.raises(TypeError, match="data must be numbers"):
        nested.to_tensor({"x": np.array([None, "a"], dtype=object)})
    with pytest.raises(ValueError, match=r"a\.b: cannot join shapes \[\(2,\), \(3,\)\]"):
        nested.stack([{"a": {"b": torch.zeros(2)}}, {"a": {"b": torch.zeros(3)}}])


def test_flatten_and_unflatten_are_inverse() -> None:
    nested_data = {"obs": {"a": 1, "b": {"c": 2}}, "reward": 3}
    flat = nested.flatten(nested_data)
    assert flat == {"obs/a": 1, "obs/b/c": 2, "reward": 3}
    assert nested.unflatten(flat) == nested_data


@pytest.mark.parametrize("key", ["", "a/b", 1])
def test_flatten_refuses_a_key_that_cannot_be_joined(key: Any) -> None:
    with pytest.raises(ValueError, match="keys of nested data must be non-empty strings without '/'"):
        nested.flatten({"obs": {key: 1}})


@pytest.mark.parametrize(
    ("flat", "message"),
    [
        ({"a//b": 1}, "names must be non-empty keys joined by '/', got 'a//b'"),
        ({"": 1}, "names must be non-empty keys"),
        ({"a": 1, "a/b": 2}, "'a/b' is inside of a leaf"),
        ({"a/b": 2, "a": 1}, "'a' is both a leaf and a dict"),
    ],
)
def test_unflatten_refuses_what_flatten_does_not_return(flat: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        nested.unflatten(flat)


def test_to_array_converts_doubles_and_keeps_other_arrays() -> None:
    kept = np.array([1.5], dtype=np.float32)
    data = {"a": {"b": np.array([1.5]), "c": kept}, "d": torch.tensor([2], dtype=torch.int64), "e": 0.5}
    converted: Any = nested.to_array(data)
    assert converted["a"]["b"].dtype == np.float32
    assert converted["a"]["b"].tolist() == [1.5]
    assert converted["a"]["c"] is kept
    assert [converted[name].dtype for name in ("d", "e")] == [np.int64, np.float32]


def test_unbind_gives_the_items_of_nested_data() -> None:
    data = {"a": torch.tensor([[1, 2], [3, 4]]), "b": {"c": torch.tensor([5.0, 6.0])}}
    items: Any = nested.unbind(data)  # type: ignore[arg-type]
    assert [(one["a"].tolist(), float(one["b"]["c"])) for one in items] == [([1, 2], 5.0), ([3, 4], 6.0)]
