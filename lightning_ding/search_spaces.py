"""Search spaces of config fields: which values a search for hyper-parameters tries.

A space is declared where its field is::

    learning_rate: float = searched(1e-3, "log(1e-5, 1e-2)")

A subclass that only changes the default inherits the space.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from lightning_ding.config import SEARCH, nearest, require, searched

__all__ = [
    "Choice",
    "IntLogUniform",
    "IntUniform",
    "LogUniform",
    "SearchSpace",
    "Suggests",
    "Uniform",
    "declared_spaces",
    "parse_space",
    "searched",
]

Scalar = bool | int | float | str | None


class Suggests(Protocol):
    """The methods of an Optuna trial that draw a value."""

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = ...) -> float:
        """Draw a number."""
        ...

    def suggest_int(self, name: str, low: int, high: int, *, log: bool = ...) -> int:
        """Draw an integer."""
        ...

    def suggest_categorical(self, name: str, choices: Any) -> Any:
        """Draw one of several values."""
        ...


class SearchSpace(ABC):
    """The values that a search tries for one field."""

    @abstractmethod
    def suggest(self, trial: Suggests, name: str) -> Scalar:
        """Return the value of a trial for the field ``name``."""

    @abstractmethod
    def bounds(self) -> tuple[Scalar, ...]:
        """Return values of which all must be allowed if every value of the space is to be."""

    @abstractmethod
    def __contains__(self, value: object) -> bool:
        """Return whether a search can try ``value``."""


@dataclass(frozen=True)
class Uniform(SearchSpace):
    """Numbers from ``low`` to ``high``, all equally likely.

    Example:
        >>> print(Uniform(0.9, 1.0), 0.95 in Uniform(0.9, 1.0))
        uniform(0.9, 1.0) True
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        _check_ends(self.low, self.high)

    def suggest(self, trial: Suggests, name: str) -> float:
        """Return a number."""
        return trial.suggest_float(name, self.low, self.high)

    def bounds(self) -> tuple[float, float]:
        """Return the two ends."""
        return self.low, self.high

    def __contains__(self, value: object) -> bool:
        return _is_number(value) and self.low <= value <= self.high  # type: ignore[operator]

    def __str__(self) -> str:
        return f"uniform({self.low}, {self.high})"


@dataclass(frozen=True)
class LogUniform(Uniform):
    """Numbers from ``low`` > 0 to ``high``, whose logarithms are equally likely.

    Example:
        >>> print(LogUniform(1e-5, 1e-2))
        log(1e-05, 0.01)
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.low > 0, "the lower end of a space", "> 0 with log", self.low)

    def suggest(self, trial: Suggests, name: str) -> float:
        """Return a number."""
        return trial.suggest_float(name, self.low, self.high, log=True)

    def __str__(self) -> str:
        return f"log({self.low}, {self.high})"


@dataclass(frozen=True)
class IntUniform(SearchSpace):
    """Integers from ``low`` to ``high``, both included, all equally likely.

    Example:
        >>> print(IntUniform(1, 5), 5 in IntUniform(1, 5))
        int(1, 5) True
    """

    low: int
    high: int

    def __post_init__(self) -> None:
        for end in (self.low, self.high):
            require(type(end) is int, "an end of a space", "an integer with int", end)
        _check_ends(self.low, self.high)

    def suggest(self, trial: Suggests, name: str) -> int:
        """Return an integer."""
        return trial.suggest_int(name, self.low, self.high)

    def bounds(self) -> tuple[int, int]:
        """Return the two ends."""
        return self.low, self.high

    def __contains__(self, value: object) -> bool:
        return type(value) is int and self.low <= value <= self.high

    def __str__(self) -> str:
        return f"int({self.low}, {self.high})"


@dataclass(frozen=True)
class IntLogUniform(IntUniform):
    """Integers from ``low`` >= 1 to ``high``, both included, whose logarithms are about equally likely."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.low >= 1, "the lower end of a space", ">= 1 with log_int", self.low)

    def suggest(self, trial: Suggests, name: str) -> int:
        """Return an integer."""
        return trial.suggest_int(name, self.low, self.high, log=True)

    def __str__(self) -> str:
        return f"log_int({self.low}, {self.high})"


@dataclass(frozen=True, init=False)
class Choice(SearchSpace):
    """Some values: numbers, strings, booleans or None, all equally likely.

    Example:
        >>> print(Choice(32, 64, None))
        choice(32, 64, null)
    """

    values: tuple[Scalar, ...]

    def __init__(self, *values: Scalar) -> None:
        require(len(values) >= 2, "choice", "at least 2 values", values)
        require(len({repr(value) for value in values}) == len(values), "choice", "different values", values)
        object.__setattr__(self, "values", values)

    def suggest(self, trial: Suggests, name: str) -> Scalar:
        """Return one of the values."""
        found: Scalar = trial.suggest_categorical(name, self.values)
        return found

    def bounds(self) -> tuple[Scalar, ...]:
        """Return all values."""
        return self.values

    def __contains__(self, value: object) -> bool:
        return any(type(value) is type(one) and value == one for one in self.values)

    def __str__(self) -> str:
        return f"choice({', '.join(map(_text, self.values))})"


KINDS: dict[str, type[SearchSpace]] = {
    "log": LogUniform,
    "uniform": Uniform,
    "int": IntUniform,
    "log_int": IntLogUniform,
    "choice": Choice,
}
"""Kinds of spaces by the name with which a text begins."""
FORMS = "log(LOW,HIGH), uniform(LOW,HIGH), int(LOW,HIGH), log_int(LOW,HIGH) or choice(A,B,...)"
PART = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|'[^']*'|[^,]*?)\s*(,|\Z)""")
"""A value of a text, with or without quotes, and what follows it."""
WORDS: dict[str, Scalar] = {"true": True, "false": False, "null": None, "none": None}


def parse_space(text: str) -> SearchSpace:
    """Return the space that a text describes.

    Args:
        text: One of the forms ``log(LOW,HIGH)``, ``uniform(LOW,HIGH)``, ``int(LOW,HIGH)``, ``log_int(LOW,HIGH)`` and
            ``choice(A,B,...)``. Quotes make a value a string: ``choice('1','none','a,b')``.

    Raises:
        ValueError: If the text has another form, or the ends are not allowed.

    Example:
        >>> parse_space("log(1e-5,1e-2)")
        LogUniform(low=1e-05, high=0.01)
        >>> parse_space("choice(relu, tanh, null)")
        Choice(values=('relu', 'tanh', None))
    """
    found = re.fullmatch(r"\s*(\w+)\s*\((.*)\)\s*", text, re.DOTALL)
    require(found is not None, "a search space", f"one of {FORMS}", text)
    assert found is not None
    kind, values = found[1], [_value(part) for part in _parts(found[2])]
    if kind not in KINDS:
        raise ValueError(f"unknown kind of search space {kind!r} in {text!r}; {nearest(kind, KINDS)}")
    if kind == "choice":
        return Choice(*values)
    numbers = len(values) == 2 and all(map(_is_number, values))
    require(numbers, f"the search space {kind}", "two numbers, its ends", text)
    ends: Any = values if kind.endswith("int") else map(float, values)  # type: ignore[arg-type]
    return KINDS[kind](*ends)


def declared_spaces(config: Any) -> dict[str, SearchSpace]:
    """Return the search spaces of a config's fields, by dotted name.

    A section can have a method ``unsearched``, which returns the names of its fields that its other values exclude.

    Args:
        config: A config dataclass instance.
    """
    return dict(_declared(config, ""))


def _declared(config: Any, path: str) -> Iterator[tuple[str, SearchSpace]]:
    excluded: set[str] = config.unsearched() if hasattr(config, "unsearched") else set()
    for field in dataclasses.fields(config):
        value, space = getattr(config, field.name), _space_of(type(config), field.name)
        if dataclasses.is_dataclass(value):
            yield from _declared(value, f"{path}{field.name}.")
        elif space is not None and field.name not in excluded:
            yield f"{path}{field.name}", space


def _space_of(config_class: type, name: str) -> SearchSpace | None:
    """Return the space of a field in the nearest class that declares one."""
    for one in config_class.__mro__:
        field = one.__dict__.get("__dataclass_fields__", {}).get(name)
        if field is not None and SEARCH in field.metadata:
            space: SearchSpace | str | None = field.metadata[SEARCH]
            return parse_space(space) if isinstance(space, str) else space
    return None


def _check_ends(low: float, high: float) -> None:
    finite = math.isfinite(low) and math.isfinite(high)
    require(finite and low < high, "the ends of a search space", "finite, the lower one first", (low, high))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _parts(text: str) -> Iterator[str]:
    """Yield the parts between the commas that are not in quotes."""
    end = 0
    while found := PART.match(text, end):
        yield found[1]
        if not found[2]:
            return
        end = found.end()


def _value(text: str) -> Scalar:
    """Return the value that a part of a text means."""
    if text.startswith('"'):
        try:
            return str(json.loads(text))
        except ValueError:
            return text.strip("'\"")
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.strip("'\"")


def _text(value: Scalar) -> str:
    """Return the text of a value; a string that would be read as something else has quotes."""
    if isinstance(value, str):
        return value if [*map(_value, _parts(value))] == [value] else json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else "null" if value is None else str(value)
