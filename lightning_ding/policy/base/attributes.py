"""The attributes and modes of a policy that workers use, and the config of a class from elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, cast

import numpy as np
import torch
from easydict import EasyDict
from torch import Tensor

from lightning_ding.config import MARK, to_dict, to_easydict
from lightning_ding.utils.attributes import NAMES, PolicyAttributes
from lightning_ding.utils.foreign import foreign
from lightning_ding.utils.modes import CollectMode, CommandMode, EvalMode, LearnMode

OTHERS: dict[str, Callable[[Any], Any]] = {
    "cfg": lambda policy: policy.cfg,
    "cuda": lambda policy: torch.device(policy.device).type == "cuda",
    "cur_lr": lambda policy: policy.cur_lr(),
    "device": lambda policy: torch.device(policy.device),
    "progress": lambda policy: policy.progress,
}
"""Attributes that a mode gives in addition to those of :class:`PolicyAttributes`."""
NO_CONFIG_CLASS = "a class with a dict config has no list of its keys; use it with serial_pipeline or Trainer.fit"
PROPERTIES = {name for name in NAMES if isinstance(getattr(PolicyAttributes, name), property)} - {"module"}
"""Attributes that an own ``get_attribute`` gives to workers and datamodules."""
SETTABLE = {"collect_data": None, "discount_factor": None, "update_per_collect": "learn"}
"""Attributes that may be set where neither an algorithm nor its config has them, and their section of the config."""


class DefaultConfig:
    """The default config of a policy class as a new dict, its class attribute ``config``.

    The attribute ``config`` of an instance hides it.
    """

    def __get__(self, instance: Any, owner: Any) -> dict[str, Any]:
        whole = to_dict(owner.config_class()) if hasattr(owner, "config_class") else foreign("policies.names").base()
        return {key: value for key, value in whole.items() if key != MARK}


class AttributesAndModes(PolicyAttributes):
    """The attributes of a policy of this package by name, and its modes: what workers may call.

    A subclass with a dict ``config`` in place of a config dataclass gets the base that can run it, and names that a
    policy does not have here are looked up, in :mod:`lightning_ding.di_engine.policies`.
    """

    config: Any = DefaultConfig()
    has_dict_config: ClassVar[bool] = False
    supports_tensors: ClassVar[bool] = False
    """Whether it can act and learn with ``mode="tensor"`` of a datamodule."""
    reads_weights_after_step: ClassVar[bool] = False
    """Whether ``_process_transition`` reads the network."""
    tensor_envs: int | None = None
    """Number of the tensor envs that it acts in; None with arrays, where random numbers come from ``rng``."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Read the methods ``_get_<name>`` and an own ``get_attribute``, and find the base of a class with a dict."""
        super().__init_subclass__(**kwargs)
        _read_methods(cls)
        _ask_own_method(cls)
        has_class = hasattr(cls, "config_class")
        own = [vars(one).get("config") for one in (cls.__mro__ if not has_class else (cls,))]
        if cls.has_dict_config or (not has_class and any(isinstance(one, Mapping) for one in own)):
            foreign("policies.policy").adopt(cls)
        elif isinstance(own[0], Mapping):
            known = cls.config_class.__name__  # type: ignore[attr-defined]
            raise TypeError(
                f"{cls.__name__}.config is not read, because the defaults are those of {known}; "
                f"set others in a dataclass that derives from {known}, as config_class"
            )

    def __new__(cls, *_: Any, **__: Any) -> Any:
        """Return a new instance; a class without any config, and without subclasses, gets its base now."""
        if not hasattr(cls, "config_class") and not cls.__subclasses__():
            foreign("policies.policy").adopt(cls)
        return super().__new__(cls)

    @classmethod
    def default_config(cls) -> EasyDict:
        """Return the defaults as a new ``EasyDict``; raise RuntimeError on a base class, which has none."""
        if not hasattr(cls, "config_class"):
            raise RuntimeError(f"{cls.__name__} is a base class and has no default config")
        return EasyDict(to_easydict(cls.config_class()), cfg_type=f"{cls.__name__}Dict")

    def load_ding_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Load the weights of a foreign checkpoint; see :mod:`lightning_ding.di_engine.checkpoint`."""
        foreign("checkpoint").load_ding_checkpoint(self, path)

    @property
    def noise_source(self) -> np.random.Generator | None:
        """The source of random numbers while acting and learning; None for torch's generator on the device."""
        return cast(Any, self).rng if self.tensor_envs is None else None

    def reset_collect_where(self, ended: Tensor | None) -> None:
        """Reset the collecting state of the tensor envs where ``ended`` is true, shape (N,); None means all."""
        if ended is None:
            cast(Any, self)._reset_collect()

    @property
    def keeps_double(self) -> bool:
        """Whether observations of double precision are stored as such."""
        return bool(cast(Any, self).normaliser.keeps_double)

    @property
    def learn_mode(self) -> LearnMode:
        """The methods that a learner uses."""
        own = cast(Any, self)
        first = (own.learner.update_and_check, own._reset_learn, own.__repr__, own._monitor_vars_learn)
        return LearnMode(
            *first, self.get_attribute, self.set_attribute, own._state_dict_learn, own._load_state_dict_learn
        )

    @property
    def collect_mode(self) -> CollectMode:
        """The methods that a collector uses."""
        own = cast(Any, self)
        first = (own._collect, own._transition, own._get_train_sample, own._reset_collect)
        return CollectMode(
            *first, self.get_attribute, self.set_attribute, own._state_dict_collect, own._load_state_dict_collect
        )

    @property
    def eval_mode(self) -> EvalMode:
        """The methods that an evaluator uses."""
        own = cast(Any, self)
        by_name = (self.get_attribute, self.set_attribute)
        return EvalMode(own._evaluate, own._reset_eval, *by_name, own._network_state, own._load_network_state)

    @property
    def command_mode(self) -> CommandMode:
        """The methods that a commander uses; a policy with this mode alone has no network."""
        own = cast(Any, self)
        return CommandMode(own._get_setting_learn, own._get_setting_collect, own._get_setting_eval)

    def get_attribute(self, name: str) -> Any:
        """Return an attribute of :class:`PolicyAttributes`, the result of ``_get_<name>()``, or ``_<name>``.

        Raises:
            NotImplementedError: If the policy has none of them; the message names the attribute.
        """
        if name in OTHERS and not hasattr(type(self), f"_get_{name}"):
            return OTHERS[name](self)
        if isinstance(getattr(type(self), name, None), Asked):  # whose function may have called this one
            member = _member_of(type(self), name)
            return member.__get__(self, type(self)) if hasattr(member, "__get__") else member
        if name in NAMES:
            return getattr(self, name)
        if hasattr(type(self), f"_get_{name}"):
            return getattr(self, f"_get_{name}")()
        if hasattr(self, f"_{name}"):
            return getattr(self, f"_{name}")
        raise NotImplementedError(f"{type(self).__name__} has no attribute {name!r} for workers")

    def set_attribute(self, name: str, value: Any) -> None:
        """Set ``_<name>``.

        Raises:
            AttributeError: If the attribute is computed, so that setting it would have no effect.
        """
        is_open = name in SETTABLE and self._setting(name, SETTABLE[name]) is None
        is_computed = name in NAMES and not (
            is_open and _member_of(type(self), name) is getattr(PolicyAttributes, name)
        )
        if is_computed or name in OTHERS or hasattr(type(self), f"_get_{name}"):
            raise AttributeError(f"{name!r} is computed by {type(self).__name__}; change its config instead")
        setattr(self, f"_{name}", value)


class Asked(property):
    """An attribute that is read with the ``get_attribute`` of a subclass.

    Args:
        name: Name of the attribute.
        inner: Member of the same class with this name; None means that of its bases.
    """

    def __init__(self, name: str, inner: Any = None) -> None:
        super().__init__(lambda policy: policy.get_attribute(name))
        self.inner = inner


def _read_methods(cls: type) -> None:
    """Read each method ``_get_<name>`` of a class, or of a base that is no policy, as an attribute."""
    for position, one in enumerate(cls.__mro__):
        if one is not cls and issubclass(one, AttributesAndModes):
            continue
        for name in NAMES & {member.removeprefix("_get_") for member in vars(one) if member.startswith("_get_")}:
            is_first = not any({name, f"_get_{name}"} & vars(nearer).keys() for nearer in cls.__mro__[:position])
            if is_first:
                setattr(cls, name, property(partial(_call, name=f"_get_{name}")))


def _call(policy: Any, name: str) -> Any:
    return getattr(policy, name)()


def _ask_own_method(cls: type) -> None:
    """Read attributes with ``get_attribute`` if a class outside of this package has overridden it."""
    owner = next(one for one in cls.__mro__ if one is AttributesAndModes or "get_attribute" in vars(one))
    if owner.__module__.partition(".")[0] == "lightning_ding":
        return
    is_new = owner is cls or not issubclass(owner, AttributesAndModes)
    for name in (name for name in PROPERTIES if is_new or name in vars(cls)):
        setattr(cls, name, Asked(name, vars(cls).get(name)))


def _member_of(cls: type, name: str) -> Any:
    """Return the member of a class that would be read if ``get_attribute`` were not overridden."""
    found = (vars(one)[name] for one in cls.__mro__ if name in vars(one))
    own = (one.inner if isinstance(one, Asked) else one for one in found)
    return next(one for one in own if one is not None)
