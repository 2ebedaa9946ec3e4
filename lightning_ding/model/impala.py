"""The residual network for images of IMPALA.

Shapes: B batch, F features, C channels, H height, W width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn

from lightning_ding.config import require
from lightning_ding.model.encoder import MLP, activation_function, image_sizes
from lightning_ding.model.features import ImageInput
from lightning_ding.registry import ENCODER_REGISTRY

SIZES = (16, 32, 32, 256)  # channels of three sections, then features


class ResidualBlock(nn.Module):
    """Two convolutions of 3x3, an activation before each, added to their input.

    Args:
        channels: C, in and out.
        activation: Before each convolution.
    """

    def __init__(self, channels: int, activation: str) -> None:
        super().__init__()
        self.activate = activation_function(activation)
        self.convolutions = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """Return what an image, shape (B, C, H, W), becomes, of the same shape."""
        y = x.clone()  # an activation may change its argument
        for convolution in self.convolutions:
            y = convolution(self.activate(y))
        return x + y


@ENCODER_REGISTRY.register("impala")
class ImpalaEncoder(nn.Module):
    """Sections of a convolution, a pooling that halves the image and two residual blocks; then one linear layer.

    The large network of Espeholt et al. 2018, figure 3 (https://arxiv.org/abs/1802.01561), without its LSTM. It takes
    images of any size. Bytes are divided by 255. The channel axis is the smaller one of first and last; see
    :class:`ImageInput`.

    Args:
        obs_shape: (C, H, W) or (H, W, C), or a stack of such images, (S, C, H, W) or (S, H, W, C).
        hidden_size_list: Channels of each section, then features; (16, 32, 32, 256) if None.
        activation: Of the residual blocks and of the linear layer.
        channels: Channels of each section, another way to say it; needs ``hidden_size_list`` to be None.
        feature_size: F; needs ``hidden_size_list`` to be None.
        num_blocks: Residual blocks of each section, >= 0.
        layer_norm: Whether to normalise the linear layer before its activation.

    Raises:
        ValueError: If a number is out of its range, or the shape is that of no image.
    """

    def __init__(
        self,
        obs_shape: Sequence[int],
        hidden_size_list: Sequence[int] | None = None,
        activation: str = "relu",
        channels: Sequence[int] | None = None,
        feature_size: int | None = None,
        num_blocks: int = 2,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        require(num_blocks >= 0, "encoder_kwargs.num_blocks", ">= 0", num_blocks)
        widths, self.output_size = image_sizes(hidden_size_list, channels, feature_size, SIZES)
        self.image = ImageInput(obs_shape)
        inputs, *sides = self.image.shape
        self.activate = activation_function(activation)
        self.convolutions, self.blocks = nn.ModuleList(), nn.ModuleList()
        for outputs in widths:
            self.convolutions.append(nn.Conv2d(inputs, outputs, 3, padding=1))
            self.blocks.append(nn.Sequential(*(ResidualBlock(outputs, activation) for _ in range(num_blocks))))
            inputs, sides = outputs, [(side + 1) // 2 for side in sides]
        self.linear = MLP((inputs * math.prod(sides), self.output_size), activation, layer_norm=layer_norm)

    def forward(self, obs: Tensor) -> Tensor:
        """Return features, shape (B, F), of images, shape (B, *obs_shape)."""
        x = self.image(obs)
        for convolution, blocks in zip(self.convolutions, self.blocks, strict=True):
            x = blocks(F.max_pool2d(convolution(x), 3, stride=2, padding=1))
        return cast(Tensor, self.linear(self.activate(x.flatten(1))))
