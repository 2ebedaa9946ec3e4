"""Envs, policies and evaluators of greedy episodes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from lightning_ding.utils.modes import EvalMode
from lightning_ding.worker import InteractionSerialEvaluator
from tests.toys.envs import CountingEnv


class StillPolicy:
    """Always takes action 0; remembers its resets and what it was told."""

    def __init__(self) -> None:
        self.resets: list[Sequence[int] | None] = []
        self.told: dict[str, Any] = {}

    def forward(self, obs: Any, **kwargs: Any) -> dict[str, Any]:
        self.told = kwargs
        return {"action": torch.zeros(len(obs), dtype=torch.int64)}

    def reset(self, data_id: Sequence[int] | None = None) -> None:
        self.resets.append(data_id)

    @property
    def mode(self) -> EvalMode:
        def nothing(*_: Any) -> Any:
            raise AssertionError("an evaluator must not touch this")

        def has_none(name: str) -> Any:
            raise AttributeError(name)

        return EvalMode(self.forward, self.reset, has_none, nothing, nothing, nothing)


def counting_envs(lengths: Sequence[Sequence[int]], mode: AutoresetMode = AutoresetMode.SAME_STEP) -> VectorEnv:
    """Return envs with episodes of these lengths; the return of n steps is n (n + 1) / 2."""
    makers = [functools.partial(CountingEnv, i, of_env) for i, of_env in enumerate(lengths)]
    return SyncVectorEnv(makers, autoreset_mode=mode)


def evaluator_of(env: VectorEnv, policy: StillPolicy | None = None, seed: int = 0, **cfg: Any) -> Any:
    return InteractionSerialEvaluator(cfg, env=env, policy=(policy or StillPolicy()).mode, seed=seed)
