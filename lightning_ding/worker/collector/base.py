"""The base of the collectors in the learner's process, the loop of those with one policy, and their factory.

Shapes: N envs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, cast

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from typing_extensions import TypeVar, override

from lightning_ding import nested
from lightning_ding.config import ConfigLike, require
from lightning_ding.envs import EnvStepper, Timestep
from lightning_ding.envs.bounds import VariationCheck
from lightning_ding.registry import SERIAL_COLLECTOR_REGISTRY
from lightning_ding.utils.attributes import policy_of
from lightning_ding.utils.modes import CollectMode
from lightning_ding.worker.actions import actions_of, random_output
from lightning_ding.worker.arguments import (
    adapted,
    also_named,
    check_integers,
    check_level_seeds,
    check_policy_kwargs,
    check_switches,
    collect_mode_of,
)
from lightning_ding.worker.base import Worker, get_class
from lightning_ding.worker.config import CollectorConfig
from lightning_ding.worker.episodes import SUCCESS, SUCCESS_RATE, EpisodeStatistics, FaultCounter, InfoCheck
from lightning_ding.worker.log import DEFAULT_EXPERIMENT, CollectReport, WorkerLog

if TYPE_CHECKING:
    from lightning_ding.envs.battle_stepper import BattleStepper
    from lightning_ding.worker.infos import EpisodeInfos

StepperT = TypeVar("StepperT", bound="EnvStepper | BattleStepper", default=Any)
PolicyT = TypeVar("PolicyT", default=Any)


class ISerialCollector(EpisodeStatistics, Worker, Generic[StepperT, PolicyT]):
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
        self.info_check = InfoCheck()
        self._report = CollectReport(WorkerLog(tb_logger, exp_name, instance_name), self.config.collect_print_freq)
        self._policy: PolicyT | None = None
        self._stepper: StepperT | None = None
        self._clear()
        if env is not None:
            self.reset_env(env)
        if policy is not None:
            self.reset_policy(policy)

    def _clear(self) -> None:
        """Reset the counters, the report and the kept data."""
        self.clear_counters()
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


class Call(NamedTuple):
    """Arguments and parts that are the same for all steps of one call of ``collect``."""

    policy: Any
    stepper: EnvStepper
    policy_version: NDArray[np.int64]
    """Updates so far, for each env."""
    random: bool
    policy_kwargs: Mapping[str, Any]
    level_seeds: NDArray[np.int64] | None
    is_recorded: bool
    """Whether the episodes that end are reported."""
    keeps_double: bool
    """Whether observations of double precision are stored as such."""


class SinglePolicyCollector(ISerialCollector[EnvStepper, Any]):
    """Acts in N envs, in any autoreset mode, with one policy. A subclass keeps the steps and decides when to stop."""

    @abstractmethod
    def _keep(self, step: dict[str, Any], valid: NDArray[np.bool_] | None) -> None:
        """Keep a step of N envs.

        Args:
            step: The columns of the transitions, nested arrays with leading axis N.
            valid: Whether each row is a transition, shape (N,); None if all are.
        """

    def _keep_episodes(self, rows: NDArray[np.intp], lengths: NDArray[np.int64]) -> None:
        """Keep the episodes that ended without a fault in the step that was kept last.

        Args:
            rows: Indices of their envs.
            lengths: Steps of each episode, of the same shape.
        """

    @also_named(_env="env")
    @override
    def reset_env(self, env: VectorEnv | None = None) -> None:
        if env is not None:
            self._stepper = EnvStepper(checked_env(env))
        stepper = self._require_env()
        num_envs = stepper.env.num_envs
        stepper.reset()
        success = "whole episode" if self.collects_whole_episodes else "good step"
        self._faults = FaultCounter(num_envs, self.config.env_fault, success)
        self._env_id = np.arange(num_envs)
        name = getattr(stepper.env.unwrapped, "env_name", type(stepper.env.unwrapped).__name__)
        self._variation = VariationCheck(stepper.env.single_observation_space, name)
        self._return = np.zeros(num_envs)
        self._length = np.zeros(num_envs, dtype=np.int64)
        self._infos: EpisodeInfos | None = None
        if self.info_keys:
            from lightning_ding.worker.infos import EpisodeInfos

            self._infos = EpisodeInfos(self.info_keys, num_envs, self.info_check)
        self._episode_id = self.new_episode_ids(num_envs)
        if self._policy is not None:
            self._policy.reset()

    @also_named(_policy="policy")
    @override
    def reset_policy(self, policy: Any = None) -> None:
        if policy is not None:
            self._policy = adapted(collect_mode_of(policy), self.config)
        self._require_policy().reset()

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the counters, the data that are not yet returned, and the state of the unfinished episodes."""
        from lightning_ding.envs import to_plain

        stepper = self._require_env()
        under_way = {
            "_return": self._return,
            "_length": self._length,
            "_faults": self._faults.count,
            "_episode_id": self._episode_id,
            "infos": None if self._infos is None else self._infos.state_dict(),
            "stepper": stepper.state_dict(),
        }
        return {"class": type(self).__name__, "counted": to_plain(self.counters()), "under_way": to_plain(under_way)}

    @override
    def load_state_dict(self, state: Mapping[str, Any], continues: bool = True) -> None:
        from lightning_ding.envs import from_plain

        stepper = self._require_env()
        under_way = from_plain(state["under_way"])
        saved, now = len(under_way["_length"]), stepper.env.num_envs
        require(saved == now or not continues, "num_envs", f"{saved}, as saved", now)
        self.load_counters(from_plain(state["counted"]))
        if continues:
            stepper.load_state_dict(under_way["stepper"])
            self._return, self._length = under_way["_return"], under_way["_length"]
            self._faults.count, self._episode_id = under_way["_faults"], under_way["_episode_id"]
            if self._infos is not None and under_way.get("infos"):  # a run without info_keys has none
                self._infos.load_state_dict(under_way["infos"])

    def _begin(
        self,
        train_iter: int,
        random_collect: bool,
        record_random_collect: bool,
        policy_kwargs: Mapping[str, Any] | None,
        level_seeds: Sequence[int] | None,
    ) -> Call:
        switches = {"random_collect": random_collect, "record_random_collect": record_random_collect}
        policy, stepper, seeds = self._begin_call(train_iter, policy_kwargs, level_seeds, **switches)
        is_recorded = record_random_collect or not random_collect
        self._report.begin(self, is_recorded)
        policy_version = np.full(stepper.env.num_envs, train_iter)
        fixed = (policy, stepper, policy_version, random_collect, policy_kwargs or {}, seeds, is_recorded)
        return Call(*fixed, policy_of(policy).keeps_double)

    def _step(self, call: Call) -> None:
        policy, stepper = call.policy, call.stepper
        obs = stepper.obs
        output = random_output(stepper.env, obs) if call.random else policy.forward(obs, **call.policy_kwargs)
        timestep = stepper.step(actions_of(output, stepper.env))
        valid = None if timestep.valid is stepper.all_valid else timestep.valid
        next_obs, stepper.obs = stepper.obs, None  # if the rest raises, the step is lost: no step may follow the gap
        transition = policy.process_transition(obs, output, timestep)
        transition["env_id"] = self._env_id.copy()
        transition["episode_id"] = self._episode_id.copy()
        transition["policy_version"] = call.policy_version.copy()
        if call.level_seeds is not None:
            transition["seed"] = call.level_seeds.copy()
        if self._variation.left and "obs" in transition and not call.keeps_double:
            self._variation.check(transition["obs"])
        columns: Any = (  # floats in single precision, except for observations that are kept in double
            {name: nested.to_array(part, name in ("obs", "next_obs")) for name, part in transition.items()}
            if call.keeps_double
            else nested.to_array(transition)
        )
        self._keep(columns, valid)
        reward = timestep.raw_reward()
        if valid is None:
            self.envstep += len(self._length)
            self._return += reward
            self._length += 1
        else:
            self.envstep += int(np.count_nonzero(valid))
            self._return += np.where(valid, reward, 0.0)  # the raw reward of a fault may be anything
            self._length += valid
            policy.reset(np.flatnonzero(~valid).tolist())  # there it acted on a last observation again
        if self._infos is not None:
            self._infos.add(timestep)
        ended = timestep.terminated | timestep.truncated
        if np.count_nonzero(ended):  # faster than any()
            self._end_episodes(call, ended, timestep)
        stepper.obs = next_obs
        if valid is not None and timestep.abnormal.any():
            self._faults.handle(timestep.abnormal, timestep.fault)

    def _end_episodes(self, call: Call, ended: NDArray[np.bool_], timestep: Timestep) -> None:
        rows, infos = ended.nonzero()[0], self._infos
        found = {SUCCESS_RATE: timestep.number(SUCCESS)} if infos is None else infos.take(timestep, ended)
        abnormal = timestep.abnormal[rows]
        whole, broken = rows[~abnormal], rows[abnormal]
        self._keep_episodes(whole, self._length[whole])
        numbers = {name: values[whole] for name, values in found.items()}
        self.add_episodes(self._return[whole].tolist(), self._length[whole].tolist(), call.is_recorded, numbers)
        self._faults.count[whole] = 0
        if len(broken):
            self.dropped_episode += len(broken)
            self.dropped_ids += self._episode_id[broken].tolist()
            is_stuck = (self._length[broken] == 0) | self.collects_whole_episodes
            self._faults.count[broken] = np.where(is_stuck, self._faults.count[broken] + 1, 1)
        self._return[rows] = 0
        self._length[rows] = 0
        self._episode_id[rows] = self.new_episode_ids(len(rows))
        call.policy.reset(rows.tolist())


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
    return cast("type[ISerialCollector]", get_class(SERIAL_COLLECTOR_REGISTRY, cfg))
