"""The networks of SAC, TD3, DDPG, TQC and CrossQ, translated to ``ContinuousQAC``.

Shapes: E critics, F features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_ding.config import require
from lightning_ding.sb3.description import activation
from lightning_ding.sb3.features import Features
from lightning_ding.sb3.network import Network, SourceModel, encoder_section, image_encoders, read_features
from lightning_ding.sb3.weights import (
    Linear,
    Tensors,
    Weights,
    ensemble,
    joined,
    linear,
    stack,
    widths,
    with_first,
)

ACTOR, CRITIC = "actor.features_extractor", "critic.features_extractor"
RENORM = {"ra_mean": "mean", "ra_var": "variance", "scale": "scale", "bias": "shift"}
"""Tensors of a batch renormalisation there and here."""
DETERMINISTIC = ("td3", "ddpg")


def actor_and_critics(model: SourceModel) -> Network:
    """Return the network of SAC, TD3, DDPG, TQC or CrossQ."""
    weights, policy = model.weights, model.policy
    features = read_features(model, ACTOR)
    actor, section = _actor(model, "actor", features)
    critics = _critics(model, "critic", features)
    number = len(critics)
    hidden = widths(critics[0][:-1])
    section |= {"critic_hidden_size_list": hidden, **_number_of_critics(policy, number)}
    section |= encoder_section(features, section["activation"])
    if policy == "tqc":
        section["num_quantiles"] = len(critics[0][-1].bias)
    tensors = actor | ensemble(critics, "critic.head")
    target: Tensors = {}
    for prefix, part in (("actor", "actor"), ("critic", "critic")):
        tensors |= image_encoders(weights, f"{prefix}.features_extractor", f"{part}.encoder", features)
    if policy == "crossq":
        tensors |= _renorms(weights, [f"critic.qf{one}" for one in range(number)], "critic.head", features)
    else:
        target = ensemble(_critics(model, "critic_target", features), "critic.head")
        target |= image_encoders(weights, "critic_target.features_extractor", "critic.encoder", features)
    if policy in DETERMINISTIC:
        target |= _actor(model, "actor_target", features)[0]
        target |= image_encoders(weights, "actor_target.features_extractor", "actor.encoder", features)
    return Network(section, tensors, target)


def _number_of_critics(policy: str, number: int) -> dict[str, Any]:
    if policy in ("tqc", "crossq"):
        return {"ensemble_num": number}
    require(number in (1, 2), "n_critics of the model", f"1 or 2 for {policy}", number)
    return {"twin_critic": number == 2}


def _critics(model: SourceModel, prefix: str, features: Features) -> list[list[Linear]]:
    """Return the layers of each critic."""
    columns = features.columns()
    names = sorted(name for name in model.weights.below(prefix) if name.startswith("qf"))
    names.sort(key=lambda name: int(name.removeprefix("qf")))
    found = [model.weights.layers(f"{prefix}.{name}") for name in names]
    require(bool(found), "the weights of the model", f"a state dict with {prefix}.qf0", model.weights.left()[:4])
    return [with_first(layers, lambda layer: layer.with_inputs(*columns)) for layers in found]


def _actor(model: SourceModel, prefix: str, features: Features) -> tuple[Tensors, dict[str, Any]]:
    """Return the layers of an actor, and its part of the ``model`` section."""
    weights, name = model.weights, activation(model.arguments, "relu")
    columns = features.columns()
    if model.policy in DETERMINISTIC:
        layers, outputs = weights.layers(f"{prefix}.mu"), []
    else:
        is_clipped = weights.has(f"{prefix}.mu.0")
        outputs = [weights.linear(f"{prefix}.mu.0" if is_clipped else f"{prefix}.mu")]
        layers = weights.layers(f"{prefix}.latent_pi")
    has_noise = weights.has(f"{prefix}.log_std") and not weights.has(f"{prefix}.log_std.weight")
    if outputs and not has_noise:
        outputs.append(weights.linear(f"{prefix}.log_std"))
    layers = with_first([*layers, *([joined(outputs)] if outputs else [])], lambda one: one.with_inputs(*columns))
    section = {"activation": name, "actor_hidden_size_list": widths(layers[:-1])}
    if has_noise:
        return _with_noise(model, layers, weights.take(f"{prefix}.log_std"), section)
    if model.policy != "crossq":
        return stack(layers, "actor.head"), section
    tensors = ensemble([layers], "actor.head")
    return tensors | _renorms(weights, [f"{prefix}.latent_pi"], "actor.head", features), section


def _with_noise(
    model: SourceModel, layers: Sequence[Linear], log_std: Tensor, section: dict[str, Any]
) -> tuple[Tensors, dict[str, Any]]:
    """Return the layers of an actor with state-dependent noise."""
    require(model.policy in ("sac", "tqc"), "use_sde of the model", f"False for {model.policy}", True)
    arguments, size = model.arguments, len(layers[-1].bias)
    is_clipped = model.weights.has("actor.mu.0")
    options = {"full_std": log_std.shape[1] == size, "use_expln": bool(arguments.get("use_expln", False))}
    bound = {"clip_mean": float(arguments.get("clip_mean", 2.0)) if is_clipped else 0.0}
    tensors = stack(layers[:-1], "actor.head.trunk") | linear(layers[-1], "actor.head.mu")
    return tensors | {"actor.head.sde.log_std": log_std}, {**section, "use_sde": True, **options, **bound}


def _renorms(weights: Weights, members: Sequence[str], target: str, features: Features) -> Tensors:
    """Return the batch renormalisations before the layers of E networks, those of a layer together."""
    index, factor = features.columns()
    require(bool((factor == 1).all()), "the observation space of the model", "one without bytes for crossq", "bytes")
    numbers = [number for number in weights.below(members[0]) if weights.has(f"{members[0]}.{number}.ra_mean")]
    require(bool(numbers), "the weights of the model", "those of batch renormalisation", members[0])
    named: Tensors = {}
    for layer, number in enumerate(sorted(numbers, key=int)):
        for there, here in RENORM.items():
            parts = [weights.take(f"{member}.{number}.{there}") for member in members]
            if layer == 0:
                parts = [torch.cat([part[index], part[len(index) :]]) for part in parts]
            named[f"{target}.renorms.{layer}.{here}"] = torch.stack(parts)[:, None]
        steps = [weights.take(f"{member}.{number}.steps") for member in members]
        named[f"{target}.renorms.{layer}.updates"] = steps[0].float()
    return named
