from __future__ import annotations

import enum
import functools
import io
import random
import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
import torch

from lightning_ding.envs import NotPlainError, from_plain, to_plain


class Colour(enum.Enum):
    RED = "r"


@dataclass
class Cart:
    speed: float
    parts: list[int] = field(default_factory=list)


class Pair(NamedTuple):
    left: int
    right: tuple[int, ...]


def counter(held: Any) -> Any:
    return lambda: held


def through_a_file(value: Any, there: Any = None) -> Any:
    """Return a value written and read as a checkpoint is."""
    file = io.BytesIO()
    torch.save(to_plain(value), file)
    file.seek(0)
    return from_plain(torch.load(file, weights_only=True), there)


@pytest.mark.parametrize(
    "value",
    [
        None, True, 3, 10**40, 2.5, "word", b"\x00\xff", b"", 1 + 2j, [1, [2, 3]], (1, (2,)), {1, 2}, frozenset({3}),
        {"a": 1, (2, 3): None}, OrderedDict(b=1, a=2), deque([1, 2], maxlen=2), Colour.RED, Cart(1.5, [2]),
        Pair(1, (2, 3)),
        np.float32(1.5), np.int64(7), np.bool_(True),
    ],
    ids=repr,
)  # fmt: skip
def test_plain_data_comes_back_as_it_was(value: Any) -> None:
    back = through_a_file(value)
    assert back == value
    assert type(back) is type(value)
    if isinstance(value, deque):
        assert back.maxlen == value.maxlen
    if isinstance(value, OrderedDict):
        assert list(back) == list(value)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.uint16).reshape(2, 3),
        np.arange(6.0).reshape(2, 3).T,
        np.array([True, False]),
        np.array(["a", "bcd"]),
        np.zeros((0, 3), np.float32),
        np.array(2.5),
    ],
    ids=lambda array: str(array.dtype),
)
def test_arrays_keep_type_and_shape_and_have_separate_memory(array: np.ndarray[Any, Any]) -> None:
    coded = to_plain(array)
    before = array.copy()
    if array.size and array.dtype.kind != "U":
        array[...] = 0
    back = from_plain(coded)
    assert back.dtype == before.dtype
    assert back.shape == before.shape
    assert (back == before).all()
    assert back.flags.writeable


def test_arrays_of_objects_come_back_if_the_objects_are_plain() -> None:
    array = np.array([None, {"a": 1}], dtype=object)
    assert through_a_file(array).tolist() == [None, {"a": 1}]


def test_tensors_are_copies() -> None:
    tensor = torch.arange(3.0)
    coded = to_plain(tensor)
    tensor += 1
    assert from_plain(coded).tolist() == [0, 1, 2]


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.MT19937, np.random.SFC64])
def test_generators_get_their_state_in_place(kind: Any) -> None:
    generator, other = np.random.Generator(kind(1)), np.random.Generator(kind(2))
    generator.random(3)
    assert through_a_file(generator, other) is other
    assert (other.random(5) == generator.random(5)).all()


def test_generators_of_other_kinds_are_created_again() -> None:
    generator = np.random.default_rng(1)
    for there in (None, np.random.Generator(np.random.MT19937(0))):
        assert through_a_file(generator, there).random() == np.random.default_rng(1).random()
    old, python = np.random.RandomState(3), random.Random(4)
    assert through_a_file(old).random_sample() == old.random_sample()
    assert through_a_file(python).random() == python.random()


def test_spaces_keep_their_place_and_get_their_random_numbers() -> None:
    def make() -> gym.Space[Any]:
        return gym.spaces.Dict({"a": gym.spaces.Discrete(100), "b": gym.spaces.Box(0, 1, (2,))})

    space, other = make(), make()
    space.seed(5)
    space.sample()
    other.seed(6)
    assert through_a_file(space, other) is other
    assert str(other.sample()) == str(space.sample())


def test_constants_are_taken_from_the_existing_object() -> None:
    value = {"name": np.sin, "count": 3, "classes": [int, len]}
    there = {"name": np.cos, "count": 0, "classes": [float, max]}
    assert through_a_file(value, there) == {"name": np.cos, "count": 3, "classes": [float, max]}
    with pytest.raises(NotPlainError, match=r"value\['name'\] was a constant when saved, got NoneType"):
        through_a_file(value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object(), "value is a builtins.object"),
        ({"a": [1, object()]}, r"value\['a'\]\[1\] is a builtins.object"),
        (np.zeros(2, dtype=[("a", int)]), "value is an array of records"),
        (np.array([object()]), r"value\[0\] is a builtins.object"),
        (iter([1]), "value is a builtins.list_iterator"),
        (np.ma.array([1, 2], mask=[False, True]), "value is a numpy.ma"),
        (np.random.default_rng(1).random, "value is a method of a numpy.random._generator.Generator"),
        ([].append, "value is a method of a builtins.list"),
        (Cart(1.0).__repr__, r"value is a method of a .*Cart"),
        (functools.partial(print, [1]), "value is a functools.partial of a builtins.list"),
        (
            functools.partial([1].append, 1),
            "a functools.partial of a constant that is a method of a builtins.list",
        ),
        (counter([1]), "value is a function that holds a builtins.list"),
        (counter(np.zeros(1)), "value is a function that holds a numpy.ndarray"),
        (
            counter(counter({})),
            "a function that holds a constant that is a function that holds a builtins.dict",
        ),
        (lambda count=[0]: count, "value is a function that holds a builtins.list"),
        (Cart(object()), r"value.speed is a builtins.object"),  # type: ignore[arg-type]
    ],
)
def test_everything_else_is_refused_by_its_place(value: Any, message: str) -> None:
    with pytest.raises(NotPlainError, match=message):
        to_plain(value)


def test_what_holds_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(NotPlainError, match="nested deeper than 50 levels"):
        to_plain(value)


def test_a_file_names_no_class_but_those_of_data() -> None:
    coded = {**to_plain(Cart(1.0)), "class": ["builtins", "list"]}
    with pytest.raises(NotPlainError, match=r"value was a builtins.list, which is not imported"):
        from_plain(coded)
    with pytest.raises(NotPlainError, match=r"value was a not_loaded.Thing, which is not imported"):
        from_plain({**coded, "class": ["not_loaded", "Thing"]})


def test_functions_that_hold_what_cannot_change_are_constant() -> None:
    fixed = np.arange(3)
    fixed.flags.writeable = False
    value = [counter(1.5), counter(fixed), functools.partial(max, 1, 2), "a".join, dict.fromkeys, counter(counter("a"))]
    assert all(back is one for back, one in zip(through_a_file(value, value), value, strict=True))


def test_millions_of_bytes_take_no_time_worth_speaking_of() -> None:
    value = bytes(range(256)) * 40_000
    began = time.thread_time()  # the threads of other tests do not count
    assert from_plain(to_plain(value)) == value
    assert time.thread_time() - began < 0.5  # byte by byte, it would take seconds
