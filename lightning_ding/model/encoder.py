"""Encoders of vector and dict observations, and the choice of an encoder. Image encoders are in ``image_encoders``.

Shapes: B batch, F features, C channels, H height, W width.
"""

from __future__ import annotations

import inspect
import math
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from lightning_ding.config import nearest, require, require_type
from lightning_ding.model.features import Described, create_features, is_described
from lightning_ding.model.mlp import MLP
from lightning_ding.registry import ENCODER_REGISTRY

ObsShape = int | Sequence[int] | Mapping[str, Any]
VECTOR_SIZES = (128, 128, 64)


@ENCODER_REGISTRY.register("mlp")
class MLPEncoder(MLP):
    """Linear layers over a flattened vector observation.

    Args:
        obs_shape: Size, or shape to flatten.
        hidden_size_list: Widths of the layers; None for (128, 128, 64). The last width is ``output_size``.
        activation: Activation of all layers: relu, tanh, elu, gelu or silu.
        layer_norm: Apply layer normalisation before each activation.
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
        return super().forward(_flattened(obs))


class FlatVector(nn.Module):
    """An encoder without layers, whose features are the flattened observation.

    Args:
        obs_shape: Size, or shape to flatten.
    """

    def __init__(self, obs_shape: int | Sequence[int]) -> None:
        super().__init__()
        self.output_size = obs_shape if isinstance(obs_shape, int) else math.prod(obs_shape)

    def forward(self, obs: Tensor) -> Tensor:
        """Return observations, shape (B, *obs_shape), as features, shape (B, F)."""
        return _flattened(obs)


def _flattened(obs: Tensor) -> Tensor:
    """Return observations, shape (B, ...), as floats, shape (B, F)."""
    if obs.ndim != 2:
        obs = obs.flatten(1) if obs.ndim > 2 else obs.unsqueeze(1)
    return obs if obs.is_floating_point() else obs.float()


class EntryEncoders(nn.ModuleDict):
    """An encoder for each entry of a dict observation, by name, in alphabetical order.

    Args:
        obs_shape: Shape of each entry by name.
        create: Makes the encoder of an entry from its shape.
    """

    def __init__(self, obs_shape: Mapping[str, Any], create: Callable[[ObsShape], Any]) -> None:
        encoders = {name: create(shape) for name, shape in sorted(obs_shape.items())}
        super().__init__(encoders)
        self.sizes: list[int] = [encoder.output_size for encoder in encoders.values()]

    def forward(self, obs: Mapping[str, Any]) -> Tensor:
        """Return the joined features, shape (B, sum of ``sizes``); entries without an encoder are ignored."""
        parts = [encoder(obs[name]) for name, encoder in self.items()]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


@ENCODER_REGISTRY.register("dict")
class DictEncoder(nn.Module):
    """The entries of a dict observation as one vector, followed by layers over all of them.

    A vector is joined as it is, and an image by the features of its encoder, as in Stable-Baselines3's
    ``CombinedExtractor``.

    Args:
        obs_shape: Shape of each entry by name; entries may be nested dicts.
        hidden_size_list: Widths of the layers over the joined entries; an empty list has no layers. None means
            (128, 128, 64) for vectors; with images, one layer as wide as the largest entry; for a single image, none.
        activation: Activation of all layers.
        fusion_size: Width of one more layer, >= 1, which replaces the default of ``hidden_size_list``; None for none.
        image_encoder: Name of the registered encoder of images; None means conv.
        layer_norm: Apply layer normalisation before each activation.
        kwargs: Further arguments of the images' encoders; each encoder gets those that it accepts.

    Raises:
        ValueError: If there is no entry, if ``fusion_size`` is out of its range, or if ``image_encoder`` is given and
            no entry is an image.
    """

    has_entries: ClassVar[bool] = True

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
        check_entries(obs_shape, fusion_size, image_encoder)
        given = given_options(kwargs, image_encoder=image_encoder, layer_norm=layer_norm or None)

        def create(shape: ObsShape) -> Any:
            name = encoder_name(shape, image_encoder)
            if name == "mlp":
                return _kept_vector(shape)
            sizes = None if is_image(shape) else ()
            return create_encoder(shape, name, sizes, activation, **options_of_entry(shape, name, given))

        self.encoders = EntryEncoders(obs_shape, create)
        sizes = self.encoders.sizes
        widths = tuple(hidden_size_list or ()) + (() if fusion_size is None else (fusion_size,))
        if hidden_size_list is None and fusion_size is None:
            is_alone = len(sizes) == 1 and all(map(is_image, obs_shape.values()))
            widths = () if is_alone else (max(sizes),) if _holds_image(obs_shape) else VECTOR_SIZES
        self.output_size = widths[-1] if widths else sum(sizes)
        self.layers = MLP((sum(sizes), *widths), activation, layer_norm=layer_norm) if widths else None

    def forward(self, obs: Mapping[str, Any]) -> Tensor:
        """Return features, shape (B, F), of a dict of observations; entries without an encoder are ignored."""
        joined = self.encoders(obs)
        return cast(Tensor, joined if self.layers is None else self.layers(joined))


def check_entries(obs_shape: Mapping[str, Any], fusion_size: int | None, image_encoder: str | None) -> None:
    """Raise if a dict of shapes is empty, or an option of the encoder of a dict is out of its range or useless.

    Raises:
        ValueError: Naming the option, the allowed values and the given value.
    """
    require(len(obs_shape) > 0, "obs_shape", "a dict with at least one entry", obs_shape)
    require(fusion_size is None or fusion_size >= 1, "encoder_kwargs.fusion_size", ">= 1 or None", fusion_size)
    is_used = image_encoder is None or _holds_image(obs_shape)
    require(is_used, "encoder_kwargs.image_encoder", "None for a dict without images", image_encoder)


def given_options(kwargs: Mapping[str, Any], **own: Any) -> dict[str, Any]:
    """Return the options of a dict's encoder that its entries may get: its own ones that are set, and the others."""
    return {name: value for name, value in own.items() if value is not None} | dict(kwargs)


def options_of_entry(shape: ObsShape, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options among those of a dict's encoder that the encoder of an entry accepts.

    Args:
        shape: Shape of the entry.
        name: Registered name of the entry's encoder.
        given: Options of the dict's encoder, without None.
    """
    known = _options(shape, name, given) if given else {}
    unfit = set() if _holds_image(shape) else {"image_encoder"}
    return {option: given[option] for option in (given.keys() & known.keys()) - unfit}


def is_image(shape: ObsShape) -> bool:
    """Return whether this is the shape of an image, three axes, or of a stack of images, four axes."""
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
        obs_shape: Size, shape, description with ``kind`` (see ``model.features``), or dict of these.
        name: Name of a registered encoder; None chooses ``dict``, ``conv`` (three or four axes) or ``mlp`` by the
            shape.
        hidden_size_list: Widths of the layers, see each encoder; None for the encoder's default.
        activation: Activation of all layers.
        kwargs: Further arguments of the encoder, the ``model.encoder_kwargs`` of a config.

    Returns:
        A module with ``output_size`` that maps observations (B, ...) to features (B, output_size).

    Raises:
        KeyError: If there is no encoder of that name.
        ValueError: If the encoder has no such argument; the message names the nearest one.
        TypeError: If an argument has the wrong type.
    """
    if is_described(obs_shape):
        features = create_features(cast("Mapping[str, Any]", obs_shape))
        encoder = create_encoder(features.output_shape, name, hidden_size_list, activation, **kwargs)
        return Described(features, encoder)
    name = encoder_name(obs_shape) if name is None else name
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
    keeps_vectors: bool = False,
) -> Any:
    """Return the encoder for the arguments of a network, see ``DQN`` and ``create_encoder``.

    An entry ``action_mask`` is not encoded. ``encoder_kwargs`` may hold an ``activation`` and ``layer_norm`` that
    differ from the network's; an encoder without an argument ``layer_norm`` is not normalised. With ``keeps_vectors``,
    a vector gets a :class:`FlatVector` unless an argument of the encoder is given, and the joined entries of a dict get
    no layers unless their widths are given.
    """
    shape, kwargs = without_action_mask(obs_shape), dict(encoder_kwargs or {})
    name = encoder_name(shape) if encoder is None else encoder
    if keeps_vectors and encoder is None and hidden_size_list is None:
        if name == "mlp" and not kwargs:
            return _kept_vector(shape)
        hidden_size_list = () if name == "dict" else None
    if layer_norm and "layer_norm" in _options(shape, name, kwargs):
        kwargs.setdefault("layer_norm", True)
    activation = kwargs.pop("activation", activation)
    return create_encoder(shape, name, hidden_size_list, activation, **kwargs)


def _kept_vector(shape: ObsShape) -> Any:
    """Return a :class:`FlatVector`, preceded by the conversion of a described observation."""
    if is_described(shape):
        features = create_features(cast("Mapping[str, Any]", shape))
        return Described(features, _kept_vector(features.output_shape))
    return FlatVector(cast("int | Sequence[int]", shape))


def without_action_mask(obs_shape: ObsShape) -> ObsShape:
    """Return the shape of an observation without an entry ``action_mask``."""
    if isinstance(obs_shape, Mapping):
        return {name: shape for name, shape in obs_shape.items() if name != "action_mask"}
    return obs_shape


def encoder_name(obs_shape: ObsShape, image_encoder: str | None = None) -> str:
    """Return the registered name of the encoder that is chosen for a shape."""
    if isinstance(obs_shape, Mapping) and not is_described(obs_shape):
        return "dict"
    return (image_encoder or "conv") if is_image(obs_shape) else "mlp"


def _options(obs_shape: ObsShape, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the type of each argument of an encoder after the first three, including those of a dict's entries."""
    encoder_class = ENCODER_REGISTRY.get(name)
    parameters = list(inspect.signature(encoder_class).parameters.values())
    try:
        hints = typing.get_type_hints(encoder_class.__init__ if inspect.isclass(encoder_class) else encoder_class)
    except NameError:  # a user's encoder whose annotations are imported only for type checkers
        hints = {}
    named = [one.name for one in parameters[2:] if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    found = {option: hints.get(option, Any) for option in named}
    if getattr(encoder_class, "has_entries", False) and isinstance(obs_shape, Mapping):
        for shape in obs_shape.values():
            found = _options(shape, encoder_name(shape, given.get("image_encoder")), given) | found
    elif any(one.kind is one.VAR_KEYWORD for one in parameters):  # a user's encoder that passes its arguments on
        found |= dict.fromkeys(given.keys() - found.keys(), Any)
    return found


def _holds_image(obs_shape: ObsShape) -> bool:
    if isinstance(obs_shape, Mapping) and not is_described(obs_shape):
        return any(map(_holds_image, obs_shape.values()))
    return is_image(obs_shape)
