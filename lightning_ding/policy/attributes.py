"""What workers ask a policy for by name."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import torch
from easydict import EasyDict
from lightning.pytorch import LightningModule
from torch.optim import Optimizer

from lightning_ding.config import to_easydict
from lightning_ding.progress import Progress


class PolicyAttributes(LightningModule):
    """The part of a policy that answers ``get_attribute``; an algorithm adds methods ``_get_<name>``."""

    on_policy: ClassVar[bool]
    config: Any
    progress: Progress
    _optimizer_list: list[Optimizer]

    @property
    def cfg(self) -> EasyDict:
        """A copy of the config as an ``EasyDict``; the policy reads ``config``."""
        return to_easydict(self.config)

    def cur_lr(self) -> float:
        """Return the learning rate of the first optimizer as it is now."""
        return float(self._optimizer_list[0].param_groups[0]["lr"])

    def get_attribute(self, name: str) -> Any:
        """Return what a worker asks for by name: ``_get_<name>()``, else ``_<name>``.

        Raises:
            NotImplementedError: If the policy has neither; the message names the attribute.
        """
        if hasattr(self, f"_get_{name}"):
            return getattr(self, f"_get_{name}")()
        if hasattr(self, f"_{name}"):
            return getattr(self, f"_{name}")
        raise NotImplementedError(f"{type(self).__name__} has no attribute {name!r} for workers")

    def set_attribute(self, name: str, value: Any) -> None:
        """Set ``_<name>``.

        Raises:
            AttributeError: If the attribute is computed from the config, so that setting it would change nothing.
        """
        if hasattr(self, f"_get_{name}"):
            raise AttributeError(f"{name!r} is computed by {type(self).__name__}; change its config instead")
        setattr(self, f"_{name}", value)

    def _get_cfg(self) -> EasyDict:
        return self.cfg

    def _get_device(self) -> torch.device:
        return torch.device(self.device)

    def _get_cuda(self) -> bool:
        return torch.device(self.device).type == "cuda"

    def _get_on_policy(self) -> bool:
        return self.on_policy

    def _get_progress(self) -> Progress:
        return self.progress

    def _get_module(self) -> LightningModule:
        return self

    def _get_cur_lr(self) -> float:
        return self.cur_lr()

    def _get_batch_size(self) -> int:
        return int(self._from_config("learn", "batch_size"))

    def _get_n_sample(self) -> int | None:
        return cast("int | None", self._from_config("collect", "n_sample"))

    def _get_n_episode(self) -> int | None:
        return cast("int | None", self._from_config("collect", "n_episode"))

    def _get_unroll_len(self) -> int:
        return int(self._from_config("collect", "unroll_len") or 1)

    def _get_priority(self) -> bool:
        return bool(getattr(self.config, "priority", False))

    def _from_config(self, section: str, name: str) -> Any:
        return getattr(getattr(self.config, section, None), name, None)
