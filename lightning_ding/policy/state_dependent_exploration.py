"""Generalised state-dependent exploration (gSDE) of policies with continuous actions: its options, and acting with it.

Paper: Raffin et al. 2022 (https://arxiv.org/abs/2005.05719). The action is mu(s) + W z(s), where z(s) is the input of
the actor's last layer, and W is drawn for each env and kept for some steps. The standard deviations of the entries of W
are parameters of the network, see :class:`StateDependentSigma`.

Where this differs from Stable-Baselines3: by default a matrix is kept for an episode, there for a rollout; W scales
with its standard deviations from step to step, so the log densities are exact after an update within an episode too;
updates use the distribution of each action over all W, and SAC's draw the action of each state independently from it.

Shapes: B batch, F features, A dimensions of an action.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

from lightning_ding import rl
from lightning_ding.config import require
from lightning_ding.policy.base.recurrent import RecurrentSelector

PolicyClass = TypeVar("PolicyClass", bound=type)
NOISE = "_sde_noise"


@dataclass(frozen=True, kw_only=True)
class SDEModelConfig:
    """The options of the noise's standard deviations; to be mixed into the config of a network."""

    use_sde: bool = False
    """Explore with state-dependent noise (gSDE), which is smooth within an episode; for continuous actions."""
    full_std: bool = True
    """Learn a standard deviation for each pair of a feature and a dimension of the action; otherwise one for each
    feature. Needs use_sde."""
    use_expln: bool = False
    """Let standard deviations above 1 grow with the logarithm of their parameter instead of exponentially; needs
    use_sde."""


@dataclass(frozen=True, kw_only=True)
class SquashedSDEModelConfig(SDEModelConfig):
    """The options of the noise before squashing."""

    log_std_init: float | None = None
    """Logarithm of the initial standard deviations of the noise's weights; None means -3. Needs use_sde."""
    clip_mean: float | None = None
    """Bound of the mean before squashing, >= 0; 0 means none, None means 2. Needs use_sde."""


@dataclass(frozen=True, kw_only=True)
class SDECollectConfig:
    """How long noise lasts; to be mixed into the section that describes collecting."""

    sde_sample_freq: int | None = None
    """Steps after which an env draws new state-dependent noise, >= 1; None draws it once for an episode. Needs
    model.use_sde."""


def check_sde(model: Any, collect: SDECollectConfig) -> None:
    """Raise if the duration of the noise is out of its range, or there is no such noise.

    Raises:
        ValueError: Naming the option, the allowed values and the given value.
    """
    freq, use_sde = collect.sde_sample_freq, getattr(model, "use_sde", False)
    require(freq is None or use_sde, "collect.sde_sample_freq", "None without model.use_sde", freq)
    require(freq is None or freq >= 1, "collect.sde_sample_freq", ">= 1 or None", freq)


def uses_sde(policy: Any) -> bool:
    """Return whether a policy explores with state-dependent noise."""
    return bool(getattr(policy.config.model, "use_sde", False))


def with_noise(policy: Any, output: Mapping[str, Tensor]) -> Tensor:
    """Return actions of B envs with their noise, shape (B, A), in the network's units.

    Args:
        policy: A policy whose class :func:`explores_by_state` has changed.
        output: Output of the actor: ``mu`` (B, A), ``features`` (B, F) and ``std`` (F, A).

    Raises:
        ValueError: If a network passed as ``model`` does not return them.
    """
    needed = ("mu", "features", "std")
    found = all(name in output for name in needed)
    require(found, "the actor's output", f"a dict with {needed} with model.use_sde", list(output))
    noise: rl.StateDependentNoise = getattr(policy, NOISE)
    env_ids = policy._action_selector.env_ids
    return output["mu"] + noise.sample(output["features"], output["std"], policy.rng, env_ids)


def explores_by_state(policy_class: PolicyClass) -> PolicyClass:
    """Give a policy class the noise of each env, as a decorator; its ``_forward_collect`` calls :func:`with_noise`.

    The matrices, and the steps since they were drawn, are part of a checkpoint.
    """
    methods: dict[str, Any] = {
        "_selector_class": RecurrentSelector,
        "_init_collect": lambda self: self.__dict__.update(self.new_memory("collect")),
        "new_memory": _new_memory,
        "_reset_collect": _reset,
        "collect_memory": lambda self: getattr(self, NOISE).state_dict() if uses_sde(self) else {},
        "load_collect_memory": _load,
    }
    for name, method in methods.items():
        setattr(policy_class, name, method)
    return policy_class


def _new_memory(self: Any, way: str) -> dict[str, Any]:
    is_used = way == "collect" and uses_sde(self)
    return {NOISE: rl.StateDependentNoise(self.config.collect.sde_sample_freq)} if is_used else {}


def _reset(self: Any, data_id: Sequence[int] | None = None) -> None:
    if uses_sde(self):
        getattr(self, NOISE).reset(data_id)


def _load(self: Any, memory: Mapping[str, Any]) -> None:
    if uses_sde(self) and memory:  # empty if it was switched on after the checkpoint
        getattr(self, NOISE).load_state_dict(memory)
