"""Encoders and decoders of observations in DreamerV3: vectors and images (Hafner et al. 2023, appendix).

An observation that its shape describes, such as a Discrete one, is a vector of its features, see ``model.features``.

Shapes: B batch, S state size, F features, C channels, H height, W width.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.model.encoder import is_described, is_image
from lightning_ding.model.features import create_features
from lightning_ding.model.image_encoders import ImageInput, channels_last_on_cpu
from lightning_ding.model.world.layers import BlockLinear, Dense, RMSNorm, dense, init_weight, linear
from lightning_ding.rl.value_scales import symlog
from lightning_ding.rl.world_models import wide

FACTORS = (2, 3, 4, 4)  # channels of each stage, in units of the depth
SMALLEST_SIDE = 3  # pixels after the last stage
KERNEL = 5
VECTOR_LAYERS = 3


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

    def __init__(
        self, shape: tuple[int, int, int], depth: int, deter: int, stoch: int, units: int, blocks: int
    ) -> None:
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
        return cast(Tensor, x + 0.5)


class ObservationInput(nn.Module):
    """Observations as what the encoder reads and the decoder predicts: one vector of all vectors, and images.

    Args:
        obs_shape: Size, shape or description of an observation, or a dict of these.

    Raises:
        ValueError: If there is an entry ``action_mask``.
    """

    def __init__(self, obs_shape: Any) -> None:
        super().__init__()
        entries = dict(_entries(obs_shape))
        require("action_mask" not in entries, "model.obs_shape", "one without action_mask with dreamerv3", obs_shape)
        self.vector_names = [name for name, shape in entries.items() if not is_image(shape)]
        self.image_names = [name for name, shape in entries.items() if is_image(shape)]
        self.vectors = nn.ModuleList(VectorInput(entries[name]) for name in self.vector_names)
        self.images = nn.ModuleList(PixelInput(entries[name]) for name in self.image_names)
        self.vector_size = sum(cast(VectorInput, one).size for one in self.vectors)

    def forward(self, obs: Any) -> list[Tensor]:
        """Return the vector, shape (B, vector_size), if there is one, and the images, shapes (B, C, H, W)."""
        leaves = nested.flatten(obs) if isinstance(obs, Mapping) else {"": obs}
        vectors = [one(leaves[name]) for one, name in zip(self.vectors, self.vector_names, strict=True)]
        images = [one(leaves[name]) for one, name in zip(self.images, self.image_names, strict=True)]
        return [*([torch.cat(vectors, -1)] if vectors else []), *images]


def _entries(obs_shape: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the names of the entries of an observation, as :func:`nested.flatten` writes them, and their shapes."""
    if not isinstance(obs_shape, Mapping) or is_described(obs_shape):
        yield name, obs_shape
        return
    for key, below in obs_shape.items():
        yield from _entries(below, f"{name}/{key}" if name else str(key))


class ObservationEncoder(nn.Module):
    """Layers over the vector and convolutions over each image.

    Args:
        inputs: The vectors and images of an observation that the encoder reads.
        units: Width of the layers.
        depth: Channels of the convolutions.
    """

    def __init__(self, inputs: ObservationInput, units: int, depth: int) -> None:
        super().__init__()
        sizes = (inputs.vector_size, *[units] * VECTOR_LAYERS)
        self.vector = dense(sizes) if inputs.vector_size else None
        self.images = nn.ModuleList(PixelEncoder(_shape(one), depth) for one in inputs.images)
        of_images = sum(cast(PixelEncoder, one).output_size for one in self.images)
        self.output_size = of_images + (units if inputs.vector_size else 0)

    def forward(self, parts: Sequence[Tensor]) -> Tensor:
        """Return features, shape (B, F), of what :class:`ObservationInput` returns."""
        vectors = [] if self.vector is None else [self.vector(parts[0])]
        images = parts[len(vectors) :]
        features = [*vectors, *(net(one) for net, one in zip(self.images, images, strict=True))]
        return features[0] if len(features) == 1 else torch.cat(features, -1)


class ObservationDecoder(nn.Module):
    """Predicts what an encoder reads from latent states.

    Args:
        inputs: The vectors and images of an observation that the decoder predicts.
        units: Width of the layers.
        depth: Channels of the convolutions.
        deter: Size of the deterministic part of a state.
        stoch: Size of its discrete part.
        blocks: Blocks of the first layer of images.
    """

    def __init__(self, inputs: ObservationInput, units: int, depth: int, deter: int, stoch: int, blocks: int) -> None:
        super().__init__()
        sizes = (deter + stoch, *[units] * VECTOR_LAYERS)
        self.vector = dense(sizes, inputs.vector_size) if inputs.vector_size else None
        widths = (depth, deter, stoch, units, blocks)
        self.images = nn.ModuleList(PixelDecoder(_shape(one), *widths) for one in inputs.images)

    def forward(self, state: Tensor) -> list[Tensor]:
        """Return predictions in the order of :class:`ObservationInput`, of states, shape (B, S)."""
        vectors = [] if self.vector is None else [self.vector(state)]
        return [*vectors, *(net(state) for net in self.images)]


def _shape(image: nn.Module) -> tuple[int, int, int]:
    channels, height, width = cast(PixelInput, image).shape
    return channels, height, width


def reconstruction_error(decoded: Sequence[Tensor], target: Sequence[Tensor]) -> Tensor:
    """Return the sum of the squared differences of predicted observations and targets, shape (B,)."""
    errors = [(wide(one) - other).square().flatten(1).sum(1) for one, other in zip(decoded, target, strict=True)]
    return torch.stack(errors).sum(0)
