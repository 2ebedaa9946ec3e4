"""SQIL: soft Q-learning of demonstrations with reward 1 and own experience with reward 0, for discrete actions.

Paper: Reddy et al. 2019, algorithm 1 (https://arxiv.org/abs/1905.11108).

Where this differs: the target and the exploration are those of ``sql``, whose ``alpha`` is 1 in the paper, with a
target network and epsilon. The datamodule replaces the rewards and draws a share of each minibatch from the
demonstrations, as its option ``imitation_reward`` does for any other policy. Rewards are summed over ``nstep`` steps,
of which the paper has 1.

Shapes: B batch, A actions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.sql import SQLConfig, SQLPolicy
from lightning_ding.registry import POLICY_REGISTRY


@dataclass(frozen=True, kw_only=True)
class SQILConfig(SQLConfig):
    """Everything that can be set of SQIL."""


@POLICY_REGISTRY.register("sqil")
class SQILPolicy(SQLPolicy):
    """SQIL for discrete, multi-discrete and multi-binary actions; all kinds of observations; action masks.

    It needs a :class:`ReplayDataModule` with ``demonstrations``. The arguments are those of :class:`Policy`; a
    ``model`` maps observations to ``{"logit": action values}``.

    Example:
        >>> import torch
        >>> policy = SQILPolicy({"model": {"obs_shape": 4, "action_shape": 2}})
        >>> policy.eval_mode.forward({0: torch.zeros(4), 1: torch.ones(4)})[1]["action"].shape
        torch.Size([])
    """

    config_class: ClassVar[type[PolicyConfig]] = SQILConfig
    demonstrations: ClassVar[Literal["optional", "needed", "imitated"]] = "imitated"
    config: SQILConfig
