"""The networks of PPO, A2C, MaskablePPO and RecurrentPPO, translated to ``VAC`` and ``RecurrentVAC``.

Continuous actions are in the units of the env there, and in half the range of the env here, so the output layer of the
actor is scaled. A multi-discrete action has one output layer there, and a head with its own hidden layers for each
dimension here, so these layers are copied.

Shapes: A dimensions of a continuous action, F features before the actor's output layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor

from lightning_ding.config import require
from lightning_ding.sb3.description import activation
from lightning_ding.sb3.features import Features
from lightning_ding.sb3.network import (
    Network,
    SourceModel,
    action_units,
    encoder_section,
    image_encoders,
    read_features,
)
from lightning_ding.sb3.weights import Linear, Tensors, linear, stack, widths, with_first

LSTM = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def actor_critic(model: SourceModel) -> Network:
    """Return the network of PPO, A2C or MaskablePPO."""
    weights = model.weights
    actor_prefix, critic_prefix, is_shared = _extractors(model)
    features = read_features(model, actor_prefix)
    pi, vf = _layers(model)
    columns = features.columns()
    pi, vf = (with_first(layers, lambda layer: layer.with_inputs(*columns)) for layers in (pi, vf))
    head, section = _actor(model, pi)
    tensors = image_encoders(weights, actor_prefix, "encoder", features) | head | stack(vf, "critic")
    if not is_shared:
        tensors |= image_encoders(weights, critic_prefix, "critic_encoder", features)
    section |= _section(model, features, pi, vf) | {"share_encoder": is_shared}
    return Network(section, tensors, {})


def recurrent_actor_critic(model: SourceModel) -> Network:
    """Return the network of RecurrentPPO."""
    weights, arguments = model.weights, model.arguments
    actor_prefix, critic_prefix, _ = _extractors(model)
    features = read_features(model, actor_prefix)
    has_own_core = weights.has("lstm_critic")
    pi, vf = _layers(model)
    head, section = _actor(model, pi)
    core, tensors = _core(model, "lstm_actor", "encoder", features)
    tensors |= head | stack(vf, "critic") | image_encoders(weights, actor_prefix, "encoder.encoder", features)
    if has_own_core:
        tensors |= _core(model, "lstm_critic", "critic_encoder", features)[1]
        tensors |= image_encoders(weights, critic_prefix, "critic_encoder.encoder", features)
    notes: tuple[str, ...] = ()
    if not has_own_core and not arguments.get("shared_lstm", False):
        weights.ignore(r"critic\.")
        notes = ("the critic has no recurrent layers there, and uses the actor's here, so its values start wrong",)
    section |= _section(model, features, pi, vf) | {"core": core, "share_encoder": not has_own_core}
    return Network(section, tensors, {}, notes)


def _extractors(model: SourceModel) -> tuple[str, str, bool]:
    """Return the names of the features extractors of actor and critic, and whether it is one."""
    weights, is_shared = model.weights, bool(model.arguments.get("share_features_extractor", True))
    weights.ignore(r"(pi_|vf_)?features_extractor\.")  # one extractor has up to three names
    if not weights.has("pi_features_extractor"):
        return "features_extractor", "features_extractor", True
    return "pi_features_extractor", "pi_features_extractor" if is_shared else "vf_features_extractor", is_shared


def _layers(model: SourceModel) -> tuple[list[Linear], list[Linear]]:
    """Return the layers of actor and critic after the features; those that old versions shared are in both."""
    weights = model.weights
    shared = weights.layers("mlp_extractor.shared_net")
    pi = [*shared, *weights.layers("mlp_extractor.policy_net"), weights.linear("action_net")]
    vf = [*shared, *weights.layers("mlp_extractor.value_net"), weights.linear("value_net")]
    return pi, vf


def _section(model: SourceModel, features: Features, pi: Sequence[Linear], vf: Sequence[Linear]) -> dict[str, Any]:
    name = activation(model.arguments, "tanh")
    lists = {"actor_hidden_size_list": widths(pi[:-1]), "critic_hidden_size_list": widths(vf[:-1])}
    return {"activation": name, **lists, **encoder_section(features, name)}


def _core(model: SourceModel, source: str, target: str, features: Features) -> tuple[dict[str, Any], Tensors]:
    """Return the config of an LSTM, and its tensors below ``target``."""
    weights = model.weights
    number = sum(name.startswith("weight_ih_l") for name in weights.below(source))
    named = {}
    for layer in range(number):
        for kind in LSTM:
            tensor = weights.take(f"{source}.{kind}_l{layer}")
            if kind == "weight_ih" and layer == 0:
                tensor = Linear(tensor, tensor[:, 0]).with_inputs(*features.columns()).weight
            named[f"{target}.core.rnn.{kind}_l{layer}"] = tensor
    hidden = named[f"{target}.core.rnn.weight_hh_l0"].shape[1]
    return {"type": "lstm", "hidden_size": hidden, "num_layers": number}, named


# ---------------------------------------------------------------------- the actor's head


def _actor(model: SourceModel, layers: Sequence[Linear]) -> tuple[Tensors, dict[str, Any]]:
    """Return the layers of the actor's head, and what the ``model`` section says of state-dependent noise."""
    space, hidden, last = model.action_space, layers[:-1], layers[-1]
    if isinstance(space, spaces.Box):
        return _gaussian(model, space, hidden, last)
    if isinstance(space, spaces.Discrete):
        return stack(layers, "actor"), {}
    if isinstance(space, spaces.MultiBinary):
        heads = [Linear(_after_zero(row), _after_zero(one)) for row, one in zip(last.weight, last.bias, strict=True)]
    else:
        allowed = "Box, Discrete, MultiDiscrete or MultiBinary"
        require(isinstance(space, spaces.MultiDiscrete), "the action space of the model", allowed, space)
        sizes = [int(size) for size in space.nvec.reshape(-1)]  # type: ignore[attr-defined]
        heads = [Linear(*part) for part in zip(last.weight.split(sizes), last.bias.split(sizes), strict=True)]
    named: Tensors = {}
    for number, head in enumerate(heads):
        named |= stack([*hidden, head], f"actor.heads.{number}")
    return named, {}


def _after_zero(x: Tensor) -> Tensor:
    """Return the parameters of two outputs of which the first is always 0."""
    return torch.stack([torch.zeros_like(x), x])


def _gaussian(
    model: SourceModel, space: spaces.Box, hidden: Sequence[Linear], last: Linear
) -> tuple[Tensors, dict[str, Any]]:
    scale, middle = action_units(space)
    mu = Linear(last.weight / scale[:, None], (last.bias - middle) / scale)
    named = stack(hidden, "actor.trunk") | linear(mu, "actor.mu")
    log_std = model.weights.take("log_std")
    if log_std.ndim == 1:
        return named | {"actor.log_sigma": log_std - scale.log()}, {}
    grows_slowly = bool(model.arguments.get("use_expln", False))
    if bool((scale != scale[0]).any()):
        log_std = log_std.expand(-1, len(scale))
    full = log_std.shape[1] > 1 or len(scale) == 1
    factors = scale if full else scale[:1]
    parameter = _of_std(_std(log_std, grows_slowly) / factors, grows_slowly)
    section = {"use_sde": True, "full_std": full, "use_expln": grows_slowly}
    return named | {"actor.sde.log_std": parameter}, section


def _std(x: Tensor, grows_slowly: bool) -> Tensor:
    """Return the standard deviations of parameters, see ``StateDependentSigma``."""
    return torch.where(x > 0, x.clamp(min=0).log1p() + 1, x.clamp(max=0).exp()) if grows_slowly else x.exp()


def _of_std(std: Tensor, grows_slowly: bool) -> Tensor:
    """Return the parameters of standard deviations, shape (F, A) or (F, 1)."""
    return torch.where(std > 1, (std - 1).clamp(min=0).expm1(), std.log()) if grows_slowly else std.log()
