"""Registries: names of classes, so that a config can choose which one to build."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any, Generic, TypeVar

from lightning_ding.config import nearest

T = TypeVar("T", bound=Callable[..., Any])


class NotRegisteredError(KeyError):
    """A name that no entry of a registry has."""


class Registry(Generic[T]):
    """A table of classes or functions by name.

    Args:
        kind: Kind of the entries, for error messages, such as ``"policy"``.
        home: Package of the built-in entries. A look-up imports the module of the package that has the entry's name;
            an unknown name, or iteration, imports all that the package exports.
        modules: Modules of ``home`` by the names of their entries, where the two differ.

    Example:
        >>> shapes = Registry("shape")
        >>> @shapes.register("round")
        ... class Circle:
        ...     def __init__(self, radius): self.radius = radius
        >>> shapes.build("round", radius=2).radius
        2
        >>> shapes.get("rund")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        lightning_ding.registry.NotRegisteredError: "no shape is registered as 'rund'; did you mean 'round'? ...
    """

    def __init__(self, kind: str, home: str | None = None, modules: Mapping[str, str] | None = None) -> None:
        self.kind = kind
        self._home = home
        self._modules = modules or {}
        self._is_complete = home is None
        self._entries: dict[str, T] = {}

    def register(self, name: str | None = None, *, force_overwrite: bool = False) -> Callable[[T], T]:
        """Return a decorator that registers a class or function.

        Args:
            name: Name of the entry; None means the object's ``__name__``.
            force_overwrite: Whether to replace an entry of the same name.

        Raises:
            ValueError: If the name is taken and ``force_overwrite`` is false. A definition that is executed again, such
                as the cell of a notebook or a config file, replaces its entry.
        """

        def enter(entry: T) -> T:
            key = name or entry.__name__
            self._import_module_of(key)
            taken = self._entries.get(key)
            if taken is not None and not force_overwrite and _place(taken) != _place(entry):
                raise ValueError(f"the {self.kind} name {key!r} is taken by {taken!r}")
            self._entries[key] = entry
            return entry

        return enter

    def get(self, name: str) -> T:
        """Return the entry called ``name``.

        Raises:
            NotRegisteredError: If the name is unknown; the message lists all registered names.
        """
        if name not in self:
            known = ", ".join(sorted(self._entries))
            hint = nearest(str(name), self._entries)
            hint = f"{hint} " if hint.startswith("did") else ""
            raise NotRegisteredError(f"no {self.kind} is registered as {name!r}; {hint}Registered: {known}")
        return self._entries[name]

    def build(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Return ``get(name)(*args, **kwargs)``; errors of the constructor are not changed."""
        return self.get(name)(*args, **kwargs)

    def name_of(self, entry: T) -> str | None:
        """Return the name of ``entry``, or None if it is not registered."""
        return next((name for name, known in self._entries.items() if known is entry), None)

    def called(self, class_name: str) -> T | None:
        """Return the newest entry whose class has this name, of those that are imported; None if there is none."""
        return {entry.__name__: entry for entry in self._entries.values()}.get(class_name)

    def config_classes(self) -> list[Any]:
        """Return the ``config_class`` of each entry that has one, by the names of the entries."""
        classes = [getattr(self.get(name), "config_class", None) for name in self]
        return [one for one in classes if is_dataclass(one)]

    def __contains__(self, name: object) -> bool:
        self._import_module_of(name)
        if name not in self._entries:
            self._import_all()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        self._import_all()
        return iter(sorted(self._entries))

    def _import_module_of(self, name: object) -> None:
        """Import the module that would register a built-in entry of this name, if there is one."""
        if self._home is None or name in self._entries or not isinstance(name, str) or not name.isidentifier():
            return
        package = importlib.import_module(self._home)
        module = f"{self._home}.{self._modules.get(name, name)}"
        if hasattr(package, "__path__") and importlib.util.find_spec(module) is not None:
            importlib.import_module(module)

    def _import_all(self) -> None:
        if not self._is_complete and self._home is not None:
            self._is_complete = True  # before the imports, which may look up entries
            try:
                package = importlib.import_module(self._home)
                for exported in getattr(package, "__all__", ()):
                    getattr(package, exported)
            except BaseException:
                self._is_complete = False  # so that the next look-up raises the same error
                raise


def _place(entry: Any) -> tuple[Any, ...]:
    """Return the module and the name of a definition, or the identity of an object without them."""
    module, name = getattr(entry, "__module__", None), getattr(entry, "__qualname__", None)
    return (module, name) if module and name and "<lambda>" not in name else (id(entry),)


def import_modules(names: Iterable[str]) -> None:
    """Import modules that register entries.

    Modules of DI-engine's package ``ding`` are left out, because their entries are registered here by the same names.

    Args:
        names: Dotted names of the modules, such as ``import_names`` of a config.

    Raises:
        ImportError: If a module cannot be imported; the original error is the cause.
    """
    for name in names:
        if name.partition(".")[0] == "ding":
            continue
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ImportError(f"import_names: cannot import {name!r}: {error}") from error


ENV_REGISTRY: Registry[Any] = Registry("env")
"""Envs with DI-engine's interface; see ``lightning_ding.di_engine.base_env``."""
POLICY_REGISTRY: Registry[Any] = Registry(
    "policy",
    home="lightning_ding.policy",
    modules={
        **dict.fromkeys(("mappo", "ippo", "recurrent_mappo"), "teams.mappo"),
        **{name: f"teams.{name}" for name in ("happo", "coma", "mat", "maddpg", "masac")},
        **{name: f"teams.{name}" for name in ("iql_ma", "vdn", "qmix", "wqmix", "qtran", "madqn")},
    },
)
MODEL_REGISTRY: Registry[Any] = Registry(
    "model",
    home="lightning_ding.model",
    modules={
        **{"c51dqn": "c51", "continuous_qac": "qac", "dt": "decision_transformer", "rainbowdqn": "rainbow"},
        **{"optimistic_qac": "bro", "sale_qac": "td7"},
        **{"team_vac": "teams.team_vac", "recurrent_team_vac": "teams.team_vac", "havac": "teams.havac"},
        **{"coma": "teams.coma", "mat": "teams.mat"},
        **dict.fromkeys(("iql_ma", "vdn", "qmix", "wqmix", "qtran", "madqn"), "teams.team_q"),
        "team_qac": "teams.team_qac",
    },
)
ENCODER_REGISTRY: Registry[Any] = Registry(
    "encoder",
    home="lightning_ding.model",
    modules={
        **{"mlp": "encoder", "simba": "simba_encoder"},
        **dict.fromkeys(("conv", "impala"), "image_encoders"),
        **dict.fromkeys(("dict", "separate"), "dict_encoders"),
    },
)
REWARD_MODEL_REGISTRY: Registry[Any] = Registry("reward model", home="lightning_ding.reward_model")
SERIAL_COLLECTOR_REGISTRY: Registry[Any] = Registry(
    "serial collector",
    home="lightning_ding.worker.collector",
    modules={"episode_1v1": "battle_episode", "sample_1v1": "battle_sample"},
)
SERIAL_EVALUATOR_REGISTRY: Registry[Any] = Registry(
    "serial evaluator", home="lightning_ding.worker.evaluator", modules={"battle_interaction": "battle"}
)
BUFFER_REGISTRY: Registry[Any] = Registry("buffer", home="lightning_ding.worker.buffer", modules={"lap": "advanced"})
LEARNER_REGISTRY: Registry[Any] = Registry("learner", home="lightning_ding.worker.learner", modules={"base": "learner"})
LEARNER_HOOK_REGISTRY: Registry[Any] = Registry(
    "learner hook",
    home="lightning_ding.worker.learner",
    modules=dict.fromkeys(("load_ckpt", "log_reduce", "log_show", "save_ckpt"), "builtin_hooks"),
)
COMM_COLLECTOR_REGISTRY: Registry[Any] = Registry("comm collector", home="lightning_ding.distributed")
COMM_LEARNER_REGISTRY: Registry[Any] = Registry("comm learner", home="lightning_ding.distributed")
PARALLEL_COMMANDER_REGISTRY: Registry[Any] = Registry("parallel commander", home="lightning_ding.distributed")
PARALLEL_COLLECTOR_REGISTRY: Registry[Any] = Registry("parallel collector", home="lightning_ding.distributed")
