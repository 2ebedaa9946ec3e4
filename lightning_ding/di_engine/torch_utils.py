"""DI-engine's functions of ``ding.torch_utils`` for nested data, its optimizers and losses, with its names.

Shapes: B batch, E features of an encoding, H heads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Number
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import DataParallel, functional as F
from torch.optim import Adam, AdamW, RMSprop

from lightning_ding.config import require
from lightning_ding.model.encoder import create_encoder

__all__ = [
    "Adam",
    "AdamW",
    "ContrastiveLoss",
    "DataParallel",
    "LabelSmoothCELoss",
    "RMSprop",
    "resnet18",
    "tensor_to_list",
    "to_device",
    "to_dtype",
    "to_item",
    "to_list",
    "to_ndarray",
    "to_tensor",
    "unsqueeze",
    "unsqueeze_repeat",
]


def _map(
    function: Callable[[Any], Any],
    data: Any,
    skipped: Sequence[str] = (),
    is_leaf: Callable[[Any], bool] = lambda data: False,
) -> Any:
    """Return nested mappings, lists and tuples with ``function`` applied to leaves and everything else.

    Args:
        function: Function of a leaf.
        data: The data.
        skipped: Keys of mappings whose values stay as they are.
        is_leaf: Whether a mapping, list or tuple is a leaf.
    """
    if is_leaf(data) or not isinstance(data, (Mapping, list, tuple)):
        return function(data)
    kind: Any = type(data)
    if isinstance(data, Mapping):
        items = data.items()
        return kind({key: one if key in skipped else _map(function, one, skipped, is_leaf) for key, one in items})
    made = [_map(function, one, skipped, is_leaf) for one in data]
    return kind(*made) if hasattr(data, "_fields") else kind(made)


def _of_numbers(data: Any) -> bool:
    return isinstance(data, (list, tuple)) and len(data) > 0 and all(isinstance(one, Number) for one in data)


def to_device(item: Any, device: torch.device | str, ignore_keys: Sequence[str] = ()) -> Any:
    """Return nested data with tensors and networks on a device; other leaves, and values of some keys, stay."""
    return _map(lambda leaf: leaf.to(device) if isinstance(leaf, (Tensor, nn.Module)) else leaf, item, ignore_keys)


def to_dtype(item: Any, dtype: torch.dtype) -> Any:
    """Return nested tensors with another type."""
    return _map(lambda leaf: leaf.to(dtype=dtype), item)


def to_tensor(
    item: Any, dtype: torch.dtype | None = None, ignore_keys: Sequence[str] = (), transform_scalar: bool = True
) -> Any:
    """Return nested data as tensors; bools, strings and None stay as they are.

    Args:
        item: Nested arrays, numbers and lists of numbers.
        dtype: Type of the tensors; None keeps it, except that float64 of arrays and numbers becomes float32.
        ignore_keys: Keys of mappings whose values stay as they are.
        transform_scalar: Convert single numbers too.

    Example:
        >>> to_tensor({"obs": np.zeros(2), "reward": [1, 2]})
        {'obs': tensor([0., 0.]), 'reward': tensor([1, 2])}
    """

    def convert(leaf: Any) -> Any:
        if leaf is None or isinstance(leaf, (bool, str)) or (isinstance(leaf, Number) and not transform_scalar):
            return leaf
        made = torch.tensor(leaf) if isinstance(leaf, np.ndarray) else torch.as_tensor(leaf)
        if dtype is not None:
            return made.to(dtype)
        return made.float() if made.dtype == torch.float64 and not isinstance(leaf, Tensor) else made

    return _map(convert, item, ignore_keys, _of_numbers)


def to_ndarray(item: Any, dtype: Any = None) -> Any:
    """Return nested tensors, numbers and lists of numbers as new arrays, and empty lists as None.

    Bools, strings and None stay as they are.

    Example:
        >>> to_ndarray({"obs": torch.ones(2), "reward": [1.0]})
        {'obs': array([1., 1.], dtype=float32), 'reward': array([1.])}
    """

    def convert(leaf: Any) -> Any:
        if leaf is None or isinstance(leaf, (bool, str)):
            return leaf
        if isinstance(leaf, (list, tuple)) and not leaf:
            return None
        return np.array(leaf.detach().cpu().numpy() if isinstance(leaf, Tensor) else leaf, dtype=dtype)

    return _map(convert, item, is_leaf=lambda data: isinstance(data, (list, tuple)) and (not data or _of_numbers(data)))


def to_list(item: Any) -> Any:
    """Return nested tensors and arrays as lists of numbers."""
    return _map(lambda leaf: leaf.tolist() if isinstance(leaf, (Tensor, np.ndarray, np.generic)) else leaf, item)


tensor_to_list = to_list


def to_item(data: Any, ignore_error: bool = True) -> Any:
    """Return nested data with tensors and arrays of one element as Python's numbers.

    Args:
        data: The data.
        ignore_error: Leave entries of mappings out that have a larger tensor, rather than raise.

    Raises:
        ValueError: If a tensor or an array has not exactly one element.
    """
    if isinstance(data, Mapping):
        kept = {key: value for key, value in data.items() if not (ignore_error and _is_large(value))}
        return {key: to_item(value, ignore_error) for key, value in kept.items()}
    if isinstance(data, (list, tuple)):
        return [to_item(one, ignore_error) for one in data]
    if isinstance(data, (Tensor, np.ndarray)):
        require(not _is_large(data), "data", "one number", tuple(data.shape))
        return data.item()
    return data


def _is_large(data: Any) -> bool:
    """Return whether a tensor, an array, or one of a list has not exactly one element."""
    if isinstance(data, (list, tuple)):
        return any(map(_is_large, data))
    return isinstance(data, (Tensor, np.ndarray)) and int(np.prod(data.shape)) != 1


def unsqueeze(data: Any, dim: int = 0) -> Any:
    """Return nested tensors with an axis of 1 at ``dim``."""
    return _map(lambda leaf: leaf.unsqueeze(dim), data)


def unsqueeze_repeat(data: Any, repeat_times: int, unsqueeze_dim: int = 0) -> Any:
    """Return nested tensors with a new axis at ``unsqueeze_dim``, along which they are repeated."""
    return _map(lambda leaf: torch.stack([leaf] * repeat_times, unsqueeze_dim), data)


class LabelSmoothCELoss(nn.Module):
    """The cross-entropy whose target has ``1 - ratio`` for the label, and ``ratio`` for all others together.

    DI-engine's target has more for the label of three or more classes, so that its sum exceeds 1.

    Args:
        ratio: Share of the other classes, >= 0, and less than that of all classes but one.
    """

    def __init__(self, ratio: float) -> None:
        super().__init__()
        self.ratio = ratio

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of logits (B, classes) and labels (B,)."""
        classes = logits.shape[1]  # torch spreads the smoothing over all of them
        return F.cross_entropy(logits, labels, label_smoothing=self.ratio * classes / (classes - 1))


class ContrastiveLoss(nn.Module):
    """InfoNCE: the cross-entropy of finding the partner of each sample among the B of a batch.

    Args:
        x_size: Shape of the first of two views: a number of features, or (channels, height, width).
        y_size: Shape of the second one.
        heads: Encodings of each view.
        encode_shape: Features E of an encoding.
        loss_type: Only ``"infoNCE"``.
        temperature: Factor of the scores, as in DI-engine, > 0.
    """

    def __init__(
        self,
        x_size: int | Sequence[int],
        y_size: int | Sequence[int],
        heads: Sequence[int] = (1, 1),
        encode_shape: int = 64,
        loss_type: str = "infoNCE",
        temperature: float = 1.0,
    ) -> None:
        super().__init__()
        require(loss_type.lower() == "infonce", "loss_type", "'infoNCE'", loss_type)
        self.size, self.temperature = encode_shape, temperature
        self.encoders = nn.ModuleList(
            _view_encoder(shape, number * encode_shape) for shape, number in zip((x_size, y_size), heads, strict=True)
        )

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss of two views, leading axis B, over all pairs of heads."""
        first, second = (
            encoder(view).unflatten(1, (-1, self.size)).transpose(0, 1)
            for encoder, view in zip(self.encoders, (x, y), strict=True)
        )
        scores = torch.einsum("hbe,gce->hgbc", first, second) * self.temperature
        return -scores.log_softmax(-1).diagonal(dim1=-2, dim2=-1).mean()


def _view_encoder(shape: int | Sequence[int], features: int) -> nn.Module:
    size = shape if isinstance(shape, int) else int(shape[0]) if len(shape) == 1 else tuple(shape)
    if isinstance(size, int):
        return nn.Sequential(nn.Linear(size, features), nn.ReLU(), nn.Linear(features, features))
    encoder: Any = create_encoder(size)
    return nn.Sequential(encoder, nn.Linear(encoder.output_size, features))


# ---------------------------------------------------------------------- ResNet-18 (He et al. 2016, table 1)


def _convolution(inputs: int, outputs: int, size: int, stride: int) -> nn.Sequential:
    layer = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs))


class _Block(nn.Module):
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
    """Return ResNet-18 for images (B, 3, height, width), whose outputs are the logits of the classes, with new weights.

    See https://arxiv.org/abs/1512.03385.

    Args:
        num_classes: Number of classes, >= 1.
    """
    blocks: list[nn.Module] = []
    channels = 64
    for stage, width in enumerate((64, 128, 256, 512)):
        blocks += [_Block(channels, width, 1 if stage == 0 else 2), _Block(width, width, 1)]
        channels = width
    stem = [_convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, num_classes))
