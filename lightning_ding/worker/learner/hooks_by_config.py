"""Learner hooks by name, and from a config."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from lightning_ding.config import nearest, require
from lightning_ding.registry import LEARNER_HOOK_REGISTRY
from lightning_ding.worker.learner import builtin_hooks  # noqa: F401 - registers them
from lightning_ding.worker.learner.hook import (
    DEFAULT_PRIORITY,
    POSITIONS,
    Hooks,
    LearnerHook,
    Position,
    add_learner_hook,
)
from lightning_ding.worker_config import HookConfig

SHORT: dict[str, tuple[str, str, int, Position]] = {
    "load_ckpt_before_run": ("load_ckpt", "load_ckpt", 20, "before_run"),
    "log_show_after_iter": ("log_show", "log_show", 20, "after_iter"),
    "save_ckpt_after_iter": ("save_ckpt", "save_ckpt_after_iter", 20, "after_iter"),
    "save_ckpt_after_run": ("save_ckpt", "save_ckpt_after_run", 20, "after_run"),
    "log_reduce_after_iter": ("log_reduce", "log_reduce_after_iter", 10, "after_iter"),
}
"""Registered class, name, priority and position of each short key."""
FULL = ("type", "name", "position", "priority", "ext_args")


def register_learner_hook(name: str, cls: type[LearnerHook], force_overwrite: bool = False) -> None:
    """Register a hook class, so that a config can name it.

    Args:
        name: The ``type`` of a config. The built-in ``load_ckpt``, ``save_ckpt``, ``log_show`` and ``log_reduce`` are
            also what the short keys build.
        cls: A subclass of ``LearnerHook``.
        force_overwrite: Replace a class of that name instead of raising.

    Raises:
        TypeError: If ``cls`` is no subclass of ``LearnerHook``.
        ValueError: If the name is taken and ``force_overwrite`` is false.
    """
    if not (isinstance(cls, type) and issubclass(cls, LearnerHook)):
        raise TypeError(f"cls must be a subclass of LearnerHook, got {cls!r}")
    LEARNER_HOOK_REGISTRY.register(name, force_overwrite=force_overwrite)(cls)


def build_learner_hook_by_cfg(cfg: Mapping[str, Any] | HookConfig | None) -> Hooks:
    """Return the hooks that a config describes, by position and in the order of their priorities.

    Args:
        cfg: A ``HookConfig``; or a mapping of short keys, and of further keys whose values are mappings: ``type``,
            ``position``, and optionally ``name`` (the key), ``priority`` (100) and ``ext_args``. A short key may also
            have such a value. None means no hooks.

    Returns:
        A list for each of the four positions.

    Raises:
        ValueError: If a key is unknown, naming the nearest known one, or a value out of range.
        TypeError: If a value has the wrong type.
        KeyError: If a ``type`` is missing or not registered.
    """
    section = _section(cfg)
    hooks: Hooks = {position: [] for position in POSITIONS}
    for key, value in section.items():
        if isinstance(value, Mapping):
            add_learner_hook(hooks, _from_full(key, value))
        elif key not in SHORT:
            raise ValueError(f"unknown learner hook {key!r}; {nearest(key, SHORT)}, or give a mapping with a 'type'")
        elif value is not None and value is not False and value != "":
            add_learner_hook(hooks, _from_short(key, value))
    return hooks


def _section(cfg: Mapping[str, Any] | HookConfig | None) -> Mapping[str, Any]:
    if isinstance(cfg, HookConfig):
        short = {field.name: getattr(cfg, field.name) for field in dataclasses.fields(cfg) if field.name != "custom"}
        twice = sorted(short.keys() & cfg.custom.keys())
        require(not twice, "hook.custom", "other names than the short keys", twice)
        for key, value in cfg.custom.items():
            require(isinstance(value, Mapping), f"hook.custom.{key}", "a mapping with a 'type'", value)
        return {**short, **cfg.custom}
    return cfg or {}


def _from_short(key: str, value: Any) -> LearnerHook:
    kind, name, priority, position = SHORT[key]
    if key == "load_ckpt_before_run":
        ext_args = {"load_path": value}
    elif key in ("log_show_after_iter", "save_ckpt_after_iter"):
        ext_args = {"freq": value}
    else:
        ext_args = {}
        if value is not True:
            raise TypeError(f"learner hook {key!r} must be True or False, got {value!r}")
    return _build(kind, name, priority, position, ext_args)


def _from_full(key: str, value: Mapping[str, Any]) -> LearnerHook:
    for name in value:
        if name not in FULL:
            raise ValueError(f"unknown key {name!r} of the learner hook {key!r}; {nearest(name, FULL)}")
    for name in ("type", "position"):
        if name not in value:
            raise KeyError(f"the learner hook {key!r} needs a {name!r}, got the keys {sorted(value)}")
    priority, ext_args = value.get("priority", DEFAULT_PRIORITY), value.get("ext_args") or {}
    return _build(value["type"], value.get("name", key), priority, value["position"], ext_args)


def _build(kind: str, name: str, priority: int, position: Position, ext_args: Mapping[str, Any]) -> LearnerHook:
    hook = LEARNER_HOOK_REGISTRY.get(kind)(name=name, priority=priority, position=position, ext_args=ext_args)
    assert isinstance(hook, LearnerHook)
    return hook
