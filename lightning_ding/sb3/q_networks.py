"""The networks of DQN and QR-DQN, translated to ``DQN`` and ``QRDQN`` without a dueling head.

Shapes: A actions, N quantiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from gymnasium import spaces

from lightning_ding.config import require
from lightning_ding.sb3.description import activation
from lightning_ding.sb3.features import Features
from lightning_ding.sb3.network import Network, SourceModel, encoder_section, image_encoders, read_features
from lightning_ding.sb3.weights import Linear, Tensors, stack, widths, with_first

NETWORKS = {"dqn": "q_net", "qrdqn": "quantile_net"}
HEADS = {"dqn": "head", "qrdqn": "head.advantage"}


def q_network(model: SourceModel) -> Network:
    """Return the network of DQN or QR-DQN."""
    name = NETWORKS[model.policy]
    features = read_features(model, f"{name}.features_extractor")
    layers = _layers(model, name, features)
    section = {"dueling": False, **_section(model, features, layers)}
    if model.policy == "qrdqn":
        section["num_quantiles"] = len(layers[-1].bias) // _number_of_actions(model)
    target = _tensors(model, f"{name}_target", features, _layers(model, f"{name}_target", features))
    return Network(section, _tensors(model, name, features, layers), target)


def _layers(model: SourceModel, prefix: str, features: Features) -> list[Linear]:
    """Return the layers after the features."""
    columns = features.columns()
    found = model.weights.layers(f"{prefix}.{NETWORKS[model.policy]}")
    layers = with_first(found, lambda layer: layer.with_inputs(*columns))
    return [*layers[:-1], _by_action(layers[-1], _number_of_actions(model))]


def _number_of_actions(model: SourceModel) -> int:
    space = model.action_space
    require(isinstance(space, spaces.Discrete), "the action space of the model", "Discrete", space)
    return int(space.n)  # type: ignore[attr-defined]


def _by_action(layer: Linear, actions: int) -> Linear:
    """Return an output layer with the outputs of an action side by side; there, those of a quantile are."""
    outputs = torch.arange(len(layer.bias)).view(-1, actions).T.flatten()
    return layer.rows(outputs)


def _section(model: SourceModel, features: Features, layers: list[Linear]) -> dict[str, Any]:
    name, hidden = activation(model.arguments, "relu"), widths(layers[:-1])
    section = {"activation": name, **encoder_section(features, name)}
    if not _is_image(model, features):
        is_dict = isinstance(model.observation_space, spaces.Dict)
        require(is_dict or bool(hidden), "net_arch of the model", "at least one layer before the values", hidden)
        mixed = bool(features.images) and bool(hidden) and name != "relu"
        require(not mixed, "the activation_fn of the model", "ReLU with images in a dict", name)
        return section | {"encoder_hidden_size_list": hidden}
    require(len(set(hidden)) < 2, "net_arch of the model", "layers of equal width after an image's features", hidden)
    return section | ({"head_hidden_size": hidden[0], "head_layer_num": len(hidden)} if hidden else {})


def _is_image(model: SourceModel, features: Features) -> bool:
    return bool(features.images) and not isinstance(model.observation_space, spaces.Dict)


def _tensors(model: SourceModel, prefix: str, features: Features, layers: list[Linear]) -> Tensors:
    """Return the tensors of a network, whose hidden layers are the encoder's, unless that is one of an image."""
    head = HEADS[model.policy]
    named = image_encoders(model.weights, f"{prefix}.features_extractor", "encoder", features)
    if _is_image(model, features):
        return named | stack(layers, head)
    if isinstance(model.observation_space, spaces.Dict):
        place = "encoder.layers"
    else:
        place = "encoder.encoder" if isinstance(model.obs_shape, Mapping) else "encoder"  # after one-hot vectors
    return named | stack(layers[:-1], place) | stack(layers[-1:], head)
