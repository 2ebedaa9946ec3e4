"""Encoders: an observation in, a vector of features out.

Shapes: B batch, F features, C channels, H height, W width.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Union, cast

import torch
from torch import Tensor, nn

from lightning_ding.config import require
from lightning_ding.registry import ENCODER_REGISTRY

ObsShape = Union[int, Sequence[int], Mapping[str, "ObsShape"]]

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "elu": nn.ELU, "gelu": nn.GELU}
VECTOR_SIZES = (128, 128, 64)
IMAGE_SIZES = (32, 64, 64, 512)  # channels of three convolutions, then features (Mnih et al. 2015)


def mlp(sizes: Sequence[int], activation: str = "relu") -> nn.Sequential:
    """Return linear layers of the given widths, an activation behind each."""
    require(activation in ACTIVATIONS, "activation", f"one of {sorted(ACTIVATIONS)}", activation)
    layers: list[nn.Module] = []
    for width_in, width_out in zip(sizes[:-1], sizes[1:], strict=True):
        layers += [nn.Linear(width_in, width_out), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers)


@ENCODER_REGISTRY.register("mlp")
class MLPEncoder(nn.Module):
    """Linear layers over a flattened vector observation.

    Args:
        obs_shape: Size, or shape to flatten.
        hidden_size_list: Widths of the layers; (128, 128, 64) if None. The last is ``output_size``.
        activation: Behind every layer: relu, tanh, elu or gelu.
    """

    def __init__(
        self, obs_shape: int | Sequence[int], hidden_size_list: Sequence[int] | None = None, activation: str = "relu"
    ) -> None:
        super().__init__()
        sizes = tuple(hidden_size_list or VECTOR_SIZES)
        self.ndim = 0 if isinstance(obs_shape, int) else len(obs_shape)
        self.layers = mlp((obs_shape if isinstance(obs_shape, int) else math.prod(obs_shape), *sizes), activation)
        self.output_size = sizes[-1]

    def forward(self, obs: Tensor) -> Tensor:
        """Return features, shape (B, F), of observations, shape (B, *obs_shape)."""
        if self.ndim != 1:
            obs = obs.flatten(1) if obs.ndim > 1 else obs.unsqueeze(1)
        return cast(Tensor, self.layers(obs if obs.is_floating_point() else obs.float()))


@ENCODER_REGISTRY.register("conv")
class ConvEncoder(nn.Module):
    """Convolutions over an image, then one linear layer (Mnih et al. 2015).

    Bytes are divided by 255. The channel axis is the smaller one of first and last.

    Args:
        obs_shape: (C, H, W) or (H, W, C).
        hidden_size_list: Channels of each convolution, then features; (32, 64, 64, 512) if None.
        activation: Behind every layer.
        kernel_size: Of each convolution.
        stride: Of each convolution.
    """

    def __init__(
        self,
        obs_shape: Sequence[int],
        hidden_size_list: Sequence[int] | None = None,
        activation: str = "relu",
        kernel_size: Sequence[int] = (8, 4, 3),
        stride: Sequence[int] = (4, 2, 1),
    ) -> None:
        super().__init__()
        sizes = tuple(hidden_size_list or IMAGE_SIZES)
        expected = f"{len(kernel_size)} channel counts and a feature count for images"
        require(len(sizes) == len(kernel_size) + 1, "encoder_hidden_size_list", expected, list(sizes))
        require(len(stride) == len(kernel_size), "stride", f"as long as kernel_size ({len(kernel_size)})", list(stride))
        self.channels_last = obs_shape[-1] < obs_shape[0]
        channels, *size = (obs_shape[-1], *obs_shape[:-1]) if self.channels_last else obs_shape
        layers: list[nn.Module] = []
        for out_channels, kernel, step in zip(sizes[:-1], kernel_size, stride, strict=True):
            too_small = f"large enough for a {kernel}x{kernel} kernel at every layer (see kernel_size and stride)"
            require(min(size) >= kernel, "the image", too_small, tuple(obs_shape))
            layers += [nn.Conv2d(channels, out_channels, kernel, step), ACTIVATIONS[activation]()]
            channels, size = out_channels, [(side - kernel) // step + 1 for side in size]
        self.layers = nn.Sequential(*layers, nn.Flatten(), mlp((channels * math.prod(size), sizes[-1]), activation))
        self.output_size = sizes[-1]

    def forward(self, obs: Tensor) -> Tensor:
        """Return features, shape (B, F), of images, shape (B, *obs_shape)."""
        scaled = obs.float() / 255 if obs.dtype == torch.uint8 else obs
        return cast(Tensor, self.layers(scaled.movedim(-1, 1) if self.channels_last else scaled))


@ENCODER_REGISTRY.register("dict")
class DictEncoder(nn.Module):
    """One encoder for each entry of a dict observation; the features are joined.

    Args:
        obs_shape: Shape of each entry by name; entries may be nested.
        hidden_size_list: Handed to the encoders of vectors; those of images use their own default.
        activation: Behind every layer.
    """

    def __init__(
        self, obs_shape: Mapping[str, Any], hidden_size_list: Sequence[int] | None = None, activation: str = "relu"
    ) -> None:
        super().__init__()
        require(len(obs_shape) > 0, "obs_shape", "a dict with at least one entry", obs_shape)
        encoders = {
            name: create_encoder(shape, None, None if is_image(shape) else hidden_size_list, activation)
            for name, shape in sorted(obs_shape.items())
        }
        self.encoders = nn.ModuleDict(encoders)
        self.output_size = sum(encoder.output_size for encoder in encoders.values())

    def forward(self, obs: Mapping[str, Any]) -> Tensor:
        """Return features, shape (B, F), of a dict of observations; entries without an encoder are left out."""
        return torch.cat([encoder(obs[name]) for name, encoder in self.encoders.items()], dim=1)


def is_image(shape: ObsShape) -> bool:
    """Return whether observations of this shape go through convolutions: three axes."""
    return isinstance(shape, Sequence) and len(shape) == 3


def create_encoder(
    obs_shape: ObsShape,
    name: str | None = None,
    hidden_size_list: Sequence[int] | None = None,
    activation: str = "relu",
    **kwargs: Any,
) -> Any:
    """Return the encoder for observations of a shape.

    Args:
        obs_shape: A size, a shape, or a dict of them.
        name: A registered encoder; None chooses ``dict``, ``conv`` (three axes) or ``mlp`` by the shape.
        hidden_size_list: Widths, see each encoder; None takes its default.
        activation: Behind every layer.
        kwargs: Further arguments of the encoder.

    Returns:
        A module with ``output_size`` that maps observations (B, ...) to features (B, output_size).
    """
    if name is None:
        name = "dict" if isinstance(obs_shape, Mapping) else "conv" if is_image(obs_shape) else "mlp"
    return ENCODER_REGISTRY.build(name, obs_shape, hidden_size_list, activation, **kwargs)
