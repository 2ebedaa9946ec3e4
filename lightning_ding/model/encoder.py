"""Encoders: an observation in, a vector of features out.

Shapes: B batch, F features, C channels, H height, W width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_ding.config import require
from lightning_ding.model.features import Described, ImageInput, create_features, is_described
from lightning_ding.registry import ENCODER_REGISTRY

ObsShape = int | Sequence[int] | Mapping[str, Any]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu_,  # in place, on the output of a layer that its backward does not need
    "tanh": torch.tanh_,
    "elu": F.elu,
    "gelu": F.gelu,
}
VECTOR_SIZES = (128, 128, 64)
IMAGE_SIZES = (32, 64, 64, 512)  # channels of three convolutions, then features (Mnih et al. 2015)


def activation_function(name: str) -> Callable[[Tensor], Tensor]:
    """Return an activation by name.

    Raises:
        ValueError: If there is none of that name.
    """
    require(name in ACTIVATIONS, "activation", f"one of {sorted(ACTIVATIONS)}", name)
    return ACTIVATIONS[name]


class MLP(nn.Module):
    """Linear layers with an activation between them.

    The layers are applied as functions: calling a module costs several microseconds, which is what a small layer takes.

    Args:
        sizes: Widths, input first.
        activation: relu, tanh, elu or gelu.
        activate_last: Whether an activation stands behind the last layer too.
    """

    def __init__(self, sizes: Sequence[int], activation: str = "relu", activate_last: bool = True) -> None:
        super().__init__()
        self.activate = activation_function(activation)
        self.layers = nn.ModuleList(nn.Linear(i, o) for i, o in pairwise(sizes))
        self.activated_layers = len(self.layers) - (not activate_last)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the last layer gives, shape (B, sizes[-1]), for ``x``, shape (B, sizes[0])."""
        for number, layer in enumerate(cast("Iterable[nn.Linear]", self.layers)):
            x = F.linear(x, layer.weight, layer.bias)
            if number < self.activated_layers:
                x = self.activate(x)
        return x


@ENCODER_REGISTRY.register("mlp")
class MLPEncoder(MLP):
    """Linear layers over a flattened vector observation.

    Args:
        obs_shape: Size, or shape to flatten.
        hidden_size_list: Widths of the layers; (128, 128, 64) if None. The last is ``output_size``.
        activation: Behind every layer: relu, tanh, elu or gelu.
    """

    def __init__(
        self, obs_shape: int | Sequence[int], hidden_size_list: Sequence[int] | None = None, activation: str = "relu"
    ) -> None:
        sizes = VECTOR_SIZES if hidden_size_list is None else tuple(hidden_size_list)
        require(len(sizes) >= 1, "encoder_hidden_size_list", "at least one width", list(sizes))
        super().__init__((obs_shape if isinstance(obs_shape, int) else math.prod(obs_shape), *sizes), activation)
        self.output_size = sizes[-1]

    def forward(self, obs: Tensor) -> Tensor:
        """Return features, shape (B, F), of observations, shape (B, *obs_shape)."""
        if obs.ndim != 2:
            obs = obs.flatten(1) if obs.ndim > 2 else obs.unsqueeze(1)
        return super().forward(obs if obs.is_floating_point() else obs.float())


@ENCODER_REGISTRY.register("conv")
class ConvEncoder(nn.Module):
    """Convolutions over an image, then one linear layer (Mnih et al. 2015).

    Bytes are divided by 255. The channel axis is the smaller one of first and last; see :class:`ImageInput`.

    Args:
        obs_shape: (C, H, W) or (H, W, C), or a stack of such images, (S, C, H, W) or (S, H, W, C).
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
        sizes = IMAGE_SIZES if hidden_size_list is None else tuple(hidden_size_list)
        expected = f"{len(kernel_size)} channel counts and a feature count for images"
        require(len(sizes) == len(kernel_size) + 1, "encoder_hidden_size_list", expected, list(sizes))
        require(len(stride) == len(kernel_size), "stride", f"as long as kernel_size ({len(kernel_size)})", list(stride))
        self.image = ImageInput(obs_shape)
        channels, *size = self.image.shape
        self.activate = activation_function(activation)
        self.convolutions = nn.ModuleList()
        for out_channels, kernel, step in zip(sizes[:-1], kernel_size, stride, strict=True):
            too_small = f"large enough for a {kernel}x{kernel} kernel at every layer (see kernel_size and stride)"
            require(min(size) >= kernel, "the image", too_small, tuple(obs_shape))
            self.convolutions.append(nn.Conv2d(channels, out_channels, kernel, step))
            channels, size = out_channels, [(side - kernel) // step + 1 for side in size]
        self.linear = MLP((channels * math.prod(size), sizes[-1]), activation)
        self.output_size = sizes[-1]

    def forward(self, obs: Tensor) -> Tensor:
        """Return features, shape (B, F), of images, shape (B, *obs_shape)."""
        x = self.image(obs)
        for convolution in self.convolutions:
            x = self.activate(convolution(x))
        return cast(Tensor, self.linear(x.flatten(1)))


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
    """Return whether observations of this shape go through convolutions: three axes, four for a stack of images."""
    if is_described(shape):
        shape = create_features(cast("Mapping[str, Any]", shape)).output_shape
    return isinstance(shape, Sequence) and len(shape) in (3, 4)


def create_encoder(
    obs_shape: ObsShape,
    name: str | None = None,
    hidden_size_list: Sequence[int] | None = None,
    activation: str = "relu",
    **kwargs: Any,
) -> Any:
    """Return the encoder for observations of a shape.

    Args:
        obs_shape: A size, a shape, a description with ``kind`` (see ``model.features``), or a dict of these.
        name: A registered encoder; None chooses ``dict``, ``conv`` (three or four axes) or ``mlp`` by the shape.
        hidden_size_list: Widths, see each encoder; None takes its default.
        activation: Behind every layer.
        kwargs: Further arguments of the encoder.

    Returns:
        A module with ``output_size`` that maps observations (B, ...) to features (B, output_size).
    """
    if is_described(obs_shape):
        features = create_features(cast("Mapping[str, Any]", obs_shape))
        encoder = create_encoder(features.output_shape, name, hidden_size_list, activation, **kwargs)
        return Described(features, encoder)
    if name is None:
        name = "dict" if isinstance(obs_shape, Mapping) else "conv" if is_image(obs_shape) else "mlp"
    return ENCODER_REGISTRY.build(name, obs_shape, hidden_size_list, activation, **kwargs)
