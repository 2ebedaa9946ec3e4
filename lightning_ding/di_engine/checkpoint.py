"""Weights of DI-engine's checkpoints (``ckpt_best.pth.tar``) for the networks here.

Both libraries compute the same functions, but name and group the layers differently. :func:`translate` maps the names,
for vectors and images, of the networks of DQN, C51, QR-DQN, Rainbow, REINFORCE, PPO, A2C, DDPG, TD3 and SAC.

Shapes: E critics, I inputs and O outputs of a layer.
"""

from __future__ import annotations

import inspect
import os
import pickle
import re
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lightning_ding.model import C51DQN, DQN, PG, QRDQN, VAC, ContinuousQAC, RainbowDQN
from lightning_ding.model.features import Described

Named = dict[str, tuple[str, Tensor]]
"""Tensors by their names here, each with its name in DI-engine."""
NETWORKS = (DQN, C51DQN, QRDQN, RainbowDQN, PG, VAC, ContinuousQAC)
MOST_PROBLEMS = 4  # number of tensors that an error names

HEADS: dict[type[nn.Module], dict[str, str]] = {
    DQN: {"head.Q": "head", "head.A": "head.advantage", "head.V": "head.value"},
    C51DQN: {"head.Q": "head.advantage"},
    QRDQN: {"head.Q": "head.advantage"},
    RainbowDQN: {"head.A": "advantage", "head.Q": "value"},
    PG: {"head.Q": "actor", "head.main": "actor.trunk"},
    VAC: {"critic_head": "critic", "actor_head.Q": "actor", "actor_head.main": "actor.trunk"}
    | {"actor_head.0.Q": "actor.action_type", "actor_head.1.main": "actor.action_args.trunk"},
}
"""Names of stacks of linear layers in DI-engine, and of the same ones here."""
GAUSSIANS = {"head": "actor", "actor_head": "actor", "actor_head.1": "actor.action_args"}
"""Names of the heads of continuous actions in DI-engine, and of the same ones here."""
ENCODERS: dict[type[nn.Module], dict[str, str]] = {
    VAC: {"encoder": "encoder", "actor_encoder": "encoder", "critic_encoder": "critic_encoder"},
    ContinuousQAC: {"actor_encoder": "actor.encoder", "critic_encoder": "critic.encoder"},
}
"""The same of encoders; networks that are not listed have one, ``encoder``."""
OPTIONS = {
    r".*encoder\b": ("obs_shape", "encoder_hidden_size_list", "encoder_kwargs", "share_encoder"),
    r"head\b|advantage|value": ("action_shape", "dueling", "head_hidden_size", "head_layer_num"),
    r"advantage|value|.*advantage|.*value": ("n_atom", "num_quantiles"),
    r"actor\b": ("action_shape", "action_space", "actor_head_hidden_size", "actor_head_layer_num", "sigma_type"),
    r".*\bnorms\b": ("layer_norm",),
    r"critic\b": ("twin_critic", "critic_head_hidden_size", "critic_head_layer_num"),
}
"""Options of ``model`` that decide which parameters there are, by the beginning of a parameter's name."""


def load_ding_checkpoint(policy: Any, path: str | os.PathLike[str]) -> None:
    """Copy the weights of a DI-engine checkpoint into the network of a policy, and into its target network.

    Nothing else is loaded: DI-engine's checkpoints contain neither SAC's temperature nor the statistics of PPO's
    ``value_norm``, and the optimizers keep their state. Without a target network in the file, the target becomes a copy
    of the network. If anything does not fit, the policy is unchanged.

    Args:
        policy: The policy, a :class:`Policy`. Its network is built if it is attached to a Trainer whose env is known.
        path: File that DI-engine saved, with the entry ``model`` and, for policies with a target network,
            ``target_model``.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it contains anything but tensors and builtins, or its weights do not fit the network.
        TypeError: If the policy's network is not one of this library.
        RuntimeError: If the policy has no network, and its spaces are unknown.
    """
    if not policy.is_built:
        policy.configure_model()
    content = read(path)
    weights = fitting(policy.model, content["model"], path)
    target = getattr(policy, "target_model", None)
    target_weights = weights
    if target is not None and "target_model" in content:
        target_weights = fitting(target, content["target_model"], path)
    _copy(weights, policy.model)
    if target is not None:
        _copy(target_weights, target)
    policy.has_loaded_weights = True


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the content of a checkpoint of DI-engine, on the CPU, without executing anything in it.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it contains anything but tensors and builtins, or has no entry ``model`` of tensors.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, zipfile.BadZipFile, EOFError, RuntimeError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())
        unsafe = re.search(r"GLOBAL (\S+)", reason)
        kind = f"it contains {unsafe[1]}, and only tensors are read" if unsafe else "torch.load cannot read it"
        raise ValueError(f"{os.fspath(path)} is not a checkpoint of weights: {kind}") from None
    if not isinstance(content, dict) or not _is_state(content.get("model")):
        found = sorted(map(str, content)) if isinstance(content, dict) else type(content).__name__
        raise ValueError(
            f"{os.fspath(path)} is not a checkpoint of DI-engine: it has no entry 'model' of tensors, got {found}"
        )
    return content


def fitting(model: nn.Module, weights: Mapping[str, Tensor], path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Return the weights of every parameter of a network by the names here.

    Args:
        model: The network.
        weights: State dict of DI-engine's network.
        path: File that they come from, for errors.

    Raises:
        ValueError: If a tensor is missing or left over, or has another shape; the message names them and the options of
            the policy's ``model`` that decide which there are.
        TypeError: If the network is not one of this library.
    """
    named = translate(model, weights)
    expected = {name: parameter.shape for name, parameter in model.named_parameters()}
    problems: dict[str, str] = {}
    for name in [*expected, *(name for name in named if name not in expected)]:
        source, tensor = named.get(name, ("", None))
        if tensor is None:
            problems[name] = f"{name} is missing"
        elif name not in expected:
            problems[name] = f"{source} is left over"
        elif tensor.shape != expected[name]:
            shapes = f"{tuple(expected[name])} of {name}, got {tuple(tensor.shape)}"
            problems[name] = f"{source} must have the shape {shapes}"
    if problems:
        what = f"{os.fspath(path)} does not fit {type(model).__name__}"
        raise ValueError(f"{what}: {_summary(model, problems)} to describe the network of the file")
    return {name: tensor for name, (_, tensor) in named.items()}


def _summary(model: nn.Module, problems: dict[str, str]) -> str:
    """Return one problem of each of the first layers, and the options of the policy's ``model`` to set."""
    layers = {name.rpartition(".")[0]: name for name in reversed(problems)}
    listed = list(reversed(layers.values()))[:MOST_PROBLEMS]
    more = f"; and {len(layers) - MOST_PROBLEMS} more" if len(layers) > MOST_PROBLEMS else ""
    known = inspect.signature(type(model)).parameters
    options = [
        option for name in listed for pattern in OPTIONS if re.match(pattern, name) for option in OPTIONS[pattern]
    ]
    keys = ", ".join(f"model.{option}" for option in dict.fromkeys(options) if option in known)
    return f"{'; '.join(problems[name] for name in listed)}{more}. Set {keys or 'model'}"


def translate(model: nn.Module, weights: Mapping[str, Tensor]) -> Named:
    """Return tensors of DI-engine, weights or gradients, by the names of the parameters here.

    A tensor that has no counterpart keeps its name.

    Args:
        model: The network, which decides on the names.
        weights: Tensors by the names of DI-engine's network of the same kind, in the order of its layers.

    Raises:
        TypeError: If the network is not one of this library.
        ValueError: If the network is that of hybrid actions of DDPG or TD3.
    """
    network = next((one for one in NETWORKS if isinstance(model, one)), None)
    if network is None:
        names = ", ".join(one.__name__ for one in NETWORKS)
        raise TypeError(f"weights of DI-engine load into {names}, got a {type(model).__name__}")
    weights = _without_copies(model, weights)
    named: Named = {}
    for source, target in ENCODERS.get(network, {"encoder": "encoder"}).items():
        named |= _encoder(model, source, target, weights)
    if isinstance(model, ContinuousQAC):
        named |= _critics(weights) | _actor(model, weights)
    else:
        named |= _heads(weights, HEADS[network]) | _gaussian(weights)
    used = {part for source, _ in named.values() for part in source.split(" and ")}
    return named | {name: (name, tensor) for name, tensor in weights.items() if name not in used}


def _without_copies(model: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights without second names of the same tensors, and without noise."""
    if isinstance(model, RainbowDQN):
        return {name: tensor for name, tensor in weights.items() if not name.endswith(("weight_eps", "bias_eps"))}
    if not isinstance(model, (VAC, ContinuousQAC)):
        return dict(weights)
    kept = {name: tensor for name, tensor in weights.items() if not re.match(r"(actor|critic)\.\d+\.", name)}
    if isinstance(model, ContinuousQAC) and model.actor.encoder is None:  # DI-engine saves a shared encoder twice
        critic = {f"actor_{name.removeprefix('critic_')}": kept[name] for name in kept if "critic_encoder" in name}
        kept = {name: one for name, one in kept.items() if name not in critic or not torch.equal(one, critic[name])}
    return kept


def _layers(weights: Mapping[str, Tensor], source: str) -> list[str]:
    """Return the names of the layers below ``source``, in order."""
    return list(dict.fromkeys(name.rpartition(".")[0] for name in weights if name.startswith(f"{source}.")))


def _parts(weights: Mapping[str, Tensor], layer: str) -> Iterator[tuple[str, str, Tensor]]:
    """Yield the full name, the last part of it and the tensor of each parameter of a layer."""
    for name, tensor in weights.items():
        if name.rpartition(".")[0] == layer:
            yield name, name.rpartition(".")[2], tensor


def _stack(weights: Mapping[str, Tensor], layers: list[str], target: str, kind: str = "layers") -> Named:
    """Return the parameters of an ``MLP`` named ``target``, or of convolutions, from those of layers in order."""
    named: Named = {}
    linear = normal = 0
    for layer in layers:
        parts = list(_parts(weights, layer))
        is_normal = all(tensor.ndim == 1 for _, _, tensor in parts)  # weight and bias of a layer normalisation
        place = f"norms.{normal}" if is_normal else f"{kind}.{linear}"
        named |= {f"{target}.{place}.{last}": (name, tensor) for name, last, tensor in parts}
        linear, normal = linear + (not is_normal), normal + is_normal
    return named


def _encoder(model: nn.Module, source: str, target: str, weights: Mapping[str, Tensor]) -> Named:
    layers = _layers(weights, source)
    module: Any = model
    for part in target.split("."):
        module = getattr(module, part, None)
    if isinstance(model, ContinuousQAC) and module is None:  # the actor uses the critics' encoder
        return {}
    if isinstance(module, Described):
        target = f"{target}.encoder"
    if f"{source}.mid" not in layers:
        return _stack(weights, layers, target)
    convolutions = [layer for layer in layers if layer != f"{source}.mid"]
    named = _stack(weights, convolutions, target, "convolutions")
    return named | _stack(weights, [f"{source}.mid"], f"{target}.linear")


def _heads(weights: Mapping[str, Tensor], heads: Mapping[str, str]) -> Named:
    named: Named = {}
    for source, target in heads.items():
        named |= _stack(weights, _layers(weights, source), target)
        head, _, stream = source.partition(".")
        place = target.partition(".")  # head.pred.0.A of a multi-discrete action is head.heads.0.advantage
        for number in _numbers(weights, f"{head}.pred"):
            one = ".".join(part for part in (place[0], "heads", number, place[2]) if part)
            named |= _stack(weights, _layers(weights, f"{head}.pred.{number}.{stream}"), one)
    return named


def _numbers(weights: Mapping[str, Tensor], source: str) -> list[str]:
    found = (re.match(rf"{re.escape(source)}\.(\d+)\.", name) for name in weights)
    return list(dict.fromkeys(match[1] for match in found if match))


def _gaussian(weights: Mapping[str, Tensor]) -> Named:
    """Return the parameters of the output layers of a ``GaussianHead``."""
    named: Named = {}
    for source, target in GAUSSIANS.items():
        for layer, own in {"mu": "mu", "log_sigma_layer": "sigma_layer"}.items():
            parts = _parts(weights, f"{source}.{layer}")
            named |= {f"{target}.{own}.{last}": (name, tensor) for name, last, tensor in parts}
        name = f"{source}.log_sigma_param"
        if name in weights:
            named[f"{target}.log_sigma"] = (name, weights[name].flatten())  # (1, A) in DI-engine
    return named


def _actor(model: ContinuousQAC, weights: Mapping[str, Tensor]) -> Named:
    """Return the parameters of the actor's ``MLP``; mean and deviation are one layer here, and two in DI-engine."""
    if model.action_space == "hybrid":
        raise ValueError("weights of hybrid actions of DDPG and TD3 do not load: DI-engine has two actor networks")
    layers = _layers(weights, "actor_head")
    outputs = [layer for layer in layers if layer.endswith((".mu", ".log_sigma_layer"))]
    hidden = [layer for layer in layers if layer not in outputs]
    named = _stack(weights, hidden, "actor.head")
    if outputs:
        place = f"actor.head.layers.{sum('.layers.' in name for name in named) // 2}"
        pairs = zip(*(_parts(weights, layer) for layer in outputs), strict=True)
        for parts in pairs:
            names = " and ".join(name for name, _, _ in parts)
            named[f"{place}.{parts[0][1]}"] = (names, torch.cat([tensor for _, _, tensor in parts]))
    return named


def _critics(weights: Mapping[str, Tensor]) -> Named:
    """Return the parameters of the critics' ``EnsembleMLP``: weights (E, I, O), biases (E, 1, O)."""
    is_twin = any(name.startswith("critic_head.1.") for name in weights)  # number 1 of a single one is an activation
    sources = [f"critic_head.{number}" for number in _numbers(weights, "critic_head")] if is_twin else ["critic_head"]
    members = [_stack(weights, _layers(weights, source), "critic") for source in sources]
    named: Named = {}
    for name in members[0]:
        _, kind, number, last = name.split(".")
        tensors = [member[name][1] for member in members if name in member]
        if kind == "norms" or len(tensors) < len(members) or len({tensor.shape for tensor in tensors}) > 1:
            continue  # left over
        stacked = torch.stack([tensor.T if last == "weight" else tensor[None] for tensor in tensors])
        source = " and ".join(member[name][0] for member in members)
        named[f"critic.head.{'weights' if last == 'weight' else 'biases'}.{number}"] = (source, stacked)
    return named


def _is_state(state: Any) -> bool:
    return isinstance(state, dict) and all(isinstance(tensor, Tensor) for tensor in state.values())


@torch.no_grad()
def _copy(weights: Mapping[str, Tensor], model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        parameter.copy_(weights[name])
