"""Files that reproduce an update whose loss or gradient is not finite."""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from lightning_ding import nested
from lightning_ding.policy.base.config import to_save
from lightning_ding.registry import POLICY_REGISTRY
from lightning_ding.utils.ranks import rank_and_world_size


def dump_folder(policy: Any, root: str | Path | None, number: int) -> Path:
    """Return the folder of an update on this rank; during a fit, all ranks must call it."""
    rank, _ = rank_and_world_size()
    trainer = policy.updater.fitting_trainer()
    if root is None and trainer is not None:
        root = Path(trainer.log_dir or trainer.default_root_dir) / "non_finite"
    return Path(root or "non_finite").absolute() / f"update_{number}_rank_{rank}"


def write_dump(folder: Path, policy: Any, update: Any, message: str, is_exact: bool) -> None:
    """Write files that reproduce an update, from tensors and builtins only.

    Raises:
        OSError: If it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = update.loss_name
    is_own = name is not None and getattr(policy, name, None) == update.loss
    state = {
        "message": message,
        "is_exact": is_exact,
        "type": POLICY_REGISTRY.name_of(type(policy)),
        "class": f"{type(policy).__module__}.{type(policy).__qualname__}",
        "config": to_save(policy),
        "learn": policy.learn_mode.state_dict(),
        "buffers": dict(policy.named_buffers()),  # also those that no checkpoint contains, such as noise
        "in_evaluation": [name for name, module in policy.named_modules() if not module.training],
        "progress": policy.progress.state_dict()
        | {"train_iter": update.number}
        | policy.updater.schedules.evaluated_at,
        "budget": policy.progress.budget,
        "loss_name": name if is_own else None,
        "index": update.optimizer,
        "clip": tuple(update.clip),
        "rng": {"exploration": policy.rng.bit_generator.state, "torch": torch.get_rng_state()},
        "versions": {
            "lightning_ding": metadata.version("lightning_ding"),
            "torch": str(torch.__version__),
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }
    torch.save(state, folder / "state.pt")
    save_file({key: _own(leaf) for key, leaf in nested.flatten(update.batch).items()}, folder / "batch.safetensors")
    (folder / "message.txt").write_text(f"{message}\n")


def read_dump(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the state that ``write_dump`` wrote, and the batch.

    Raises:
        OSError: If the files cannot be read.
    """
    state = torch.load(folder / "state.pt", weights_only=True, map_location="cpu")
    return state, nested.unflatten(load_file(folder / "batch.safetensors"))


def _own(leaf: Any) -> Tensor:
    """Return a contiguous copy: safetensors accepts no views."""
    return torch.as_tensor(leaf).detach().cpu().clone(memory_format=torch.contiguous_format)
