"""Reading the config of a distributed run from a file and the command line, with errors in one line."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from lightning import Trainer

from lightning_ding.config import deep_merge, nearest, require, resolve
from lightning_ding.datamodules.dataset_files import load_dataset
from lightning_ding.distributed.config import ParallelConfig, resolve_policy
from lightning_ding.distributed.coordinator.settings import ReplaySettings
from lightning_ding.distributed.transport import get_transport
from lightning_ding.entry.fit_config import is_of_fit, run_of_fit
from lightning_ding.envs.named import find_callable, find_env, find_wrappers
from lightning_ding.registry import import_modules

SET_BY_LEARNER = ("default_root_dir",)  # arguments of the Trainer
CALLBACKS = "system.learner.trainer.callbacks"


class _Loader(yaml.SafeLoader):
    """A YAML loader that reads ``1e-3`` as a number, not as a string."""


FLOAT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+0123456789"))


def read_config(file: str | Path, settings: Iterable[str] = ()) -> ParallelConfig:
    """Return the config from a file and settings that override it.

    Args:
        file: YAML or JSON file, also one of ``lightning-ding fit``.
        settings: Settings such as ``"main.seed=1"`` with values in YAML, which override the file.

    Raises:
        ValueError: If the file or a setting cannot be read, a key is unknown or a value out of range.
        TypeError: If a value has the wrong type.
        KeyError: If the policy is not registered.
    """
    mapping, changes = _read(Path(file)), dict[str, Any]()
    for setting in settings:
        changes = deep_merge(changes, _nested(setting))
    if is_of_fit(mapping):
        system = mapping.get("system") or {}
        require(isinstance(system, Mapping), "system", "a mapping", system)
        changes = deep_merge({"system": system}, changes)
        require(isinstance(changes["system"], Mapping), "system", "a mapping", changes["system"])
        mapping = run_of_fit(mapping, changes["system"])
    mapping = deep_merge(mapping, changes)
    cfg = resolve(ParallelConfig, mapping)
    check(cfg)
    return cfg


def check(cfg: ParallelConfig) -> None:
    """Check the transport, whether the policy can be trained, and the sections of the policy and of Lightning.

    Raises:
        ValueError: If a key is unknown, a value out of range, or the policy none that a distributed run can train.
        ImportError: If the module of a transport cannot be imported.
        TypeError: If a value has the wrong type.
        KeyError: If the policy is not registered.
    """
    get_transport(cfg.system.transport)
    try:
        resolve_policy(cfg.main.policy)
    except (ValueError, TypeError) as error:
        raise type(error)(f"main.policy: {error}") from error
    ReplaySettings.of(cfg)
    known = set(inspect.signature(Trainer.__init__).parameters) - {"self"}
    for key in cfg.system.learner.trainer:
        if key not in known:
            raise ValueError(f"unknown config key 'system.learner.trainer.{key}'; {nearest(key, known)}")
        if key in SET_BY_LEARNER:
            raise ValueError(f"'system.learner.trainer.{key}' must be left out: the learner sets it itself")
    callbacks = cfg.system.learner.trainer.get("callbacks", [])
    allowed = "a list of dotted paths, or of mappings with class_path and init_args"
    require(isinstance(callbacks, (list, tuple)), CALLBACKS, allowed, callbacks)


def check_env(cfg: ParallelConfig) -> None:
    """Check that the env, its wrappers, the demonstrations and the callbacks of the learner exist on this machine.

    Raises:
        ValueError: If there is no such env, wrapper, data set or callback.
        TypeError: If a class does not accept its arguments.
        ImportError: If a module of ``import_names`` cannot be imported.
    """
    env = cfg.main.env
    import_modules(env.import_names)
    find_env(env.env_id, "main.env.env_id")
    for name in ("wrappers", "train_wrappers", "eval_wrappers"):
        find_wrappers(getattr(env, name), f"main.env.{name}")
    if env.eval_env_id is not None:
        find_env(env.eval_env_id, "main.env.eval_env_id")
    if cfg.main.demonstrations is not None:
        try:
            load_dataset(cfg.main.demonstrations)
        except ValueError as error:
            raise ValueError(f"main.demonstrations: {error}") from error
    for one in cfg.system.learner.trainer.get("callbacks", []):
        find_callable(one, CALLBACKS)


def _read(file: Path) -> dict[str, Any]:
    try:
        text = file.read_text()
        content = json.loads(text) if file.suffix == ".json" else yaml.load(text, Loader=_Loader)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read the config file {str(file)!r}: {error}") from error
    except (yaml.YAMLError, json.JSONDecodeError) as error:
        raise ValueError(f"{str(file)!r} is not valid YAML: {' '.join(str(error).split())}") from error
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
