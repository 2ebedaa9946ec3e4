"""Conversion of raw observations to the input of encoders: discrete values to one-hot vectors, bytes to [0, 1].

An observation whose shape is not enough to encode it is *described* in ``obs_shape`` by a mapping with a key ``kind``:

* ``{"kind": "one_hot", "sizes": [3, 2], "start": [0, 1]}``: integers in {0, 1, 2} and {1, 2} (``start`` is optional);
* ``{"kind": "bytes", "shape": [128], "high": 255}``: numbers to divide by ``high``, which is 255 by default.

A policy that is built from an env writes these descriptions itself, see ``lightning_ding.policy.base.spaces``.

Shapes: B batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from lightning_ding.config import require

KEYS = {"one_hot": {"kind", "sizes", "start"}, "bytes": {"kind", "shape", "high"}}


class OneHot(nn.Module):
    """Integers as concatenated one-hot vectors; a value out of its range becomes a vector of zeros.

    Args:
        sizes: Number of values of each integer, >= 1.
        start: Smallest value of each integer; None means 0.

    Example:
        >>> OneHot([3, 2], start=[0, 1])(torch.tensor([[2, 1]]))
        tensor([[0., 0., 1., 1., 0.]])
    """

    column: Tensor
    value: Tensor

    def __init__(self, sizes: int | Sequence[int], start: int | Sequence[int] | None = None) -> None:
        super().__init__()
        sizes = _as_list(sizes)
        first = [0] * len(sizes) if start is None else _as_list(start)
        require(min(sizes, default=0) >= 1, "sizes", ">= 1 for each integer", sizes)
        require(len(first) == len(sizes), "start", f"one number for each of the {len(sizes)} sizes", first)
        column = [number for number, size in enumerate(sizes) for _ in range(size)]
        value = [low + step for low, size in zip(first, sizes, strict=True) for step in range(size)]
        # of each feature: the index of the integer that it encodes, and the value of that integer
        self.register_buffer("column", torch.tensor(column), persistent=False)
        self.register_buffer("value", torch.tensor(value), persistent=False)
        self.output_shape: int | tuple[int, ...] = len(column)

    def forward(self, obs: Tensor) -> Tensor:
        """Return features, shape (B, sum of sizes), of integers, shape (B,) or (B, ...)."""
        return (obs.reshape(obs.shape[0], -1).index_select(1, self.column) == self.value).float()


class Scaled(nn.Module):
    """Numbers divided by the largest possible one.

    Args:
        shape: Size or shape of an observation. An observation with two axes becomes an image with one channel.
        high: Largest possible number, > 0.

    Example:
        >>> Scaled(2)(torch.tensor([[0, 255]], dtype=torch.uint8))
        tensor([[0., 1.]])
    """

    def __init__(self, shape: int | Sequence[int], high: float = 255) -> None:
        super().__init__()
        require(high > 0, "high", "> 0", high)
        axes = _as_list(shape)
        self.high = high
        self.output_shape = axes[0] if len(axes) == 1 else (1, *axes) if len(axes) == 2 else tuple(axes)

    def forward(self, obs: Tensor) -> Tensor:
        """Return features, shape (B, *output_shape), of numbers, shape (B, ...)."""
        shape = self.output_shape
        return obs.reshape(obs.shape[0], *((shape,) if isinstance(shape, int) else shape)).float() / self.high


class Described(nn.Module):
    """An encoder that is preceded by the conversion of a described observation.

    Args:
        features: Conversion with an attribute ``output_shape``.
        encoder: Encoder of observations of that shape, with an attribute ``output_size``.
    """

    def __init__(self, features: nn.Module, encoder: Any) -> None:
        super().__init__()
        self.features, self.encoder = features, encoder
        self.output_size: int = encoder.output_size

    def forward(self, obs: Tensor) -> Tensor:
        """Return features, shape (B, F), of raw observations."""
        return cast(Tensor, self.encoder(self.features(obs)))


def create_features(description: Mapping[str, Any]) -> OneHot | Scaled:
    """Return the conversion of a described observation, a module with an attribute ``output_shape``.

    Raises:
        ValueError: If the kind or a key is unknown, or a number is out of its range.
    """
    kind = description["kind"]
    require(kind in KEYS, "the kind of an observation", f"one of {sorted(KEYS)}", kind)
    require(set(description) <= KEYS[kind], f"the keys of {kind!r}", f"among {sorted(KEYS[kind])}", sorted(description))
    arguments = {key: value for key, value in description.items() if key != "kind"}
    return OneHot(**arguments) if kind == "one_hot" else Scaled(**arguments)


def _as_list(sizes: int | Sequence[int]) -> list[int]:
    return [sizes] if isinstance(sizes, int) else list(sizes)
