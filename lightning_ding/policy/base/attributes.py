"""The attributes of a policy by name, and the forms of policy classes and data that come from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

import torch

from lightning_ding.config import MARK, to_dict
from lightning_ding.utils.attributes import NAMES, PolicyAttributes
from lightning_ding.utils.foreign import foreign

OTHERS: dict[str, Callable[[Any], Any]] = {
    "cfg": lambda policy: policy.cfg,
    "cuda": lambda policy: torch.device(policy.device).type == "cuda",
    "cur_lr": lambda policy: policy.cur_lr(),
    "device": lambda policy: torch.device(policy.device),
    "progress": lambda policy: policy.progress,
}
"""Attributes that a mode gives in addition to those of :class:`PolicyAttributes`."""
NO_CONFIG_CLASS = "a class with a dict config has no list of its keys; use it with serial_pipeline or Trainer.fit"
SETTABLE = {"collect_data": None, "discount_factor": None, "update_per_collect": "learn"}
"""Attributes that may be set where neither an algorithm nor its config has them, and their section of the config."""


class DefaultConfig:
    """The default config of a policy class as a new dict, its class attribute ``config``.

    The attribute ``config`` of an instance hides it.
    """

    def __get__(self, instance: Any, owner: Any) -> dict[str, Any]:
        whole = to_dict(owner.config_class()) if hasattr(owner, "config_class") else foreign("policies.data").base()
        return {key: value for key, value in whole.items() if key != MARK}


class NamedAttributes(PolicyAttributes):
    """The attributes of a policy of this package.

    A subclass with a dict ``config`` in place of a config dataclass gets the base that can run it, and names that a
    policy does not have here are looked up, in :mod:`lightning_ding.di_engine.policies`.
    """

    config: Any = DefaultConfig()
    has_dict_config: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Read methods ``_get_<name>`` as attributes, and find the base of a class with a dict ``config``."""
        super().__init_subclass__(**kwargs)
        for one in [base for base in cls.__mro__[::-1] if base is cls or not issubclass(base, NamedAttributes)]:
            for name in NAMES & {member.removeprefix("_get_") for member in vars(one) if member.startswith("_get_")}:
                setattr(cls, name, property(vars(one)[f"_get_{name}"]))
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

    @property
    def keeps_double(self) -> bool:
        """Whether observations of double precision are stored as such."""
        return bool(cast(Any, self).normaliser.keeps_double)


def get(policy: Any, name: str) -> Any:
    """Return an attribute of :class:`PolicyAttributes`, the result of ``_get_<name>()``, or ``_<name>``.

    Raises:
        NotImplementedError: If the policy has none of them; the message names the attribute.
    """
    if name in OTHERS and not hasattr(type(policy), f"_get_{name}"):
        return OTHERS[name](policy)
    if name in NAMES:
        return getattr(policy, name)
    if hasattr(type(policy), f"_get_{name}"):
        return getattr(policy, f"_get_{name}")()
    if hasattr(policy, f"_{name}"):
        return getattr(policy, f"_{name}")
    raise NotImplementedError(f"{type(policy).__name__} has no attribute {name!r} for workers")


def set_(policy: Any, name: str, value: Any) -> None:
    """Set ``_<name>``.

    Raises:
        AttributeError: If the attribute is computed, so that setting it would have no effect.
    """
    is_open = name in SETTABLE and policy._setting(name, SETTABLE[name]) is None
    is_computed = name in NAMES and not (is_open and getattr(type(policy), name) is getattr(PolicyAttributes, name))
    if is_computed or name in OTHERS or hasattr(type(policy), f"_get_{name}"):
        raise AttributeError(f"{name!r} is computed by {type(policy).__name__}; change its config instead")
    setattr(policy, f"_{name}", value)
