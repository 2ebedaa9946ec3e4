"""DI-engine's workers of ``ding.worker`` with its names, for loops that a script writes itself.

They derive from the workers of :mod:`lightning_ding.worker`. Collectors and evaluators also take the env managers of
:mod:`lightning_ding.di_engine.envs`. ``collect`` and ``sample`` give lists of transitions with ``done``, and ``sample``
gives None while there are too few of them. Keys of their sections that have no effect here are a warning.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from easydict import EasyDict

from lightning_ding import nested, worker as ours
from lightning_ding.config import deep_merge, require
from lightning_ding.di_engine.env_managers import BaseEnvManager
from lightning_ding.di_engine.utils import global_generator
from lightning_ding.utils.attributes import policy_of
from lightning_ding.utils.foreign import attach
from lightning_ding.utils.modes import CollectMode
from lightning_ding.worker.arguments import collect_mode_of
from lightning_ding.worker.transitions import to_list

_OWN = (
    *("AdvancedReplayBuffer", "BaseLearner", "BattleEpisodeSerialCollector", "BattleInteractionSerialEvaluator"),
    *("BattleSampleSerialCollector", "DequeBufferWrapper", "EpisodeReplayBuffer", "EpisodeSerialCollector"),
    *("InteractionSerialEvaluator", "MetricSerialEvaluator", "NaiveReplayBuffer", "SampleSerialCollector"),
    *("create_buffer", "create_learner", "create_serial_collector"),
)
_SAME = [name for name in ours.__all__ if name not in _OWN]
__all__ = [*_SAME, *_OWN]
_others = attach(__name__, dict.fromkeys(_SAME, "worker"))[0]
logger = logging.getLogger(__name__)
_Mixin: Any = object


def __getattr__(name: str) -> Any:
    return _others(name)


class Rows(list[Any]):
    """Transitions as a list, and how a buffer draws them for the policy that collected them.

    Args:
        rows: The transitions.
        options: Arguments of the ``sample`` of a buffer, such as ``n_step``.
    """

    def __init__(self, rows: Sequence[Any], options: Mapping[str, Any]) -> None:
        super().__init__(rows)
        self.options = dict(options)


def rows_of(data: Any, options: Mapping[str, Any]) -> Any:
    """Return columns of transitions as a list with ``done``; a list of columns as a list of such lists."""
    if isinstance(data, Mapping):
        rows = to_list(nested.apply(np.asarray, dict(data)) if _is_array(data) else data)
        for row in rows:
            if "terminated" in row and "truncated" in row:
                row["done"] = bool(row["terminated"] or row["truncated"])
        return Rows(rows, options)
    if isinstance(data, (list, tuple)) and any(isinstance(one, Mapping) and _is_columns(one) for one in data):
        return [rows_of(one, options) for one in data]
    return data


def _is_array(data: Mapping[str, Any]) -> bool:
    return all(isinstance(leaf, np.ndarray) for leaf in nested.leaves(dict(data)))


def _is_columns(data: Mapping[str, Any]) -> bool:
    return "terminated" in data and np.ndim(data["terminated"]) > 0


def options_of(policy: Any) -> dict[str, Any]:
    """Return the arguments of the ``sample`` of a buffer for the policy of a collect mode."""
    mode = collect_mode_of(policy)
    if not isinstance(mode, CollectMode) or policy_of(mode).on_policy:
        return {}
    return dict(policy_of(mode).sample_options)


def section_of(cls: Any, cfg: Any, renamed: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the keys of a worker's section that have an effect here; others than their defaults are warnings.

    Args:
        cls: Class of the worker.
        cfg: The section, in DI-engine's keys.
        renamed: Our name for each key that has another one.
    """
    given = dict(cfg or {})
    known = {"type", "import_names", *cls.config_keys}
    made: dict[str, Any] = {}
    for name, value in given.items():
        ours_name = (renamed or {}).get(name, name)
        if ours_name in known and value is not None:
            made[ours_name] = dict(value) if isinstance(value, Mapping) else value
        elif name not in QUIET and ours_name not in known:
            logger.warning(f"{cls.__name__}: {name} = {value!r} has no effect")
    return made


QUIET = (
    "cfg_type",
    "deepcopy",
    "n_episode",
    "monitor",
    "periodic_thruput_seconds",
    "transform_obs",
    "deepcopy_obs",
    "unroll_len",
)
"""Keys that DI-engine's defaults have, and whose purpose is served here in another way."""


def vector_of(env: Any, evaluation: bool = False) -> Any:
    """Return the vector env of a manager; anything else is returned unchanged."""
    return env.vector_env(evaluation) if isinstance(env, BaseEnvManager) else env


def games_of(env: Any) -> Any:
    """Return the vector env of the games of a manager; anything else is returned unchanged."""
    return env.vector_games() if isinstance(env, BaseEnvManager) else env


# ---------------------------------------------------------------------- collectors


class _Collects(_Mixin):  # type: ignore[misc]
    """Collects lists of transitions, in the envs of a manager."""

    _vector: ClassVar[Any] = staticmethod(vector_of)
    _policy: Any
    has_players: ClassVar[bool]

    def __init__(self, cfg: Any = None, env: Any = None, policy: Any = None, *args: Any, **kwargs: Any) -> None:
        super().__init__(section_of(type(self), cfg), self._vector(env), policy, *args, **kwargs)

    def reset_env(self, _env: Any = None) -> None:
        """Start new episodes, in the envs of ``_env`` if it is given."""
        super().reset_env(self._vector(_env))

    def reset(self, _policy: Any = None, _env: Any = None) -> None:
        """Replace policy and env where they are given, and reset the counters."""
        super().reset(_policy, self._vector(_env))

    def reset_policy(self, _policy: Any = None) -> None:
        """Replace the policy if one is given, and reset its collecting state."""
        super().reset_policy(_policy)
        self._fit()

    def _fit(self) -> None:
        """Show a policy of this package the spaces of the env."""
        stepper, policy = getattr(self, "_stepper", None), self._policy
        if stepper is None or policy is None or self.has_players:
            return
        module = policy_of(policy).module if isinstance(policy, CollectMode) else None
        if module is not None and hasattr(module, "build"):
            module.build(stepper.env.single_observation_space, stepper.env.single_action_space)

    def collect(self, *args: Any, **kwargs: Any) -> Any:
        """Return lists of transitions, each a dict with ``done``; the arguments are those of the base."""
        data = super().collect(*args, **kwargs)
        if self.has_players:
            parts, infos = data
            return [rows_of(one, options_of(mode)) for one, mode in zip(parts, self._policy, strict=True)], infos
        return rows_of(data, options_of(self._policy))


class SampleSerialCollector(_Collects, ours.SampleSerialCollector):
    """Collects a number of transitions as a list."""


class EpisodeSerialCollector(_Collects, ours.EpisodeSerialCollector):
    """Collects a number of episodes, each a list of transitions."""


class BattleSampleSerialCollector(_Collects, ours.BattleSampleSerialCollector):
    """Collects a number of transitions of each of several players as lists."""

    _vector = staticmethod(games_of)


class BattleEpisodeSerialCollector(_Collects, ours.BattleEpisodeSerialCollector):
    """Collects a number of games, for each of several players a list of lists of transitions."""

    _vector = staticmethod(games_of)


COLLECTORS: dict[str, Any] = {
    "episode": EpisodeSerialCollector,
    "episode_1v1": BattleEpisodeSerialCollector,
    "sample": SampleSerialCollector,
    "sample_1v1": BattleSampleSerialCollector,
}


def create_serial_collector(cfg: Any, **kwargs: Any) -> Any:
    """Return the collector that ``cfg.type`` names, made with ``cfg`` and ``kwargs``."""
    made = COLLECTORS.get(cfg.get("type", "sample"))
    return ours.create_serial_collector(cfg, **kwargs) if made is None else made(cfg, **kwargs)


# ---------------------------------------------------------------------- evaluators


class _Evaluates(_Mixin):  # type: ignore[misc]
    """Evaluates in the envs of a manager, and saves checkpoints under DI-engine's name."""

    _vector: ClassVar[Any] = staticmethod(lambda env: vector_of(env, evaluation=True))
    seed: int

    def __init__(self, cfg: Any = None, env: Any = None, policy: Any = None, *args: Any, **kwargs: Any) -> None:
        section = section_of(type(self), cfg)
        stop_value = section.get("stop_value")
        if isinstance(stop_value, (int, float)) and stop_value >= 1e10:  # DI-engine's default
            section["stop_value"] = None
        super().__init__(section, self._vector(env), policy, *args, **kwargs)
        if isinstance(env, BaseEnvManager) and env.seed_of_run is not None:
            self.seed = env.seed_of_run

    def reset_env(self, _env: Any = None) -> None:
        """Replace the env if one is given."""
        super().reset_env(self._vector(_env))

    def eval(self, save_ckpt_fn: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Evaluate; the file name that ``save_ckpt_fn`` gets is ``ckpt_best.pth.tar``."""
        save = None if save_ckpt_fn is None else lambda name: save_ckpt_fn(name.removesuffix(".ckpt") + ".pth.tar")
        return super().eval(save, *args, **kwargs)


class InteractionSerialEvaluator(_Evaluates, ours.InteractionSerialEvaluator):
    """Evaluates a policy in envs."""


class BattleInteractionSerialEvaluator(_Evaluates, ours.BattleInteractionSerialEvaluator):
    """Evaluates several policies in games."""

    _vector = staticmethod(games_of)


class MetricSerialEvaluator(_Evaluates, ours.MetricSerialEvaluator):
    """Evaluates a policy on a data set."""

    _vector = staticmethod(lambda env: env)


# ---------------------------------------------------------------------- buffers


class _Samples(_Mixin):  # type: ignore[misc]
    """Draws lists of transitions; None while there are too few."""

    _options: Mapping[str, Any]

    def __init__(self, cfg: Any = None, *args: Any, **kwargs: Any) -> None:
        self._options = {}
        kwargs.setdefault("seed", global_generator())
        super().__init__(section_of(type(self), cfg, RENAMED), *args, **kwargs)

    def push(self, data: Any, cur_collector_envstep: int = -1) -> None:
        """Add transitions; see the base. Data of a collector tell how its policy learns from them."""
        self._options = getattr(data, "options", self._options)
        super().push(data, max(-1, cur_collector_envstep))

    def sample(self, size: int, cur_learner_iter: int = 0, *args: Any, **kwargs: Any) -> Any:
        """Return ``size`` transitions as a list, each a dict with ``done``; None if there are fewer.

        Further arguments are those of the base. Returns of n steps are summed as the policy wants them whose collector
        collected the newest data.
        """
        known = inspect.signature(super().sample).parameters
        unknown = [name for name in self._options if name not in known]
        allowed = f"one that takes {unknown}, which the policy needs"
        require(not unknown, "replay buffer", allowed, type(self).__name__)
        kwargs = {"as_list": True, **self._options, **kwargs}
        try:
            return super().sample(size, max(0, cur_learner_iter), *args, **kwargs)
        except ours.NotEnoughError as error:
            logger.warning(f"no minibatch: {error}")
            return None


RENAMED = {
    "priority_power_factor": "alpha",
    "IS_weight_power_factor": "beta",
    "IS_weight_anneal_train_iter": "anneal_step",
}
"""Our keys for those of DI-engine's deque buffer."""


class AdvancedReplayBuffer(_Samples, ours.AdvancedReplayBuffer):  # type: ignore[misc]
    """Draws transitions by priority."""


class DequeBufferWrapper(AdvancedReplayBuffer):
    """The same as :class:`AdvancedReplayBuffer`, with the keys of DI-engine's class."""


class NaiveReplayBuffer(_Samples, ours.NaiveReplayBuffer):  # type: ignore[misc]
    """Draws transitions uniformly."""


class EpisodeReplayBuffer(_Samples, ours.EpisodeReplayBuffer):  # type: ignore[misc]
    """Stores whole episodes."""


BUFFERS: dict[str, Any] = {
    "advanced": AdvancedReplayBuffer,
    "deque": DequeBufferWrapper,
    "naive": NaiveReplayBuffer,
    "episode": EpisodeReplayBuffer,
}


def create_buffer(cfg: Any, **kwargs: Any) -> Any:
    """Return the buffer that ``cfg.type`` names, ``advanced`` if it names none, made with ``cfg`` and ``kwargs``."""
    kind = cfg.get("type", "advanced")
    return BUFFERS[kind](cfg, **kwargs) if kind in BUFFERS else ours.create_buffer(cfg, **kwargs)


# ---------------------------------------------------------------------- the learner


def _mean(values: Any) -> float:
    return float(np.mean(values))


class Monitor:
    """The means of the newest values that are set as attributes: ``avg[name]()`` is that of ``name``.

    Example:
        >>> monitor = Monitor()
        >>> monitor.loss = 1.0
        >>> monitor.loss = 3.0
        >>> monitor.avg["loss"]()
        2.0
    """

    _values: dict[str, Any]
    _size: int
    last: dict[str, float]

    def __init__(self, size: int = 10) -> None:
        self.__dict__.update(_values={}, _size=size, last={})

    def __setattr__(self, name: str, value: Any) -> None:
        """Take a new value."""
        self._values.setdefault(name, deque(maxlen=self._size)).append(float(value))

    @property
    def avg(self) -> dict[str, Callable[[], float]]:
        """A function for each name that returns the mean."""
        return {name: functools.partial(_mean, values) for name, values in self._values.items()}

    @property
    def time(self) -> Monitor:
        """The monitor, whose :meth:`step` does nothing."""
        return self

    def step(self) -> None:
        """Do nothing: means are over a number of values, not over a time."""


class BaseLearner(ours.BaseLearner):
    """Trains a policy with lists of transitions, and calls hooks.

    ``monitor`` takes values as attributes, as DI-engine's does; ``monitor.last`` is the last report.
    """

    SHOWN: ClassVar[tuple[str, ...]] = ("train_iterations", "hook", "log_policy")
    """Keys that ``compile_config`` shows."""

    def __init__(self, cfg: Any = None, *args: Any, **kwargs: Any) -> None:
        super().__init__(section_of(type(self), cfg), *args, **kwargs)

    @property
    def monitor(self) -> Any:
        """The means of the newest values."""
        return self.__dict__.setdefault("_monitor", Monitor())

    @monitor.setter
    def monitor(self, values: Mapping[str, float]) -> None:
        self.monitor.__dict__["last"] = dict(values)


def create_learner(cfg: Any, **kwargs: Any) -> Any:
    """Return the learner that ``cfg.type`` names, ``base`` if it names none, made with ``cfg`` and ``kwargs``."""
    is_base = cfg.get("type", "base") == "base"
    return BaseLearner(cfg, **kwargs) if is_base else ours.create_learner(EasyDict(deep_merge(cfg, {})), **kwargs)
