"""Encoders: an observation in, a vector of features out. The residual network for images is in ``impala``.

Shapes: B batch, F features, C channels, H height, W width.
"""

from __future__ import annotations

import inspect
import math
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_ding.config import nearest, require, require_type
from lightning_ding.model.features import Described, ImageInput, create_features, is_described
from lightning_ding.registry import ENCODER_REGISTRY

ObsShape = int | Sequence[int] | Mapping[str, Any]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu_,  # in place, on the output of a layer that its backward does not need
    "tanh": torch.tanh_,
    "elu": F.elu,
    "gelu": F.gelu,
    "silu": F.silu,
}
VECTOR_SIZES = (128, 128, 64)
IMAGE_SIZES = (32, 64, 64, 512)  # channels of three convolutions, then features (Mnih et al. 2015)
IMAGE_KERNELS, IMAGE_STRIDES = (8, 4, 3), (4, 2, 1)  # of the same
SMALLEST_LARGE_SIDE = 36  # pixels; the least that those kernels take


def activation_function(name: str) -> Callable[[Tensor], Tensor]:
    """Return an activation by name; it may change its argument.

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
        activation: relu, tanh, elu, gelu or silu.
        activate_last: Whether an activation follows the last layer too.
        layer_norm: Whether to normalise each layer before its activation (Ba et al. 2016,
            https://arxiv.org/abs/1607.06450).
    """

    def __init__(
        self, sizes: Sequence[int], activation: str = "relu", activate_last: bool = True, layer_norm: bool = False
    ) -> None:
        super().__init__()
        self.activate = activation_function(activation)
        self.layers = nn.ModuleList(nn.Linear(i, o) for i, o in pairwise(sizes))
        self.activated_layers = len(self.layers) - (not activate_last)
        activated = sizes[1 : 1 + self.activated_layers]
        self.norms = nn.ModuleList(nn.LayerNorm(size) for size in activated) if layer_norm else None

    def forward(self, x: Tensor) -> Tensor:
        """Return what the last layer gives, shape (B, sizes[-1]), for ``x``, shape (B, sizes[0])."""
        norms = self.norms
        for number, layer in enumerate(cast("Iterable[nn.Linear]", self.layers)):
            x = F.linear(x, layer.weight, layer.bias)
            if number < self.activated_layers:
                x = self.activate(x if norms is None else norms[number](x))
        return x


@ENCODER_REGISTRY.register("mlp")
class MLPEncoder(MLP):
    """Linear layers over a flattened vector observation.

    Args:
        obs_shape: Size, or shape to flatten.
        hidden_size_list: Widths of the layers; (128, 128, 64) if None. The last is ``output_size``.
        activation: After every layer: relu, tanh, elu, gelu or silu.
        layer_norm: Whether to normalise each layer before its activation.
    """

    def __init__(
        self,
        obs_shape: int | Sequence[int],
        hidden_size_list: Sequence[int] | None = None,
        activation: str = "relu",
        layer_norm: bool = False,
    ) -> None:
        sizes = VECTOR_SIZES if hidden_size_list is None else tuple(hidden_size_list)
        require(len(sizes) >= 1, "encoder_hidden_size_list", "at least one width", list(sizes))
        size = obs_shape if isinstance(obs_shape, int) else math.prod(obs_shape)
        super().__init__((size, *sizes), activation, layer_norm=layer_norm)
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

    By default kernels and strides fit the image, along each axis on its own: those of the paper, 8, 4, 3 and 4, 2, 1,
    from 36 pixels; below 3 and 1, or what is left of the image where that is less.

    Args:
        obs_shape: (C, H, W) or (H, W, C), or a stack of such images, (S, C, H, W) or (S, H, W, C).
        hidden_size_list: Channels of each convolution, then features; (32, 64, 64, 512) if None.
        activation: After every layer.
        channels: Channels of each convolution, another way to say it; needs ``hidden_size_list`` to be None.
        feature_size: F; needs ``hidden_size_list`` to be None.
        kernel_size: Side of the kernel of each convolution; None fits them to the image.
        stride: Stride of each convolution; None fits them to the image.
        layer_norm: Whether to normalise each layer before its activation.

    Raises:
        ValueError: If the numbers of channels, kernels and strides differ, or a kernel is larger than what it sees.
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
    ) -> None:
        super().__init__()
        widths, self.output_size = image_sizes(hidden_size_list, channels, feature_size, IMAGE_SIZES)
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
            kernels, strides = zip(vertical[1:], horizontal[1:], strict=True)
            self.convolutions.append(nn.Conv2d(inputs, outputs, kernels, strides))
            inputs = outputs
        self.norms = nn.ModuleList(nn.GroupNorm(1, channels) for channels in widths) if layer_norm else None
        flat = inputs * height[-1][0] * width[-1][0]
        self.linear = MLP((flat, self.output_size), activation, layer_norm=layer_norm)

    def forward(self, obs: Tensor) -> Tensor:
        """Return features, shape (B, F), of images, shape (B, *obs_shape)."""
        x, norms = self.image(obs), self.norms
        for number, convolution in enumerate(self.convolutions):
            x = convolution(x)
            x = self.activate(x if norms is None else norms[number](x))
        return cast(Tensor, self.linear(x.flatten(1)))


def _along_an_axis(
    side: int, number: int, kernel_size: Sequence[int] | None, stride: Sequence[int] | None
) -> list[tuple[int, int, int]]:
    """Return pixels, kernel and stride of each convolution along an axis of an image, and what is left of it, 1, 1."""
    layers, left = [], side
    for layer in range(number):
        is_large = side >= SMALLEST_LARGE_SIDE and layer < len(IMAGE_KERNELS)
        kernel, step = (IMAGE_KERNELS[layer], IMAGE_STRIDES[layer]) if is_large else (3, 1)
        kernel = min(kernel, left) if kernel_size is None else kernel_size[layer]
        step = step if stride is None else stride[layer]
        fits = f"<= {left} in convolution {layer + 1} of an axis of {side} pixels, or encoder_kwargs.stride smaller"
        require(kernel <= left, "encoder_kwargs.kernel_size", fits, kernel_size)
        layers.append((left, kernel, step))
        left = (left - kernel) // step + 1
    return [*layers, (left, 1, 1)]


def image_sizes(
    hidden_size_list: Sequence[int] | None,
    channels: Sequence[int] | None,
    feature_size: int | None,
    default: Sequence[int],
) -> tuple[list[int], int]:
    """Return the channels of the layers of an image encoder, and its features.

    Args:
        hidden_size_list: Both, the features last.
        channels: The channels.
        feature_size: The features.
        default: Both, for what is None.

    Raises:
        ValueError: If there are too few, or something is given twice.
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


@ENCODER_REGISTRY.register("dict")
class DictEncoder(nn.Module):
    """One encoder for each entry of a dict observation, and a layer with an activation that joins their features.

    Without that layer a network with a linear head would be a sum of functions of single entries, which cannot say that
    two of them are equal. A dict with one entry has nothing to join, and no such layer.

    Args:
        obs_shape: Shape of each entry by name; entries may be nested.
        hidden_size_list: Passed to the encoders of vectors; those of images use their own default.
        activation: After every layer.
        fusion_size: Width of the joining layer, >= 1; None takes the largest feature size of the entries.
        image_encoder: Registered encoder of the images, conv if None; needs an image.
        layer_norm: Whether to normalise each layer before its activation.
        kwargs: Options of the entries' encoders; each gets those that it has.

    Raises:
        ValueError: If there is no entry, ``fusion_size`` is out of its range or has nothing to join, or there is no
            image for ``image_encoder``.
    """

    def __init__(
        self,
        obs_shape: Mapping[str, Any],
        hidden_size_list: Sequence[int] | None = None,
        activation: str = "relu",
        fusion_size: int | None = None,
        image_encoder: str | None = None,
        layer_norm: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        require(len(obs_shape) > 0, "obs_shape", "a dict with at least one entry", obs_shape)
        is_single, has_image = len(obs_shape) == 1, _holds_image(obs_shape)
        path = "encoder_kwargs.fusion_size"
        require(fusion_size is None or not is_single, path, "None for a dict with one entry", fusion_size)
        require(fusion_size is None or fusion_size >= 1, path, ">= 1 or None", fusion_size)
        path = "encoder_kwargs.image_encoder"
        require(image_encoder is None or has_image, path, "None for a dict without images", image_encoder)
        own = {"fusion_size": fusion_size, "image_encoder": image_encoder, "layer_norm": layer_norm or None}
        given = {name: value for name, value in own.items() if value is not None} | kwargs

        def create(shape: ObsShape) -> Any:
            name = _encoder_name(shape, image_encoder)
            unfit = set() if _holds_image(shape) else {"image_encoder"}
            unfit |= {"fusion_size"} if isinstance(shape, Mapping) and len(shape) == 1 else set()
            known = _options(shape, name, given) if given else {}
            options = {option: given[option] for option in (given.keys() & known.keys()) - unfit}
            return create_encoder(shape, name, None if is_image(shape) else hidden_size_list, activation, **options)

        encoders = {name: create(shape) for name, shape in sorted(obs_shape.items())}
        self.encoders = nn.ModuleDict(encoders)
        sizes = [encoder.output_size for encoder in encoders.values()]
        self.output_size = max(sizes) if fusion_size is None else fusion_size
        joined = (sum(sizes), self.output_size)
        self.fusion = None if is_single else MLP(joined, activation, layer_norm=layer_norm)

    def forward(self, obs: Mapping[str, Any]) -> Tensor:
        """Return features, shape (B, F), of a dict of observations; entries without an encoder are left out."""
        features = [encoder(obs[name]) for name, encoder in self.encoders.items()]
        return features[0] if self.fusion is None else cast(Tensor, self.fusion(torch.cat(features, dim=1)))


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
        activation: After every layer.
        kwargs: Further arguments of the encoder, the ``model.encoder_kwargs`` of a config.

    Returns:
        A module with ``output_size`` that maps observations (B, ...) to features (B, output_size).

    Raises:
        KeyError: If there is no encoder of that name.
        ValueError: If the encoder has no such argument, naming the nearest one.
        TypeError: If an argument has the wrong type.
    """
    if is_described(obs_shape):
        features = create_features(cast("Mapping[str, Any]", obs_shape))
        encoder = create_encoder(features.output_shape, name, hidden_size_list, activation, **kwargs)
        return Described(features, encoder)
    name = _encoder_name(obs_shape) if name is None else name
    known = _options(obs_shape, name, kwargs) if kwargs else {}
    for option, value in kwargs.items():
        if option not in known:
            raise ValueError(f"unknown config key 'encoder_kwargs.{option}' of {name!r}; {nearest(option, known)}")
        require_type(f"encoder_kwargs.{option}", value, known[option])
    return ENCODER_REGISTRY.build(name, obs_shape, hidden_size_list, activation, **kwargs)


def encoder_for(
    obs_shape: ObsShape,
    encoder: str | None,
    hidden_size_list: Sequence[int] | None,
    activation: str,
    layer_norm: bool = False,
    encoder_kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """Return the encoder that the arguments of a network describe, see ``create_encoder``.

    An entry ``action_mask`` is not encoded. In ``encoder_kwargs``, ``activation`` and ``layer_norm`` replace those of
    the whole network. An encoder without the option ``layer_norm`` is not normalised.
    """
    shape, kwargs = without_action_mask(obs_shape), dict(encoder_kwargs or {})
    name = _encoder_name(shape) if encoder is None else encoder
    if layer_norm and "layer_norm" in _options(shape, name, kwargs):
        kwargs.setdefault("layer_norm", True)
    activation = kwargs.pop("activation", activation)
    return create_encoder(shape, name, hidden_size_list, activation, **kwargs)


def without_action_mask(obs_shape: ObsShape) -> ObsShape:
    """Return what of an observation is encoded: all but an entry ``action_mask``."""
    if isinstance(obs_shape, Mapping):
        return {name: shape for name, shape in obs_shape.items() if name != "action_mask"}
    return obs_shape


def _encoder_name(obs_shape: ObsShape, image_encoder: str | None = None) -> str:
    if isinstance(obs_shape, Mapping) and not is_described(obs_shape):
        return "dict"
    return (image_encoder or "conv") if is_image(obs_shape) else "mlp"


def _options(obs_shape: ObsShape, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the type of each option of an encoder, those of a dict's entries among them."""
    encoder_class = ENCODER_REGISTRY.get(name)
    parameters = list(inspect.signature(encoder_class).parameters.values())
    try:
        hints = typing.get_type_hints(encoder_class.__init__ if inspect.isclass(encoder_class) else encoder_class)
    except NameError:  # a user's encoder whose types are imported for type checkers alone
        hints = {}
    named = [one.name for one in parameters[2:] if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    found = {option: hints.get(option, Any) for option in named}
    if encoder_class is DictEncoder and isinstance(obs_shape, Mapping):
        for shape in obs_shape.values():
            found = _options(shape, _encoder_name(shape, given.get("image_encoder")), given) | found
    elif any(one.kind is one.VAR_KEYWORD for one in parameters):  # a user's encoder that passes them on
        found |= dict.fromkeys(given.keys() - found.keys(), Any)
    return found


def _holds_image(obs_shape: ObsShape) -> bool:
    if isinstance(obs_shape, Mapping) and not is_described(obs_shape):
        return any(map(_holds_image, obs_shape.values()))
    return is_image(obs_shape)
