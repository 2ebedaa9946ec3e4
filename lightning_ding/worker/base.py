"""What all workers have in common: a config section and an end."""

from __future__ import annotations

import dataclasses
from abc import ABC
from types import TracebackType
from typing import Any, ClassVar

from easydict import EasyDict
from typing_extensions import Self

from lightning_ding.config import ConfigLike, resolve, to_easydict
from lightning_ding.registry import Registry


class Worker(ABC):
    """A context manager that closes what it made itself, configured by a section of a policy's config.

    A subclass names the section's keys that do something in it.
    """

    config_class: ClassVar[type[Any]]
    registry: ClassVar[Registry[Any]]
    config_keys: ClassVar[frozenset[str]] = frozenset()
    """Keys that do something here, beside ``type`` and ``import_names``."""

    @classmethod
    def default_config(cls) -> EasyDict:
        """Return the defaults of the worker's keys as an ``EasyDict``."""
        defaults = to_easydict(cls.config_class())
        keys = {"type", "import_names", *cls.config_keys}
        named = {"type": cls.registry.name_of(cls), "cfg_type": f"{cls.__name__}Dict"}
        return EasyDict({key: value for key, value in defaults.items() if key in keys} | named)

    @classmethod
    def resolve_config(cls, cfg: ConfigLike[Any]) -> Any:
        """Return the config dataclass that a constructor argument stands for.

        Raises:
            ValueError: If a key is unknown, does nothing in this worker, or its value is out of range.
            TypeError: If a value has the wrong type.
        """
        if isinstance(cfg, dict):
            cfg = {key: value for key, value in cfg.items() if key != "cfg_type"}  # default_config() writes it
        config = resolve(cls.config_class, cfg)
        for field, default in zip(dataclasses.fields(config), _values(cls.config_class()), strict=True):
            given = getattr(config, field.name)
            if field.name not in {"type", "import_names", *cls.config_keys} and given != default:
                known = ", ".join(sorted(cls.config_keys))
                raise ValueError(
                    f"config key {field.name!r} does nothing in {cls.__name__}, got {given!r}; its keys: {known}"
                )
        return config

    def close(self) -> None:  # noqa: B027 - optional
        """Release what the worker made itself; may be called more than once."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _values(config: Any) -> list[Any]:
    return [getattr(config, field.name) for field in dataclasses.fields(config)]
