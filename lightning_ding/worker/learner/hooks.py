"""Hooks of a learner: Lightning callbacks with a name, a position and a priority, also built from a config."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from lightning.pytorch import Callback, Trainer
from typing_extensions import override

from lightning_ding.config import nearest, require
from lightning_ding.registry import LEARNER_HOOK_REGISTRY
from lightning_ding.worker.learner.config import OFF, HookConfig
from lightning_ding.worker.learner.priority import DEFAULT_PRIORITY, HasPriority

if TYPE_CHECKING:
    from lightning_ding.worker.learner.engine import LearnerEngine

Position = Literal["before_run", "after_run", "before_iter", "after_iter"]
POSITIONS: tuple[Position, ...] = get_args(Position)
Hooks = dict[str, list["LearnerHook"]]


class LearnerHook(HasPriority, ABC):
    """An action at one position of a learner's run; a subclass implements ``__call__(engine)``.

    A learner without a Trainer calls its hooks itself. In a Trainer a hook is a callback: a run is a fit, an iteration
    is a round, and all hooks share one :class:`LearnerEngine`.

    Args:
        name: Name of the hook.
        priority: Order among the hooks of a position and among the callbacks of a Trainer, lower first; >= 0.
        position: Position in the run at which it is called. After an iteration the counter holds the completed updates.
        ext_args: Further arguments of the hook by name.

    Raises:
        ValueError: If ``priority`` is negative, ``position`` is not a position, or ``ext_args`` are unknown.
    """

    def __init__(
        self,
        name: str,
        priority: int = DEFAULT_PRIORITY,
        position: Position = "after_iter",
        ext_args: Mapping[str, Any] | None = None,
    ) -> None:
        require(priority >= 0, "priority", ">= 0", priority)
        require(position in POSITIONS, "position", f"one of {', '.join(POSITIONS)}", position)
        self._name = name
        self._priority = priority
        self._position: Position = position
        self.ext_args = dict(ext_args or {})

    engine: LearnerEngine | None = None
    """Engine of the Trainer that this hook is the first hook of."""

    @property
    def name(self) -> str:
        """Name of the hook."""
        return self._name

    @property
    def priority(self) -> int:
        """Order among the hooks of a position, lower first."""
        return self._priority

    @property
    def position(self) -> Position:
        """Position in the run at which the hook is called."""
        return self._position

    @abstractmethod
    def __call__(self, engine: LearnerEngine) -> None:
        """Perform the action."""

    @override
    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Call a hook of ``before_run``."""
        engine_of(trainer).learner_done = False
        self._call_at("before_run", trainer)

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Call a hook of ``before_iter``."""
        engine_of(trainer).begin_iteration()
        self._call_at("before_iter", trainer)

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Call a hook of ``after_iter``."""
        engine_of(trainer).finish_iteration([outputs] if outputs else [])
        self._call_at("after_iter", trainer)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Call a hook of ``after_run``."""
        engine_of(trainer).learner_done = True
        self._call_at("after_run", trainer)

    @override
    def teardown(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Close the TensorBoard writer that the engine has made, if any."""
        if self.engine is not None:
            self.engine.close_writer()

    def _call_at(self, position: Position, trainer: Trainer) -> None:
        if self._position == position:
            self(engine_of(trainer))


def engine_of(trainer: Trainer) -> LearnerEngine:
    """Return the engine that the hooks of a Trainer share; every rank has to call it.

    Raises:
        TypeError: If the Trainer's module is not a policy.
        RuntimeError: If the Trainer has no hooks.
    """
    from lightning_ding.worker.learner.engine import LearnerEngine

    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    first = next((callback for callback in callbacks if isinstance(callback, LearnerHook)), None)
    if first is None:
        raise RuntimeError("the Trainer has no LearnerHook among its callbacks")
    if first.engine is None or first.engine.module is not trainer.lightning_module:
        first.engine = LearnerEngine.for_trainer(trainer)
    return first.engine


def add_learner_hook(hooks: Hooks, hook: LearnerHook) -> None:
    """Insert a hook into the list of its position, after those of equal priority; ``hooks`` is changed.

    Raises:
        TypeError: If ``hook`` is not a ``LearnerHook``.
    """
    if not isinstance(hook, LearnerHook):
        raise TypeError(f"hook must be a LearnerHook, got {type(hook).__name__}")
    there = hooks.setdefault(hook.position, [])
    place = sum(other.priority <= hook.priority for other in there)
    there.insert(place, hook)


def merge_hooks(hooks1: Mapping[str, Sequence[LearnerHook]], hooks2: Mapping[str, Sequence[LearnerHook]]) -> Hooks:
    """Return the hooks of both mappings by position and priority; where it is equal, those of ``hooks1`` come first.

    Raises:
        ValueError: If the mappings do not have the same positions.
    """
    require(hooks1.keys() == hooks2.keys(), "hooks2", f"hooks at {sorted(hooks1)}, as hooks1", sorted(hooks2))
    return {
        position: sorted([*hooks, *hooks2[position]], key=lambda hook: hook.priority)
        for position, hooks in hooks1.items()
    }


SHORT: dict[str, tuple[str, str, int, Position, str | None]] = {
    "load_ckpt_before_run": ("load_ckpt", "load_ckpt", 20, "before_run", "load_path"),
    "log_show_after_iter": ("log_show", "log_show", 20, "after_iter", "freq"),
    "save_ckpt_after_iter": ("save_ckpt", "save_ckpt_after_iter", 20, "after_iter", "freq"),
    "save_ckpt_after_run": ("save_ckpt", "save_ckpt_after_run", 20, "after_run", None),
    "log_reduce_after_iter": ("log_reduce", "log_reduce_after_iter", 10, "after_iter", None),
}
"""Registered class, name, priority, position of each short key, and the key in ``ext_args`` that its value gets."""
FULL = ("type", "name", "position", "priority", "ext_args")


def register_learner_hook(name: str, cls: type[LearnerHook], force_overwrite: bool = False) -> None:
    """Register a hook class under a name that configs can use.

    Args:
        name: The ``type`` of a config. The short keys build the built-in ``load_ckpt``, ``save_ckpt``, ``log_show`` and
            ``log_reduce``.
        cls: A subclass of ``LearnerHook``.
        force_overwrite: Replace a class of that name instead of raising.

    Raises:
        TypeError: If ``cls`` is not a subclass of ``LearnerHook``.
        ValueError: If the name is taken and ``force_overwrite`` is false.
    """
    if not (isinstance(cls, type) and issubclass(cls, LearnerHook)):
        raise TypeError(f"cls must be a subclass of LearnerHook, got {cls!r}")
    LEARNER_HOOK_REGISTRY.register(name, force_overwrite=force_overwrite)(cls)


def build_learner_hook_by_cfg(cfg: Mapping[str, Any] | HookConfig | None) -> Hooks:
    """Return the hooks that a config describes, by position and in the order of their priorities.

    Args:
        cfg: A ``HookConfig``; or a mapping of short keys, and of further keys whose values are mappings: ``type``,
            ``position``, and optionally ``name`` (the key), ``priority`` (100) and ``ext_args``. A short key may also
            have such a value. None means no hooks.

    Returns:
        A list for each of the four positions.

    Raises:
        ValueError: If a key is unknown, naming the nearest known one, or a value out of range.
        TypeError: If a value has the wrong type.
        KeyError: If a ``type`` is missing or not registered.
    """
    section = _section(cfg)
    hooks: Hooks = {position: [] for position in POSITIONS}
    for key, value in section.items():
        if isinstance(value, Mapping):
            full = _named(key, value)
            add_learner_hook(hooks, full["class_path"](**full["init_args"]))
        elif key not in SHORT:
            raise ValueError(f"unknown learner hook {key!r}; {nearest(key, SHORT)}, or give a mapping with a 'type'")
        elif value is not None and value is not False and value != "":
            kind, name, priority, position, argument = SHORT[key]
            if argument is None and value is not True:
                raise TypeError(f"learner hook {key!r} must be True or False, got {value!r}")
            hook: Any = LEARNER_HOOK_REGISTRY.get(kind)
            ext_args = {argument: value} if argument else {}
            add_learner_hook(hooks, hook(name=name, priority=priority, position=position, ext_args=ext_args))
    return hooks


def _section(cfg: Mapping[str, Any] | HookConfig | None) -> Mapping[str, Any]:
    if isinstance(cfg, HookConfig):
        short = {field.name: getattr(cfg, field.name) for field in dataclasses.fields(cfg) if field.name != "custom"}
        twice = sorted(key for key in short.keys() & cfg.custom.keys() if short[key] != OFF[key])
        require(not twice, "hook.custom", "names other than the short keys", twice)
        for key, value in cfg.custom.items():
            require(isinstance(value, Mapping), f"hook.custom.{key}", "a mapping with a 'type'", value)
        return {**short, **cfg.custom}
    return cfg or {}


def named_learner_hooks(cfg: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Return the key, and the class and arguments of each hook in full form: ``class_path`` and ``init_args``.

    Raises:
        ValueError: If a key of a hook is unknown.
        KeyError: If a ``type`` or ``position`` is missing, or a type not registered.
    """
    return [(key, _named(key, value)) for key, value in cfg.items()]


def _named(key: str, value: Mapping[str, Any]) -> dict[str, Any]:
    for name in value:
        if name not in FULL:
            raise ValueError(f"unknown key {name!r} of the learner hook {key!r}; {nearest(name, FULL)}")
    for name in ("type", "position"):
        if name not in value:
            raise KeyError(f"the learner hook {key!r} needs a {name!r}, got the keys {sorted(value)}")
    given = {"name": value.get("name", key), "priority": value.get("priority", DEFAULT_PRIORITY)}
    given |= {"position": value["position"], "ext_args": dict(value.get("ext_args") or {})}
    return {"class_path": LEARNER_HOOK_REGISTRY.get(value["type"]), "init_args": given}
