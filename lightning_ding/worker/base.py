"""Workers: their common base class, and how a config section names the one to build."""

from __future__ import annotations

import copy
from abc import ABC
from collections.abc import Mapping
from dataclasses import is_dataclass
from types import TracebackType
from typing import Any, ClassVar

from easydict import EasyDict
from typing_extensions import Self

from lightning_ding.config import ConfigLike, deep_merge, resolve, to_dict, to_easydict, without_defaults
from lightning_ding.registry import Registry, import_modules

SELECTION = frozenset({"type", "import_names"})  # keys that select the class of a worker


class DefaultsOfClass:
    """The defaults of a worker class as a new plain dict, its class attribute ``config``; instances have their own."""

    def __get__(self, instance: Any, owner: type[Worker]) -> dict[str, Any]:
        defaults: dict[str, Any] = deep_merge(owner.default_config(), {})
        return defaults


class Worker(ABC):
    """A context manager that closes its own objects, configured by a section of a policy's config.

    A subclass that sets ``config`` to a dict has its keys as defaults.
    """

    config: Any = DefaultsOfClass()
    config_class: ClassVar[type[Any]]
    registry: ClassVar[Registry[Any]]
    config_keys: ClassVar[frozenset[str]] = frozenset()
    """Keys of the section that have an effect in this class, in addition to ``type`` and ``import_names``. A class that
    only sets ``config_class`` has all its keys."""

    def __init_subclass__(cls) -> None:
        """Take the keys of a new ``config_class``."""
        super().__init_subclass__()
        own = vars(cls)
        if "config_class" in own and "config_keys" not in own:
            cls.config_keys = frozenset(to_dict(cls.config_class())) - SELECTION

    @classmethod
    def default_config(cls) -> EasyDict:
        """Return the defaults of the worker's keys as a new ``EasyDict``."""
        own = next(vars(one)["config"] for one in cls.__mro__ if "config" in vars(one))
        if isinstance(own, Mapping):
            return EasyDict(copy.deepcopy(dict(own)) | {"cfg_type": f"{cls.__name__}Dict"})
        defaults = to_easydict(cls.config_class())
        named = {"type": cls.registry.name_of(cls), "cfg_type": f"{cls.__name__}Dict"}
        return EasyDict({key: value for key, value in defaults.items() if key in cls.config_keys | SELECTION} | named)

    @classmethod
    def resolve_config(cls, cfg: ConfigLike[Any]) -> Any:
        """Return the config dataclass for a constructor argument.

        Raises:
            ValueError: If a key is unknown or has no effect in this worker, or its value is out of range.
            TypeError: If a value has the wrong type.
        """
        section = to_dict(cfg) if is_dataclass(cfg) and not isinstance(cfg, type) else cfg
        return resolve(cls.config_class, cls.own_keys(section) if isinstance(section, Mapping) else section)

    @classmethod
    def own_keys(cls, section: Mapping[str, Any], path: str = "") -> dict[str, Any]:
        """Return a section without the keys of other workers, which must hold their defaults, as in a saved config.

        Args:
            section: Keys and values.
            path: Start of the keys in error messages, such as ``"other.replay_buffer."``.

        Raises:
            ValueError: If a key of another worker does not have its default value.
            TypeError: If such a key has a value of the wrong type.
        """
        own = cls.config_keys | SELECTION
        given = {key: value for key, value in section.items() if key != "cfg_type"}
        kept = given if given.keys() <= own else without_defaults(given, own, [cls.config_class])
        if kept.keys() <= own:
            return kept
        classes = [cls.config_class, *cls.registry.config_classes()]
        kept = without_defaults(given, own, classes)
        for key in [key for key in kept if key not in own]:
            owner = next((one for one in classes if key in to_dict(one())), None)
            if owner is not None:  # else resolve_config() raises the error of an unknown key
                resolve(owner, {name: value for name, value in kept.items() if name in to_dict(owner())}, path)
                keys = ", ".join(sorted(cls.config_keys))
                raise ValueError(
                    f"config key {key!r} does nothing in {cls.__name__}, got {kept[key]!r}; its keys: {keys}"
                )
        return kept

    def close(self) -> None:  # noqa: B027 - optional
        """Release what the worker made itself; may be called more than once."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def get_class(registry: Registry[Any], cfg: Any, default_type: str | None = None) -> Any:
    """Return the class that a section's ``type`` names, after importing its ``import_names``.

    Args:
        registry: Registry of the classes.
        cfg: A config dataclass or a mapping; None for an empty one.
        default_type: Type of a ``cfg`` without a ``type``.

    Raises:
        KeyError: If the type is missing or not registered.
        TypeError: If ``cfg`` is something else.
    """
    section: Any = {} if cfg is None else to_dict(cfg) if is_dataclass(cfg) else cfg
    if not isinstance(section, Mapping):
        raise TypeError(f"a {registry.kind} config must be a dataclass or a mapping, got {type(cfg).__name__}")
    import_modules(section.get("import_names", ()))
    name = section.get("type", default_type)
    if name is None:
        raise KeyError(
            f"a {registry.kind} config needs a 'type', one of {list(registry)}; got the keys {sorted(section)}"
        )
    return registry.get(name)
