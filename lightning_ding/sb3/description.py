"""The algorithm of a model of Stable-Baselines3, and the arguments of its policy, from the JSON of its file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from lightning_ding.config import require

POLICIES = {
    "PPO": "ppo",
    "MaskablePPO": "ppo",
    "A2C": "a2c",
    "RecurrentPPO": "recurrent_ppo",
    "DQN": "dqn",
    "QRDQN": "qrdqn",
    "SAC": "sac",
    "TD3": "td3",
    "DDPG": "ddpg",
    "TQC": "tqc",
    "CrossQ": "crossq",
}
"""Policies here, by the names of the algorithms there."""
MODULES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "stable_baselines3.common.policies": lambda data: "PPO" if "n_epochs" in data else "A2C",
    "sb3_contrib.common.maskable.policies": lambda data: "MaskablePPO",
    "sb3_contrib.common.recurrent.policies": lambda data: "RecurrentPPO",
    "stable_baselines3.dqn.policies": lambda data: "DQN",
    "sb3_contrib.qrdqn.policies": lambda data: "QRDQN",
    "stable_baselines3.sac.policies": lambda data: "SAC",
    "stable_baselines3.td3.policies": lambda data: "DDPG" if _is_ddpg(data) else "TD3",
    "sb3_contrib.tqc.policies": lambda data: "TQC",
    "sb3_contrib.crossq.policies": lambda data: "CrossQ",
}
"""The algorithm of a model, by the module of its policy class; the file does not name the algorithm."""
ACTIVATIONS = {"Tanh": "tanh", "ReLU": "relu", "ELU": "elu", "GELU": "gelu", "SiLU": "silu"}
CLASS = re.compile(r"<class '([\w.]+)'>")
KNOWN_EXTRACTORS = ("FlattenExtractor", "NatureCNN", "CombinedExtractor")
REFUSED = {
    "squash_output": (False, "the mean of a PPO policy is not squashed here"),
    "batch_norm": (True, "crossq has batch renormalisation in every layer"),
    "batch_norm_eps": (0.001, "batch renormalisation adds 0.001 to variances"),
    "lstm_kwargs": (None, "the recurrent layers have no further arguments"),
}
"""Arguments of a policy that change its network in a way that there is not here: the only value, and the reason."""
READ = {
    *("net_arch", "activation_fn", "use_sde", "log_std_init", "full_std", "use_expln", "clip_mean", "n_critics"),
    *("n_quantiles", "features_extractor_class", "features_extractor_kwargs", "share_features_extractor"),
    *("normalize_images", "ortho_init", "optimizer_class", "optimizer_kwargs", "lstm_hidden_size", "n_lstm_layers"),
    *("shared_lstm", "enable_critic_lstm", "batch_norm_momentum", "renorm_warmup_steps", "sde_net_arch"),
}
"""Other arguments of a policy: those that the weights tell too, those of its training, and those that are read."""


def algorithm_of(data: Mapping[str, Any], name: str | None = None) -> str:
    """Return the name of a model's algorithm in Stable-Baselines3 or its contrib package.

    Args:
        data: The JSON of the file.
        name: Name of the algorithm there, or of the policy here, to use instead; None reads it off the file.

    Raises:
        ValueError: If the file does not tell it, or there is no such algorithm here.
    """
    names = ", ".join(POLICIES)
    if name is not None:
        found = [one for one, policy in POLICIES.items() if name.lower() in (one.lower(), policy)]
        require(bool(found), "algorithm", f"one of {names}", name)
        return found[0]
    described = data.get("policy_class")
    module = described.get("__module__") if isinstance(described, Mapping) else None
    allowed = f"a model of {names}; name the algorithm if it is one with a policy class of yours"
    require(module in MODULES, "the policy class of the model", allowed, module)
    return MODULES[str(module)](data)


def _is_ddpg(data: Mapping[str, Any]) -> bool:
    return policy_arguments(data).get("n_critics") == 1 and data.get("policy_delay") == 1


def policy_arguments(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``policy_kwargs`` of a model; classes are texts, such as ``<class 'torch.nn...ReLU'>``."""
    found = data.get("policy_kwargs")
    return {key: value for key, value in found.items() if not key.startswith(":")} if isinstance(found, Mapping) else {}


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Raise if the network of a model cannot be made here.

    Raises:
        ValueError: Naming the argument of its policy.
    """
    for key, value in arguments.items():
        name = f"policy_kwargs[{key!r}] of the model"
        if key in REFUSED:
            only, reason = REFUSED[key]
            require(value in (only, {}), name, f"{only}: {reason}", value)
        else:
            require(key in READ, name, f"one of {', '.join(sorted(READ))}", value)
    extractor = class_name(arguments.get("features_extractor_class"))
    way = "; register your own network, see the guide on networks, and copy its weights by hand"
    allowed = f"one of {', '.join(KNOWN_EXTRACTORS)}{way}"
    name = "the features_extractor_class of the model"
    require(extractor is None or extractor in KNOWN_EXTRACTORS, name, allowed, extractor)


def activation(arguments: Mapping[str, Any], default: str) -> str:
    """Return the activation of a model's layers by its name here.

    Raises:
        ValueError: If there is none of that name here.
    """
    found = class_name(arguments.get("activation_fn"))
    if found is None:
        return default
    require(found in ACTIVATIONS, "the activation_fn of the model", f"one of {', '.join(ACTIVATIONS)}", found)
    return ACTIVATIONS[found]


def class_name(text: Any) -> str | None:
    """Return the last part of a class's name, of ``<class 'torch.nn.modules.activation.ReLU'>`` or ``nn.ReLU``."""
    if text is None:
        return None
    found = CLASS.fullmatch(str(text))
    return (found[1] if found else str(text)).rpartition(".")[2]
