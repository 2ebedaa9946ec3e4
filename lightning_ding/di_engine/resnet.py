"""ResNet-18 (He et al. 2016, https://arxiv.org/abs/1512.03385, table 1), for DI-engine's ``resnet18``.

Shapes: B images.
"""

from __future__ import annotations

from torch import Tensor, nn


def _convolution(inputs: int, outputs: int, size: int, stride: int) -> nn.Sequential:
    layer = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs))


class Block(nn.Module):
    """Two convolutions and a shortcut around them.

    Args:
        inputs: Channels of the input.
        outputs: Channels of the output.
        stride: Stride of the first convolution.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        parts = [_convolution(inputs, outputs, 3, stride), nn.ReLU(), _convolution(outputs, outputs, 3, 1)]
        self.residual = nn.Sequential(*parts)
        is_same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if is_same else _convolution(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return the features."""
        features: Tensor = self.residual(x) + self.shortcut(x)
        return features.relu()


def resnet18(num_classes: int = 1000) -> nn.Module:
    """Return a network of images (B, 3, height, width), whose outputs are the logits of the classes, with new weights.

    Args:
        num_classes: Number of classes, >= 1.
    """
    blocks: list[nn.Module] = []
    channels = 64
    for stage, width in enumerate((64, 128, 256, 512)):
        blocks += [Block(channels, width, 1 if stage == 0 else 2), Block(width, width, 1)]
        channels = width
    stem = [_convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, num_classes))
