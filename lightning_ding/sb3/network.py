"""Parts that the translations of all networks share: a model's description, encoders of images, and the result.

Shapes: A dimensions of a continuous action.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from gymnasium import spaces
from torch import Tensor

from lightning_ding.config import require
from lightning_ding.model.image_encoders import IMAGE_SIZES
from lightning_ding.sb3.features import Features, features_of
from lightning_ding.sb3.weights import Tensors, Weights, linear

NATURE_CNN = {"kernel_size": [8, 4, 3], "stride": [4, 2, 1]}
"""The convolutions of images of all sizes there; here the default depends on the size."""


class SourceModel(NamedTuple):
    """A model of Stable-Baselines3, as far as its network depends on it."""

    policy: str
    """Name of the policy here."""
    arguments: Mapping[str, Any]
    """Arguments of its policy, ``policy_kwargs``."""
    weights: Weights
    """Its state dict."""
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    obs_shape: Any
    """The ``model.obs_shape`` of the observation space here."""
    is_masked: bool = False
    """Whether its observations get an action mask here, which makes a dict of them."""


class Network(NamedTuple):
    """The network of a model, in the form that it has here."""

    section: dict[str, Any]
    """The ``model`` section of the policy's config."""
    tensors: Tensors
    """Entries of the state dict of ``policy.model``."""
    target: Tensors
    """Entries that differ in the target network."""
    notes: tuple[str, ...] = ()
    """Parts of the model that are not translated, which do not change greedy actions."""


def read_features(model: SourceModel, prefix: str) -> Features:
    """Return how observations reach the layers after the features extractor with this name."""
    weights = model.weights
    sources = {"": prefix, **{name: f"{prefix}.extractors.{name}" for name in weights.below(f"{prefix}.extractors")}}
    sizes = {name: source for name, source in sources.items() if weights.has(f"{source}.cnn")}
    of_images = {name: len(weights.linear(f"{source}.linear.0").bias) for name, source in sizes.items()}
    scales = bool(model.arguments.get("normalize_images", True))
    features = features_of(model.observation_space, model.obs_shape, of_images, scales)
    if not model.is_masked:
        return features
    shape = features.obs_shape
    if shape is not None:
        shape = shape if isinstance(model.observation_space, spaces.Dict) else {"observation": shape}
        shape = {**shape, "action_mask": discrete_size(model.action_space)}
    return Features(features.entries, shape, "observation")


def image_encoders(weights: Weights, prefix: str, target: str, features: Features) -> Tensors:
    """Return the layers of the convolutional encoders below a prefix, by their names below ``target``."""
    named: Tensors = {}
    for entry in features.images:
        source = f"{prefix}.extractors.{entry.name}" if entry.name else prefix
        name = entry.name or features.only_entry
        place = f"{target}.encoders.{name}" if name else target
        numbers = sorted((number for number in weights.below(f"{source}.cnn") if number.isdigit()), key=int)
        for layer, number in enumerate(numbers):
            convolution = weights.linear(f"{source}.cnn.{number}")
            scaled = convolution._replace(weight=convolution.weight * (1.0 if layer else entry.factor))
            named |= linear(scaled, f"{place}.convolutions.{layer}")
        named |= linear(weights.linear(f"{source}.linear.0"), f"{place}.linear.layers.0")
    return named


def encoder_section(features: Features, activation: str) -> dict[str, Any]:
    """Return the entries of the ``model`` section for the encoders, whose layers have the activation relu there."""
    section: dict[str, Any] = {} if features.obs_shape is None else {"obs_shape": features.obs_shape}
    sizes = {entry.size for entry in features.images}
    require(len(sizes) < 2, "the number of features of each image", "the same for all images", sorted(sizes))
    options: dict[str, Any] = dict(NATURE_CNN) if sizes else {}
    options |= {} if sizes <= {IMAGE_SIZES[-1]} else {"feature_size": min(sizes)}
    if sizes and activation != "relu":
        options["activation"] = "relu"
    return section | ({"encoder_kwargs": options} if options else {})


def discrete_size(space: spaces.Space[Any]) -> int:
    """Return the number of entries of the mask of a discrete action.

    Raises:
        ValueError: If it is not discrete.
    """
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return int(space.nvec.sum())
    allowed = "Discrete, MultiDiscrete or MultiBinary"
    require(isinstance(space, spaces.MultiBinary), "the action space of the model", allowed, space)
    return 2 * math.prod(space.shape or (1,))


def action_units(space: spaces.Box) -> tuple[Tensor, Tensor]:
    """Return half the range and the middle of each dimension of an action, shapes (A,); 1 and 0 without a bound."""
    low, high = (torch.from_numpy(bound.reshape(-1)).double() for bound in (space.low, space.high))
    is_finite = low.isfinite() & high.isfinite()
    scale, middle = torch.where(is_finite, (high - low) / 2, 1.0), torch.where(is_finite, (high + low) / 2, 0.0)
    return scale.float(), middle.float()
