"""Reading a trained policy from a checkpoint or a safetensors file, without running any code of the file."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from lightning_ding.checkpoints.manifest import verify_archive
from lightning_ding.checkpoints.reading import class_named
from lightning_ding.config import MARK, require
from lightning_ding.policy.base.policy import Policy
from lightning_ding.policy.base.saved_state import SPACES, config_of_file, set_spaces
from lightning_ding.policy.base.weights_file import read_weights
from lightning_ding.policy.from_sb3 import load_sb3_policy
from lightning_ding.registry import POLICY_REGISTRY, NotRegisteredError
from lightning_ding.sb3.archive import is_archive
from lightning_ding.zoo import path_of


def load_policy(path: str | Path, policy_class: type[Policy[Any]] | None = None) -> Policy[Any]:
    """Return the trained policy of a file, on the CPU, which acts as at the end of its run.

    Args:
        path: A checkpoint of a run, a file that :meth:`Policy.export` wrote as ``safetensors``, by any name, a
            ``model.zip`` of Stable-Baselines3, see :func:`load_sb3_policy`, which has more arguments for it, or
            ``zoo:NAME`` for a policy that comes with the package, see :mod:`lightning_ding.zoo`.
        policy_class: Class of the policy; None finds it by the name in the file.

    Raises:
        ValueError: If the file is none of these, has changed since it was written, or names no policy.
        NotRegisteredError: If the policy, its network or its encoder is of a class that is not registered. Import the
            module that registers it first; no module that the file names is imported.
    """
    path = path_of(path)
    allowed = "the path of a checkpoint or of a safetensors file, or zoo:NAME"
    require(path.is_file(), "path", allowed, str(path))
    if path.suffix == ".safetensors" or _is_safetensors(path):
        return _from_weights(*read_weights(path), policy_class)
    if is_archive(path):
        return load_sb3_policy(path, algorithm=None if policy_class is None else POLICY_REGISTRY.name_of(policy_class))
    saved = read_checkpoint(path)
    found = class_of(saved) if policy_class is None else policy_class
    policy = found.load_from_checkpoint(path, map_location="cpu", weights_only=True)
    return _at_the_end_of_its_run(policy)


def _is_safetensors(path: Path) -> bool:
    """Return whether a file starts like a safetensors file: the length of a JSON object in 8 bytes, then the object."""
    with path.open("rb") as file:
        start = file.read(9)
    return start[8:] == b"{" and int.from_bytes(start[:8], "little") <= path.stat().st_size - 8


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Return the content of a checkpoint.

    Raises:
        ValueError: If it is not a checkpoint of a policy, or has changed since it was written.
    """
    verify_archive(Path(path))
    try:
        saved: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, EOFError, RuntimeError) as error:
        raise ValueError(f"path must be a checkpoint of a run, got {str(path)!r}, which cannot be read") from error
    parts = [saved.get(name) for name in ("state_dict", "hyper_parameters")] if isinstance(saved, dict) else [None]
    is_known = all(isinstance(part, Mapping) for part in parts)
    require(is_known, "path", "a checkpoint of a run, with weights and config", str(path))
    return saved


def class_of(saved: Mapping[str, Any]) -> type[Policy[Any]]:
    """Return the class that the content of a checkpoint names.

    Raises:
        ValueError: If it names none.
        NotRegisteredError: If the class is not registered.
    """
    cfg = saved["hyper_parameters"].get("cfg", {})
    mark = str(cfg.get(MARK, "")) if isinstance(cfg, Mapping) else ""
    require(bool(mark), "policy", "the name of the policy, because the checkpoint does not tell it", None)
    name = mark.removesuffix("Dict")
    found: type[Policy[Any]] | None = class_named(name)
    if found is None:
        raise NotRegisteredError(f"the checkpoint is of the policy class {name!r}, which is not registered")
    return found


def _from_weights(
    description: Mapping[str, Any], weights: dict[str, Any], policy_class: type[Policy[Any]] | None
) -> Policy[Any]:
    found: type[Policy[Any]] = POLICY_REGISTRY.get(description["policy"]) if policy_class is None else policy_class
    with config_of_file():
        policy = found(description["cfg"])
        set_spaces(policy, description[SPACES])
        if not policy.is_built and policy.env_spaces is not None:
            policy.build(*policy.env_spaces)
    policy.normaliser.load_state_dict(weights.get("normaliser", {}))
    policy.model.load_state_dict(weights["model"])
    policy.progress.load_state_dict(description["progress"])
    policy.trained_in = description["run"]
    return _at_the_end_of_its_run(policy)


def _at_the_end_of_its_run(policy: Policy[Any]) -> Policy[Any]:
    progress = policy.progress
    progress.budget = policy.trained_in.get("max_env_step")  # of schedules
    if not progress.env_step:
        progress.data_iter = progress.train_iter  # older versions did not save it
    return policy.eval()
