"""Typed config dataclasses: strict reading of mappings, deep merging, and conversion to EasyDict.

A config is a frozen dataclass, and the only place that defines its defaults. Users pass the dataclass or a nested
mapping. An unknown key raises an error that suggests the nearest known key.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, Union

import numpy as np
from easydict import EasyDict

ConfigT = TypeVar("ConfigT")
ValueT = TypeVar("ValueT")

if TYPE_CHECKING:
    ConfigLike = Union[ConfigT, Mapping[str, Any], None]  # noqa: UP007 - a generic alias cannot be written with `|`
    """Type of a constructor's config argument: the dataclass, a mapping to merge over its defaults, or None."""
else:

    class ConfigLike:
        """Type of a constructor's config argument; at run time the dataclass or None, so that the CLI checks it."""

        def __class_getitem__(cls, config_class: type) -> Any:
            """Return ``config_class | None``."""
            return config_class | None


MARK = "cfg_type"
"""Key of a whole config that says of which class it is."""
SEARCH = "search"
"""Key of a search space in the metadata of a field."""
OTHER_NAMES: dict[str, tuple[str, ...]] = {
    "actor_lr": ("learning_rate_actor", "learning_rate_policy"),
    "buffer_size": ("replay_buffer_size",),
    "clip_range": ("clip_ratio",),
    "clip_range_vf": ("value_clip",),
    "critic_lr": ("learning_rate_critic", "learning_rate_q"),
    "ent_coef": ("entropy_weight", "alpha"),
    "entropy_coef": ("entropy_weight", "alpha"),
    "eval_episodes": ("n_evaluator_episode", "n_episode"),
    "exploration_fraction": ("decay",),
    "gamma": ("discount_factor",),
    "hidden_sizes": ("encoder_hidden_size_list",),
    "lam": ("gae_lambda",),
    "learning_rate": ("learning_rate_actor", "learning_rate_policy"),
    "learning_starts": ("random_collect_size",),
    "lr": ("learning_rate", "learning_rate_actor", "learning_rate_policy"),
    "max_grad_norm": ("grad_clip_norm",),
    "max_steps": ("max_env_step",),
    "n_env": ("num_envs",),
    "n_envs": ("num_envs",),
    "n_epochs": ("epoch_per_collect",),
    "n_eval_episodes": ("n_evaluator_episode", "n_episode"),
    "n_step": ("nstep",),
    "n_steps": ("n_sample",),
    "net_arch": ("encoder_hidden_size_list",),
    "num_env": ("num_envs",),
    "policy_delay": ("actor_update_freq",),
    "polyak": ("target_theta",),
    "target_update_interval": ("target_update_freq",),
    "tau": ("target_theta",),
    "timesteps": ("max_env_step",),
    "total_timesteps": ("max_env_step",),
    "train_steps": ("max_train_iter",),
    "updates_per_step": ("update_per_collect",),
    "utd": ("update_per_collect",),
    "vf_coef": ("value_weight",),
    "warmup_steps": ("random_collect_size",),
}
"""The names of options here, by their abbreviations and their names in other libraries."""


def searched(default: ValueT, space: Any) -> ValueT:
    """Return a dataclass field with a default and a search space.

    Args:
        default: Default of the field.
        space: Its search space as text, such as ``"log(1e-5, 1e-2)"``, or as an object of
            :mod:`lightning_ding.search_spaces`; None removes the space that the field has in a base class.
    """
    found: ValueT = dataclasses.field(default=default, metadata={SEARCH: space})
    return found


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the entry of ``known`` that is most similar to a dotted name, or None if none is similar.

    The last parts are compared: an equal one in another section comes first, then an entry of ``OTHER_NAMES``, then a
    similar spelling. Among several, the one with the most similar sections, or the same first letter, is returned.

    Example:
        >>> closest("learning_rate", ["learn.loss", "learn.learning_rate"])
        'learn.learning_rate'
        >>> closest("learn.lr", ["learn.loss", "learn.learning_rate"])
        'learn.learning_rate'
    """
    last = name.rpartition(".")[2]
    meanings = (last, *OTHER_NAMES.get(last, ()))

    def likeness(one: str) -> tuple[int, float, float, bool]:
        own = one.rpartition(".")[2]
        rank = len(meanings) - meanings.index(own) if own in meanings else 0
        return rank, _ratio(last, own), _ratio(name, one), last[:1] == own[:1]

    best = max(sorted(known), key=likeness, default=None)
    if best is None:
        return None
    rank, of_last_part, *_ = likeness(best)
    return best if rank or of_last_part >= 0.6 else None


def _ratio(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one.lower(), other.lower()).ratio()


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint that names the entry of ``known`` most similar to ``name``, or all entries if none is similar.

    Example:
        >>> nearest("batchsize", ["batch_size", "lr"])
        "did you mean 'batch_size'?"
        >>> nearest("xyz", ["batch_size", "lr"])
        'known: batch_size, lr'
    """
    names = sorted(known)
    close = closest(name, names)
    return f"did you mean {close!r}?" if close else f"known: {', '.join(names)}"


def require(condition: bool, name: str, allowed: str, got: object) -> None:
    """Raise the error of an invalid argument, with its name, the allowed values and the given value.

    Raises:
        ValueError: If ``condition`` is false.

    Example:
        >>> require(0 < 1.5 <= 1, "discount_factor", "in (0, 1]", 1.5)
        Traceback (most recent call last):
        ...
        ValueError: discount_factor must be in (0, 1], got 1.5
    """
    if not condition:
        raise ValueError(f"{name} must be {allowed}, got {got!r}")


def require_type(name: str, value: object, hint: Any) -> None:
    """Raise the error of a config value of the wrong type, with its name, the type and the given value.

    Raises:
        TypeError: If ``value`` is not of the type ``hint``.

    Example:
        >>> require_type("encoder_kwargs.layer_norm", 8, bool)
        Traceback (most recent call last):
        ...
        TypeError: config key 'encoder_kwargs.layer_norm' must be bool, got int: 8
    """
    if not _fits(value, hint):
        raise TypeError(f"config key {name!r} must be {_describe(hint)}, got {type(value).__name__}: {value!r}")


def deep_merge(base: Mapping[str, Any], update: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of ``base`` updated by ``update``; nested mappings are merged key by key.

    Neither argument is changed. A value that is not a mapping replaces the old value.

    Example:
        >>> deep_merge({"learn": {"lr": 0.1, "batch_size": 64}}, {"learn": {"lr": 0.2}})
        {'learn': {'lr': 0.2, 'batch_size': 64}}
    """
    merged: dict[str, Any] = {}
    for key, value in (*base.items(), *update.items()):
        below = merged.get(key)
        is_section = isinstance(value, Mapping)
        merged[key] = deep_merge(below if isinstance(below, Mapping) else {}, value) if is_section else value
    return merged


def to_dict(config: Any) -> dict[str, Any]:
    """Return a config dataclass as nested dicts of builtins; tuples and arrays become lists.

    A class with ``IS_MARKED`` also gets the entry ``cfg_type``, its name, which :func:`resolve` ignores.

    Raises:
        TypeError: If ``config`` is not a dataclass instance.
    """
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        raise TypeError(f"config must be a dataclass instance, got {config!r}")
    found = {MARK: type(config).__name__} if getattr(config, "IS_MARKED", False) else {}
    for field in dataclasses.fields(config):
        found[field.name] = _plain(getattr(config, field.name))
    return found


def read_only(values: Mapping[str, Any], name: str) -> EasyDict:
    """Return a :class:`ReadOnlyDict`, typed as the ``EasyDict`` that it is."""
    return ReadOnlyDict(values, name)


def to_easydict(config: Any) -> EasyDict:
    """Return a config dataclass as an ``EasyDict``; changing the result does not change ``config``."""
    return EasyDict(to_dict(config))


class ReadOnlyList(list[Any]):
    """A list in a :class:`ReadOnlyDict`, which cannot be changed; a deep copy is a list that can.

    Args:
        values: Its items.
        name: Name of the value, for the error message.
    """

    def __init__(self, values: Iterable[Any], name: str = "a list of a read-only config") -> None:
        super().__init__(values)
        self._name = name

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(f"{self._name} cannot be changed: pass it to the constructor, or change a copy.deepcopy")

    append = extend = insert = remove = pop = clear = sort = reverse = _refuse
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


class ReadOnlyDict(EasyDict):  # type: ignore[misc]  # easydict has no types
    """An ``EasyDict`` whose entries and lists cannot be changed, at any depth; a deep copy is an ``EasyDict`` that can.

    Args:
        values: Nested entries.
        name: Name of the value, for the error message.

    Example:
        >>> cfg = ReadOnlyDict({"learn": {"batch_size": 64}}, "policy.cfg")
        >>> cfg.learn.batch_size
        64
        >>> cfg.learn.batch_size = 32
        Traceback (most recent call last):
        ...
        TypeError: policy.cfg.learn.batch_size cannot be set: pass it to the constructor, or change a copy.deepcopy
    """

    def __init__(self, values: Mapping[str, Any], name: str) -> None:
        self.__dict__["__name"] = name
        for key, value in values.items():
            below = _read_only(value, f"{name}.{key}")
            dict.__setitem__(self, key, below)
            self.__dict__[key] = below

    def __setattr__(self, key: Any = "", *_: Any) -> NoReturn:
        name = self.__dict__["__name"] + (f".{key}" if isinstance(key, str) and key else "")
        raise TypeError(f"{name} cannot be set: pass it to the constructor, or change a copy.deepcopy")

    __setitem__ = __delattr__ = __delitem__ = __ior__ = clear = popitem = setdefault = __setattr__

    def __deepcopy__(self, memo: dict[int, Any]) -> EasyDict:
        return EasyDict(copy.deepcopy(deep_merge(self, {}), memo))

    def __reduce__(self) -> tuple[Any, ...]:
        return EasyDict, (deep_merge(self, {}),)


def _read_only(value: Any, name: str) -> Any:
    """Return a value with read-only mappings and lists in it, also those in lists, as ``EasyDict`` does."""
    if isinstance(value, Mapping):
        return ReadOnlyDict(value, name)
    if type(value) not in (list, tuple):
        return value
    items = map(partial(_read_only, name=name), value)
    return ReadOnlyList(items, name) if type(value) is list else tuple(items)


def resolve(config_class: type[ConfigT], cfg: ConfigLike[ConfigT], path: str = "") -> ConfigT:
    """Return the config dataclass for a constructor's config argument.

    Args:
        config_class: Config dataclass whose fields all have defaults.
        cfg: An instance of it, a mapping to merge over its defaults, or None for the defaults.
        path: Start of the keys in error messages, such as ``"other.replay_buffer."``.

    Raises:
        ValueError: If a key is unknown, with the nearest known key, or a value is out of its range.
        TypeError: If a value has the wrong type.
    """
    if cfg is None:
        return config_class()
    if isinstance(cfg, config_class):
        return resolve(type(cfg), to_dict(cfg), path) if _holds_numpy(cfg) else cfg
    if isinstance(cfg, Mapping):
        keys = dict(cfg)
        if not path:
            keys.pop(MARK, None)
        return _from_mapping(config_class, keys, path, config_class)
    raise TypeError(f"cfg must be a {config_class.__name__}, a mapping or None, got {type(cfg).__name__}: {cfg!r}")


def type_hints(config_class: type) -> dict[str, Any]:
    """Return the types of a config class's fields; annotations are strings, which take long to evaluate."""
    if config_class not in _HINTS:
        _HINTS[config_class] = typing.get_type_hints(config_class)
    return _HINTS[config_class]


_HINTS: dict[type, dict[str, Any]] = {}  # of every class so far


def without_defaults(section: Mapping[str, Any], kept: Iterable[str], classes: Iterable[type]) -> dict[str, Any]:
    """Return a section without the keys that hold the default of a config class.

    Args:
        section: Keys and values; a mapping of some keys of a section is merged over its defaults.
        kept: Keys that stay in any case.
        classes: Config dataclasses; each may have some of the keys.
    """
    left = dict(section)
    for one in classes:
        defaults = to_dict(one())
        for key in (left.keys() & defaults.keys()).difference(kept):
            default = {key: defaults[key]}
            if deep_merge(default, {key: _plain(left[key])}) == default:
                del left[key]
    return left


def moved(**where: str) -> dict[str, str]:
    """Return a class attribute ``MOVED`` for a config: keys of other frameworks, and what to use instead."""
    return where


def moved_to(config_class: type, path: str) -> str | None:
    """Return the replacement of a dotted key, if it is an old key or one of another framework; else None."""
    key, _, below = path.partition(".")
    hints: dict[str, str] = getattr(config_class, "MOVED", {})
    section = getattr(config_class(), key, None)
    return moved_to(type(section), below) if below and dataclasses.is_dataclass(section) else hints.get(key)


def _paths(config_class: type, path: str = "") -> Iterator[str]:
    """Yield the dotted names of all fields, sections and the fields of a class's variants included."""
    variants: set[type] = getattr(config_class, "variants", set)()
    for default in [one() for one in {config_class, *variants}]:
        for field in dataclasses.fields(default):
            yield f"{path}{field.name}"
            below = getattr(default, field.name)
            if dataclasses.is_dataclass(below):
                yield from _paths(type(below), f"{path}{field.name}.")


def _from_mapping(config_class: type[ConfigT], mapping: Mapping[str, Any], path: str, root: type) -> ConfigT:
    for_section = getattr(config_class, "for_section", None)
    if for_section is not None:  # the section's ``type`` decides which keys it has
        config_class, mapping = for_section(mapping, path)
    hints = type_hints(config_class)
    defaults = config_class()
    fields = set(map(attrgetter("name"), dataclasses.fields(config_class)))  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, given in mapping.items():
        name, value = f"{path}{key}", _builtin(given)
        if key in getattr(config_class, "MOVED", {}):
            raise ValueError(f"config key {name!r} does not exist here: {config_class.MOVED[key]}")  # type: ignore[attr-defined]
        if key not in fields:
            close = closest(name, {*_paths(root), *(f"{path}{one}" for one in fields)})
            hint = f"did you mean {close!r}?" if close else nearest(str(key), fields)
            raise ValueError(f"unknown config key {name!r}; {hint}")
        below = getattr(defaults, key)
        if dataclasses.is_dataclass(below) and isinstance(value, Mapping):
            value = _from_mapping(type(below), deep_merge(to_dict(below), value), f"{name}.", root)
        else:
            require_type(name, value, hints[key])
        values[key] = _own(value)
    return dataclasses.replace(defaults, **values)  # type: ignore[type-var]


def _holds_numpy(value: Any) -> bool:
    if dataclasses.is_dataclass(value):
        return any(_holds_numpy(getattr(value, field.name)) for field in dataclasses.fields(value))
    if isinstance(value, (Mapping, list, tuple)):
        return any(map(_holds_numpy, value.values() if isinstance(value, Mapping) else value))
    return isinstance(value, (np.generic, np.ndarray))


def _builtin(value: Any) -> Any:
    """Return numpy scalars as Python scalars and numpy arrays as lists, also inside sequences."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    return type(value)(map(_builtin, value)) if type(value) in (list, tuple) else value


def _own(value: Any) -> Any:
    """Return a copy that shares nothing with the user's mapping; lists become tuples."""
    value = _builtin(value)
    if isinstance(value, Mapping):
        return dict(zip(value, map(_own, value.values()), strict=True))
    return tuple(map(_own, value)) if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    value = _builtin(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_dict(value)
    if isinstance(value, Mapping):
        return dict(zip(value, map(_plain, value.values()), strict=True))
    return list(map(_plain, value)) if isinstance(value, (list, tuple)) else value


def _fits(value: Any, hint: Any) -> bool:
    """Return whether ``value`` has the type ``hint``; an int counts as a float, a bool does not count as a number."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(map(partial(_fits, value), arguments))
    if origin is Literal:
        return value in arguments
    if origin in (list, tuple, Sequence):
        is_sequence = isinstance(value, Sequence) and not isinstance(value, str)
        return is_sequence and all(map(partial(_fits, hint=arguments[0]), value))
    if origin in (dict, Mapping):
        is_mapping = isinstance(value, Mapping)
        return is_mapping and all(map(partial(_fits, hint=arguments[1]), map(_builtin, value.values())))
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, (int, float) if hint is float else hint)


def _describe(hint: Any) -> str:
    if typing.get_origin(hint) is Literal:
        return "one of " + ", ".join(repr(argument) for argument in typing.get_args(hint))
    if typing.get_origin(hint) in (Union, types.UnionType):
        return " or ".join(_describe(argument) for argument in typing.get_args(hint))
    return getattr(hint, "__name__", str(hint)) if typing.get_origin(hint) is None else str(hint)
