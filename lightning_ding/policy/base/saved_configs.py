"""Saved configs: marked with the name of their policy, translated if an older version wrote them, and read as data.

A section of a config whose keys changed their meaning has a method that returns the section with the same keys in their
new meaning: ``from_older`` for versions that saved no ``cfg_type``, and ``from_separate`` for versions without
``model.dict_encoder``. Configs that a checkpoint or a folder holds have every key of their version, which tells them
from a config that a user wrote. Making a policy of a saved config imports no module that the config names.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, TypeVar

from lightning_ding.config import MARK, deep_merge, require, to_dict
from lightning_ding.registry import NotRegisteredError, ask_for, not_imported, only_imported
from lightning_ding.utils.private_api import INSTANTIATOR, only_on_class

logger = logging.getLogger(__name__)

PolicyClass = TypeVar("PolicyClass", bound=type)
IN_EVERY_SAVED = {
    "model": {"obs_shape", "action_shape", "encoder_hidden_size_list", "activation"},
    "learn": {"batch_size", "grad_clip_norm", "optimizer"},
    "collect": {"collector"},
    "eval": {"evaluator"},
}
"""Keys that every saved config of an older version has, by section."""


def to_save(policy: Any) -> dict[str, Any]:
    """Return the config of a policy as a checkpoint holds it: builtins, and ``cfg_type``."""
    own: Mapping[str, Any] | None = vars(policy).get("_cfg")  # of a policy with a dict config
    return {**(to_dict(policy.config) if own is None else deep_merge(own, {})), MARK: f"{type(policy).__name__}Dict"}


def renewed(config_class: type, cfg: Any) -> Any:
    """Return a mapping without ``cfg_type``, translated if an older version saved it; anything else as it is.

    Args:
        config_class: The policy's config dataclass.
        cfg: Keys and values of a user or of a saved config, a config dataclass, or None.

    Raises:
        ValueError: If there is no translation of a value.
    """
    if not isinstance(cfg, Mapping):
        return cfg
    given = {key: value for key, value in cfg.items() if key != MARK}
    return {**given, **dict(_translated(config_class, cfg))}


def is_older(cfg: Mapping[str, Any]) -> bool:
    """Return whether an older version saved a config."""
    return bool(_translations(cfg))


def _translations(cfg: Mapping[str, Any]) -> list[str]:
    """Return the names of the methods that translate the sections of a config that an older version saved."""
    sections = {name: cfg.get(name) for name in IN_EVERY_SAVED}
    is_saved = {"compile", "on_non_finite"} <= cfg.keys() and all(
        isinstance(section, Mapping) and IN_EVERY_SAVED[name] <= section.keys() for name, section in sections.items()
    )
    found = {"from_older": MARK not in cfg, "from_separate": is_saved and "dict_encoder" not in cfg["model"]}
    return [name for name, is_needed in found.items() if is_saved and is_needed]


def check_meaning(config: Any, saved: Mapping[str, Any]) -> None:
    """Check that a config does not repeat numbers of an older version's saved config that have another meaning now.

    Args:
        config: Config of the policy that loads a checkpoint.
        saved: The config that the checkpoint holds.

    Raises:
        ValueError: Naming the first such key, its value, and the value that continues the run.
    """
    for name, section in _translated(type(config), saved):
        for key, value in section.items():
            now, was = getattr(getattr(config, name), key, None), saved[name].get(key)
            meant = f"which is what {was!r} meant in" if key in saved[name] else "which is the only one of"
            allowed = f"{value!r}, {meant} the version that wrote the checkpoint"
            is_repeated = now == was if key in saved[name] else now != value
            require(value == was or not is_repeated, f"{name}.{key}", allowed, now)


def _translated(config_class: type, cfg: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the translation of each section whose keys changed their meaning."""
    methods = _translations(cfg)
    for field in dataclasses.fields(config_class) if methods else ():
        section: Any = getattr(config_class(), field.name)
        translate = [getattr(section, method) for method in methods if hasattr(section, method)]
        if translate and field.name in cfg:
            found = dict(cfg[field.name])
            for method in translate:
                found = method(found)
            yield field.name, found


# ---------------------------------------------------------------------- policies of files

_LEFT_OUT: ContextVar[dict[str, str] | None] = ContextVar("_LEFT_OUT", default=None)
"""Modules that a file names and that are not imported, by their dotted paths; None unless a file is being loaded."""

_CHANGES: ContextVar[Mapping[str, Any] | None] = ContextVar("_CHANGES", default=None)
"""What ``load_from_checkpoint`` changes in the config of a file; None for nothing."""


@contextmanager
def config_of_file() -> Iterator[None]:
    """Treat the configs of policies that are made in this block as the content of a file.

    Raises:
        NotRegisteredError: Naming the modules that are not imported, if a class that the config names is missing.
    """
    left_out: dict[str, str] = {}
    token = _LEFT_OUT.set(left_out)
    try:
        yield
    except NotRegisteredError as error:
        raise NotRegisteredError("; ".join([error.args[0], *([ask_for(left_out)] if left_out else [])])) from error
    finally:
        _LEFT_OUT.reset(token)
    if left_out:
        logger.warning("%s (the policy acts without it)", ask_for(left_out))


def as_data(cfg: Any, policy_class: type) -> Any:
    """Return the config of a new policy, if it is that of a file without the modules that are not imported.

    The changes that ``load_from_checkpoint`` got are merged over it.
    """
    left_out, changes = _LEFT_OUT.get(), _CHANGES.get()
    if left_out is not None:
        left_out |= not_imported(cfg)
        cfg = only_imported(cfg)
    if changes is None:
        return cfg
    config_class = getattr(policy_class, "config_class", None)
    saved: dict[str, Any] = dict(cfg or {})
    if config_class is not None:  # what is of an older version must be translated before the changes, which are not
        saved = {**renewed(config_class, saved), MARK: saved.get(MARK, policy_class.__name__)}
    return _changed(saved, changes)


def _changed(cfg: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a saved config with changes; a section that becomes of another ``type`` begins from its defaults."""
    merged = dict(cfg)
    for key, value in changes.items():
        was: Any = cfg.get(key)
        is_section = isinstance(value, Mapping) and isinstance(was, Mapping)
        is_other = is_section and "type" in value and value["type"] != was.get("type", value["type"])
        merged[key] = _changed(was, value) if is_section and not is_other else value
    return merged


@contextmanager
def _changing(changes: Mapping[str, Any] | None) -> Iterator[None]:
    """Merge changes over the config of the policy that is made in this block."""
    token = _CHANGES.set(changes)
    try:
        yield
    finally:
        _CHANGES.reset(token)


def reads_data_only(policy_class: PolicyClass) -> PolicyClass:
    """Make ``load_from_checkpoint`` of a class treat a checkpoint as data, as a decorator."""
    owner: Any = policy_class

    def load_from_checkpoint(
        cls: Any,
        /,
        checkpoint_path: Any,
        map_location: Any = None,
        hparams_file: Any = None,
        strict: bool | None = None,
        weights_only: bool | None = True,
        **kwargs: Any,
    ) -> Any:
        """Return the policy of a checkpoint, without importing or calling anything that the file names.

        The arguments are those of Lightning's method. Further arguments are those of the constructor, and replace those
        in the file; a mapping ``cfg`` is merged over the config in the file, so that it only needs what changes.
        ``weights_only=False`` runs code that the file holds: pass it only for a file that you wrote.

        Raises:
            NotRegisteredError: If the config in the file names a class that is not registered; the message names the
                modules of the config that the program has not imported.
            UnpicklingError: If the file contains other objects than tensors and builtins.
        """
        cfg = kwargs.pop("cfg", None)
        changes = cfg if cfg is None or isinstance(cfg, Mapping) else to_dict(cfg)
        is_of_user = hparams_file is not None
        given = {**kwargs, "weights_only": weights_only is not False}
        given[INSTANTIATOR] = None  # otherwise Lightning calls a function that the file names
        with nullcontext() if is_of_user else config_of_file(), _changing(changes):
            load = super(owner, cls).load_from_checkpoint
            return load(checkpoint_path, map_location, hparams_file, strict, **given)

    owner.load_from_checkpoint = only_on_class(load_from_checkpoint)
    return policy_class
