"""DI-engine's functions of ``ding.torch_utils`` for nested data, its optimizers and losses, with its names.

Shapes: B batch, E features of an encoding, H heads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Number
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
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
    "one_hot",
    "resnet18",
    "same_shape",
    "squeeze",
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


def _map(function: Callable[[Any], Any], data: Any, skipped: Sequence[str] = ()) -> Any:
    """Return nested mappings, lists and tuples with ``function`` applied to everything else."""
    if isinstance(data, Mapping):
        made = {key: value if key in skipped else _map(function, value, skipped) for key, value in data.items()}
        return made if type(data) is dict else cast(Any, type(data))(made)
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(_map(function, one, skipped) for one in data))
    if isinstance(data, (list, tuple)):
        return type(data)(_map(function, one, skipped) for one in data)
    return function(data)


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
        dtype: Type of the tensors; None keeps that of an array, with float32 in place of float64.
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
        return made.float() if made.dtype == torch.float64 else made

    if isinstance(item, Mapping):
        parts = {
            key: value if key in ignore_keys else to_tensor(value, dtype, ignore_keys, transform_scalar)
            for key, value in item.items()
        }
        return parts if type(item) is dict else cast(Any, type(item))(parts)
    if _of_numbers(item):
        return convert(item)
    if isinstance(item, (list, tuple)):
        parts_of = [to_tensor(one, dtype, ignore_keys, transform_scalar) for one in item]
        return type(item)(*parts_of) if hasattr(item, "_fields") else type(item)(parts_of)
    return convert(item)


def to_ndarray(item: Any, dtype: Any = None) -> Any:
    """Return nested tensors, numbers and lists of numbers as new arrays; None, and an empty list as None.

    Example:
        >>> to_ndarray({"obs": torch.ones(2), "reward": [1.0]})
        {'obs': array([1., 1.], dtype=float32), 'reward': array([1.])}
    """
    if item is None or isinstance(item, str):
        return item
    if isinstance(item, Mapping):
        parts = {key: to_ndarray(value, dtype) for key, value in item.items()}
        return parts if type(item) is dict else cast(Any, type(item))(parts)
    if isinstance(item, (list, tuple)) and not _of_numbers(item):
        if not item:
            return None
        made = [to_ndarray(one, dtype) for one in item]
        return type(item)(*made) if hasattr(item, "_fields") else type(item)(made)
    array = item.detach().cpu().numpy() if isinstance(item, Tensor) else np.asarray(item)
    return np.array(array, dtype=dtype)


def to_list(item: Any) -> Any:
    """Return nested tensors and arrays as lists of numbers."""
    return _map(lambda leaf: leaf.tolist() if isinstance(leaf, (Tensor, np.ndarray, np.generic)) else leaf, item)


tensor_to_list = to_list


def to_item(data: Any, ignore_error: bool = True) -> Any:
    """Return nested data with tensors and arrays of one element as Python's numbers.

    Args:
        data: The data.
        ignore_error: Leave larger tensors out of mappings and lists, rather than raise.

    Raises:
        ValueError: If a tensor or an array has not exactly one element.
    """
    if isinstance(data, Mapping):
        kept = {key: value for key, value in data.items() if not (ignore_error and _is_large(value))}
        return {key: to_item(value, ignore_error) for key, value in kept.items()}
    if isinstance(data, (list, tuple)):
        return [to_item(one, ignore_error) for one in data if not (ignore_error and _is_large(one))]
    if isinstance(data, (Tensor, np.ndarray)):
        require(not _is_large(data), "data", "one number", tuple(data.shape))
        return data.item()
    return data


def _is_large(leaf: Any) -> bool:
    return isinstance(leaf, (Tensor, np.ndarray)) and int(np.prod(leaf.shape)) != 1


def same_shape(data: Sequence[Any]) -> bool:
    """Return whether tensors have the same shape."""
    return len({tuple(one.shape) for one in data}) == 1


def unsqueeze(data: Any, dim: int = 0) -> Any:
    """Return nested tensors with an axis of 1 at ``dim``."""
    return _map(lambda leaf: leaf.unsqueeze(dim), data)


def squeeze(data: Any, dim: int = 0) -> Any:
    """Return nested tensors without the axis ``dim`` of 1."""
    return _map(lambda leaf: leaf.squeeze(dim), data)


def unsqueeze_repeat(data: Any, repeat_times: int, unsqueeze_dim: int = 0) -> Any:
    """Return nested tensors with a new axis at ``unsqueeze_dim``, along which they are repeated."""
    return _map(lambda leaf: torch.stack([leaf] * repeat_times, unsqueeze_dim), data)


def one_hot(val: Tensor, num: int, num_first: bool = False) -> Tensor:
    """Return integers as one-hot vectors of floats, with a new last axis of size ``num``, or a first one."""
    made = F.one_hot(val.long(), num).float()
    return made.movedim(-1, 0) if num_first else made


class LabelSmoothCELoss(nn.Module):
    """The cross-entropy whose target has ``1 - ratio`` for the label, and ``ratio`` for all others together.

    Args:
        ratio: Share of the other classes, in [0, 1).
    """

    def __init__(self, ratio: float) -> None:
        super().__init__()
        self.ratio = ratio

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of logits (B, classes) and labels (B,)."""
        others = self.ratio / (logits.shape[1] - 1)
        log_prob = logits.log_softmax(1)
        of_label = log_prob.gather(1, labels.unsqueeze(1)).squeeze(1)
        return -((1 - self.ratio - others) * of_label + others * log_prob.sum(1)).mean()


class ContrastiveLoss(nn.Module):
    """InfoNCE: the cross-entropy of finding the partner of each sample among the B of a batch.

    Args:
        x_size: Shape of the first of two views: a number of features, or (channels, height, width).
        y_size: Shape of the second one.
        heads: Encodings of each view.
        encode_shape: Features E of an encoding.
        loss_type: Only ``"infoNCE"``.
        temperature: Divisor of the scores, > 0.
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
        scores = torch.einsum("hbe,gce->hgbc", first, second) / self.temperature
        return -scores.log_softmax(-1).diagonal(dim1=-2, dim2=-1).mean()


def _view_encoder(shape: int | Sequence[int], features: int) -> nn.Module:
    size = shape if isinstance(shape, int) else int(shape[0]) if len(shape) == 1 else tuple(shape)
    if isinstance(size, int):
        return nn.Sequential(nn.Linear(size, features), nn.ReLU(), nn.Linear(features, features))
    encoder: Any = create_encoder(size)
    return nn.Sequential(encoder, nn.Linear(encoder.output_size, features))


class DataParallel(nn.DataParallel[nn.Module]):
    """Torch's class, as DI-engine offers it."""

    def parameters(self, recurse: bool = True) -> Any:
        """Return the parameters of the network inside."""
        return self.module.parameters(recurse=recurse)


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
