"""Saved configs: marked with the name of their policy, and translated if an older version wrote them.

A section of a config whose keys changed their meaning has a method that returns the section with the same keys in their
new meaning: ``from_older`` for versions that saved no ``cfg_type``, and ``from_separate`` for versions without
``model.dict_encoder``. Configs that a checkpoint or a folder holds have every key of their version, which tells them
from a config that a user wrote.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from lightning_ding.config import MARK, require
from lightning_ding.model.encoder import is_image
from lightning_ding.model.image_encoders import IMAGE_SIZES

IN_EVERY_SAVED = {
    "model": {"obs_shape", "action_shape", "encoder_hidden_size_list", "activation"},
    "learn": {"batch_size", "grad_clip_norm", "optimizer"},
    "collect": {"collector"},
    "eval": {"evaluator"},
}
"""Keys that every saved config of an older version has, by section."""


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


def with_channels(section: dict[str, Any]) -> dict[str, Any]:
    """Return a ``model`` section whose list of widths of any length had the channels and then the features."""
    shape, widths = section["obs_shape"], section["encoder_hidden_size_list"]
    is_conv = section.get("encoder") in (None, "conv") and shape is not None and is_image(shape)
    if not is_conv or widths is None or len(widths) in (2, len(IMAGE_SIZES)):
        return section
    options = {**(section.get("encoder_kwargs") or {}), "channels": widths[:-1], "feature_size": widths[-1]}
    return section | {"encoder_hidden_size_list": None, "encoder_kwargs": options}


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
