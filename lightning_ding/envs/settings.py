"""Settings of the envs of a run: what was set, in an order and a form in which other envs can get it too.

A setting is an attribute, a call of a method, or options of resets. The last one of each name counts. As text they are
in checkpoints and travel with published weights.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np

Kind = Literal["attribute", "method", "reset_options"]
ALLOWED = "None, a bool, a number, a string or a NumPy array of numbers, or a list, tuple or dict of these"
MARKS = {"array", "tuple", "dict"}


class Setting(NamedTuple):
    """One setting."""

    kind: Kind
    name: str
    """Name of the attribute or method; "" for the options of resets."""
    value: Any
    """Value, or a list or tuple with a value for each env; for a method the list of its positional and the dict of its
    keyword arguments; or the options."""


class EnvSettings:
    """Settings in the order in which they were last set.

    Example:
        >>> settings = EnvSettings()
        >>> settings.add(Setting("attribute", "level", 1))
        >>> settings.add(Setting("attribute", "level", 2))
        >>> settings.text
        '[["attribute", "level", 2]]'
        >>> [one.value for one in settings.update('[["attribute", "level", 3]]')]
        [3]
    """

    def __init__(self) -> None:
        self._coded: dict[tuple[Kind, str], str] = {}

    def __iter__(self) -> Iterator[Setting]:
        for (kind, name), coded in self._coded.items():
            yield Setting(kind, name, _decode(json.loads(coded)))

    def __contains__(self, setting: Setting) -> bool:
        """Return whether the last setting of its name has the same value."""
        return self._coded.get(setting[:2]) == json.dumps(_encode(setting.value, setting.name))

    def add(self, setting: Setting) -> None:
        """Add a setting, which replaces that of the same name; one with the same value keeps its place.

        Raises:
            ValueError: If its value is not plain data.
        """
        if setting not in self:
            self._coded.pop(setting[:2], None)
            self._coded[setting[:2]] = json.dumps(_encode(setting.value, setting.name))

    @property
    def text(self) -> str:
        """All settings as JSON."""
        return json.dumps([[kind, name, json.loads(coded)] for (kind, name), coded in self._coded.items()])

    def update(self, text: str, keeps_own: bool = False) -> list[Setting]:
        """Add settings from a text, and return those that are new or have another value than before.

        Args:
            text: A value of :attr:`text`; "" for none.
            keeps_own: Whether a setting of the same name is kept.
        """
        given = [Setting(kind, name, _decode(coded)) for kind, name, coded in json.loads(text or "[]")]
        changed = [one for one in given if one not in self and not (keeps_own and one[:2] in self._coded)]
        for setting in changed:
            self.add(setting)
        return changed


def plain_copy(setting: Setting) -> Setting:
    """Return a setting as other envs get it later.

    Raises:
        ValueError: If its value is not plain data.
    """
    return setting._replace(value=_decode(json.loads(json.dumps(_encode(setting.value, setting.name)))))


def _encode(value: Any, name: str) -> Any:
    """Return a value as JSON: containers that JSON does not have are dicts with one of ``MARKS``."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biuf":
        return {"array": value.tolist(), "dtype": value.dtype.str, "is_scalar": isinstance(value, np.generic)}
    if type(value) in (list, tuple):
        items = [_encode(one, name) for one in value]
        return items if type(value) is list else {"tuple": items}
    if type(value) is dict and all(type(key) is str for key in value):
        coded = {key: _encode(below, name) for key, below in value.items()}
        return {"dict": coded} if MARKS & coded.keys() else coded
    what = f"the value of {name}" if name else "the value of an option"
    raise ValueError(
        f"{what} must be {ALLOWED}, with strings as keys, because checkpoints contain it, got {value!r}; for other "
        "values use call(), which is not repeated in new envs"
    )


def _decode(coded: Any) -> Any:
    if isinstance(coded, list):
        return [_decode(one) for one in coded]
    if not isinstance(coded, dict):
        return coded
    if "array" in coded:
        array = np.array(coded["array"], dtype=coded["dtype"])
        return array[()] if coded["is_scalar"] else array
    if "tuple" in coded:
        return tuple(_decode(one) for one in coded["tuple"])
    return {key: _decode(below) for key, below in coded.get("dict", coded).items()}
