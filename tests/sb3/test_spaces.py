"""Spaces in the JSON of a model."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from lightning_ding.sb3.spaces import UnreadableSpaceError, read_space

BOX = {":type:": "<class 'gymnasium.spaces.box.Box'>", ":serialized:": "", "dtype": "float32", "_shape": [2]}
BYTES = {**BOX, "dtype": "uint8", "_shape": [1, 40, 40]}


def named(kind: str, **attributes: Any) -> dict[str, Any]:
    return {":type:": f"<class 'gym.spaces.{kind.lower()}.{kind}'>", ":serialized:": "", **attributes}


def text_of(space: spaces.Space[Any]) -> dict[str, Any]:
    """Return what the packages store of a space: each attribute, as text unless JSON can hold it."""
    kept: dict[str, Any] = {
        key: str(value) for key, value in vars(space).items() if not isinstance(value, (int, type(None)))
    }
    kept["_shape"] = list(space.shape or ())
    module = f"{type(space).__module__}.{type(space).__qualname__}"
    return {":type:": f"<class '{module}'>", ":serialized:": "", **kept}


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-np.inf, np.inf, (3,), np.float32),
        spaces.Box(np.array([-4.8, -3.4028235e38], np.float32), np.array([4.8, 3.4028235e38], np.float32)),
        spaces.Box(np.array([0.1, -2.5e-7]), np.array([0.2, 1e-7]), dtype=np.float64),
        spaces.Box(0, 255, (8, 8, 3), np.uint8),
        spaces.Box(-1, 1, (2, 2), np.float32),
        spaces.Discrete(3, start=-1),
        spaces.MultiDiscrete([3, 2]),
        spaces.MultiDiscrete([3, 2], start=[1, 4]),
        spaces.MultiBinary((2, 3)),
        spaces.Dict({"b": spaces.Box(-1, 1, (3,)), "a": spaces.Discrete(2), "c c": spaces.MultiBinary(4)}),
        spaces.Dict([("x", spaces.Box(np.array([-1, 0], np.float32), 5.0, (2,))), ("a", spaces.MultiDiscrete([3]))]),
    ],
)
def test_text_of_a_space_gives_the_space(space: spaces.Space[Any]) -> None:
    described = text_of(space)
    described |= {"n": space.n} if isinstance(space, spaces.MultiBinary) and isinstance(space.n, int) else {}
    read = read_space(described, "observation_space")
    assert read == space
    if isinstance(space, spaces.Dict):
        assert list(read.spaces) == list(space.spaces)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("described", "space"),
    [
        (named("Discrete", n=2, _shape=[], dtype="int64"), spaces.Discrete(2)),
        (named("Box", dtype="float32", shape=[1], low="[-2.]", high="[2.]"), spaces.Box(-2, 2, (1,))),
        (
            named("Dict", spaces="OrderedDict([('b', Box(-1.0, 1.0, (3,), float32)), ('a', Discrete(2))])"),
            spaces.Dict([("b", spaces.Box(-1, 1, (3,))), ("a", spaces.Discrete(2))]),
        ),
        ({**BYTES, "low": "[[[0 0 ... 0 0]]]", "high": "[[[255 ... 255]]]"}, spaces.Box(0, 255, (1, 40, 40), np.uint8)),
    ],
)
def test_older_and_abbreviated_texts_are_read(described: dict[str, Any], space: spaces.Space[Any]) -> None:
    assert read_space(described, "observation_space") == space


@pytest.mark.parametrize(
    "described",
    [
        None,
        {":type:": "<class 'own.Box'>"},
        {**BOX, "low": "[-1. -1. -1.]", "high": "1.0"},
        {**BOX, "low": "[-1. ... -1.]", "high": "1.0"},
        {**BYTES, "low": "[[[0 0 ... 0 7]]]", "high": "255"},
        {**BOX, "low": "__import__('os')", "high": "1.0"},
        {**BOX, "dtype": "object", "low": "-1.0", "high": "1.0"},
        {**BOX, "_shape": "(2,)", "low": "-1.0", "high": "1.0"},
        named("Discrete", n="two"),
        named("Dict", spaces="{'a': Tuple(Discrete(2), Discrete(3))}"),
        named("Dict", spaces="{'a': Box(-1.0, 1.0, (3,), float32}"),
        named("Dict", spaces="{'a': Discrete(2)} or exit()"),
        named("Dict", spaces="{'a': Discrete(2) 'b': Discrete(2)}"),
    ],
)
def test_text_that_is_no_space_is_one_error(described: Any) -> None:
    with pytest.raises(UnreadableSpaceError, match="the text of action_space in the file does not describe the space"):
        read_space(described, "action_space")


def test_time_to_read_a_long_text_is_in_proportion_to_its_length() -> None:
    bounds = "[" + "1. " * 300_000 + "]"
    entries = [f"'{number}': Discrete(2)" for number in range(20_000)]
    text = "{" + ", ".join([f"'a': Box({bounds}, {bounds}, (300000,), float32)", *entries]) + "}"
    begin = time.process_time()
    read = read_space(named("Dict", spaces=text), "observation_space")
    assert time.process_time() - begin < 5  # a second; the square of the length would be 20 s
    assert (len(read.spaces), read["a"].shape) == (20_001, (300_000,))  # type: ignore[attr-defined,index]
