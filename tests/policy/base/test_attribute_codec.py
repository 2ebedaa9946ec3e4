"""Attributes as tensors and builtins, and restored in existing objects."""

from __future__ import annotations

import enum
import io
import random
import threading
from collections import OrderedDict, deque, namedtuple
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from lightning_ding.policy.base.attribute_codec import Decoder, Encoder, NotSavedError, digest

Point = namedtuple("Point", ["x", "y"])


class Color(enum.Enum):
    RED = 1
    BLUE = 2


@dataclass
class Moments:
    mean: Any = field(default_factory=lambda: torch.zeros(2))
    count: int = 0


def through_file(value: Any, existing: Any = None, known: list[Any] | None = None) -> Any:
    file = io.BytesIO()
    torch.save(Encoder(known or []).encode(value, "value"), file)
    file.seek(0)
    return Decoder("cpu").decode(torch.load(file, weights_only=True), existing, "value")


@pytest.mark.parametrize(
    "value",
    [None, True, 3, 2.5, "a", 1j, b"\x00b", (1, [2]), {1, 2}, frozenset({3}), deque([1, 2], 2), {"a": {2: None}}],
    ids=repr,
)
def test_builtins_come_back(value: Any) -> None:
    found = through_file(value, deque(maxlen=2) if isinstance(value, deque) else None)
    assert (type(found), found, getattr(found, "maxlen", None)) == (type(value), value, getattr(value, "maxlen", None))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_tensors_come_back_in_the_existing_memory(dtype: torch.dtype) -> None:
    value, existing = torch.tensor([[1, 0]]).to(dtype), torch.zeros(1, 2, dtype=dtype)
    found = through_file(value, existing)
    assert found is existing
    assert torch.equal(found, value)
    assert digest(Encoder([]).encode(value, "")) != digest(Encoder([]).encode(torch.zeros_like(value), ""))


def test_tensor_of_another_shape_is_new() -> None:
    found = through_file(torch.ones(3, requires_grad=True), torch.zeros(2))
    assert (found.tolist(), found.requires_grad) == ([1, 1, 1], True)


def test_arrays_come_back_in_the_existing_memory() -> None:
    existing = np.zeros((2, 1))
    assert through_file(np.array([[1.5], [2]]), existing) is existing
    assert existing.tolist() == [[1.5], [2]]
    assert through_file(np.float32(0.1)) == np.float32(0.1)


def test_generators_continue() -> None:
    for made in (
        lambda: torch.Generator().manual_seed(1),
        lambda: np.random.default_rng(1),
        lambda: np.random.RandomState(1),
        lambda: random.Random(1),
        lambda: np.random.Generator(np.random.MT19937(1)),
    ):
        used, existing = made(), made()
        _draw(used)
        for found in (through_file(used, existing), through_file(used)):
            assert type(found) is type(used)
            assert found is not used
        assert _draw(existing) == _draw(used)


def _draw(generator: Any) -> float:
    return float(torch.rand(1, generator=generator)) if isinstance(generator, torch.Generator) else generator.random()


def test_objects_are_restored_in_those_that_exist() -> None:
    existing = Moments()
    memory = existing.mean
    found = through_file(Moments(torch.ones(2), 4), existing)
    assert found is existing
    assert (found.count, memory.tolist()) == (4, [1, 1])
    assert through_file(Color.BLUE, Color.RED) is Color.BLUE
    assert through_file(Point(1, 2), Point(0, 0)) == Point(1, 2)
    ordered = OrderedDict(b=1)
    assert through_file(OrderedDict(a=2), ordered) is ordered
    assert ordered == {"a": 2}


def test_shared_objects_stay_shared() -> None:
    one = torch.ones(1)
    found = through_file([one, {"again": one}])
    assert found[0] is found[1]["again"]


def test_objects_that_are_saved_elsewhere_stay_those_of_the_program() -> None:
    theirs, mine = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    found = through_file({"net": theirs, "act": torch.relu, "n": 2}, {"net": mine, "act": torch.tanh, "n": 1}, [theirs])
    assert found == {"net": mine, "act": torch.tanh, "n": 2}


def _cycle() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (threading.Lock(), "value is a _thread.lock"),
        ({"a": [io.BytesIO()]}, r"value\['a'\]\[0\] is a _io.BytesIO"),
        (list(torch.zeros(2, 2).unbind()), r"value\[1\] shares memory with value\[0\]"),
        (_cycle(), r"value\[0\] contains itself"),
        (np.ma.masked_array([1]), "value is a numpy.ma.MaskedArray"),
        (np.array([None]), "value is an array of object"),
        (torch.eye(2).to_sparse(), "value is a tensor of layout torch.sparse_coo"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_what_cannot_be_saved_is_named(value: Any, text: str) -> None:
    with pytest.raises(NotSavedError, match=f"^{text}$"):
        Encoder([]).encode(value, "value")


def test_no_class_that_a_file_names_is_made() -> None:
    with pytest.raises(NotSavedError, match=r"^value was a tests.*test_attribute_codec.Moments, got a NoneType$"):
        through_file(Moments())
    with pytest.raises(NotSavedError, match=r"^value was a collections.OrderedDict, got a dict$"):
        through_file(OrderedDict(a=1), {})
