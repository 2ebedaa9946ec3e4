"""Collecting and evaluating with one policy in many envs."""

from __future__ import annotations

import numpy as np
from gymnasium.vector import VectorEnv
from typing_extensions import override

from lightning_ding.config import require
from lightning_ding.distributed.collector.base import BaseParallelCollector
from lightning_ding.envs import FaultBarrier, make_vector_env
from lightning_ding.envs.vector import MODES, SEPARATE_MODES
from lightning_ding.registry import PARALLEL_COLLECTOR_REGISTRY
from lightning_ding.worker import InteractionSerialEvaluator, SampleSerialCollector
from lightning_ding.worker.episodes import info_statistics


@PARALLEL_COLLECTOR_REGISTRY.register("zergling")
class ZerglingParallelCollector(BaseParallelCollector):
    """Collects with one policy in several envs; episodes continue across messages.

    A message contains all transitions of its vector steps, which are ``n_sample`` or a few more. A transition is never
    kept for the next message, whose transitions may be collected with newer weights.

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
        self._collector = SampleSerialCollector({"env_fault": config.env_fault}, policy=mode)
        self._collector.info_keys = info_statistics(config.env.info_keys)
        self._collector.keep_records()
        self._collector.reset_env(env)

    def _make_env(self, seed: np.random.SeedSequence) -> VectorEnv:
        config, env = self.config, self.config.env
        drops = config.env_fault == "drop"
        allowed = f'one of {SEPARATE_MODES} if env_fault is "drop"'
        kind = MODES[env.mode]
        require(kind.has_separate_envs or not drops, "env.mode", allowed, env.mode)
        env_id, kwargs, wrappers = env.evaluating if config.eval_flag else env.collecting
        return make_vector_env(
            env_id,
            env.evaluator_env_num if config.eval_flag else env.collector_env_num,
            env.mode,
            seed,
            (*wrappers, FaultBarrier) if drops else wrappers,
            kwargs,
            "disabled" if config.eval_flag and kind.has_separate_envs else None,
            on_env_error="restart" if drops and kind.has_processes else "raise",
            import_names=env.import_names,
            check_api=True,
        )
