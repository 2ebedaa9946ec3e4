"""A model of Stable-Baselines3 as a policy here: its name, config, spaces and tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from torch import Tensor

from lightning_ding.config import deep_merge, require
from lightning_ding.sb3.actor_and_critics import actor_and_critics
from lightning_ding.sb3.actor_critic import actor_critic, recurrent_actor_critic
from lightning_ding.sb3.archive import Archive
from lightning_ding.sb3.description import POLICIES, algorithm_of, check_arguments, policy_arguments
from lightning_ding.sb3.network import Network, SourceModel, discrete_size
from lightning_ding.sb3.q_networks import q_network
from lightning_ding.sb3.settings import DEFAULTS, translate
from lightning_ding.sb3.spaces import read_space
from lightning_ding.sb3.weights import Tensors, Weights

Spaces = tuple["spaces.Space[Any]", "spaces.Space[Any]"]
OBS_KEY, ACTION_KEY = "observation_space", "action_space"
OBSERVATION, MASK = "observation", "action_mask"
"""Entries of the observations of an env with the wrapper ``action_mask``."""
POSITIVE = r"\d{1,20}\.?\d{0,20}(?:[eE][-+]?\d{1,3})?"
CONSTANT = re.compile(rf"ConstantSchedule\(val=({POSITIVE})\)")
FALLING = re.compile(rf"LinearSchedule\(start=({POSITIVE}), end=0(?:\.0*)?, end_fraction=1(?:\.0*)?\)")
NETWORKS: dict[str, Callable[[SourceModel], Network]] = {
    **dict.fromkeys(("ppo", "a2c"), actor_critic),
    "recurrent_ppo": recurrent_actor_critic,
    **dict.fromkeys(("dqn", "qrdqn"), q_network),
    **dict.fromkeys(("sac", "tqc", "td3", "ddpg", "crossq"), actor_and_critics),
}
"""Translations of networks, by the names of the policies here."""


class Model(NamedTuple):
    """A model, translated."""

    policy: str
    """Registered name of its policy."""
    cfg: dict[str, Any]
    """Config of the policy."""
    spaces: Spaces
    """The spaces of its env, which has an action mask if the model takes one."""
    tensors: Tensors
    """The state dict of ``policy.model``."""
    target: Tensors
    """Entries that differ in ``policy.target_model``."""
    log_temperature: Tensor | None
    """Logarithm of the learned temperature."""
    notes: tuple[str, ...]
    """Parts of the model that are not translated, which do not change greedy actions."""
    was_normalised: bool
    """Whether the file shows that the env of the run had a ``VecNormalize``."""
    num_envs: int
    """Number of envs of its run."""
    is_masked: bool
    """Whether its observations have an action mask."""


def translate_model(
    archive: Archive,
    shape_of: Callable[[spaces.Space[Any]], Any],
    algorithm: str | None = None,
    env_spaces: Spaces | None = None,
) -> Model:
    """Return a model as a policy here.

    Args:
        archive: The content of its file.
        shape_of: Function that returns the ``model.obs_shape`` of an observation space.
        algorithm: Name of its algorithm; None reads it off the file.
        env_spaces: Observation and action space of its env; None reads them off the file.

    Raises:
        ValueError: If the file lacks something, or the model has something that there is not here.
    """
    data, arguments = archive.data, policy_arguments(archive.data)
    name = algorithm_of(data, algorithm)
    check_arguments(arguments)
    policy = POLICIES[name]
    if env_spaces is None:
        env_spaces = (read_space(data.get(OBS_KEY), OBS_KEY), read_space(data.get(ACTION_KEY), ACTION_KEY))
    inner, action_space = _without_mask(env_spaces[0]), env_spaces[1]
    weights = Weights(archive.weights)
    described = SourceModel(policy, arguments, weights, inner, action_space, shape_of(inner), name == "MaskablePPO")
    network = NETWORKS[policy](described)
    weights.ignore(r"log_std$|(q_net_target|quantile_net_target|(actor|critic)_target)\.")
    allowed = "layers that a policy of Stable-Baselines3 has by itself"
    require(not weights.left(), "the weights of the model", allowed, weights.left()[:4])
    given, unread = _hyper_parameters(data, policy)
    settings = translate(policy, given)
    cfg = deep_merge(settings.policy, {"model": network.section})
    notes = [*network.notes, *(f"{key}: {reason}" for key, reason in settings.without.items())]
    if unread:
        notes.append(f"{', '.join(unread)}: only a pickle in the file holds it, so the default is used; pass cfg")
    outer = _with_mask(inner, action_space) if described.is_masked else inner
    temperature = archive.variables.get("log_ent_coef")
    was_normalised = policy in ("ppo", "a2c", "recurrent_ppo") and data.get("_last_original_obs") is not None
    found = (network.tensors, network.target, temperature, tuple(notes), was_normalised)
    return Model(policy, cfg, (outer, action_space), *found, settings.data["num_envs"], described.is_masked)


def _without_mask(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """Return the observation space of an env without the wrapper ``action_mask``."""
    if not isinstance(space, spaces.Dict) or MASK not in space.spaces:
        return space
    rest = {name: part for name, part in space.spaces.items() if name != MASK}
    return rest[OBSERVATION] if list(rest) == [OBSERVATION] else spaces.Dict(list(rest.items()))


def _with_mask(space: spaces.Space[Any], action_space: spaces.Space[Any]) -> spaces.Dict:
    """Return the observation space of an env with the wrapper ``action_mask``."""
    parts = dict(space.spaces) if isinstance(space, spaces.Dict) else {OBSERVATION: space}
    return spaces.Dict([*parts.items(), (MASK, spaces.Box(0, 1, (discrete_size(action_space),), np.int8))])


def _hyper_parameters(data: Mapping[str, Any], policy: str) -> tuple[dict[str, Any], list[str]]:
    """Return the hyper-parameters of a model that the file shows, and the names of the others."""
    given: dict[str, Any] = {}
    unread = []
    for key in DEFAULTS[policy]:
        if key not in data:
            continue
        value = _plain(data[key])
        if value is None and data[key] is not None:
            unread.append(key)
        else:
            given[key] = value
    given |= _exploration(data, policy)
    return given, unread


def _plain(value: Any) -> Any:
    """Return a value of the file, a schedule as a number or ``lin_x``; None if only a pickle holds it."""
    if not isinstance(value, Mapping):
        return value
    text = str(value.get("value_schedule", ""))
    constant, falling = CONSTANT.fullmatch(text), FALLING.fullmatch(text)
    if constant is not None:
        return float(constant[1])
    return None if falling is None else f"lin_{falling[1]}"


def _exploration(data: Mapping[str, Any], policy: str) -> dict[str, Any]:
    """Return the exploration that the model has reached, and the noise of its actions."""
    rate = data.get("exploration_rate")
    if policy in ("dqn", "qrdqn") and isinstance(rate, (int, float)):
        return {"exploration_initial_eps": float(rate)}
    noise = data.get("action_noise")
    if policy not in ("td3", "ddpg") or not isinstance(noise, Mapping):
        return {}
    sizes = {*re.findall(POSITIVE, str(noise.get("_sigma", "")))}
    kind = "ornstein-uhlenbeck" if "Ornstein" in str(noise.get(":type:")) else "normal"
    return {"noise_type": kind, "noise_std": float(sizes.pop())} if len(sizes) == 1 else {}
