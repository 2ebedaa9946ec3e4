"""TD3: DDPG with twin critics, a delayed actor and smoothed targets.

Paper: Fujimoto et al. 2018, algorithm 1 (https://arxiv.org/abs/1802.09477).

Where this differs: Adam's default step size 1e-3; noise is in normalised units. As in the paper, the targets move with
the delayed actor; DI-engine moves them after every update.
"""

from __future__ import annotations

from typing import ClassVar

from lightning_ding.policy.config import PolicyConfig
from lightning_ding.policy.ddpg import DDPGPolicy
from lightning_ding.policy.ddpg_config import TD3Config
from lightning_ding.registry import POLICY_REGISTRY


@POLICY_REGISTRY.register("td3")
class TD3Policy(DDPGPolicy):
    """TD3 for continuous and hybrid actions: the code of DDPG with other defaults.

    Args:
        cfg: A ``TD3Config``, or a mapping to merge over its defaults.
        model: A network to use instead of the one that the config describes; see :class:`DDPGPolicy`.
        enable_field: Which of learn, collect, eval and command to initialise; None means all.

    Example:
        >>> learn = TD3Policy().config.learn
        >>> learn.noise, learn.actor_update_freq
        (True, 2)
    """

    config_class: ClassVar[type[PolicyConfig]] = TD3Config
