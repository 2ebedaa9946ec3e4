"""An ``env`` section of a DI-engine config while it is translated."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym

from lightning_ding.config import require
from lightning_ding.envs.named import EnvLike

WRAPPERS = "lightning_ding.di_engine.env_wrappers"
DEFAULT_N_EVALUATOR_EPISODE = 4
DEFAULT_STOP_VALUE = 1e10
MUJOCO = (
    "Ant HalfCheetah Hopper Humanoid HumanoidStandup InvertedDoublePendulum InvertedPendulum Pusher Reacher Swimmer"
)
RENAMED_IDS: dict[str, str] = {
    "BipedalWalker-v2": "BipedalWalker-v3",
    "BipedalWalkerHardcore-v2": "BipedalWalkerHardcore-v3",
    "CarRacing-v2": "CarRacing-v3",
    "CliffWalking-v0": "CliffWalking-v1",
    "LunarLander-v2": "LunarLander-v3",
    "LunarLanderContinuous-v2": "LunarLanderContinuous-v3",
    "Pendulum-v0": "Pendulum-v1",
    "Taxi-v3": "Taxi-v4",
    "simple_spread_v2": "mpe2.simple_spread_v3",
    **{f"{name}-v{old}": f"{name}-v5" for name in [*MUJOCO.split(), "Walker2d"] for old in (2, 3)},
}
"""The ids of the current versions, by ids of gym that gymnasium does not make any more."""


def current_id(env_id: str) -> str:
    """Return the id of an env's current version, or the id itself if the installed gymnasium makes it.

    Example:
        >>> current_id("Taxi-v3"), current_id("Hopper-v2"), current_id("Acrobot-v1")
        ('Taxi-v4', 'Hopper-v5', 'Acrobot-v1')
    """
    new = RENAMED_IDS.get(env_id, env_id)
    return new if new in gym.registry or "." in new or env_id not in gym.registry else env_id


@dataclass(frozen=True)
class Need:
    """A package that an env needs and this project does not bring.

    Args:
        module: Name of the module to import; empty if the env does not run with this package at all.
        text: A sentence that names the package and says how to install it.
    """

    module: str
    text: str

    @property
    def is_met(self) -> bool:
        """Whether the module can be imported on this machine."""
        return bool(self.module) and importlib.util.find_spec(self.module) is not None


@dataclass
class EnvSection:
    """The entries of a section that are not translated yet, and what was translated so far."""

    left: dict[str, Any]
    kind: str = ""
    """Name of the env type."""
    env: EnvLike = ""
    num_envs: int = 1
    num_eval_envs: int = 1
    kwargs: dict[str, Any] = field(default_factory=dict)
    eval_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the evaluation env that differ."""
    wrappers: list[Any] = field(default_factory=list)
    train_wrappers: list[Any] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    modules: list[str] = field(default_factory=list)
    translated: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    common: dict[str, Any] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)
    needs: list[Need] = field(default_factory=list)
    dataset: str = ""
    """D4RL's name of the data set that the name of the env implies."""
    reward_norm: str | None = None
    """D4RL's way to scale the rewards of the data set."""
    scales_actions: bool = False
    """Whether DI-engine's env maps actions in [-1, 1] to its bounds; its data sets have them in [-1, 1]."""
    norm_by_data: bool = False
    """Whether observations are normalized with the statistics of the data set."""

    def take(self, name: str, default: Any) -> Any:
        """Return an entry, which counts as translated."""
        self.known.add(name)
        return self.left.pop(name, default)

    def take_common(self) -> None:
        """Read the entries that every env type has."""
        for name in ("manager", "cfg_type"):
            self.take(name, None)
        episodes = self.take("n_evaluator_episode", DEFAULT_N_EVALUATOR_EPISODE)
        require(isinstance(episodes, int) and episodes >= 1, "env.n_evaluator_episode", "an int >= 1", episodes)
        path = self.take("replay_path", None)
        if path is not None:
            self.translated.append(f"env.replay_path {path!r} -> the folder for videos of an evaluation by `eval`")
        stop_value = self.take("stop_value", DEFAULT_STOP_VALUE)
        self.common = {"n_evaluator_episode": episodes, "stop_value": stop_value, "replay_path": path}

    def drop(self, name: str, reason: str) -> None:
        """Read an entry that has no counterpart here, and tell why it needs none."""
        if name in self.left:
            self.translated.append(f"env.{name} {self.left[name]!r} -> not needed: {reason}")
        self.take(name, None)

    def need(self, module: str, install: str) -> None:
        """Note a package that the env needs, and the command that installs it."""
        kind = self.kind or "of this config"
        self.needs.append(Need(module, f"the env {kind} needs the package {module.partition('.')[0]}: {install}"))

    def take_id(self, default: str | None = None, example: str = "Hopper-v3") -> str:
        """Return the entry ``env_id``."""
        given = self.take("env_id", default)
        if not isinstance(given, str):
            require(False, "env.env_id", f"the id of an env, such as {example!r}", given)
        return str(given)

    def use(self, env_id: EnvLike, **kwargs: Any) -> None:
        """Choose the env and its arguments."""
        self.env, self.kwargs = env_id, kwargs

    def use_id(self, *, default: str | None = None, **kwargs: Any) -> str:
        """Choose the env of the section, and return its new id."""
        given = self.take_id(default)
        new = current_id(given)
        if new != given:
            self.translated.append(f"env.env_id {given!r} -> {new!r}")
        self.use(new, **kwargs)
        return new

    def use_fixed_id(self, kind: str, old: str, new: str, **kwargs: Any) -> None:
        """Choose the only env of a type. DI-engine does not read ``env_id`` for these types."""
        given = self.take("env_id", old)
        if given not in (old, new):
            self.warnings.append(f"env.env_id {given!r} has no effect: the env type {kind!r} is always {old!r}")
        self.use(new, **kwargs)

    def wrap(self, name: str, train_only: bool = False, **arguments: Any) -> None:
        """Add a wrapper around those so far."""
        (self.train_wrappers if train_only else self.wrappers).append(wrapper_entry(name, **arguments))

    def take_previous_step(self) -> None:
        """Add the wrapper of the previous action and reward around the others, if NGU's config asks for it."""
        if self.take("obs_plus_prev_action_reward", False):
            self.wrappers.append("previous_step")
            self.translated.append("env.obs_plus_prev_action_reward True -> the wrapper previous_step")

    def datamodule(self) -> dict[str, Any]:
        """Return the arguments of a datamodule, without those that are empty."""
        eval_kwargs = {**self.kwargs, **self.eval_kwargs} if self.eval_kwargs else {}
        given: dict[str, Any] = {"env_kwargs": self.kwargs, "eval_env_kwargs": eval_kwargs, "wrappers": self.wrappers}
        given |= {"train_wrappers": self.train_wrappers, "import_names": self.modules}
        return {name: value for name, value in given.items() if value} | self.options


def wrapper_entry(name: str, **arguments: Any) -> Any:
    """Return a wrapper as ``wrappers`` of a datamodule takes it, from its dotted path or its name in this package."""
    path = name if "." in name else f"{WRAPPERS}.{name}"
    return {"class_path": path, "init_args": arguments} if arguments else path


def plain_dicts(section: Any) -> Any:
    """Return a copy with dicts in place of EasyDicts."""
    if isinstance(section, Mapping):
        return {name: plain_dicts(value) for name, value in section.items()}
    return [plain_dicts(value) for value in section] if isinstance(section, (list, tuple)) else section
