"""The encoder of vectors, and the choice of an encoder; others are in ``image_encoders`` and ``dict_encoders``.

Shapes: B batch, F features, C channels, H height, W width.
"""

from __future__ import annotations

import inspect
import math
import typing
from collections.abc import Mapping, Sequence
from typing import Any, cast

from torch import Tensor, nn

from lightning_ding.config import nearest, require, require_type
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
        return super().forward(flattened(obs))


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
        return flattened(obs)


def flattened(obs: Tensor) -> Tensor:
    """Return observations, shape (B, ...), as floats, shape (B, F)."""
    if obs.ndim != 2:
        obs = obs.flatten(1) if obs.ndim > 2 else obs.unsqueeze(1)
    return obs if obs.is_floating_point() else obs.float()


def is_described(obs_shape: Any) -> bool:
    """Return whether ``obs_shape`` is a description with ``kind``, see ``model.features``, and not a dict of shapes."""
    return isinstance(obs_shape, Mapping) and isinstance(obs_shape.get("kind"), str)


def is_image(shape: ObsShape) -> bool:
    """Return whether this is the shape of an image, three axes, or of a stack of images, four axes."""
    if is_described(shape):
        from lightning_ding.model.features import create_features

        shape = create_features(cast("Mapping[str, Any]", shape)).output_shape
    return isinstance(shape, Sequence) and len(shape) in (3, 4)


def holds_image(obs_shape: ObsShape) -> bool:
    """Return whether this is the shape of an image, or one in a dict."""
    if isinstance(obs_shape, Mapping) and not is_described(obs_shape):
        return any(map(holds_image, obs_shape.values()))
    return is_image(obs_shape)


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
        from lightning_ding.model.features import Described, create_features

        features = create_features(cast("Mapping[str, Any]", obs_shape))
        encoder = create_encoder(features.output_shape, name, hidden_size_list, activation, **kwargs)
        return Described(features, encoder)
    name = encoder_name(obs_shape) if name is None else name
    known = options_of(obs_shape, name, kwargs) if kwargs else {}
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
            return kept_vector(shape)
        hidden_size_list = () if name == "dict" else None
    if layer_norm and "layer_norm" in options_of(shape, name, kwargs):
        kwargs.setdefault("layer_norm", True)
    activation = kwargs.pop("activation", activation)
    return create_encoder(shape, name, hidden_size_list, activation, **kwargs)


def kept_vector(shape: ObsShape) -> Any:
    """Return a :class:`FlatVector`, preceded by the conversion of a described observation."""
    if is_described(shape):
        from lightning_ding.model.features import Described, create_features

        features = create_features(cast("Mapping[str, Any]", shape))
        return Described(features, kept_vector(features.output_shape))
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


def options_of(obs_shape: ObsShape, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
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
            found = options_of(shape, encoder_name(shape, given.get("image_encoder")), given) | found
    elif any(one.kind is one.VAR_KEYWORD for one in parameters):  # a user's encoder that passes its arguments on
        found |= dict.fromkeys(given.keys() - found.keys(), Any)
    return found
