"""The version of workers and coordinator: two processes understand each other if and only if it is the same.

The version of the package is the same in all checkouts between two releases, so a fingerprint of what they exchange is
added to it: names of messages, columns and weights, types, and the fields of all configs that a task contains, those
of policies too.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from typing import Any

from lightning_ding import __version__
from lightning_ding.callbacks.remote import PARTS
from lightning_ding.distributed.config import CollectorTaskConfig, LearningTask, ParallelConfig
from lightning_ding.distributed.coordinator.schema import COLUMNS, DTYPES
from lightning_ding.distributed.transport import KINDS, MESSAGES, ROLES, SCHEMA
from lightning_ding.registry import POLICY_REGISTRY

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
    for field in dataclasses.fields(config):  # type: ignore[arg-type]
        default: Any = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        nested = dataclasses.is_dataclass(default)
        found[field.name] = fields_of(type(default)) if nested else [str(field.type), repr(default)]
    return found
