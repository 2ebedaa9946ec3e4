"""TD3: DDPG with twin critics, a delayed actor and smoothed targets.

Paper: Fujimoto et al. 2018, algorithm 1 (https://arxiv.org/abs/1802.09477).

Where this differs: Adam's default step size 1e-3; noise is in normalised units. As in the paper, the targets move with
the delayed actor.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.ddpg import DDPGConfig, DDPGLearnConfig, DDPGModelConfig, DDPGPolicy
from lightning_ding.registry import POLICY_REGISTRY


@dataclass(frozen=True, kw_only=True)
class TD3ModelConfig(DDPGModelConfig):
    """The actor and the critics."""

    twin_critic: bool = True
    """Use two critics; the target is the smaller of their values."""
    last_layer_init: float | None = None
    """Initialise the last layers uniformly in [-x, x], x > 0; None initialises them like all other layers."""


@dataclass(frozen=True, kw_only=True)
class TD3LearnConfig(DDPGLearnConfig):
    """Options for updates."""

    actor_update_freq: int = 2
    """Updates of the critics between two of the actor and the targets, >= 1."""
    noise: bool = True
    """Add clipped normal noise to the target actor's actions."""


@dataclass(frozen=True, kw_only=True)
class TD3Config(DDPGConfig):
    """Everything that can be set of TD3."""

    model: TD3ModelConfig = field(default_factory=TD3ModelConfig)
    """The actor and the critics."""
    learn: TD3LearnConfig = field(default_factory=TD3LearnConfig)
    """Options for updates."""


@POLICY_REGISTRY.register("td3")
class TD3Policy(DDPGPolicy):
    """TD3 for continuous and hybrid actions: the code of DDPG with other defaults.

    Example:
        >>> learn = TD3Policy().config.learn
        >>> learn.noise, learn.actor_update_freq
        (True, 2)
    """

    config_class: ClassVar[type[PolicyConfig]] = TD3Config
