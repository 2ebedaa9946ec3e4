"""The attributes of a policy by name, and the forms of policy classes and data that come from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
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
PROPERTIES = {name for name in NAMES if isinstance(getattr(PolicyAttributes, name), property)} - {"module"}
"""Attributes that an own ``get_attribute`` gives to workers and datamodules."""
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

    @property
    def keeps_double(self) -> bool:
        """Whether observations of double precision are stored as such."""
        return bool(cast(Any, self).normaliser.keeps_double)


class Asked(property):
    """An attribute that is read with the ``get_attribute`` of a subclass.

    Args:
        name: Name of the attribute.
        inner: What the same class has under this name; None for that of its bases.
    """

    def __init__(self, name: str, inner: Any = None) -> None:
        super().__init__(lambda policy: policy.get_attribute(name))
        self.inner = inner


def _read_methods(cls: type) -> None:
    """Read each method ``_get_<name>`` of a class, or of a base that is no policy, as an attribute."""
    for position, one in enumerate(cls.__mro__):
        if one is not cls and issubclass(one, NamedAttributes):
            continue
        for name in NAMES & {member.removeprefix("_get_") for member in vars(one) if member.startswith("_get_")}:
            is_first = not any({name, f"_get_{name}"} & vars(nearer).keys() for nearer in cls.__mro__[:position])
            if is_first:
                setattr(cls, name, property(partial(_call, name=f"_get_{name}")))


def _call(policy: Any, name: str) -> Any:
    return getattr(policy, name)()


def _ask_own_method(cls: type) -> None:
    """Read attributes with ``get_attribute`` if a class outside of this package has overridden it."""
    owner = next(one for one in cls.__mro__ if one is NamedAttributes or "get_attribute" in vars(one))
    if owner.__module__.partition(".")[0] == "lightning_ding":
        return
    is_new = owner is cls or not issubclass(owner, NamedAttributes)
    for name in (name for name in PROPERTIES if is_new or name in vars(cls)):
        setattr(cls, name, Asked(name, vars(cls).get(name)))


def _member_of(cls: type, name: str) -> Any:
    """Return what a class has under a name, without regard to an own ``get_attribute``."""
    found = (vars(one)[name] for one in cls.__mro__ if name in vars(one))
    own = (one.inner if isinstance(one, Asked) else one for one in found)
    return next(one for one in own if one is not None)


def get(policy: Any, name: str) -> Any:
    """Return an attribute of :class:`PolicyAttributes`, the result of ``_get_<name>()``, or ``_<name>``.

    Raises:
        NotImplementedError: If the policy has none of them; the message names the attribute.
    """
    if name in OTHERS and not hasattr(type(policy), f"_get_{name}"):
        return OTHERS[name](policy)
    if isinstance(getattr(type(policy), name, None), Asked):  # whose function may have called this one
        member = _member_of(type(policy), name)
        return member.__get__(policy, type(policy)) if hasattr(member, "__get__") else member
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
    is_computed = name in NAMES and not (is_open and _member_of(type(policy), name) is getattr(PolicyAttributes, name))
    if is_computed or name in OTHERS or hasattr(type(policy), f"_get_{name}"):
        raise AttributeError(f"{name!r} is computed by {type(policy).__name__}; change its config instead")
    setattr(policy, f"_{name}", value)
