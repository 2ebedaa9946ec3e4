"""A policy as one safetensors file: the weights for acting, and config, spaces and env in its metadata.

Reading it runs no code of the file, as it holds numbers and JSON alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from lightning_ding.config import require
from lightning_ding.policy.base.config import to_save
from lightning_ding.policy.base.saved_state import SPACES, plain_spaces, run_of
from lightning_ding.registry import POLICY_REGISTRY

FORMAT = 1
"""Version of the metadata."""
KEY = "lightning_ding"
"""Key of the JSON in the metadata of the file."""
ENTRIES = frozenset({"policy", "cfg", SPACES, "progress", "run"})
"""Entries of the JSON, without ``format``."""


def write_weights(policy: Any, path: Path) -> None:
    """Write the network and the normaliser of a policy, with :func:`description_of` it.

    Raises:
        ValueError: If the policy is not registered by a name.
    """
    state = policy._network_state()
    weights = {f"{part}/{name}": tensor for part, tensors in state.items() for name, tensor in tensors.items()}
    copies = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights.items()}
    save_file(copies, path, metadata={"format": "pt", KEY: json.dumps(description_of(policy))})


def description_of(policy: Any) -> dict[str, Any]:
    """Return what a file says about a policy, as builtins: ``policy``, ``cfg``, ``env_spaces``, ``progress``, ``run``.

    Raises:
        ValueError: If the policy is not registered by a name.
    """
    name = POLICY_REGISTRY.name_of(type(policy))
    require(name is not None, "policy", "of a class that is registered by a name", type(policy).__name__)
    state = {"progress": policy.progress.state_dict(), "run": run_of(policy)}
    return {"format": FORMAT, "policy": name, "cfg": to_save(policy), SPACES: plain_spaces(policy), **state}


def read_weights(path: str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the description of a policy and its weights, by part.

    Raises:
        ValueError: If the file is not a policy that :func:`write_weights` wrote.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata: Mapping[str, str] = file.metadata() or {}
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
    except (SafetensorError, OSError) as error:
        raise ValueError(f"path must be a safetensors file of a policy, got {str(path)!r}: {error}") from error
    require(KEY in metadata, "path", "a safetensors file that a policy was exported to", str(path))
    description: dict[str, Any] = _read_description(metadata[KEY], path)
    require(description.get("format") == FORMAT, "the format of the file", f"{FORMAT}", description.get("format"))
    missing = sorted(ENTRIES - description.keys())
    require(not missing, "the description of the policy in the file", f"one with {', '.join(missing)}", str(path))
    parts: dict[str, dict[str, Any]] = {}
    for name, tensor in weights.items():
        part, _, own_name = name.partition("/")
        parts.setdefault(part, {})[own_name] = tensor
    return description, parts


def _read_description(text: str, path: str | Path) -> dict[str, Any]:
    try:
        description = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"path must be a safetensors file of a policy, got {str(path)!r}: {error}") from error
    require(isinstance(description, dict), "the description of the policy in the file", "a JSON object", description)
    return dict(description)
