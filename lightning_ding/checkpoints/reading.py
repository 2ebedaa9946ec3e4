"""Read a checkpoint only if it is whole, safe and of the same algorithm, and otherwise say so in one line.

The message names the file, what is wrong with it, and the newest other checkpoint that is whole, if there is one.
"""

from __future__ import annotations

import importlib
import pickle
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer

from lightning_ding.checkpoints.folder import RUN_FILE, find_rank_folder, other_checkpoint
from lightning_ding.checkpoints.manifest import MANIFEST, TornCheckpointError, verify, verify_archive
from lightning_ding.config import MARK
from lightning_ding.registry import POLICY_REGISTRY

GLOBAL = re.compile(r"GLOBAL ([\w.]+)")
"""The name of the object in torch's message about a file that could run code."""


def load_checked(trainer: Trainer, path: Any, load: Callable[[bool], Any], weights_only: bool | None) -> dict[str, Any]:
    """Return the content of a checkpoint, which is checked before it is used. All ranks must call it.

    Rank zero reads every file of the checkpoint's folder and compares it with the manifest. A checkpoint that is not a
    local file is not checked.

    Args:
        trainer: The Trainer of the run.
        path: Path or URL of the checkpoint.
        load: Lightning's reader, a function of ``weights_only``.
        weights_only: Whether objects other than tensors and builtins are refused; None means that they are.

    Raises:
        TornCheckpointError: On all ranks, if a file is missing, has changed or cannot be read, or contains objects
            other than tensors and builtins, which are then not created.
        ValueError: If the checkpoint is of another algorithm.
    """
    is_safe = True if weights_only is None else weights_only
    file = Path(str(path))
    if "://" in str(path) or file.is_dir():
        remote: dict[str, Any] = load(is_safe)
        return remote
    if file.name == RUN_FILE and file.is_file():
        _check(trainer, file, lambda: verify(file.parent))
    elif file.is_file():
        _check(trainer, file, lambda: verify_archive(file))
    try:
        content: dict[str, Any] = load(is_safe)
    except Exception as error:  # a damaged file may make torch raise anything
        raise TornCheckpointError(f"{file} {_what_is_wrong(error)}; {_instead(file)}") from None
    if not isinstance(content, dict) or "state_dict" not in content:
        raise TornCheckpointError(f"{file} is no checkpoint of a run; {_instead(file)}")
    if file.name != RUN_FILE and (folder := _rank_folder(file, content)) is not None:
        _check(trainer, file, lambda: verify(folder))
    _check_algorithm(file, content, type(trainer.lightning_module))
    return content


def _check(trainer: Trainer, file: Path, verify_content: Callable[[], object]) -> None:
    """Verify a checkpoint in rank zero, and raise on all ranks if it is damaged."""
    text = None
    if trainer.is_global_zero:
        try:
            verify_content()
        except (TornCheckpointError, OSError) as error:
            text = f"{file} cannot be used: {error}; {_instead(file)}"
    text = trainer.strategy.broadcast(text)
    if text is not None:
        raise TornCheckpointError(text)


def _check_algorithm(file: Path, content: Mapping[str, Any], policy_class: type) -> None:
    """Raise if another algorithm wrote a checkpoint, unless its class is not registered, or not in the file."""
    written_by = _class_of(content)
    if written_by is None or issubclass(policy_class, written_by) or issubclass(written_by, policy_class):
        return

    def fits(other: Path) -> bool:
        found = _class_of(torch.load(other, map_location="cpu", weights_only=True))
        return found is not None and issubclass(policy_class, found)

    names = f"{policy_class.__name__}, got one of {written_by.__name__}"
    raise ValueError(f"{file} must be a checkpoint of {names}; {_instead(file, fits)}")


def _class_of(content: Mapping[str, Any]) -> type | None:
    return class_named(str(content.get("hyper_parameters", {}).get("cfg", {}).get(MARK, "")).removesuffix("Dict"))


def class_named(name: str) -> type | None:
    """Return the newest registered policy class of this name, or None; one of the package is imported alone."""
    if (found := POLICY_REGISTRY.called(name)) is None:
        getattr(importlib.import_module("lightning_ding.policy"), name, None)  # imports its module
        found = POLICY_REGISTRY.called(name)
    if found is None:
        list(POLICY_REGISTRY)  # imports all modules
        found = POLICY_REGISTRY.called(name)
    return found


def _rank_folder(file: Path, content: Mapping[str, Any]) -> Path | None:
    """Return the folder that belongs to a second name of ``run.ckpt``, such as ``last.ckpt``, if it is there."""
    names = [value.get("rank_folder") for value in content.values() if isinstance(value, dict)]
    name = next((name for name in names if isinstance(name, str)), None)
    if name is None:
        return None
    beside = file.parent / name
    return beside if (beside / MANIFEST).is_file() else find_rank_folder(file, name)


def _instead(file: Path, fits: Callable[[Path], bool] = Path.exists) -> str:
    """Return the end of a message, which names another checkpoint."""
    parent = file.parent.parent if file.name == RUN_FILE else file.parent
    found = other_checkpoint(parent, file.parent, fits)
    return f"there is no other whole checkpoint in {parent}" if found is None else f"{found} is whole"


def _what_is_wrong(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "is missing"
    if isinstance(error, pickle.UnpicklingError):  # torch's message recommends to read the file without protection
        found = GLOBAL.search(str(error))
        what = f"{found[1]}, which may run code" if found else "other objects than tensors and builtins"
        return f"is refused, because it contains {what}"
    first = next(iter(str(error).strip().splitlines()), "")
    return f"cannot be read: {type(error).__name__}: {first}"
