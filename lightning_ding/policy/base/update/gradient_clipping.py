"""How the gradient of an update is clipped, eager and compiled."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class GradClip(NamedTuple):
    """Limits of the gradient of an update; None means no limit."""

    norm: float | None = None
    """Largest norm of the whole gradient, > 0."""
    value: float | None = None
    """Largest absolute value of each of its entries, > 0."""


NO_CLIP = GradClip()


def clip_gradients(gradients: list[Tensor], clip: GradClip, norm: Tensor | None) -> None:
    """Clip gradients in place, in the same way as ``torch.nn.utils.clip_grad_norm_`` and ``clip_grad_value_``.

    Args:
        gradients: The gradients of all parameters of an optimizer.
        clip: The limits.
        norm: The norm of all gradients together, a scalar; only used with ``clip.norm``.
    """
    if clip.norm is not None and norm is not None:
        torch._foreach_mul_(gradients, (clip.norm / (norm + 1e-6)).clamp(max=1.0))
    if clip.value is not None:
        torch._foreach_clamp_min_(gradients, -clip.value)
        torch._foreach_clamp_max_(gradients, clip.value)
