"""From raw observations to the numbers that encoders take: discrete values as one-hot vectors, bytes in [0, 1].

A part of an observation that needs more than its shape is *described* in ``obs_shape`` by a mapping with ``kind``:

* ``{"kind": "one_hot", "sizes": [3, 2], "start": [0, 1]}``: integers in {0, 1, 2} and {1, 2} (``start`` is optional);
* ``{"kind": "bytes", "shape": [128], "high": 255}``: numbers to divide by ``high``, 255 if left out.

A policy that is built from an env writes these itself, see ``lightning_ding.policy.spaces``.

Shapes: B batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from lightning_ding.config import require

KEYS = {"one_hot": {"kind", "sizes", "start"}, "bytes": {"kind", "shape", "high"}}


class OneHot(nn.Module):
    """Integers as one-hot vectors side by side; a value out of its range is a vector of zeros.

    Args:
        sizes: How many values each integer has, all >= 1.
        start: The smallest value of each; 0 if None.

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
        self.register_buffer("column", torch.tensor(column), persistent=False)  # which integer a feature is about
        self.register_buffer("value", torch.tensor(value), persistent=False)  # and which of its values
        self.output_shape: int | tuple[int, ...] = len(column)

    def forward(self, obs: Tensor) -> Tensor:
        """Return features, shape (B, sum of sizes), of integers, shape (B,) or (B, ...)."""
        return (obs.reshape(len(obs), -1).index_select(1, self.column) == self.value).float()


class Scaled(nn.Module):
    """Numbers divided by the largest one that there can be.

    Args:
        shape: Size or shape of an observation. One with two axes becomes an image with one channel.
        high: The largest number, > 0.

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
        return obs.reshape(len(obs), *((shape,) if isinstance(shape, int) else shape)).float() / self.high


class Described(nn.Module):
    """An encoder after what makes the numbers that it takes.

    Args:
        features: With ``output_shape``.
        encoder: With ``output_size``, for observations of that shape.
    """

    def __init__(self, features: nn.Module, encoder: Any) -> None:
        super().__init__()
        self.features, self.encoder = features, encoder
        self.output_size: int = encoder.output_size

    def forward(self, obs: Tensor) -> Tensor:
        """Return features, shape (B, F), of raw observations."""
        return cast(Tensor, self.encoder(self.features(obs)))


def is_described(obs_shape: Any) -> bool:
    """Return whether ``obs_shape`` describes one observation by its ``kind``; a dict of shapes holds no strings."""
    return isinstance(obs_shape, Mapping) and isinstance(obs_shape.get("kind"), str)


def create_features(description: Mapping[str, Any]) -> OneHot | Scaled:
    """Return the module, with ``output_shape``, for a described observation.

    Raises:
        ValueError: If the kind or a key is unknown, or a number is out of its range.
    """
    kind = description["kind"]
    require(kind in KEYS, "the kind of an observation", f"one of {sorted(KEYS)}", kind)
    require(set(description) <= KEYS[kind], f"the keys of {kind!r}", f"among {sorted(KEYS[kind])}", sorted(description))
    arguments = {key: value for key, value in description.items() if key != "kind"}
    return OneHot(**arguments) if kind == "one_hot" else Scaled(**arguments)


class ImageInput(nn.Module):
    """Images as floats with the channels first; a stack of images is one image with the channels of all.

    Bytes are divided by 255. The channel axis is the smaller one of an image's first and last.

    Args:
        obs_shape: (C, H, W), (H, W, C), or S images of one of these shapes, (S, C, H, W) or (S, H, W, C).

    Raises:
        ValueError: If the shape is none of these.

    Example:
        >>> ImageInput((4, 84, 84, 3)).shape
        (12, 84, 84)
    """

    def __init__(self, obs_shape: Sequence[int]) -> None:
        super().__init__()
        is_image = isinstance(obs_shape, Sequence) and len(obs_shape) in (3, 4)
        name = "obs_shape of an image encoder (for the images of a dict use encoder_kwargs.image_encoder)"
        require(is_image, name, "(C, H, W), (H, W, C) or a stack of such images", obs_shape)
        *stack, first, middle, last = obs_shape
        self.is_stack = len(stack) == 1
        self.channels_last = last < first
        channels, *sides = (last, first, middle) if self.channels_last else (first, middle, last)
        self.shape = (channels * math.prod(stack), *sides)

    def forward(self, obs: Tensor) -> Tensor:
        """Return images, shape (B, *self.shape), of observations, shape (B, *obs_shape)."""
        x = obs if obs.is_floating_point() else obs.float()
        if obs.dtype == torch.uint8:
            x = x / 255
        if self.channels_last:
            x = x.movedim(-1, -3)
        return x.flatten(1, 2) if self.is_stack else x


def _as_list(sizes: int | Sequence[int]) -> list[int]:
    return [sizes] if isinstance(sizes, int) else list(sizes)
