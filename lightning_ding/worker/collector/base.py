"""The base of the collectors in the learner's process, and functions that make one from a config section."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Generic

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from typing_extensions import TypeVar

from lightning_ding.config import ConfigLike
from lightning_ding.envs import EnvStepper
from lightning_ding.envs.battle_stepper import BattleStepper
from lightning_ding.registry import SERIAL_COLLECTOR_REGISTRY
from lightning_ding.utils.modes import CollectMode
from lightning_ding.worker.arguments import (
    also_named,
    check_integers,
    check_level_seeds,
    check_policy_kwargs,
    check_switches,
)
from lightning_ding.worker.base import Worker, get_class
from lightning_ding.worker.config import CollectorConfig
from lightning_ding.worker.episode_infos import InfoCheck, Statistic
from lightning_ding.worker.episodes import SUCCESS_RATE, CollectReport, EpisodeStatistics
from lightning_ding.worker.log import DEFAULT_EXPERIMENT, WorkerLog

StepperT = TypeVar("StepperT", bound="EnvStepper | BattleStepper", default=Any)
PolicyT = TypeVar("PolicyT", default=Any)


class ISerialCollector(Worker, Generic[StepperT, PolicyT]):
    """Acts in a vector env with a policy's collect mode; a context manager that closes what it made.

    Its counters cover its own rank. Under several ranks the caller adds them up.

    Args:
        cfg: A ``CollectorConfig``, or a mapping to merge over its defaults.
        env: A vector env; its owner closes it.
        policy: A policy or its collect mode; a sequence of P collect modes where several policies act in one env. A
            mode that is not a :class:`CollectMode`, such as a namedtuple or an ``EasyDict`` of functions, acts env by
            env, see :class:`~lightning_ding.di_engine.by_env.ByEnv`.
        tb_logger: Logger that gets a report every ``collect_print_freq`` updates; see ``WorkerLog``. Its owner closes
            it.
        exp_name: Part of the name of the Python logger that gets the reports too.
        instance_name: Name of this collector in both.
    """

    config_class: ClassVar[type[CollectorConfig]] = CollectorConfig
    registry = SERIAL_COLLECTOR_REGISTRY
    collects_whole_episodes: ClassVar[bool] = False
    """Whether ``collect`` counts episodes, so that a step is returned only if its episode ends without a fault."""
    has_players: ClassVar[bool] = False
    """Whether several policies act in each env."""
    info_keys: Mapping[str, Statistic] = MappingProxyType({})
    """Numbers in the info that :meth:`pop_infos` returns, with their statistics; a change counts from the next
    ``reset_env``. Collectors of several players return none."""
    info_check: InfoCheck
    """The check that the env gives these numbers."""

    def __init__(
        self,
        cfg: ConfigLike[CollectorConfig] = None,
        env: VectorEnv | None = None,
        policy: Any = None,
        tb_logger: Any = None,
        exp_name: str = DEFAULT_EXPERIMENT,
        instance_name: str = "collector",
    ) -> None:
        self.config: CollectorConfig = self.resolve_config(cfg)
        self._statistics = EpisodeStatistics()
        self.info_check = InfoCheck()
        log, freq = WorkerLog(tb_logger, exp_name, instance_name), self.config.collect_print_freq
        self._report = CollectReport(log, freq, self._statistics)
        self._policy: PolicyT | None = None
        self._stepper: StepperT | None = None
        self._clear()
        if env is not None:
            self.reset_env(env)
        if policy is not None:
            self.reset_policy(policy)

    def _clear(self) -> None:
        """Reset the counters, the report and the kept data."""
        self._statistics.clear()
        self._report.reset()

    @abstractmethod
    def reset_env(self, env: VectorEnv | None = None) -> None:
        """Start new episodes, in ``env`` if it is given.

        Unfinished episodes are lost. Transitions that are not yet returned are kept.

        Raises:
            RuntimeError: If there is no env.
            ValueError: If the number of players of ``env`` differs from the number of policies.
        """

    @abstractmethod
    def reset_policy(self, policy: PolicyT | None = None) -> None:
        """Replace the policy if one is given, and reset its collecting state.

        Args:
            policy: A collect mode; a sequence of them where several policies act in one env.

        Raises:
            RuntimeError: If there is no policy.
            TypeError: If several policies act and ``policy`` is not a sequence.
            ValueError: If there are not as many policies as players, or the collector cannot collect for a policy.
        """

    @also_named(_policy="policy", _env="env")
    def reset(self, policy: Any = None, env: VectorEnv | None = None) -> None:
        """Replace policy and env where they are given; reset counters and kept data, and begin new episodes."""
        self._clear()
        if policy is not None or self._policy is not None:
            self.reset_policy(policy)
        if env is not None or self._stepper is not None:
            self.reset_env(env)

    @abstractmethod
    def collect(self, target: int | None = None, /, *args: Any, **kwargs: Any) -> Any:
        """Return collected data.

        Args:
            target: Amount in the unit of the collector, transitions or episodes; None means the policy's default.
            args: Further arguments of the collector.
            kwargs: Further arguments of the collector; every collector accepts ``train_iter``, ``random_collect`` and
                ``policy_kwargs``.

        Raises:
            RuntimeError: If there is no env or no policy, an env reports a fault with ``env_fault="raise"``, or too
                many in a row.
            ValueError: If an argument is out of range, a policy gives no actions or of a wrong shape, or a value is not
                finite.
            TypeError: If an argument is of the wrong type.
        """

    def close(self) -> None:
        """Release env and policy. Their owners close them and the logger."""
        self._stepper = self._policy = None

    @property
    def envstep(self) -> int:
        """Environment steps taken by this collector, on this rank; a resumed run sets it."""
        return self._statistics.env_step

    @envstep.setter
    def envstep(self, value: int) -> None:
        self._statistics.env_step = value

    @property
    def sample(self) -> int:
        """Transitions that this collector has returned, on this rank."""
        return self._statistics.sample

    @property
    def episode(self) -> int:
        """Episodes finished by this collector, on this rank."""
        return self._statistics.episode

    @property
    def dropped_episode(self) -> int:
        """Number of episodes that were dropped after an env fault. They are not counted as episodes."""
        return self._statistics.dropped_episode

    def pop_episodes(self) -> tuple[list[float], list[int]]:
        """Return the returns, of several players the first one's, and lengths of the episodes since the last call."""
        return self._statistics.pop_episodes()

    def pop_infos(self) -> dict[str, tuple[float, int]]:
        """Return the sum of each number of the infos, and the number of episodes that had it, since the last call."""
        found = self._statistics.pop_infos()  # of a resumed run, maybe with names that it had before
        return {name: found.get(name, (0.0, 0)) for name in (SUCCESS_RATE, *self.info_keys)}

    def keep_records(self) -> None:
        """Keep a record of each episode that ends from now on, for :meth:`pop_records`."""
        self._statistics.keeps_records = True

    def pop_records(self) -> list[tuple[float, ...]]:
        """Return ``envstep`` at its end, return, length and numbers of the infos of each episode since the last call.

        The numbers are in the order of :meth:`pop_infos`.
        """
        return self._statistics.pop_records()

    def pop_dropped_episodes(self) -> list[int]:
        """Return the ``episode_id`` of the episodes that were dropped after an env fault since the last call."""
        return self._statistics.pop_dropped_ids()

    def skip_episode_ids(self, first: int) -> None:
        """Give episodes that begin from now on ids >= ``first``, so that they differ from those in a buffer."""
        self._statistics.next_episode_id = max(first, self._statistics.next_episode_id)

    def state_dict(self) -> dict[str, Any]:
        """Return all state that determines the next collected data, except that of the envs, as tensors and builtins.

        Raises:
            NotImplementedError: If the collector does not support it.
        """
        raise NotImplementedError(f"a {type(self).__name__} cannot save its state")

    def load_state_dict(self, state: Mapping[str, Any], continues: bool = True) -> None:
        """Restore the state that ``state_dict`` returned.

        Args:
            state: State of a collector of the same kind with as many envs; of a different kind only if ``continues`` is
                false.
            continues: Whether the envs are in the state that they had when ``state`` was saved. If not, the unfinished
                episodes are left out, and ``reset_env`` has to begin new ones.

        Raises:
            NotImplementedError: If the collector does not support it.
            RuntimeError: If there is no env.
            ValueError: If unfinished episodes are to continue, and the number of envs differs.
        """
        raise NotImplementedError(f"a {type(self).__name__} cannot load a state")

    def _require_env(self) -> StepperT:
        if self._stepper is None:
            raise RuntimeError("the collector has no env: pass env to the constructor or call reset_env(env)")
        return self._stepper

    def _require_policy(self) -> PolicyT:
        if self._policy is None:
            raise RuntimeError(
                "the collector has no policy: pass policy to the constructor or call reset_policy(policy)"
            )
        return self._policy

    def _begin_call(
        self, train_iter: int, policy_kwargs: Any, level_seeds: Sequence[int] | None, **switches: bool
    ) -> tuple[PolicyT, StepperT, NDArray[np.int64] | None]:
        """Check the arguments of ``collect``, and return the policy, the stepper and the level of each env."""
        check_integers(train_iter=train_iter)
        check_switches(**switches)
        check_policy_kwargs(policy_kwargs, of_players=self.has_players)
        policy, stepper = self._require_policy(), self._require_env()
        if stepper.obs is None:
            raise RuntimeError("the last step of the env failed: call reset_env() to start new episodes")
        policies: Any = policy if self.has_players else (policy,)
        for one in policies:
            if not isinstance(one, CollectMode):
                one.action_space = stepper.env.single_action_space
        return policy, stepper, check_level_seeds(level_seeds, stepper.env.num_envs)


def checked_env(env: Any) -> VectorEnv:
    """Return a vector env.

    Raises:
        TypeError: If it is something else, such as an env manager.
    """
    if not isinstance(env, VectorEnv):
        raise TypeError(
            f"env must be a gymnasium vector env, got {type(env).__name__}; make_vector_env replaces DI-engine's env "
            "managers, and PettingZooVectorEnv those of games"
        )
    return env


def create_serial_collector(cfg: Any, **kwargs: Any) -> ISerialCollector:
    """Return an instance of :func:`get_serial_collector_cls`, made with ``cfg`` and ``kwargs``."""
    return get_serial_collector_cls(cfg)(cfg, **kwargs)


def get_serial_collector_cls(cfg: Any) -> type[ISerialCollector]:
    """Return the class of the collector that ``cfg.type`` names; raise KeyError if it is missing or not registered."""
    found: type[ISerialCollector] = get_class(SERIAL_COLLECTOR_REGISTRY, cfg)
    return found
