"""Batch renormalisation of the layers of an ensemble.

Shapes: B batch, E networks, F features.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_ding.config import require
from lightning_ding.model.heads import full_precision

EPS = 1e-3  # added to variances (code of Bhatt et al. 2024)
LARGEST_SCALE, LARGEST_SHIFT = 3.0, 5.0  # of the correction towards running statistics (Ioffe 2017, section 4)


class BatchRenorm(nn.Module):
    """Batch renormalisation of the features of E networks (Ioffe 2017, https://arxiv.org/abs/1702.03275).

    Features are normalised by the statistics of the batch, and corrected towards running statistics, with a limited
    correction that has no gradient. During the first updates there is no correction, which is batch normalisation. The
    running statistics do not change in ``forward``, which is a pure function and can be compiled; :meth:`update`
    changes them.

    Args:
        ensemble_size: Number of networks E.
        size: Number of features F.
        momentum: Step size of the running statistics, in (0, 1].
        warmup: Number of updates without the correction, >= 0.
        has_shift: Learn a shift, which has no effect where layers without bias and batch normalisation follow.
    """

    shift: Tensor
    mean: Tensor
    variance: Tensor
    updates: Tensor

    def __init__(
        self, ensemble_size: int, size: int, momentum: float = 0.01, warmup: int = 100_000, has_shift: bool = True
    ) -> None:
        super().__init__()
        require(0 < momentum <= 1, "renorm_momentum", "in (0, 1]", momentum)
        require(warmup >= 0, "renorm_warmup", ">= 0", warmup)
        shape = (ensemble_size, 1, size)
        self.momentum, self.warmup = momentum, warmup
        self.scale = nn.Parameter(torch.ones(shape))
        if has_shift:
            self.shift = nn.Parameter(torch.zeros(shape))
        else:
            self.register_buffer("shift", torch.zeros(shape), persistent=False)
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("variance", torch.ones(shape))
        self.register_buffer("updates", torch.zeros(()))

    def forward(self, x: Tensor, statistics: list[Tensor] | None = None) -> Tensor:
        """Return normalised features, shape (E, B, F).

        Args:
            x: Features, shape (E, B, F).
            statistics: A list to which the mean and the variance of the batch are appended, shape (2, E, 1, F), without
                gradient; None normalises by the running statistics.

        Raises:
            ValueError: If B is 1 and the statistics of the batch are used.
        """
        x = full_precision(x)
        deviation = (self.variance + EPS).sqrt()
        if statistics is None:
            return torch.addcmul(self.shift, (x - self.mean) / deviation, self.scale)
        rule = ">= 2 with batch normalisation, on each rank"
        require(x.shape[1] >= 2, "learn.batch_size", rule, x.shape[1])
        scale, shift = self._correction(x.detach(), deviation, statistics)
        width = x.shape[1], self.scale.numel()  # torch's kernel is several times as fast as its operations one by one
        weight, bias = self.scale * scale, self.shift + self.scale * shift
        flat = x.transpose(0, 1).reshape(width)
        flat = F.batch_norm(flat, None, None, weight.flatten(), bias.flatten(), training=True, eps=EPS)
        return flat.view(len(flat), -1, x.shape[2]).transpose(0, 1)

    def _correction(self, x: Tensor, deviation: Tensor, statistics: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the factor and the shift towards the running statistics, shape (E, 1, F), and note those of ``x``."""
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).square().mean(1, keepdim=True)
        statistics.append(torch.stack([mean, variance]))
        is_corrected = self.updates >= self.warmup
        scale = ((variance + EPS).sqrt() / deviation).clamp(1 / LARGEST_SCALE, LARGEST_SCALE)
        shift = ((mean - self.mean) / deviation).clamp(-LARGEST_SHIFT, LARGEST_SHIFT)
        return torch.where(is_corrected, scale, 1.0), torch.where(is_corrected, shift, 0.0)

    @torch.no_grad()
    def update(self, statistics: Tensor) -> None:
        """Move the running statistics towards those of a batch, shape (2, E, 1, F); non-finite ones change nothing."""
        for kept, new in zip((self.mean, self.variance), statistics, strict=True):
            kept.lerp_(torch.where(new.isfinite(), new, kept), self.momentum)
        self.updates += statistics.isfinite().all()


def flat_statistics(statistics: Sequence[Tensor]) -> Tensor:
    """Return the statistics of several layers, shapes (2, E, 1, F), in one tensor, shape (2, sum of E * F)."""
    return torch.cat([one.flatten(1) for one in statistics], 1)


def update_layers(network: nn.Module, statistics: Tensor) -> None:
    """Update the running statistics of all layers of a network.

    Args:
        network: Its modules of type :class:`BatchRenorm` are in the order in which they are applied.
        statistics: The output of :func:`flat_statistics`.
    """
    layers = [layer for layer in network.modules() if isinstance(layer, BatchRenorm)]
    parts = statistics.split([layer.mean.numel() for layer in layers], 1)
    for layer, part in zip(layers, parts, strict=True):
        layer.update(part.view(2, *layer.mean.shape))
