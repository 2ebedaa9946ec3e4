"""What the collectors with one policy have in common: acting, counting, episodes and their faults.

Shapes: N envs.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from lightning_ding import nested
from lightning_ding.config import ConfigLike, require
from lightning_ding.envs import EnvStepper, Timestep, from_plain, to_plain
from lightning_ding.policy.modes import CollectMode
from lightning_ding.worker.actions import actions_of, random_output
from lightning_ding.worker.arguments import check_integers, check_level_seeds, check_policy_kwargs, check_switches
from lightning_ding.worker.collector.base import ISerialCollector
from lightning_ding.worker.collector.report import CollectReport
from lightning_ding.worker.log import DEFAULT_EXPERIMENT, WorkerLog
from lightning_ding.worker_config import CollectorConfig

COUNTED = ["_envstep", "sample", "_episode", "dropped_episode", "_next_episode_id", "_returns", "_lengths"]
COUNTED += ["_dropped_ids"]
UNDER_WAY = ("_return", "_length", "_faults", "_episode_id")  # of the episodes under way
MAX_FAULTS = 100  # of one env without anything good between them; one that never recovers would keep us for ever


class Call(NamedTuple):
    """What holds for all steps of one call of ``collect``."""

    policy: CollectMode
    stepper: EnvStepper
    train_iter: int
    random: bool
    policy_kwargs: Mapping[str, Any]
    level_seeds: NDArray[np.int64] | None
    is_recorded: bool
    began: tuple[float, int, int, int] | None
    """Time, env steps, samples and recorded episodes when the call began; None if nobody wants to know."""


class SinglePolicyCollector(ISerialCollector):
    """Acts in N envs with one policy; a subclass says what becomes of the steps, and how many are enough.

    Args:
        cfg: A ``CollectorConfig``, or a mapping to merge over its defaults.
        env: A gymnasium vector env in any autoreset mode; its owner closes it.
        policy: A policy, or its collect mode.
        tb_logger: Gets a report every ``collect_print_freq`` updates; see ``WorkerLog``. Its owner closes it.
        exp_name: Part of the name of the Python logger that gets the reports too.
        instance_name: Name of this collector in both.
    """

    collects_whole_episodes: ClassVar[bool] = False
    """Whether a step is of use only if its episode ends without a fault."""

    def __init__(
        self,
        cfg: ConfigLike[CollectorConfig] = None,
        env: VectorEnv | None = None,
        policy: CollectMode | None = None,
        tb_logger: Any = None,
        exp_name: str = DEFAULT_EXPERIMENT,
        instance_name: str = "collector",
    ) -> None:
        self.config: CollectorConfig = self.resolve_config(cfg)
        log = WorkerLog(tb_logger, exp_name, instance_name)
        self._report = CollectReport(log, self.config.collect_print_freq)
        self._policy: CollectMode | None = None
        self._stepper: EnvStepper | None = None
        self._clear()
        if env is not None:
            self.reset_env(env)
        if policy is not None:
            self.reset_policy(policy)

    def _clear(self) -> None:
        self._envstep = 0
        self.sample = 0
        """Transitions handed over."""
        self._episode = 0
        self.dropped_episode = 0
        """Episodes that a fault of their env ended; they are neither counted nor reported as episodes."""
        self._dropped_ids: list[int] = []
        self._next_episode_id = 0
        self._returns: list[float] = []
        self._lengths: list[int] = []
        self._report.reset()

    # ------------------------------------------------------------------ to implement

    @abstractmethod
    def _keep(self, step: dict[str, Any], valid: NDArray[np.bool_] | None) -> None:
        """Keep a step of N envs.

        Args:
            step: The columns of the transitions, leading axis N.
            valid: Which rows are transitions, shape (N,); None if all are.
        """

    def _keep_episodes(self, rows: NDArray[np.intp], lengths: NDArray[np.int64]) -> None:
        """Keep the episodes that ended, without a fault, with the step that was kept last.

        Args:
            rows: Their envs.
            lengths: Their steps, of the same shape.
        """

    # ------------------------------------------------------------------ life

    def reset_env(self, env: VectorEnv | None = None) -> None:
        """Start new episodes, in ``env`` if it is given; what was collected and not yet handed over is kept.

        Raises:
            RuntimeError: If there is no env.
        """
        if env is not None:
            self._stepper = EnvStepper(env)
        stepper = self._require_env()
        num_envs = stepper.env.num_envs
        stepper.reset()
        self._env_id = np.arange(num_envs)
        self._return = np.zeros(num_envs)
        self._length = np.zeros(num_envs, dtype=np.int64)
        self._faults = np.zeros(num_envs, dtype=np.int64)
        self._episode_id = self._next_episode_id + np.arange(num_envs)
        self._next_episode_id += num_envs
        if self._policy is not None:
            self._policy.reset()

    def reset_policy(self, policy: CollectMode | None = None) -> None:
        """Reset the policy's collecting state, after taking ``policy`` if it is given.

        Raises:
            RuntimeError: If there is no policy.
        """
        if policy is not None:
            self._policy = getattr(policy, "collect_mode", policy)
        self._require_policy().reset()

    def reset(self, policy: CollectMode | None = None, env: VectorEnv | None = None) -> None:
        """Start over with what is given or else is there: new episodes, counters at zero, nothing kept."""
        self._clear()
        if policy is not None or self._policy is not None:
            self.reset_policy(policy)
        if env is not None or self._stepper is not None:
            self.reset_env(env)

    def close(self) -> None:
        """Forget env and policy; they and the logger are left open for whoever made them."""
        self._stepper = None
        self._policy = None

    # ------------------------------------------------------------------ counters

    @property
    def envstep(self) -> int:
        """Environment steps taken by this collector, on this rank."""
        return self._envstep

    @envstep.setter
    def envstep(self, value: int) -> None:
        """Set the counter, when a run goes on."""
        self._envstep = value

    @property
    def episode(self) -> int:
        """Episodes finished by this collector, on this rank."""
        return self._episode

    def pop_episodes(self) -> tuple[list[float], list[int]]:
        """Return the returns and lengths of the episodes that ended since the last call."""
        episodes, self._returns, self._lengths = (self._returns, self._lengths), [], []
        return episodes

    def pop_dropped_episodes(self) -> list[int]:
        """Return the ``episode_id`` of the episodes that were dropped for a fault of their env since the last call."""
        dropped, self._dropped_ids = self._dropped_ids, []
        return dropped

    def skip_episode_ids(self, first: int) -> None:
        """Let episodes that begin from now on have ids from ``first`` on, or later ones if those are taken."""
        self._next_episode_id = max(first, self._next_episode_id)

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Return counters, what is not yet handed over, and what is known of the episodes under way."""
        stepper = self._require_env()
        under_way = {name: getattr(self, name) for name in UNDER_WAY} | {"stepper": stepper.state_dict()}
        counted = {name: getattr(self, name) for name in COUNTED}
        return {"class": type(self).__name__, "counted": to_plain(counted), "under_way": to_plain(under_way)}

    def load_state_dict(self, state: Mapping[str, Any], goes_on: bool = True) -> None:
        """Take what ``state_dict`` returned; see :class:`ISerialCollector`.

        Raises:
            RuntimeError: If there is no env.
            ValueError: If it is of another number of envs, which are to go on.
        """
        stepper = self._require_env()
        under_way = from_plain(state["under_way"])
        saved, now = len(under_way["_length"]), stepper.env.num_envs
        require(saved == now or not goes_on, "num_envs", f"{saved}, as saved", now)
        for name, value in from_plain(state["counted"]).items():
            setattr(self, name, value)
        if goes_on:
            stepper.load_state_dict(under_way.pop("stepper"))
            for name, value in under_way.items():
                setattr(self, name, value)

    # ------------------------------------------------------------------ acting

    def _begin(
        self,
        train_iter: int,
        random_collect: bool,
        record_random_collect: bool,
        policy_kwargs: Mapping[str, Any] | None,
        level_seeds: Sequence[int] | None,
    ) -> Call:
        check_integers(train_iter=train_iter)
        check_switches(random_collect=random_collect, record_random_collect=record_random_collect)
        check_policy_kwargs(policy_kwargs)
        policy, stepper = self._require_policy(), self._require_env()
        if stepper.obs is None:
            raise RuntimeError("the last step of the env failed: call reset_env() to start new episodes")
        is_recorded = record_random_collect or not random_collect
        began = None
        if is_recorded and self._report.is_on:
            began = (time.perf_counter(), self._envstep, self.sample, len(self._returns))
        seeds = check_level_seeds(level_seeds, stepper.env.num_envs)
        return Call(policy, stepper, train_iter, random_collect, policy_kwargs or {}, seeds, is_recorded, began)

    def _finish(self, call: Call) -> None:
        """Report, if it is time and anybody reads it."""
        if call.began is None:
            return
        began, envstep, sample, episodes = call.began
        self._report.add(
            seconds=time.perf_counter() - began,
            envstep=self._envstep - envstep,
            sample=self.sample - sample,
            lengths=self._lengths[episodes:],
            returns={"return": self._returns[episodes:]},
        )
        totals = {"envstep": self._envstep, "train_sample": self.sample, "episode": self._episode}
        self._report.write_if_due(call.train_iter, totals | {"dropped_episode": self.dropped_episode})

    def _step(self, call: Call) -> None:
        policy, stepper = call.policy, call.stepper
        obs = stepper.obs
        output = random_output(stepper.env, obs) if call.random else policy.forward(obs, **call.policy_kwargs)
        timestep = stepper.step(actions_of(output, stepper.env))
        try:
            self._take_in(call, obs, output, timestep)
        except BaseException:
            stepper.obs = None  # the step is lost; going on behind it would leave a gap
            raise
        if timestep.valid is not stepper.all_valid and timestep.abnormal.any():
            self._bear(timestep)

    def _take_in(self, call: Call, obs: Any, output: Any, timestep: Timestep) -> None:
        policy = call.policy
        transition = policy.process_transition(obs, output, timestep)
        transition["env_id"] = self._env_id.copy()
        transition["episode_id"] = self._episode_id.copy()
        transition["policy_version"] = np.full(len(self._env_id), call.train_iter)
        if call.level_seeds is not None:
            transition["seed"] = call.level_seeds.copy()
        columns: dict[str, Any] = nested.to_tensor(transition)  # type: ignore[assignment]
        valid = None if timestep.valid is call.stepper.all_valid else timestep.valid
        self._keep(columns, valid)
        self._count(timestep, valid)
        if valid is not None:
            policy.reset(np.flatnonzero(~valid).tolist())  # it saw the last observation once more
        ended = timestep.terminated | timestep.truncated
        if ended.any():
            self._end_episodes(call, np.flatnonzero(ended), timestep.abnormal)

    def _count(self, timestep: Timestep, valid: NDArray[np.bool_] | None) -> None:
        reward = timestep.info.get("raw_reward", timestep.reward)  # of an env that normalises rewards
        if valid is None:
            self._envstep += len(self._length)
            self._return += reward
            self._length += 1
        else:
            self._envstep += int(np.count_nonzero(valid))
            self._return += np.where(valid, reward, 0.0)  # a raw reward of a fault may be anything
            self._length += valid

    def _end_episodes(self, call: Call, rows: NDArray[np.intp], abnormal: NDArray[np.bool_]) -> None:
        whole, broken = rows[~abnormal[rows]], rows[abnormal[rows]]
        self._keep_episodes(whole, self._length[whole])
        self._episode += len(whole)
        if call.is_recorded:
            self._returns += self._return[whole].tolist()
            self._lengths += self._length[whole].tolist()
        if len(broken):
            self.dropped_episode += len(broken)
            self._dropped_ids += self._episode_id[broken].tolist()
        self._faults[whole] = 0
        is_stuck = (self._length[broken] == 0) | self.collects_whole_episodes
        self._faults[broken] = np.where(is_stuck, self._faults[broken] + 1, 1)
        self._return[rows] = 0
        self._length[rows] = 0
        self._episode_id[rows] = self._next_episode_id + np.arange(len(rows))
        self._next_episode_id += len(rows)
        call.policy.reset(rows.tolist())

    def _bear(self, timestep: Timestep) -> None:
        """Raise if a fault is not to be borne, or an env had too many of them."""
        env_id = int(timestep.abnormal.argmax())
        if self.config.env_fault == "raise":
            raise RuntimeError(
                f"env {env_id} reported a fault: {timestep.fault(env_id)}; "
                'with env_fault="drop" the collector drops the episode and goes on'
            )
        env_id = int((self._faults * timestep.abnormal).argmax())
        if self._faults[env_id] > MAX_FAULTS:
            good = "whole episode" if self.collects_whole_episodes else "good step"
            raise RuntimeError(
                f"env {env_id} reported {self._faults[env_id]} faults without a {good} between, the last one: "
                f"{timestep.fault(env_id)}"
            )

    def _require_env(self) -> EnvStepper:
        if self._stepper is None:
            raise RuntimeError("the collector has no env: pass env to the constructor or call reset_env(env)")
        return self._stepper

    def _require_policy(self) -> CollectMode:
        if self._policy is None:
            raise RuntimeError(
                "the collector has no policy: pass policy to the constructor or call reset_policy(policy)"
            )
        return self._policy
