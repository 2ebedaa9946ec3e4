"""Encoders and decoders of observations in DreamerV3: vectors and images (Hafner et al. 2023, appendix).

An observation that its shape describes, such as a Discrete one, is a vector of its features, see ``model.features``.

Shapes: B batch, S state size, F features, C channels, H height, W width.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import torch.nn.functional as F
from torch import Tensor, nn

from lightning_ding.config import require
from lightning_ding.model.encoder import is_described, is_image
from lightning_ding.model.features import create_features
from lightning_ding.model.image_encoders import ImageInput, channels_last_on_cpu
from lightning_ding.model.world.layers import BlockLinear, Dense, RMSNorm, dense, init_weight, linear
from lightning_ding.rl.value_scales import symlog

FACTORS = (2, 3, 4, 4)  # channels of each stage, in units of the depth
SMALLEST_SIDE = 3  # pixels after the last stage
KERNEL = 5
VECTOR_LAYERS = 3


def is_image_shape(obs_shape: Any) -> bool:
    """Return whether observations of a shape are images.

    Raises:
        ValueError: If it is a dict of shapes.
    """
    is_dict = isinstance(obs_shape, Mapping) and not is_described(obs_shape)
    require(not is_dict, "model.obs_shape", "that of a vector or an image with dreamerv3", obs_shape)
    return is_image(obs_shape)


class VectorInput(nn.Module):
    """Observations as vectors after symlog.

    Args:
        obs_shape: Size, shape to flatten, or description.
    """

    def __init__(self, obs_shape: Any) -> None:
        super().__init__()
        self.features = create_features(obs_shape) if is_described(obs_shape) else None
        shape = obs_shape if self.features is None else self.features.output_shape
        self.size: int = shape if isinstance(shape, int) else math.prod(shape)

    def forward(self, obs: Tensor) -> Tensor:
        """Return vectors, shape (B, size), of observations, shape (B, *obs_shape)."""
        x = obs if self.features is None else self.features(obs)
        x = x.reshape(x.shape[0], self.size)
        return symlog(x if x.is_floating_point() else x.float())


class PixelInput(nn.Module):
    """Images as floats with the channels first; bytes in [0, 1].

    Args:
        obs_shape: Shape or description of an image.
    """

    def __init__(self, obs_shape: Any) -> None:
        super().__init__()
        self.features = create_features(obs_shape) if is_described(obs_shape) else None
        self.image = ImageInput(obs_shape if self.features is None else cast(Any, self.features.output_shape))
        self.shape = self.image.shape

    def forward(self, obs: Tensor) -> Tensor:
        """Return images, shape (B, C, H, W), of observations, shape (B, *obs_shape)."""
        return cast(Tensor, self.image(obs if self.features is None else self.features(obs)))


def convolution(inputs: int, outputs: int) -> nn.Conv2d:
    """Return a convolution that keeps the size of images."""
    layer = nn.Conv2d(inputs, outputs, KERNEL, padding=KERNEL // 2)
    init_weight(layer.weight, inputs * KERNEL**2)
    nn.init.zeros_(cast(Tensor, layer.bias))
    return layer


def stage_sizes(height: int, width: int) -> list[tuple[int, int]]:
    """Return the size of an image, and the sizes after each stage, which halves them.

    Example:
        >>> stage_sizes(64, 96), stage_sizes(10, 10)
        ([(64, 96), (32, 48), (16, 24), (8, 12), (4, 6)], [(10, 10), (5, 5)])
    """
    sizes = [(height, width)]
    while len(sizes) <= len(FACTORS) and min(sizes[-1]) // 2 >= SMALLEST_SIDE:
        sizes.append((sizes[-1][0] // 2, sizes[-1][1] // 2))
    return sizes


class PixelEncoder(nn.Module):
    """Convolutions, each followed by a maximum over 2 x 2 pixels, a normalisation and SiLU.

    Args:
        shape: Shape (C, H, W) of an image.
        depth: Channels of the first stage, divided by 2.
    """

    def __init__(self, shape: tuple[int, int, int], depth: int) -> None:
        super().__init__()
        sizes = stage_sizes(*shape[1:])
        channels = [shape[0], *(depth * factor for factor in FACTORS[: max(1, len(sizes) - 1)])]
        self.pools = len(sizes) > 1
        self.convolutions = nn.ModuleList(map(convolution, channels[:-1], channels[1:]))
        self.norms = nn.ModuleList(RMSNorm(size, axis=1) for size in channels[1:])
        self.output_size = channels[-1] * math.prod(sizes[-1])

    def forward(self, x: Tensor) -> Tensor:
        """Return features, shape (B, F), of images, shape (B, C, H, W)."""
        x = channels_last_on_cpu(x - 0.5)
        for layer, norm in zip(self.convolutions, self.norms, strict=True):
            x = layer(x)
            x = F.silu(norm(F.max_pool2d(x, 2) if self.pools else x))
        return x.flatten(1)


class PixelDecoder(nn.Module):
    """The way back from latent states to images: nearest neighbours of twice the size, and convolutions.

    Args:
        shape: Shape (C, H, W) of an image.
        depth: Channels of the last hidden stage, divided by 2.
        deter: Size of the deterministic part of a state.
        stoch: Size of its discrete part.
        units: Width of the hidden layer, divided by 2.
        blocks: Blocks of the first layer.
    """

    def __init__(self, shape: tuple[int, int, int], depth: int, deter: int, stoch: int, units: int, blocks: int) -> None:
        super().__init__()
        sizes = stage_sizes(*shape[1:])
        channels = [depth * factor for factor in FACTORS[: max(1, len(sizes) - 1)]][::-1]
        self.deter, self.sizes, self.start = deter, sizes[-2::-1] or sizes, (channels[0], *sizes[-1])
        flat, padded = math.prod(self.start), -(-math.prod(self.start) // blocks) * blocks
        self.flat = flat
        self.from_deter = BlockLinear(deter, padded, blocks)
        self.from_stoch = nn.Sequential(Dense(stoch, 2 * units), linear(2 * units, flat))
        self.convolutions = nn.ModuleList(map(convolution, channels, [*channels[1:], shape[0]]))
        self.norms = nn.ModuleList(RMSNorm(size, axis=1) for size in channels)

    def forward(self, state: Tensor) -> Tensor:
        """Return images, shape (B, C, H, W), of states, shape (B, S)."""
        deter, stoch = state[:, : self.deter], state[:, self.deter :]
        x = self.from_deter(deter)[:, : self.flat] + self.from_stoch(stoch)
        x = x.unflatten(1, self.start)
        for layer, norm, size in zip(self.convolutions, self.norms, self.sizes, strict=True):
            x = F.interpolate(F.silu(norm(x)), size=size, mode="nearest")
            x = layer(channels_last_on_cpu(x))
        return x + 0.5


def vector_encoder(size: int, units: int) -> nn.Sequential:
    """Return the encoder of vectors: three layers."""
    return dense((size, *[units] * VECTOR_LAYERS))


def reconstruction_error(decoded: Tensor, target: Tensor) -> Tensor:
    """Return the sum of the squared differences of decoded observations and targets, shape (B,)."""
    return (decoded - target.to(decoded)).square().flatten(1).sum(1)


def as_input(obs_shape: Any) -> VectorInput | PixelInput:
    """Return what converts observations to the inputs of an encoder, which its decoder predicts."""
    return PixelInput(obs_shape) if is_image_shape(obs_shape) else VectorInput(obs_shape)


def coders(
    inputs: VectorInput | PixelInput, units: int, depth: int, deter: int, stoch: int, blocks: int
) -> tuple[Any, int, Any]:
    """Return the encoder of these inputs, the number of its features, and the decoder of states."""
    if isinstance(inputs, PixelInput):
        shape = cast("tuple[int, int, int]", tuple(inputs.shape))
        encoder = PixelEncoder(shape, depth)
        return encoder, encoder.output_size, PixelDecoder(shape, depth, deter, stoch, units, blocks)
    decoder = dense((deter + stoch, *[units] * VECTOR_LAYERS), inputs.size)
    return vector_encoder(inputs.size, units), units, decoder
