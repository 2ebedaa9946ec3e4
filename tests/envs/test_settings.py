"""Settings of envs as text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lightning_ding.envs.handle import EnvSettings, Setting, plain_copy

VALUES = [None, True, 3, 0.1, "hard", [1, [2]], (1, (2.5,)), {"a": {"tuple": [1]}}, [[1], {"x": 0.5}], float("inf")]


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_value_is_the_same_after_the_text(value: Any) -> None:
    settings = EnvSettings()
    settings.add(Setting("attribute", "level", value))
    (again,) = EnvSettings().update(settings.text)
    assert again == Setting("attribute", "level", value)
    assert type(again.value) is type(value)


@pytest.mark.parametrize("array", [np.array([[0.1], [2]]), np.arange(3, dtype=np.int8), np.array([True, False])])
def test_array_is_the_same_after_the_text(array: Any) -> None:
    copy = plain_copy(Setting("attribute", "levels", array)).value
    np.testing.assert_array_equal(copy, array)
    assert copy.dtype == array.dtype
    assert copy is not array


def test_number_of_numpy_keeps_its_type() -> None:
    copy = plain_copy(Setting("attribute", "level", np.float32(0.1))).value
    assert type(copy) is np.float32
    assert copy == np.float32(0.1)


@pytest.mark.parametrize("value", [object(), {1: 2}, [print], np.array([None]), 1j], ids=lambda one: type(one).__name__)
def test_value_that_is_not_plain_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"the value of level must be None, a bool, .* because checkpoints contain it"):
        EnvSettings().add(Setting("attribute", "level", value))


def test_last_setting_of_a_name_counts_and_comes_last() -> None:
    settings = EnvSettings()
    for setting in [("attribute", "level", 1), ("method", "level", [[2], {}]), ("attribute", "level", 3)]:
        settings.add(Setting(*setting))  # type: ignore[arg-type]
    assert list(settings) == [("method", "level", [[2], {}]), ("attribute", "level", 3)]
    settings.add(Setting("method", "level", [[2], {}]))  # nothing new, so that it keeps its place
    assert [one.kind for one in settings] == ["method", "attribute"]


def test_update_returns_what_is_new_and_may_keep_what_is_there() -> None:
    given, mine = EnvSettings(), EnvSettings()
    for name, value in (("a", 1), ("b", 2), ("c", 3)):
        given.add(Setting("attribute", name, value))
    for name, value in (("a", 1), ("b", 5)):
        mine.add(Setting("attribute", name, value))
    assert mine.update(given.text, keeps_own=True) == [("attribute", "c", 3)]
    assert mine.update(given.text) == [("attribute", "b", 2)]
    assert mine.update("") == []
