"""Encoders of images: the convolutions of DQN (Mnih et al. 2015), and the residual network of IMPALA.

Shapes: B batch, F features, C channels, H height, W width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_ding.config import require
from lightning_ding.model.mlp import MLP, activation_function
from lightning_ding.registry import ENCODER_REGISTRY

IMAGE_SIZES = (32, 64, 64, 512)  # channels of three convolutions, then features (Mnih et al. 2015)


class Convolutions(NamedTuple):
    """Kernel sizes, strides and padding of the default convolutions along an axis."""

    side: int
    """Smallest number of pixels of the axis."""
    kernels: tuple[int, int, int]
    strides: tuple[int, int, int]
    padding: tuple[int, int, int]


DEFAULTS = (
    Convolutions(1, (3, 3, 3), (1, 1, 1), (0, 0, 0)),  # each kernel leaves at least two pixels
    Convolutions(14, (4, 3, 3), (2, 1, 1), (1, 1, 1)),
    Convolutions(22, (4, 3, 3), (2, 1, 2), (1, 1, 1)),
    Convolutions(25, (4, 4, 3), (2, 2, 1), (1, 1, 1)),
    Convolutions(36, (8, 3, 3), (4, 1, 1), (2, 1, 1)),
    Convolutions(45, (8, 3, 3), (4, 1, 2), (2, 1, 1)),
    Convolutions(56, (8, 4, 3), (4, 2, 1), (2, 1, 0)),
    Convolutions(60, (8, 4, 3), (4, 2, 1), (2, 0, 0)),
    Convolutions(64, (8, 4, 3), (4, 2, 1), (0, 0, 0)),  # Mnih et al. 2015
)
"""Default convolutions by size. Parameters and operations of neighbouring sizes differ by less than a factor of 2."""
LARGEST_OUTPUT = 8  # pixels of an axis after the default convolutions; more are averaged
IMPALA_SIZES = (16, 32, 32, 256)  # channels of three sections, then features (Espeholt et al. 2018)


class ImageInput(nn.Module):
    """Conversion of images to floats with the channels first; a stack of images becomes one image with all channels.

    Bytes are divided by 255. The channel axis is the smaller one of an image's first and last axes.

    Args:
        obs_shape: Shape (C, H, W) or (H, W, C), or for a stack of S images (S, C, H, W) or (S, H, W, C).

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
            x = x.div_(255)  # a new tensor, so this changes no observation
        if self.channels_last:
            x = x.movedim(x.ndim - 1, x.ndim - 3)  # ONNX has no negative axes here
        return x.flatten(1, 2) if self.is_stack else x


def channels_last_on_cpu(x: Tensor) -> Tensor:
    """Return the same images, with the channels in the last axis in memory if a CPU convolves them.

    There the backward pass of DQN's first convolution takes three quarters of the time, and the forward pass of
    IMPALA's network half. Compiled code chooses the order itself.
    """
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return x
    return x.contiguous(memory_format=torch.channels_last)


@ENCODER_REGISTRY.register("conv")
class ConvEncoder(nn.Module):
    """Convolutions followed by one linear layer (Mnih et al. 2015).

    Images are converted by :class:`ImageInput`.

    By default kernels, strides and padding depend on the size of the image, separately for each axis, as listed in
    ``DEFAULTS``. From 64 pixels they are those of the paper, kernels 8, 4, 3 and strides 4, 2, 1. More than 8 pixels
    along an axis after the convolutions, as images of 100 pixels have, are averaged to 8.

    Args:
        obs_shape: Shape of an image or of a stack of images, see :class:`ImageInput`.
        hidden_size_list: Channels of each convolution, followed by the number of features; None for (32, 64, 64, 512).
            Three numbers, or as many as there are kernels, are the channels of as many convolutions, and the last one
            is the number of features too.
        activation: Activation of all layers.
        channels: Channels of each convolution, instead of ``hidden_size_list``.
        feature_size: Number of features F, instead of ``hidden_size_list``.
        kernel_size: Side of the kernel of each convolution; None chooses them by the size of the image. With
            ``kernel_size`` or ``stride`` there is no padding and no averaging.
        stride: Stride of each convolution; None chooses them by the size of the image.
        layer_norm: Apply layer normalisation before each activation.
        activate_features: Apply the activation to the features too.

    Raises:
        ValueError: If the numbers of channels, kernels and strides differ, or a kernel is larger than its input.
    """

    def __init__(
        self,
        obs_shape: Sequence[int],
        hidden_size_list: Sequence[int] | None = None,
        activation: str = "relu",
        channels: Sequence[int] | None = None,
        feature_size: int | None = None,
        kernel_size: Sequence[int] | None = None,
        stride: Sequence[int] | None = None,
        layer_norm: bool = False,
        activate_features: bool = True,
    ) -> None:
        super().__init__()
        sizes = _with_features(hidden_size_list, kernel_size or stride)
        widths, self.output_size = image_sizes(sizes, channels, feature_size, IMAGE_SIZES)
        for name, values in (("kernel_size", kernel_size), ("stride", stride)):
            expected = f"{len(widths)} numbers >= 1, one for each convolution"
            fits = values is None or (len(values) == len(widths) and min(values) >= 1)
            require(fits, f"encoder_kwargs.{name}", expected, values)
        self.image = ImageInput(obs_shape)
        inputs, *sides = self.image.shape
        self.activate = activation_function(activation)
        height, width = (_along_an_axis(side, len(widths), kernel_size, stride) for side in sides)
        self.convolutions = nn.ModuleList()
        for outputs, vertical, horizontal in zip(widths, height[:-1], width[:-1], strict=True):
            kernels, strides, padding = zip(vertical[1:], horizontal[1:], strict=True)
            self.convolutions.append(nn.Conv2d(inputs, outputs, kernels, strides, padding))
            inputs = outputs
        output = (height[-1][0], width[-1][0])
        largest = (min(output[0], LARGEST_OUTPUT), min(output[1], LARGEST_OUTPUT))
        self.pool = AreaAverage(output, largest) if largest != output and not (kernel_size or stride) else None
        output = output if self.pool is None else largest
        self.norms = nn.ModuleList(nn.GroupNorm(1, channels) for channels in widths) if layer_norm else None
        flat = inputs * math.prod(output)
        self.linear = MLP((flat, self.output_size), activation, activate_features, layer_norm)

    def forward(self, obs: Tensor) -> Tensor:
        """Return features, shape (B, F), of images, shape (B, *obs_shape)."""
        x, norms = self.image(obs), self.norms
        if torch.is_grad_enabled():  # otherwise the order of the axes makes no difference
            x = channels_last_on_cpu(x)
        for number, convolution in enumerate(self.convolutions):
            x = convolution(x)
            x = self.activate(x if norms is None else norms[number](x))
        x = x if self.pool is None else self.pool(x)
        return cast(Tensor, self.linear(x.flatten(1)))


class AreaAverage(nn.Module):
    """Averages of the pixels in equal areas, whose borders may lie within a pixel.

    ``adaptive_avg_pool2d`` is the same for sizes that divide, and has no ONNX operation for others.

    Args:
        size: Height and width (H, W) of the input.
        output_size: Numbers of areas along both axes, at most (H, W).

    Example:
        >>> AreaAverage((3, 1), (2, 1))(torch.tensor([[[[0.0], [3.0], [6.0]]]])).flatten().tolist()
        [1.0, 5.0]
    """

    def __init__(self, size: tuple[int, int], output_size: tuple[int, int]) -> None:
        super().__init__()
        rows, columns = (_shares(*sides) for sides in zip(size, output_size, strict=True))
        self.rows: Tensor
        self.columns: Tensor
        self.register_buffer("rows", rows, persistent=False)
        self.register_buffer("columns", columns.T.contiguous(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return averages, shape (B, C, *output_size), of images, shape (B, C, *size)."""
        return self.rows @ x @ self.columns


def _shares(pixels: int, areas: int) -> Tensor:
    """Return the share of each pixel in each of the areas that divide an axis equally, shape (areas, pixels)."""
    ends = torch.arange(areas + 1) * (pixels / areas)
    left = torch.arange(pixels)
    upper = torch.minimum(ends[1:, None], left + 1.0)
    return (upper - torch.maximum(ends[:-1, None], left.float())).clamp(min=0) * (areas / pixels)


def _with_features(hidden_size_list: Sequence[int] | None, kernels: Sequence[int] | None) -> Sequence[int] | None:
    """Return the channels of each convolution, followed by the number of features, which the list may leave out.

    Raises:
        ValueError: If the list has more than four numbers and the number of convolutions is not given.
    """
    if hidden_size_list is None:
        return None
    allowed = "at most four numbers for images; set encoder_kwargs.channels and feature_size for other convolutions"
    is_known = kernels is not None or len(hidden_size_list) <= len(IMAGE_SIZES)
    require(is_known, "encoder_hidden_size_list", allowed, list(hidden_size_list))
    is_short = len(hidden_size_list) == len(kernels or DEFAULTS[0].kernels)
    return [*hidden_size_list, hidden_size_list[-1]] if is_short else hidden_size_list


def _along_an_axis(
    side: int, number: int, kernel_size: Sequence[int] | None, stride: Sequence[int] | None
) -> list[tuple[int, int, int, int]]:
    """Return (pixels, kernel, stride, padding) of each convolution along an axis; last (remaining pixels, 1, 1, 0)."""
    default = [one for one in DEFAULTS if side >= one.side][-1]
    further = max(0, number - len(default.kernels))
    kernels, strides = (*default.kernels, *[3] * further), (*default.strides, *[1] * further)
    padding = (*default.padding, *[0] * further) if kernel_size is None and stride is None else (0,) * number
    least = 2 if number == len(default.kernels) else 1  # pixels that a kernel leaves
    layers, left = [], side
    for layer in range(number):
        around = padding[layer]
        kernel = (
            min(kernels[layer], max(1, left + 2 * around + 1 - least)) if kernel_size is None else kernel_size[layer]
        )
        step = strides[layer] if stride is None else stride[layer]
        fits = f"<= {left} in convolution {layer + 1} of an axis of {side} pixels, or encoder_kwargs.stride smaller"
        require(kernel <= left + 2 * around, "encoder_kwargs.kernel_size", fits, kernel_size)
        layers.append((left, kernel, step, around))
        left = (left + 2 * around - kernel) // step + 1
    return [*layers, (left, 1, 1, 0)]


def image_sizes(
    hidden_size_list: Sequence[int] | None,
    channels: Sequence[int] | None,
    feature_size: int | None,
    default: Sequence[int],
) -> tuple[list[int], int]:
    """Return the channels of an image encoder's layers, and its number of features.

    Args:
        hidden_size_list: Channels of each layer, followed by the number of features; None means ``default``.
        channels: Channels of each layer, in place of those in the list.
        feature_size: Number of features, in place of the one in the list.
        default: Channels of each layer, followed by the number of features.

    Raises:
        ValueError: If there are too few numbers, or a number is given twice.
    """
    for name, value in (("channels", channels), ("feature_size", feature_size)):
        allowed = "None with encoder_hidden_size_list, which holds the channels and then the features"
        require(hidden_size_list is None or value is None, f"encoder_kwargs.{name}", allowed, value)
    expected = "channels of each layer, then features, for images"
    is_enough = hidden_size_list is None or len(hidden_size_list) >= 2
    require(is_enough, "encoder_hidden_size_list", expected, hidden_size_list)
    require(channels is None or len(channels) >= 1, "encoder_kwargs.channels", "at least one number", channels)
    *widths, features = default if hidden_size_list is None else hidden_size_list
    return list(channels or widths), feature_size or features


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with an activation before each, and a skip connection.

    Args:
        channels: Number of input and output channels C.
        activation: Activation before each convolution.
    """

    def __init__(self, channels: int, activation: str) -> None:
        super().__init__()
        self.activate = activation_function(activation)
        self.convolutions = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """Return the output, shape (B, C, H, W), for images of the same shape."""
        y = x
        for convolution in self.convolutions:
            y = convolution(self.activate(y))
        return x + y


@ENCODER_REGISTRY.register("impala")
class ImpalaEncoder(nn.Module):
    """The large residual network of IMPALA without its LSTM (Espeholt et al. 2018, figure 3).

    See https://arxiv.org/abs/1802.01561. Each section has a convolution, a max-pooling that halves the image, and two
    residual blocks; a linear layer follows. Images of any size are accepted and converted by :class:`ImageInput`.

    The arguments that are not listed are those of :class:`ConvEncoder`, for sections in place of convolutions.

    Args:
        hidden_size_list: Channels of each section, followed by the number of features; None for (16, 32, 32, 256).
        num_blocks: Number of residual blocks in each section, >= 0.
        layer_norm: Apply layer normalisation before the activation of the linear layer.

    Raises:
        ValueError: If a number is out of its range, or the shape is not an image shape.
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
        widths, self.output_size = image_sizes(hidden_size_list, channels, feature_size, IMPALA_SIZES)
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
        x = channels_last_on_cpu(self.image(obs))
        for convolution, blocks in zip(self.convolutions, self.blocks, strict=True):
            x = blocks(F.max_pool2d(convolution(x), 3, stride=2, padding=1))
        return cast(Tensor, self.linear(self.activate(x.flatten(1))))
