"""Rainbow: C51 with double Q-learning, prioritised replay, a dueling network, n-step returns and noisy layers.

Papers: Hessel et al. 2018 (https://arxiv.org/abs/1710.02298); noise: Fortunato et al. 2018, eq. 10 and 11
(https://arxiv.org/abs/1706.10295); the papers of the other parts are in ``c51`` and ``dqn``. The loss is C51's.

Where this differs: a constant epsilon of 0.05 explores in addition to the noise; set ``other.eps`` to 0 to explore as
in the paper. Each update draws one noise for the network, which predicts and chooses the next action with it, and
another one for the target. All envs of a vector step use the same noise. Evaluations use neither noise nor epsilon.

Shapes: B batch, A actions, N atoms.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from lightning_ding.config import require
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.c51 import (
    C51Config,
    C51LearnConfig,
    C51OptimizerConfig,
    C51Policy,
    CategoricalModelConfig,
)
from lightning_ding.policy.q_learning import QLearningOtherConfig
from lightning_ding.registry import POLICY_REGISTRY
from lightning_ding.utils.schedules import EpsConfig
from lightning_ding.worker.config import ReplayBufferConfig


@dataclass(frozen=True, kw_only=True)
class RainbowModelConfig(CategoricalModelConfig):
    """The Q-network: an encoder and a dueling head of noisy layers."""

    noise_std: float = 0.5
    """Initial scale of the noise of a layer before division by the square root of its number of inputs, > 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.noise_std > 0, "model.noise_std", "> 0", self.noise_std)


@dataclass(frozen=True, kw_only=True)
class RainbowOptimizerConfig(C51OptimizerConfig):
    """The class of the optimizer and its further arguments."""

    eps: float = 1.5e-4
    """Added to the denominator of the step, > 0; not for sgd. The default is that of Hessel et al. 2018, table 1."""


@dataclass(frozen=True, kw_only=True)
class RainbowLearnConfig(C51LearnConfig):
    """Options for updates."""

    optimizer: RainbowOptimizerConfig = field(default_factory=RainbowOptimizerConfig)
    """The class of the optimizer."""


def _rainbow_other() -> QLearningOtherConfig:
    buffer = ReplayBufferConfig(type="advanced", replay_buffer_size=1_000_000)
    return QLearningOtherConfig(eps=EpsConfig(start=0.05, end=0.05), replay_buffer=buffer)


@dataclass(frozen=True, kw_only=True)
class RainbowConfig(C51Config):
    """Everything that can be set of Rainbow."""

    nstep: int = 3
    """Steps of the return, >= 1; fewer at an episode's end."""
    priority: bool = True
    """Pass the size of each error to the buffer as its priority; needs a prioritised buffer."""
    priority_IS_weight: bool = True  # noqa: N815 - a documented name
    """Weigh errors by the buffer's importance-sampling weights; needs priority."""
    model: RainbowModelConfig = field(default_factory=RainbowModelConfig)  # type: ignore[assignment]
    """The Q-network."""
    learn: RainbowLearnConfig = field(default_factory=RainbowLearnConfig)
    """Options for updates."""
    other: QLearningOtherConfig = field(default_factory=_rainbow_other)
    """Exploration in addition to the noise, and prioritised replay."""


@POLICY_REGISTRY.register("rainbow")
class RainbowPolicy(C51Policy):
    """Rainbow for discrete actions; vector, image and dict observations; action masks.

    In addition to C51's interface, a network passed as ``model`` takes an argument ``noisy`` and has a method
    ``reset_noise(rng)``.

    Example:
        >>> import torch
        >>> policy = RainbowPolicy({"model": {"obs_shape": 4, "action_shape": 2}})
        >>> policy.eval_mode.forward({0: torch.zeros(4), 1: torch.ones(4)})[1]["action"].shape
        torch.Size([])
    """

    config_class: ClassVar[type[PolicyConfig]] = RainbowConfig
    supports_tensors: ClassVar[bool] = False

    _has_noise = True

    def default_model(self) -> tuple[str, list[str]]:
        """Return the registered Q-network."""
        return "rainbowdqn", ["lightning_ding.model.rainbow"]
