"""The common part of the collectors with one policy: acting, counting, episodes and their faults.

Shapes: N envs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from typing_extensions import override

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.envs import EnvStepper, Timestep
from lightning_ding.envs.bounds import VariationCheck
from lightning_ding.utils.attributes import policy_of
from lightning_ding.worker.actions import actions_of, random_output
from lightning_ding.worker.arguments import adapted, also_named, collect_mode_of
from lightning_ding.worker.collector.base import ISerialCollector, checked_env
from lightning_ding.worker.episode_infos import EpisodeInfos
from lightning_ding.worker.episodes import FaultCounter


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

    # ------------------------------------------------------------------ to implement

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
        self._infos = EpisodeInfos(self.info_keys, num_envs, self.info_check)
        self._episode_id = self._statistics.new_ids(num_envs)
        if self._policy is not None:
            self._policy.reset()

    @also_named(_policy="policy")
    @override
    def reset_policy(self, policy: Any = None) -> None:
        if policy is not None:
            self._policy = adapted(collect_mode_of(policy), self.config)
        self._require_policy().reset()

    # ------------------------------------------------------------------ state

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
            "infos": self._infos.state_dict(),
            "stepper": stepper.state_dict(),
        }
        counted = self._statistics.state_dict()
        return {"class": type(self).__name__, "counted": to_plain(counted), "under_way": to_plain(under_way)}

    @override
    def load_state_dict(self, state: Mapping[str, Any], continues: bool = True) -> None:
        from lightning_ding.envs import from_plain

        stepper = self._require_env()
        under_way = from_plain(state["under_way"])
        saved, now = len(under_way["_length"]), stepper.env.num_envs
        require(saved == now or not continues, "num_envs", f"{saved}, as saved", now)
        self._statistics.load_state_dict(from_plain(state["counted"]))
        if continues:
            stepper.load_state_dict(under_way["stepper"])
            self._return, self._length = under_way["_return"], under_way["_length"]
            self._faults.count, self._episode_id = under_way["_faults"], under_way["_episode_id"]
            if "infos" in under_way:  # older checkpoints have none
                self._infos.load_state_dict(under_way["infos"])

    # ------------------------------------------------------------------ acting

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
        self._report.begin(is_recorded)
        policy_version = np.full(stepper.env.num_envs, train_iter)
        fixed = (policy, stepper, policy_version, random_collect, policy_kwargs or {}, seeds, is_recorded)
        return Call(*fixed, policy_of(policy).keeps_double)

    def _step(self, call: Call) -> None:
        policy, stepper = call.policy, call.stepper
        obs = stepper.obs
        output = random_output(stepper.env, obs) if call.random else policy.forward(obs, **call.policy_kwargs)
        timestep = stepper.step(actions_of(output, stepper.env))
        try:
            self._take_in(call, obs, output, timestep)
        except BaseException:
            stepper.obs = None  # the step is lost, and continuing after it would leave a gap
            raise
        if timestep.valid is not stepper.all_valid and timestep.abnormal.any():
            self._faults.handle(timestep.abnormal, timestep.fault)

    def _take_in(self, call: Call, obs: Any, output: Any, timestep: Timestep) -> None:
        policy = call.policy
        transition = policy.process_transition(obs, output, timestep)
        transition["env_id"] = self._env_id.copy()
        transition["episode_id"] = self._episode_id.copy()
        transition["policy_version"] = call.policy_version.copy()
        if call.level_seeds is not None:
            transition["seed"] = call.level_seeds.copy()
        columns: dict[str, Any] = self._columns(transition, call.keeps_double)
        valid = None if timestep.valid is call.stepper.all_valid else timestep.valid
        self._keep(columns, valid)
        self._count(timestep, valid)
        if self.info_keys:
            self._infos.add(timestep)
        if valid is not None:
            policy.reset(np.flatnonzero(~valid).tolist())  # there it acted on a last observation again
        ended = timestep.terminated | timestep.truncated
        if np.count_nonzero(ended):  # faster than any()
            self._end_episodes(call, ended, timestep)

    def _columns(self, transition: dict[str, Any], keeps_double: bool) -> dict[str, Any]:
        """Return transitions as arrays, floats in single precision, except for observations that are kept in double."""
        if keeps_double:
            return {name: nested.to_array(part, name in ("obs", "next_obs")) for name, part in transition.items()}
        if self._variation.left and "obs" in transition:
            self._variation.check(transition["obs"])
        return nested.to_array(transition)  # type: ignore[return-value]

    def _count(self, timestep: Timestep, valid: NDArray[np.bool_] | None) -> None:
        reward = timestep.raw_reward()
        if valid is None:
            self._statistics.env_step += len(self._length)
            self._return += reward
            self._length += 1
        else:
            self._statistics.env_step += int(np.count_nonzero(valid))
            self._return += np.where(valid, reward, 0.0)  # the raw reward of a fault may be anything
            self._length += valid

    def _end_episodes(self, call: Call, ended: NDArray[np.bool_], timestep: Timestep) -> None:
        rows, found = ended.nonzero()[0], self._infos.take(timestep, ended)
        whole, broken, abnormal = rows, rows[:0], timestep.abnormal
        if np.count_nonzero(abnormal):
            whole, broken = rows[~abnormal[rows]], rows[abnormal[rows]]
        self._keep_episodes(whole, self._length[whole])
        infos = {name: values[whole] for name, values in found.items()}
        self._statistics.add(self._return[whole].tolist(), self._length[whole].tolist(), call.is_recorded, infos)
        self._faults.count[whole] = 0
        if len(broken):
            self._statistics.drop(self._episode_id[broken].tolist())
            is_stuck = (self._length[broken] == 0) | self.collects_whole_episodes
            self._faults.count[broken] = np.where(is_stuck, self._faults.count[broken] + 1, 1)
        self._return[rows] = 0
        self._length[rows] = 0
        self._episode_id[rows] = self._statistics.new_ids(len(rows))
        call.policy.reset(rows.tolist())
