"""DI-engine's names and forms of data for every policy.

:func:`with_reference_names` gives :class:`Policy` the attributes and methods that DI-engine documents, under its names.
:func:`adopt` gives a class that is written as DI-engine's documentation describes the base that can run it, see
:class:`ReferencePolicy`. The rest converts transitions and steps of single envs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from lightning_ding import nested
from lightning_ding.config import MARK, to_dict
from lightning_ding.model import create_model
from lightning_ding.policy.base import attributes
from lightning_ding.policy.base.rank_weights import average_gradients
from lightning_ding.utils.modes import CollectMode, CommandMode, EvalMode, LearnMode
from lightning_ding.utils.private_api import MODULES
from lightning_ding.utils.ranks import rank_and_world_size, world_size

PolicyClass = TypeVar("PolicyClass", bound=type)
TIME_LIMIT = "TimeLimit.truncated"
BASE_CONFIG: dict[str, Any] = {
    "on_policy": False,
    "cuda": False,
    "multi_gpu": False,
    "bp_update_sync": True,
    "traj_len_inf": False,
    "model": {},
    "learn": {},
    "collect": {},
    "eval": {},
    "other": {},
}
"""Keys that the config of every policy in DI-engine's form has."""


class DefaultConfig:
    """The default config of a policy class as a new dict, its class attribute ``config``.

    The attribute ``config`` of an instance hides it.
    """

    def __get__(self, instance: Any, owner: type) -> dict[str, Any]:
        made: Any = getattr(owner, "config_class", None)
        whole = copy.deepcopy(BASE_CONFIG) if made is None else to_dict(made())
        return {key: value for key, value in whole.items() if key != MARK}


class Alias:
    """An attribute under DI-engine's name; a policy that sets an attribute of that name has its own.

    Args:
        name: The name.
        read: Function of the policy that returns the value.
    """

    def __init__(self, name: str, read: Callable[[Any], Any]) -> None:
        self._name, self._read = name, read

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        modules: dict[str, Any] = instance.__dict__.get(MODULES, {})
        return modules[self._name] if self._name in modules else self._read(instance)


def _first_optimizer(policy: Any) -> Any:
    if not policy.updater.optimizers:
        raise AttributeError(f"{type(policy).__name__} has no optimizer: its learn mode is not initialised")
    return policy.updater.optimizers[0]


ALIASES: dict[str, Callable[[Any], Any]] = {
    "_bp_update_sync": lambda policy: True,
    "_cfg": lambda policy: policy.cfg,
    "_collect_model": lambda policy: policy.model,
    "_cuda": lambda policy: torch.device(policy.device).type == "cuda",
    "_enable_field": lambda policy: policy.enable_field,
    "_eval_model": lambda policy: policy.model,
    "_learn_model": lambda policy: policy.model,
    "_model": lambda policy: policy.model,
    "_on_policy": lambda policy: policy.on_policy,
    "_optimizer": _first_optimizer,
    "_rank": lambda policy: rank_and_world_size()[0],
    "_target_model": lambda policy: policy.target_model,
}
"""DI-engine's names of what every policy has; ``_device`` is Lightning's attribute of that name."""


def create_own_model(policy: Any, cfg: Mapping[str, Any], model: nn.Module | None = None) -> nn.Module:
    """Return ``model``, or without one the network that ``cfg["model"]`` describes (DI-engine's ``_create_model``).

    Names of DI-engine's modules in ``default_model()`` are left out if a network of that name is registered here.

    Raises:
        RuntimeError: If ``model`` is not an ``nn.Module``.
        KeyError: If no network of the name is registered.
    """
    if model is not None:
        if not isinstance(model, nn.Module):
            raise RuntimeError(f"model must be an nn.Module or None, got {type(model).__name__}")
        return model
    section = dict(cfg["model"])
    if "type" not in section:
        section["type"], section["import_names"] = policy.default_model()
    names = section.get("import_names") or ()
    return create_model(section | {"import_names": [name for name in names if name.partition(".")[0] != "ding"]})


def sync_gradients(model: nn.Module) -> None:
    """Average the gradients of a network over all ranks, in one all-reduce; a missing gradient counts as zero."""
    parameters: list[Tensor] = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if world_size() > 1 and parameters:
        average_gradients(parameters, parameters[0].new_zeros(()))


def make_instance(policy_class: type, *_: Any, **__: Any) -> Any:
    """Return a new instance; a class with neither a dict ``config`` nor a config dataclass is in DI-engine's form."""
    if not hasattr(policy_class, "config_class") and not policy_class.__subclasses__():
        adopt(policy_class)
    return object.__new__(policy_class)


METHODS: dict[str, Callable[..., Any]] = {
    "_create_model": create_own_model,
    "_get_attribute": lambda policy, name: policy.get_attribute(name),
    "_get_n_episode": lambda policy: attributes.COMPUTED["n_episode"](policy),
    "_get_n_sample": lambda policy: attributes.COMPUTED["n_sample"](policy),
    "_set_attribute": lambda policy, name, value: policy.set_attribute(name, value),
}
CLASSES = {
    "learn_function": LearnMode,
    "collect_function": CollectMode,
    "eval_function": EvalMode,
    "command_function": CommandMode,
}


def with_reference_names(policy_class: PolicyClass) -> PolicyClass:
    """Give a class the attributes and methods that DI-engine documents, as a decorator."""
    named = {name: Alias(name, read) for name, read in ALIASES.items()}
    owner: Any = policy_class

    def init_subclass(cls: Any, /, **kwargs: Any) -> None:
        super(owner, cls).__init_subclass__(**kwargs)
        if is_in_reference_form(cls):
            adopt(cls)
        elif isinstance(vars(cls).get("config"), Mapping):
            known = cls.config_class.__name__
            raise TypeError(
                f"{cls.__name__}.config is not read, because the defaults are those of {known}; "
                f"set others in a dataclass that derives from {known}, as config_class"
            )

    own = {"config": DefaultConfig(), "__new__": make_instance, "__init_subclass__": classmethod(init_subclass)}
    for name, value in {**named, **METHODS, **CLASSES, **own}.items():
        setattr(policy_class, name, value)
    _POLICY[:] = [policy_class]
    return policy_class


# ---------------------------------------------------------------------- classes in DI-engine's form

_POLICY: list[type] = []  # the class that was given the names
_BASES: list[type] = []  # the class that becomes the base of those in DI-engine's form


def adopts_with(base: PolicyClass) -> PolicyClass:
    """Declare the class that becomes the base of classes in DI-engine's form, as a decorator."""
    _BASES[:] = [base]
    return base


def is_in_reference_form(policy_class: type) -> bool:
    """Return whether a policy class, or one of its bases, has a dict ``config`` in place of a config dataclass."""
    if any(base in policy_class.__mro__ for base in _BASES):
        return True
    configs = [vars(one).get("config") for one in policy_class.__mro__]
    return not hasattr(policy_class, "config_class") and any(isinstance(config, Mapping) for config in configs)


def adopt(policy_class: type) -> None:
    """Replace :class:`Policy` in the bases of a class in DI-engine's form, and of its bases, by the class for it."""
    (policy,) = _POLICY
    for base in _BASES:
        for one in policy_class.__mro__:
            if policy in one.__bases__ and not one.__module__.startswith("lightning_ding."):
                one.__bases__ = tuple(dict.fromkeys(base if parent is policy else parent for parent in one.__bases__))


# ---------------------------------------------------------------------- data of single envs


class _Step(NamedTuple):
    """The step of one env, as a policy's ``_process_transition`` reads it."""

    next_obs: Any
    reward: Any
    terminated: bool
    truncated: bool


def step_of(timestep: Any) -> Any:
    """Return the step of one env in this project's form, if it is in DI-engine's: ``obs, reward, done, info``.

    An episode with ``info["TimeLimit.truncated"]`` ended by truncation.

    Example:
        >>> from collections import namedtuple
        >>> BaseEnvTimestep = namedtuple("BaseEnvTimestep", ["obs", "reward", "done", "info"])
        >>> step_of(BaseEnvTimestep(3.0, np.array([1.0]), True, {}))
        _Step(next_obs=3.0, reward=1.0, terminated=True, truncated=False)
    """
    if not hasattr(timestep, "done"):
        return timestep
    is_cut = bool(timestep.info.get(TIME_LIMIT, False))
    reward = timestep.reward.item() if isinstance(timestep.reward, (np.ndarray, Tensor)) else timestep.reward
    return _Step(timestep.obs, reward, bool(timestep.done) and not is_cut, bool(timestep.done) and is_cut)


def columns_of(transitions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a list of transitions as nested tensors with leading axis B, in this project's form.

    DI-engine's transitions have ``done`` in place of ``terminated``, rewards of shape (1,), and discrete actions of
    that shape.
    """
    columns = cast("dict[str, Any]", nested.stack(list(transitions)))
    if "done" not in columns or "terminated" in columns:
        return columns
    columns["terminated"] = columns.pop("done").bool()
    for name in ("reward", "terminated", "action"):
        column = columns.get(name)
        is_single = isinstance(column, Tensor) and column.ndim == 2 and column.shape[1] == 1
        if is_single and (name != "action" or not column.is_floating_point()):  # type: ignore[union-attr]
            columns[name] = column.squeeze(1)  # type: ignore[union-attr]
    return columns
