"""C51: Q-learning with a categorical distribution of the return, double Q-learning and n-step returns.

Papers: Bellemare et al. 2017, algorithm 1 (https://arxiv.org/abs/1707.06887); double: van Hasselt et al. 2016, eq. 4
(https://arxiv.org/abs/1509.06461); n-step: Hessel et al. 2018, section 3 (https://arxiv.org/abs/1710.02298);
priorities: Schaul et al. 2016 (https://arxiv.org/abs/1511.05952).

Where this differs: the online network chooses the next action; set ``double_q`` to false to follow the paper. A
priority is the item's cross entropy; Hessel et al. use the divergence, which is the cross entropy minus the entropy of
the target. A truncated step bootstraps from its true final observation, as in DQN.

Shapes: B batch, A actions, N atoms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from lightning_ding import rl
from lightning_ding.config import require
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.base.optimizers import OptimizerConfig
from lightning_ding.policy.q_learning import (
    QBatch,
    QLearningConfig,
    QLearningLearnConfig,
    QLearningModelConfig,
    QLearningPolicy,
)
from lightning_ding.registry import POLICY_REGISTRY


@dataclass(frozen=True, kw_only=True)
class CategoricalModelConfig(QLearningModelConfig):
    """A network that predicts distributions over a fixed support."""

    action_shape: int | None = None
    """Number of actions; None means that it is taken from the env."""
    v_min: float = -10.0
    """Smallest return that the network can represent, < v_max; smaller returns are clipped to it."""
    v_max: float = 10.0
    """Largest return that the network can represent; larger returns are clipped to it."""
    n_atom: int = 51
    """Number of atoms of the support, at equal distances from v_min to v_max, >= 2."""

    def __post_init__(self) -> None:
        require(self.v_min < self.v_max, "model.v_min", f"below v_max ({self.v_max})", self.v_min)
        require(self.n_atom >= 2, "model.n_atom", ">= 2", self.n_atom)


@dataclass(frozen=True, kw_only=True)
class C51ModelConfig(CategoricalModelConfig):
    """The Q-network: an encoder and a head."""

    dueling: bool = False
    """Split the head into a state value and advantages."""


@dataclass(frozen=True, kw_only=True)
class C51OptimizerConfig(OptimizerConfig):
    """The class of the optimizer and its further arguments."""

    eps: float = 0.01 / 32
    """Added to the denominator of the step, > 0; not for sgd. The default is that of Bellemare et al. 2017."""


@dataclass(frozen=True, kw_only=True)
class C51LearnConfig(QLearningLearnConfig):
    """Options for updates."""

    optimizer: C51OptimizerConfig = field(default_factory=C51OptimizerConfig)
    """The class of the optimizer."""


@dataclass(frozen=True, kw_only=True)
class C51Config(QLearningConfig):
    """Everything that can be set of C51."""

    model: C51ModelConfig = field(default_factory=C51ModelConfig)
    """The Q-network."""
    learn: C51LearnConfig = field(default_factory=C51LearnConfig)
    """Options for updates."""


LARGEST_CLIPPED_SHARE = 0.25  # share of the targets' mass outside the support, averaged between two logs


def warn_of_clipping(means: Mapping[str, float], v_min: float, v_max: float) -> bool:
    """Warn if much of the targets' mass lies outside [v_min, v_max], and return whether it does.

    Args:
        means: Means of the metrics, among them ``clipped_share``.
        v_min: Value of the first atom.
        v_max: Value of the last atom.
    """
    share = means.get("clipped_share", 0.0)
    if share <= LARGEST_CLIPPED_SHARE:
        return False
    rank_zero_warn(
        f"{share:.0%} of the targets' mass lies outside [model.v_min, model.v_max] = [{v_min}, {v_max}] and counts as "
        "its ends, so returns beyond them cannot be told apart: set v_min and v_max to the smallest and the largest "
        "discounted return of the env (learn/clipped_share is the share)"
    )
    return True


@POLICY_REGISTRY.register("c51")
class C51Policy(QLearningPolicy[C51Config]):
    """C51 for discrete actions; vector, image and dict observations; action masks.

    The arguments are those of :class:`Policy`; a ``model`` maps observations to ``logit`` (B, A), ``distribution`` and
    ``log_distribution`` (B, A, N) over the support that the config describes.

    Example:
        >>> policy = C51Policy({"model": {"obs_shape": 4, "action_shape": 2}})
        >>> policy.eval_mode.forward({0: torch.zeros(4), 1: torch.ones(4)})[1]["action"].shape
        torch.Size([])
    """

    config_class: ClassVar[type[PolicyConfig]] = C51Config
    supports_tensors: ClassVar[bool] = True
    support: Tensor
    _has_warned = False

    def _init_learn(self) -> None:
        super()._init_learn()
        cfg = self.config.model
        self.register_buffer("support", torch.linspace(cfg.v_min, cfg.v_max, cfg.n_atom), persistent=False)

    def target_outputs(self, batch: Any) -> dict[str, Any]:
        """Return the target network's values and distributions of the next observations."""
        return self._of_target(batch["next_obs"], "logit", "distribution")

    def loss(self, batch: QBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the cross entropy of a minibatch and the metrics to report; see :meth:`QLearningPolicy.loss`.

        They include ``clipped_share`` (B,), the share of the target's mass that lies outside the support.
        """
        target, clipped_share = self._target(batch)
        output = self._output(self.model, batch["obs"])
        prediction = rl.take_action_distribution(output["log_distribution"], batch["action"])
        cross_entropy = rl.cross_entropy(prediction, target)
        loss = rl.weighted_mean(cross_entropy, self._weight(batch))
        q_value = rl.take_action_value(output["logit"], batch["action"]).detach()
        target_q_value = rl.mean_return(target, self.support)
        report = {"total_loss": loss.detach(), "q_value": q_value, "target_q_value": target_q_value}
        report["clipped_share"] = clipped_share
        if self.config.priority:
            report["priority"] = cross_entropy.detach()
        return loss, report

    @torch.no_grad()
    def _target(self, batch: QBatch) -> tuple[Tensor, Tensor]:
        """Return the projected distribution of the target, (B, N), and its share beyond the support, (B,)."""
        probability_t = rl.take_action_distribution(batch["target"]["distribution"], self._next_action(batch))
        moved_support = rl.moved_support(batch["reward"], batch["discount_t"], self.support)
        moved = (moved_support, probability_t, self.support)
        return rl.categorical_projection(*moved), rl.share_beyond_support(*moved)

    def check_means(self, means: Mapping[str, float]) -> None:
        """Warn once if much of the targets' mass lies outside the support; see :meth:`Policy.check_means`."""
        if not self._has_warned:
            self._has_warned = warn_of_clipping(means, self.config.model.v_min, self.config.model.v_max)

    def _monitor_vars_learn(self) -> list[str]:
        return [*super()._monitor_vars_learn(), "clipped_share"]

    def default_model(self) -> tuple[str, list[str]]:
        """Return the registered Q-network."""
        return "c51dqn", ["lightning_ding.model.c51"]
