"""Report an update whose loss or gradient is not finite, and write files that reproduce it."""

from __future__ import annotations

import logging
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.optim import Optimizer

from lightning_ding import nested
from lightning_ding.policy.base.config import to_save
from lightning_ding.registry import POLICY_REGISTRY
from lightning_ding.utils.ranks import rank_and_world_size

logger = logging.getLogger(__name__)

MAX_SKIPPED = 100  # steps of one optimizer in a row; a run that never recovers must end


class NonFiniteError(RuntimeError):
    """The loss or the gradient of an update is NaN or infinite.

    Args:
        message: Text that contains all of this.
        update: Number of the update, from 0: ``progress.train_iter`` before it.
        loss: The loss, averaged over ranks.
        norm: The norm of the gradient, averaged over ranks; None if it is no longer known.
        parameter: The first parameter whose gradient is not finite; None if there is none or it is not known.
        folder: Folder of the dump, see :func:`lightning_ding.policy.load_dump`; None if there is none.
    """

    def __init__(
        self, message: str, update: int, loss: float, norm: float | None, parameter: str | None, folder: Path | None
    ) -> None:
        super().__init__(message)
        self.update = update
        self.loss = loss
        self.norm = norm
        self.parameter = parameter
        self.folder = folder


def first_bad(policy: Any, optimizer: Optimizer) -> str | None:
    """Return the name of the first parameter whose gradient is not finite; None if there is none."""
    names: dict[int, str] = {id(parameter): name for name, parameter in policy.named_parameters()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None and not torch.isfinite(parameter.grad).all():
                return names.get(id(parameter), "one that is not the policy's")
    return None


def report(guard: Any, update: Any, loss: float, norm: float | None, parameter: str | None, is_exact: bool) -> None:
    """Raise or warn of a non-finite update, and write files that reproduce the first, and the one that ends a run.

    Args:
        guard: The :class:`NonFiniteGuard` that found it, with its counters.
        update: The inputs of the update, an :class:`Update`.
        loss: The loss.
        norm: The norm of the gradient; None if it is not known.
        parameter: The first parameter whose gradient is not finite; None if it is not known.
        is_exact: Whether the policy has the weights with which the update was made.

    Raises:
        NonFiniteError: With the mode "raise", and after too many skipped steps.
    """
    gives_up = guard.mode == "skip_update" and guard.in_a_row[update.optimizer] >= MAX_SKIPPED
    raises = guard.mode == "raise" or gives_up
    name = f" ({update.loss_name})" if update.loss_name else ""
    size = "not finite or not known" if norm is None else f"{norm:g}"
    message = f"update {update.number}: the loss{name} of optimizer {update.optimizer} is {loss:g}, the norm of its "
    message += f"gradient {size}"
    if parameter is not None:
        message += f", first in {parameter}"
    if gives_up:
        message += f"; the {MAX_SKIPPED - 1} updates before it were not finite either"
    message += "; the optimizer step was taken" if guard.mode == "warn" else "; the optimizer step was skipped"
    folder = None
    if guard.writes_dump and (raises or guard.bad == 1):
        folder = dump_folder(guard.policy, guard.folder, update.number)
        try:
            write_dump(folder, guard.policy, update, message, is_exact)
            message += f"; files that reproduce it are in {folder}, see lightning_ding.policy.load_dump"
        except Exception as error:  # an error of writing, such as a full disk, must not hide the non-finite update
            message += f"; files that reproduce it could not be written: {error}"
            folder = None
    if raises:
        raise NonFiniteError(message, update.number, loss, norm, parameter, folder)
    if str(guard.bad).rstrip("0") == "1":
        logger.warning("%s (the next warning comes after %d such updates)", message, 10 * guard.bad)


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
