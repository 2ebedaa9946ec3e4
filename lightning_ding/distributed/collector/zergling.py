"""Collecting and evaluating with one policy in many envs."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from typing_extensions import override

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.distributed.collector.base import BaseParallelCollector
from lightning_ding.distributed.config import resolve_policy
from lightning_ding.envs import FaultBarrier, Pausable, make_vector_env
from lightning_ding.envs.vector import MODES, SEPARATE_MODES
from lightning_ding.policy import get_policy_cls
from lightning_ding.registry import PARALLEL_COLLECTOR_REGISTRY
from lightning_ding.worker import (
    EpisodeSerialCollector,
    InteractionSerialEvaluator,
    SampleSerialCollector,
    get_serial_collector_cls,
)
from lightning_ding.worker.episodes import info_statistics


@PARALLEL_COLLECTOR_REGISTRY.register("zergling")
class ZerglingParallelCollector(BaseParallelCollector):
    """Collects with one policy in several envs; episodes continue across messages.

    A message contains all transitions of its vector steps, which are ``n_sample`` or a few more. A transition is never
    kept for the next message, whose transitions may be collected with newer weights. For an on-policy algorithm with
    the episode collector, a message contains ``n_sample`` whole episodes.

    See the base class for the arguments.
    """

    @override
    def _setup(self, seeds: list[np.random.SeedSequence]) -> None:
        config = self.config
        require(len(config.policy_update_path) == 1, "policy_update_path", "one policy", config.policy_update_path)
        self._env = env = self._make_env(seeds[0])
        mode = self._add_policy(config.policy_update_path[0], seeds[1])
        if config.eval_flag:
            seed = int(seeds[2].generate_state(1)[0])
            self._evaluator = InteractionSerialEvaluator(self._limit, env=env, policy=mode, seed=seed)
            return
        kind = EpisodeSerialCollector if self._collects_episodes() else SampleSerialCollector
        self._collector = kind({"env_fault": config.env_fault}, policy=mode)
        self._collector.info_keys = info_statistics(config.env.info_keys)
        self._collector.keep_records()
        self._collector.reset_env(env)

    @override
    def _transitions(self, found: Any) -> Any:
        return nested.concatenate_arrays(found) if self._collector.collects_whole_episodes else found

    def _collects_episodes(self) -> bool:
        """Return whether messages contain whole episodes, which only rollouts count."""
        if not get_policy_cls(self.config.policy).on_policy:
            return False
        return get_serial_collector_cls(resolve_policy(self.config.policy).collect.collector).collects_whole_episodes

    def _make_env(self, seed: np.random.SeedSequence) -> VectorEnv:
        config, env = self.config, self.config.env
        drops = config.env_fault == "drop"
        allowed = f'one of {SEPARATE_MODES} if env_fault is "drop"'
        kind = MODES[env.mode]
        require(kind.has_separate_envs or not drops, "env.mode", allowed, env.mode)
        env_id, kwargs, wrappers = env.evaluating if config.eval_flag else env.collecting
        pauses = not config.eval_flag and kind.has_separate_envs and self._collects_episodes()
        return make_vector_env(
            env_id,
            env.evaluator_env_num if config.eval_flag else env.collector_env_num,
            env.mode,
            seed,
            (*wrappers, *[FaultBarrier] * drops, *[Pausable] * pauses),
            kwargs,
            "disabled" if config.eval_flag and kind.has_separate_envs else None,
            on_env_error="restart" if drops and kind.has_processes else "raise",
            import_names=env.import_names,
            check_api=True,
        )
