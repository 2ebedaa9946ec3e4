"""The config of a distributed run from a file and the command line; mistakes come as one line."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from lightning import Trainer

from lightning_ding.config import deep_merge, nearest, resolve
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.envs.named import find_env, find_wrappers
from lightning_ding.policy import get_policy_cls
from lightning_ding.registry import import_modules

OF_THE_LEARNER = ("callbacks", "default_root_dir")  # arguments of the Trainer that it gives itself
BESIDE_THE_CONFIG = ("type", "import_names", "cfg_type")  # of main.policy


class _Loader(yaml.SafeLoader):
    """YAML whose ``1e-3`` is a number, as everybody means it, and not a text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def read_config(file: str | Path, settings: Iterable[str] = ()) -> ParallelConfig:
    """Return the config that a file and settings beside it describe.

    Args:
        file: YAML or JSON.
        settings: ``"main.seed=1"``, which go before the file; the values are YAML.

    Raises:
        ValueError: If the file or a setting cannot be read, a key is unknown or a value out of its range.
        TypeError: If a value has the wrong type.
        KeyError: If the policy is not registered.
    """
    mapping = _read(Path(file))
    for setting in settings:
        mapping = deep_merge(mapping, _nested(setting))
    cfg = resolve(ParallelConfig, mapping)
    check(cfg)
    return cfg


def check(cfg: ParallelConfig) -> None:
    """Look for mistakes in the sections that belong to the policy and to Lightning.

    Raises:
        ValueError: If a key is unknown or a value out of its range.
        TypeError: If a value has the wrong type.
        KeyError: If the policy is not registered.
    """
    policy = cfg.main.policy
    own = {key: value for key, value in policy.items() if key not in BESIDE_THE_CONFIG}
    try:
        resolve(get_policy_cls(policy).config_class, own)
    except (ValueError, TypeError) as error:
        raise type(error)(f"main.policy: {error}") from error
    known = set(inspect.signature(Trainer.__init__).parameters) - {"self"}
    for key in cfg.system.learner.trainer:
        if key not in known:
            raise ValueError(f"unknown config key 'system.learner.trainer.{key}'; {nearest(key, known)}")
        if key in OF_THE_LEARNER:
            raise ValueError(f"'system.learner.trainer.{key}' must be left out: the learner sets it itself")


def check_env(cfg: ParallelConfig) -> None:
    """Look for the env and its wrappers on this machine.

    Raises:
        ValueError: If there is no such env or wrapper.
        TypeError: If a class does not take its arguments.
        ImportError: If a module of ``import_names`` cannot be imported.
    """
    env = cfg.main.env
    import_modules(env.import_names)
    find_env(env.env_id, "main.env.env_id")
    for name in ("wrappers", "train_wrappers", "eval_wrappers"):
        find_wrappers(getattr(env, name), f"main.env.{name}")
    if env.eval_env_id is not None:
        find_env(env.eval_env_id, "main.env.eval_env_id")


def _read(file: Path) -> dict[str, Any]:
    try:
        text = file.read_text()
        content = json.loads(text) if file.suffix == ".json" else yaml.load(text, Loader=_Loader)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read the config file {str(file)!r}: {error}") from error
    except (yaml.YAMLError, json.JSONDecodeError) as error:
        raise ValueError(f"{str(file)!r} is no YAML: {' '.join(str(error).split())}") from error
    if content is None:
        return {}
    if not isinstance(content, Mapping):
        raise ValueError(f"{str(file)!r} must hold a mapping with the keys main and system, got {content!r}")
    return dict(content)


def _nested(setting: str) -> dict[str, Any]:
    """Return ``{"main": {"seed": 1}}`` for ``main.seed=1``."""
    path, equals, text = setting.partition("=")
    if not equals or not all(path.split(".")):
        raise ValueError(f"--set takes KEY=VALUE, such as main.seed=1, got {setting!r}")
    try:
        value = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ValueError(f"--set {path}: {' '.join(str(error).split())}") from error
    for key in reversed(path.split(".")):
        value = {key: value}
    found: dict[str, Any] = value
    return found
