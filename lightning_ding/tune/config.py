"""The settings of a search, the fields that it varies, and the settings that it compares."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml
from jsonargparse import get_loader

from lightning_ding.config import closest, deep_merge, require, resolve, to_dict
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.search_spaces import SearchSpace, declared_spaces, parse_space

SECTION = "tune"
"""Section of a config file of ``fit`` with the settings of a search."""
DECLARED = "declared"
"""Space in a config that means the one that is declared with the field."""


@dataclass(frozen=True, kw_only=True)
class TuneConfig:
    """The settings of a search: the section ``tune`` of a YAML file, and the options of the command."""

    trials: int = 20
    """Trials of all processes together, >= 1. The first one has the settings as given."""
    spaces: Mapping[str, str] = field(default_factory=dict)
    """Search space of each field of the policy's config, such as ``log(1e-5,1e-2)``, or ``declared``; empty for all
    fields that declare one."""
    sampler: Literal["tpe", "random"] = "tpe"
    """How values are drawn: by a tree-structured Parzen estimator, or independently."""
    pruner: Literal["median", "halving", "none"] = "median"
    """Which trials end early: those below the median of the earlier trials at the same env step, those outside of the
    best third at each rung of successive halving, or none."""
    reports: int = 10
    """Times in a trial at which its newest evaluation is compared with those of other trials, >= 1."""
    metric: Literal["last", "best"] = "last"
    """Quantity to maximise: the mean return of the last evaluation, or of the best one."""
    seed: int = 0
    """Seed of the search, >= 0; the seeds of all trials are derived from it."""
    candidates: int = 3
    """Best trials that are compared with the settings as given, over new seeds, >= 0; 0 for no comparison."""
    candidate_seeds: int = 3
    """Runs of each candidate in the comparison, each with its own seed, >= 1."""

    def __post_init__(self) -> None:
        for name in ("trials", "reports", "candidate_seeds"):
            require(getattr(self, name) >= 1, f"tune.{name}", ">= 1", getattr(self, name))
        for name in ("seed", "candidates"):
            require(getattr(self, name) >= 0, f"tune.{name}", ">= 0", getattr(self, name))


@dataclass(frozen=True)
class Candidate:
    """Settings that were compared over several seeds."""

    name: str
    """``as given``, or ``trial`` with its number."""
    values: Mapping[str, Any]
    """Values of the searched fields that differ from the settings as given, by dotted name."""
    returns: Sequence[float] = ()
    """Return of each seed that has one; empty without a comparison."""
    failed: int = 0
    """Number of seeds without a return, such as those with a non-finite loss."""

    @property
    def mean(self) -> float:
        """Mean over the seeds; minus infinity without any, or if a seed has no return."""
        return sum(self.returns) / len(self.returns) if self.returns and not self.failed else float("-inf")

    @property
    def standard_error(self) -> float:
        """Standard error of the mean; NaN with fewer than two seeds."""
        count = len(self.returns)
        if count < 2:
            return float("nan")
        return float((sum((one - self.mean) ** 2 for one in self.returns) / (count - 1) / count) ** 0.5)


def read_files(files: Iterable[str | Path]) -> tuple[list[str], dict[str, Any]]:
    """Return the options of ``fit`` for config files, and the section ``tune`` of these files.

    Raises:
        ValueError: If a file cannot be read or holds no mapping.
    """
    options: list[str] = []
    section: dict[str, Any] = {}
    for file in files:
        content = _content(Path(file))
        if SECTION in content:
            section = deep_merge(section, content.pop(SECTION) or {})
            options += ["--config", yaml.safe_dump(content)]
        else:
            options += ["--config", str(file)]
    return options, section


def _content(file: Path) -> dict[str, Any]:
    try:
        content = get_loader("yaml")(file.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"cannot read the config file {str(file)!r}: {' '.join(str(error).split())}") from error
    require(isinstance(content, Mapping), "config", f"a file that holds a mapping, such as {str(file)!r}", content)
    return dict(content)


def find_spaces(config: PolicyConfig, chosen: Mapping[str, str]) -> dict[str, SearchSpace]:
    """Return the spaces of a search by the dotted names of their fields.

    Args:
        config: Config of the policy in the run as given.
        chosen: ``TuneConfig.spaces``.

    Raises:
        ValueError: If a field is unknown or declares no space, a text describes no space, or the config refuses a value
            of a space.
        TypeError: If the values of a space have the wrong type.
    """
    declared = declared_spaces(config)
    found: dict[str, SearchSpace] = {}
    for name, text in chosen.items():
        if text == DECLARED and name not in declared:
            close = closest(name, declared)
            hint = f"did you mean {close!r}? " if close else ""
            raise ValueError(f"{name!r} declares no search space; {hint}declared: {', '.join(declared) or 'none'}")
        try:
            found[name] = declared[name] if text == DECLARED else parse_space(text)
        except ValueError as error:
            raise ValueError(f"tune.spaces.{name}: {error}") from error
    found = found or declared
    require(bool(found), "tune.spaces", "the space of at least one field: this policy declares none", {})
    for name, space in found.items():
        _check_values(config, name, space)
    return found


def _check_values(config: PolicyConfig, name: str, space: SearchSpace) -> None:
    for value in space.bounds():
        try:
            resolve(type(config), deep_merge(to_dict(config), nested({name: value})))
        except (ValueError, TypeError) as error:
            if "unknown config key" in str(error):
                raise
            raise type(error)(f"tune.spaces.{name}: {space} holds {value!r}, but {error}") from error


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by dotted name as nested dicts.

    Example:
        >>> nested({"learn.learning_rate": 0.1, "nstep": 3})
        {'learn': {'learning_rate': 0.1}, 'nstep': 3}
    """
    merged: dict[str, Any] = {}
    for name, value in values.items():
        path = name.split(".")
        merged = deep_merge(merged, functools.reduce(lambda below, key: {key: below}, reversed(path), value))
    return merged


def values_of(config: PolicyConfig, names: Iterable[str]) -> dict[str, Any]:
    """Return the values of fields by their dotted names."""
    return {name: functools.reduce(getattr, name.split("."), config) for name in names}


def derived_seed(*path: int) -> int:
    """Return a seed below 2**31 that depends on all numbers of a path, such as the study's seed and a trial."""
    return int(np.random.SeedSequence(path).generate_state(1)[0] >> 1)
