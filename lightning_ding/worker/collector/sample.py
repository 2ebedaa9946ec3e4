"""Collecting a number of transitions.

Shapes: N envs, S transitions asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from lightning_ding import nested
from lightning_ding.config import ConfigLike, require
from lightning_ding.envs import EnvStepper, Timestep
from lightning_ding.policy.modes import CollectMode
from lightning_ding.registry import SERIAL_COLLECTOR_REGISTRY
from lightning_ding.worker.collector.base import ISerialCollector
from lightning_ding.worker_config import CollectorConfig


@SERIAL_COLLECTOR_REGISTRY.register("sample")
class SampleSerialCollector(ISerialCollector):
    """Collects exactly S transitions a call, episodes going on from one call to the next.

    What a vector step gives beyond S is kept for the next call; nothing is dropped. Transitions of one env are in the
    order of time, so a buffer can tell which one follows which.

    Args:
        cfg: A ``CollectorConfig``, or a mapping to merge over its defaults.
        env: A gymnasium vector env in any autoreset mode; its owner closes it.
        policy: A policy's collect mode.
    """

    config_keys: ClassVar[frozenset[str]] = frozenset({"collect_print_freq", "env_fault"})

    def __init__(
        self,
        cfg: ConfigLike[CollectorConfig] = None,
        env: VectorEnv | None = None,
        policy: CollectMode | None = None,
    ) -> None:
        self.config: CollectorConfig = self.resolve_config(cfg)
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
        self._next_episode_id = 0
        self._kept: list[Any] = []
        self._kept_count = 0
        self._returns: list[float] = []
        self._lengths: list[int] = []

    def reset_env(self, env: VectorEnv | None = None) -> None:
        """Start new episodes, in ``env`` if it is given; what was collected and not yet handed over is kept."""
        if env is not None:
            self._stepper = EnvStepper(env)
        stepper = self._require_env()
        stepper.reset()
        num_envs = stepper.env.num_envs
        self._env_id = np.arange(num_envs)
        self._return = np.zeros(num_envs)
        self._length = np.zeros(num_envs, dtype=np.int64)
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
            self._policy = policy
        self._require_policy().reset()

    def reset(self, policy: CollectMode | None = None, env: VectorEnv | None = None) -> None:
        """Start over: new episodes, a reset policy, counters at zero, nothing kept."""
        self._clear()
        self.reset_env(env)
        self.reset_policy(policy)

    def collect(
        self,
        n_sample: int | None = None,
        train_iter: int = 0,
        random_collect: bool = False,
        policy_kwargs: Mapping[str, Any] | None = None,
    ) -> nested.Nested:
        """Return S transitions.

        Args:
            n_sample: S, >= 1; None asks the policy.
            train_iter: Updates done so far; each transition carries it as ``policy_version``.
            random_collect: Take uniformly random actions, legal ones where the observation has an ``action_mask``.
            policy_kwargs: Arguments of the policy's forward, such as ``eps``.

        Returns:
            What the policy's ``process_transition`` gives, and ``env_id``, ``episode_id`` and ``policy_version``; every
            leaf is a tensor with leading axis S.

        Raises:
            RuntimeError: If there is no env or no policy.
            ValueError: If ``n_sample`` is out of range, an action has a wrong shape, or a value is not finite.
        """
        policy, stepper = self._require_policy(), self._require_env()
        wanted = policy.get_attribute("n_sample") if n_sample is None else n_sample
        require(isinstance(wanted, int) and wanted >= 1, "n_sample", "an int >= 1", wanted)
        kwargs = policy_kwargs or {}
        while self._kept_count < wanted:
            transition = self._step(policy, stepper, train_iter, random_collect, kwargs)
            self._kept.append(transition)
            self._kept_count += nested.length(transition)
        data = nested.concatenate(self._kept)
        extra = self._kept_count - wanted
        self._kept = [nested.index(data, slice(wanted, None))] if extra else []
        self._kept_count = extra
        self.sample += wanted
        return policy.get_train_sample(nested.index(data, slice(wanted)) if extra else data)  # type: ignore[no-any-return]

    @property
    def envstep(self) -> int:
        """Environment steps taken by this collector."""
        return self._envstep

    @envstep.setter
    def envstep(self, value: int) -> None:
        """Set the counter, when a run goes on."""
        self._envstep = value

    @property
    def episode(self) -> int:
        """Episodes finished by this collector."""
        return self._episode

    def pop_episodes(self) -> tuple[list[float], list[int]]:
        """Return the returns and lengths of the episodes that ended since the last call."""
        episodes, self._returns, self._lengths = (self._returns, self._lengths), [], []
        return episodes

    def close(self) -> None:
        """Forget env and policy; the env is left open for whoever made it."""
        self._stepper = None
        self._policy = None

    def _step(
        self, policy: CollectMode, stepper: EnvStepper, train_iter: int, random: bool, kwargs: Mapping[str, Any]
    ) -> dict[str, Any]:
        obs = stepper.obs
        output = _random_output(stepper.env, obs) if random else policy.forward(obs, **kwargs)
        action = nested.to_numpy(output["action"])
        _check_action(action, stepper.env)
        timestep = stepper.step(action)
        transition = policy.process_transition(obs, output, timestep)
        transition["env_id"] = self._env_id.copy()
        transition["episode_id"] = self._episode_id.copy()
        transition["policy_version"] = np.full(len(self._env_id), train_iter)
        columns: dict[str, Any] = nested.to_tensor(transition)  # type: ignore[assignment]
        if not timestep.valid.all():
            columns = nested.index(columns, torch.from_numpy(timestep.valid))
            policy.reset(np.flatnonzero(~timestep.valid).tolist())  # it saw the last observation once more
        self._count(policy, timestep)
        return columns

    def _count(self, policy: CollectMode, timestep: Timestep) -> None:
        self._envstep += int(np.count_nonzero(timestep.valid))
        self._return += timestep.reward * timestep.valid
        self._length += timestep.valid
        ended = timestep.terminated | timestep.truncated
        if ended.any():
            rows = np.flatnonzero(ended)
            self._episode += len(rows)
            self._returns += self._return[rows].tolist()
            self._lengths += self._length[rows].tolist()
            self._return[rows] = 0
            self._length[rows] = 0
            self._episode_id[rows] = self._next_episode_id + np.arange(len(rows))
            self._next_episode_id += len(rows)
            policy.reset(rows.tolist())

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


def _check_action(action: NDArray[Any] | Any, env: VectorEnv) -> None:
    shape = env.action_space.shape
    if shape is not None and np.shape(action) != shape:
        raise ValueError(f"the policy must return actions of shape {shape}, got {np.shape(action)}")


def _random_output(env: VectorEnv, obs: Any) -> dict[str, Any]:
    """Return uniformly random actions for all envs, legal ones where the observation has a mask."""
    space = env.action_space
    mask = obs.get("action_mask") if isinstance(obs, dict) else None
    if mask is None:
        return {"action": torch.from_numpy(np.asarray(space.sample()))}
    sizes = np.atleast_1d(getattr(env.single_action_space, "nvec", getattr(env.single_action_space, "n", 0)))
    tickets = space.np_random.random(mask.shape) * (mask != 0)  # the largest ticket among the legal actions wins
    parts = [part.argmax(1) for part in np.split(tickets, np.cumsum(sizes)[:-1], axis=1)]
    return {"action": torch.from_numpy(np.stack(parts, axis=1).reshape(space.shape))}
