"""Reading messages: each field has its type and is in its range, or the message is refused; and their version.

Every function that reads a message raises a ``Refusal`` of status 400 for a field that is missing or has an invalid
value.

The version of the package is the same in all checkouts between two releases, so :func:`version` adds a fingerprint of
what processes exchange: names of messages, columns and weights, types, and the fields of all configs that a task
contains, those of policies too. Two processes understand each other if and only if their versions are the same.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

from lightning_ding import __version__
from lightning_ding.callbacks.remote import PARTS
from lightning_ding.distributed.config import CollectorTaskConfig, LearningTask, ParallelConfig
from lightning_ding.distributed.coordinator.schema import COLUMNS, DTYPES, EPISODES, Announced, Column, name_of
from lightning_ding.distributed.transport import KINDS, MESSAGES, ROLES, SCHEMA, Kind, Refusal
from lightning_ding.registry import POLICY_REGISTRY

LARGEST = 2**53  # largest integer that every JSON reader keeps exact
LONGEST = 10_000  # characters of a text
MAX_DEPTH = 32
"""Largest depth of nested lists and objects in a message."""


def parse_message(body: bytes) -> dict[str, Any]:
    """Return the JSON object in a body.

    Raises:
        Refusal: 400, if the body is not an object, is too deeply nested, or contains a non-finite number or an integer
            of more than 64 bits.
    """
    try:
        message = json.loads(body.decode(), parse_constant=_refuse, parse_float=_float, parse_int=_int)
    except ValueError as error:
        raise Refusal(400, f"the body must be JSON: {str(error)[:200]}") from error
    except RecursionError as error:
        raise Refusal(400, f"the body must be JSON of at most {MAX_DEPTH} levels") from error
    if not isinstance(message, dict):
        raise Refusal(400, f"the body must be a JSON object, got {type(message).__name__}")
    level: list[Any] = [message]
    for _ in range(MAX_DEPTH):
        level = [below for value in level for below in _below(value)]
        if not level:
            return message
    raise Refusal(400, f"the body must be JSON of at most {MAX_DEPTH} levels")


def _below(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"numbers must be finite, got {constant}")


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        _refuse(text[:20])
    return number


def _int(text: str) -> int:
    if len(text) > 20 or not -(2**63) <= int(text) < 2**64:
        raise ValueError(f"integers must have at most 64 bits, got {text[:20]}...")
    return int(text)


def text(message: Mapping[str, Any], name: str) -> str:
    """Return a field that is a non-empty string of at most 10,000 characters."""
    value = message.get(name)
    return str(_checked(isinstance(value, str) and 0 < len(value) <= LONGEST, name, "a non-empty string", value))


def whole(message: Mapping[str, Any], name: str, least: int = 0) -> int:
    """Return a field that is an integer >= ``least``."""
    value: Any = message.get(name)
    return int(_checked(_is_whole(value) and least <= value <= LARGEST, name, f"an integer >= {least}", value))


def number(message: Mapping[str, Any], name: str) -> float:
    """Return a field that is a finite number."""
    value = message.get(name)
    return float(_checked(_is_number(value), name, "a finite number", value))


def handle(message: Mapping[str, Any], name: str, kind: Kind) -> Any:
    """Return a field that is the handle of a block of a kind, or None; senders may not consume other kinds."""
    value = message.get(name)
    good = value is None or (isinstance(value, Mapping) and value.get("kind") == kind)
    return _checked(good, name, f"the handle of a {kind} block or null", value)


def mapping(message: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a field that is a dict with string keys."""
    value = message.get(name)
    good = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
    return dict(_checked(good, name, "an object", value))


def numbers(message: Mapping[str, Any], name: str) -> list[float]:
    """Return a field that is a list of finite numbers; an empty list if the field is missing."""
    value = message.get(name, [])
    good = isinstance(value, list) and all(map(_is_number, value))
    return [float(item) for item in _checked(good, name, "a list of finite numbers", value)]


def wholes(message: Mapping[str, Any], name: str, limit: int = LARGEST) -> list[int]:
    """Return a field that is a list of integers in [0, limit); an empty list if the field is missing."""
    value = message.get(name, [])
    good = isinstance(value, list) and all(_is_whole(item) and 0 <= item < limit for item in value)
    return list(_checked(good, name, f"a list of integers in [0, {limit})", value))


def _is_number(value: Any) -> bool:
    return abs(value) <= LARGEST if _is_whole(value) else isinstance(value, float) and math.isfinite(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _checked(good: bool, name: str, allowed: str, value: Any) -> Any:
    if not good:
        raise Refusal(400, f"{name} must be {allowed}, got {str(value)[:100]!r}")
    return value


LONGEST_WINDOW = 10_000  # largest number of steps of a return or a sequence
LEAST = {"n_step": 1, "sequence": 1, "burn_in": 0, "period": 1}
"""Options of the buffer's ``sample`` that are numbers of steps, and the least value of each."""
FLAGS = frozenset({"across_episodes", "first_step", "across_time_limits"})
"""Options of the buffer's ``sample`` that are true or false."""


def read_metadata(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a collector's metadata that the coordinator uses, as builtins."""
    metadata = mapping(message, "metadata")
    returns, lengths = numbers(metadata, "returns"), wholes(metadata, "lengths")
    if len(returns) != len(lengths):
        raise Refusal(400, f"returns and lengths must have the same length, got {len(returns)} and {len(lengths)}")
    infos = read_infos(metadata, len(returns))
    wait_time = number(metadata, "wait_time") if "wait_time" in metadata else 0.0
    return {
        "env_step": whole(metadata, "env_step"),
        "returns": returns,
        "lengths": lengths,
        **({"infos": infos} if any(infos) else {}),
        "dropped_episodes": wholes(metadata, "dropped_episodes", EPISODES),
        "wait_time": max(0.0, wait_time),
        "samples_elsewhere": whole({"samples_elsewhere": 0, **metadata}, "samples_elsewhere"),
    }


MOST_INFOS = 1000  # numbers of the infos of one episode


def read_infos(metadata: Mapping[str, Any], episodes: int) -> list[dict[str, float]]:
    """Return the numbers of the infos of each of a number of episodes, by name; empty dicts if there are none."""
    value = metadata.get("infos", [{}] * episodes)
    good = isinstance(value, list) and len(value) == episodes
    for one in _checked(good, "infos", f"a list of {episodes} objects, one for each return", value):
        good = isinstance(one, Mapping) and len(one) <= MOST_INFOS
        good = good and all(isinstance(name, str) and _is_number(item) for name, item in one.items())
        _checked(good, "infos", f"objects of at most {MOST_INFOS} finite numbers", one)
    return [{name: float(item) for name, item in one.items()} for one in value]


TYPES = sorted(map(name_of, DTYPES))
"""Names of the types of columns."""
MOST_COLUMNS = 10_000
MOST_AXES = 64


def read_columns(message: Mapping[str, Any]) -> Announced:
    """Return the columns that a learner announces."""
    columns, is_whole = mapping(message, "columns"), message.get("is_whole")
    _checked(isinstance(is_whole, bool), "is_whole", "true or false", is_whole)
    _checked(0 < len(columns) <= MOST_COLUMNS, "columns", f"1 to {MOST_COLUMNS} columns", len(columns))
    return Announced({name: _column(mapping(columns, name)) for name in columns}, bool(is_whole))


def _column(about: Mapping[str, Any]) -> Column:
    kind, shape = text(about, "type"), tuple(wholes(about, "shape"))
    _checked(kind in TYPES, "type", f"one of {', '.join(TYPES)}", kind)
    _checked(len(shape) <= MOST_AXES, "shape", f"at most {MOST_AXES} axes", shape)
    least, largest = (tuple(map(int, numbers(about, name))) for name in ("least", "largest"))
    for limits in (least, largest):
        _checked(len(limits) in {0, 1, math.prod(shape)}, "limits", "one for all or one for each number", len(limits))
    return Column(kind, shape, least, largest)


def read_serials(message: Mapping[str, Any]) -> dict[str, int]:
    """Return the serial numbers of a collector's weights by policy id; an empty dict if the field is missing."""
    serials = mapping({"serials": {}, **message}, "serials")
    return {policy_id: whole(serials, policy_id) for policy_id in serials}


def read_sample_options(message: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Return the arguments of the buffer's ``sample`` that a learner sets.

    Args:
        message: Request of a learner.
        known: Names of the arguments that its policy needs.
    """
    given = mapping(message, "options") if message.get("options") is not None else {}
    unknown = sorted(given.keys() - known)
    if unknown:
        raise Refusal(400, f"options must be among {', '.join(sorted(known))}, got {unknown}")
    return {name: _sample_option(given, name) for name in given}


def _sample_option(given: Mapping[str, Any], name: str) -> Any:
    if name in FLAGS:
        return _checked(isinstance(given[name], bool), name, "true or false", given[name])
    if name not in LEAST:
        return number(given, name)
    steps = whole(given, name, LEAST[name])
    return _checked(steps <= LONGEST_WINDOW, name, f"at most {LONGEST_WINDOW}", steps)


def read_info(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a learner's info, with None in place of non-finite numbers, which JSON cannot represent."""
    info: dict[str, Any] = _finite(mapping(message, "info"))
    whole(info, "learner_step")
    is_done = info.get("learner_done", False)
    _checked(isinstance(is_done, bool), "learner_done", "true or false", is_done)
    results = mapping({"results": {}, **info}, "results")
    for name, value in results.items():
        if value is not None:
            number(results, name)
    return info


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(below) for key, below in value.items()}
    if isinstance(value, list):
        return [_finite(below) for below in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


CONFIGS: tuple[type, ...] = (ParallelConfig, CollectorTaskConfig, LearningTask)
"""Configs that tasks contain, or from which tasks are made, in addition to those of policies."""
OURS = "lightning_ding.policy."
"""Modules of the policies of this package, which all processes have; a program may register others in some of them."""


@functools.cache
def version() -> str:
    """Return the version of the package and the fingerprint of its schema, such as ``"0.1.0+94b2e1c07a5d"``."""
    return f"{__version__}+{fingerprint(schema())}"


def schema() -> dict[str, Any]:
    """Return a description of everything that workers and coordinator exchange, as builtins."""
    names = {"messages": MESSAGES, "roles": ROLES, "kinds": KINDS, "columns": COLUMNS, "weights": PARTS}
    policies = {name: POLICY_REGISTRY.get(name) for name in POLICY_REGISTRY}
    ours = {name: kind.config_class for name, kind in policies.items() if kind.__module__.startswith(OURS)}
    configs = {config.__name__: fields_of(config) for config in CONFIGS}
    configs |= {name: fields_of(config) for name, config in ours.items()}
    return {"entries": SCHEMA, **names, "types": sorted(map(str, DTYPES)), "configs": configs}


def fingerprint(description: dict[str, Any]) -> str:
    """Return 12 characters that differ for different descriptions."""
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()[:12]


def fields_of(config: type) -> dict[str, Any]:
    """Return the fields of a config class with their types and defaults; those of its sections are nested.

    Example:
        >>> from lightning_ding.distributed.config import SystemConfig
        >>> fields_of(SystemConfig)["restarts"], fields_of(SystemConfig)["coordinator"]["port"]
        (['int', '20'], ['int', '0'])
    """
    found: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        default: Any = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        nested = dataclasses.is_dataclass(default)
        found[field.name] = fields_of(type(default)) if nested else [str(field.type), repr(default)]
    return found
