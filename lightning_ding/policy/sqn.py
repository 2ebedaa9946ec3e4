"""SQN: soft Q-learning with two networks and a temperature that is learned; discrete SAC without an actor.

Papers: the policy softmax(Q / alpha) and its soft value: Haarnoja et al. 2017, eq. 4 and 7
(https://arxiv.org/abs/1702.08165); the smaller of two networks, and the temperature: Haarnoja et al. 2018, eq. 18
(https://arxiv.org/abs/1812.05905). DI-engine has the algorithm under this name, with 0.2 nats as the target entropy;
the other parts are those of ``dqn``.

Where this differs: the policy that collects is the softmax of the smaller values, as in the targets, where DI-engine
has that of the first network. It is mixed with the uniform policy by ``other.eps``, where DI-engine has constants in
its code. Networks have no dueling head unless ``model.dueling`` is set. Evaluations are greedy.

Shapes: B batch, A actions.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lightning_ding import rl
from lightning_ding.config import require
from lightning_ding.policy.base.config import NO_CLIP, PolicyConfig
from lightning_ding.policy.base.optimizers import make_optimizer
from lightning_ding.policy.dqn import DQNConfig, DQNPolicy
from lightning_ding.policy.mdqn import SoftQLearnConfig
from lightning_ding.policy.q_learning import QBatch, QLearningModelConfig
from lightning_ding.registry import POLICY_REGISTRY


@dataclass(frozen=True, kw_only=True)
class SQNModelConfig(QLearningModelConfig):
    """The two Q-networks: each an encoder and a head."""

    action_shape: int | Sequence[int] | None = None
    """Number of actions, or one for each dimension; None means that it is taken from the env."""
    dueling: bool = False
    """Split each head into a state value and advantages."""


@dataclass(frozen=True, kw_only=True)
class SQNLearnConfig(SoftQLearnConfig):
    """Options for updates."""

    learning_rate: float = 1e-3
    """Step size of the values, > 0."""
    learning_rate_alpha: float = 1e-3
    """Step size of the temperature, > 0; needs auto_alpha."""
    alpha: float = 0.2
    """Temperature, or the one to start from with auto_alpha, > 0, in units of the reward."""
    auto_alpha: bool = True
    """Learn the temperature, so that the entropy comes to target_entropy."""
    target_entropy: float = 0.2
    """Entropy of the policy to reach in each dimension of the action, in nats; needs auto_alpha."""
    target_theta: float | None = 0.005
    """Step size of the soft update of the target after every update, in (0, 1]; None copies the network instead."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.alpha > 0, "learn.alpha", "> 0", self.alpha)
        require(self.learning_rate_alpha > 0, "learn.learning_rate_alpha", "> 0", self.learning_rate_alpha)
        got, names = (self.learning_rate_alpha, self.target_entropy), "learn.learning_rate_alpha, learn.target_entropy"
        default = "left at their defaults without learn.auto_alpha"
        require(self.auto_alpha or got == (1e-3, 0.2), names, default, got)


@dataclass(frozen=True, kw_only=True)
class SQNConfig(DQNConfig):
    """Everything that can be set of SQN."""

    nstep: int | None = 1
    """Steps of the return, >= 1; fewer at an episode's end. None means 3 where a buffer sums the rewards, and 1
    for batches without discount, which do not come from such a buffer."""
    model: SQNModelConfig = field(default_factory=SQNModelConfig)  # type: ignore[assignment]
    """The two Q-networks."""
    learn: SQNLearnConfig = field(default_factory=SQNLearnConfig)
    """Options for updates."""


@POLICY_REGISTRY.register("sqn")
class SQNPolicy(DQNPolicy):
    """SQN for discrete, multi-discrete and multi-binary actions; all kinds of observations; action masks.

    The arguments are those of :class:`Policy`; a ``model`` maps observations to the entries of :class:`SQN`, and has
    its parameter ``log_alpha``, a scalar.

    Example:
        >>> policy = SQNPolicy({"model": {"obs_shape": 4, "action_shape": 2}})
        >>> policy.eval_mode.forward({0: torch.zeros(4), 1: torch.ones(4)})[1]["action"].shape
        torch.Size([])
    """

    config_class: ClassVar[type[PolicyConfig]] = SQNConfig
    supports_tensors: ClassVar[bool] = False
    config: SQNConfig

    def _init_learn(self) -> None:
        learn, temperature = self.config.learn, self._log_alpha
        temperature.data.fill_(math.log(learn.alpha))
        temperature.requires_grad_(learn.auto_alpha)
        self._make_target()
        values = [one for one in self.model.parameters() if one is not temperature]
        self.updater.optimizers = [make_optimizer(learn.optimizer, values, learn.learning_rate)]
        if learn.auto_alpha:
            kind = dataclasses.replace(learn.optimizer, weight_decay=0.0)
            self.updater.optimizers.append(make_optimizer(kind, [temperature], learn.learning_rate_alpha))

    @property
    def alpha(self) -> Tensor:
        """The temperature, a scalar without gradient; collecting reads it, so it is part of the network."""
        return self._log_alpha.detach().exp()

    @property
    def _log_alpha(self) -> nn.Parameter:
        return cast(Any, self.model).log_alpha  # type: ignore[no-any-return]

    def _forward_learn(self, batch: Any) -> dict[str, Any]:
        report = super()._forward_learn(batch)
        if self.config.learn.auto_alpha:
            report |= self.updater.minimise(self.alpha_loss, report, 1, NO_CLIP)
        return report

    def loss(self, batch: QBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum of the losses of both networks, and the metrics to report; see :meth:`QLearningPolicy.loss`.

        It also reports ``alpha``, a scalar, and ``entropy`` (B,), that of the policy at the next observations. Losses,
        values and entropies are averaged over the dimensions of a multi-discrete action.
        """
        targets = torch.stack(self._targets(batch))  # (D, B)
        both = self._output(self.model, batch["obs"])["q_value"]
        action, weight, kind = self._parts(batch["action"]), self._weight(batch), self.config.learn.loss
        taken = [
            [rl.take_action_value(q, a) for q, a in zip(self._logits({"logit": one}), action, strict=True)]
            for one in both
        ]
        pairs = [pair for one in taken for pair in zip(one, targets, strict=True)]
        loss = torch.stack([rl.td_loss(*pair, weight, kind) for pair in pairs]).sum() / len(targets)
        q = torch.stack([torch.stack(one) for one in taken])  # (2, D, B)
        report = {"total_loss": loss, "q_value": q.mean((0, 1)), "target_q_value": targets.mean(0)}
        report |= {"entropy": self._next_entropy(batch), "alpha": self.alpha}
        if self.config.priority:
            report["priority"] = (targets - q).abs().mean((0, 1))
        return loss, {name: value.detach() for name, value in report.items()}

    @torch.no_grad()
    def _targets(self, batch: QBatch) -> list[Tensor]:
        q_t, alpha = self._values(batch["target"], batch["next_obs"]), self.alpha
        return [rl.soft_q_target(batch["reward"], batch["discount_t"], q, alpha) for q, _ in q_t]

    @torch.no_grad()
    def _next_entropy(self, batch: QBatch) -> Tensor:
        """Return the entropy of the target networks' policy at the next observations, shape (B,)."""
        values = self._values(batch["target"], batch["next_obs"])
        entropies = [rl.Categorical(q / self.alpha).entropy() for q, _ in values]
        return torch.stack(entropies).mean(0)

    def alpha_loss(self, report: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the temperature's loss for the report of :meth:`loss`, and ``alpha_loss`` to report."""
        entropy = report["entropy"].detach()  # compiled code may return it with a gradient
        loss = rl.temperature_loss(self._log_alpha, -entropy, self.config.learn.target_entropy)
        loss = loss + 0 * report["total_loss"].detach()  # non-finite where the loss of the minibatch is
        return loss, {"alpha_loss": loss.detach()}

    def _preference(self, q: NDArray[np.float32]) -> NDArray[Any]:
        return rl.gumbel_perturbed(q, float(self.alpha), self.rng)

    def _monitor_vars_learn(self) -> list[str]:
        return [*super()._monitor_vars_learn(), "alpha", "entropy"]

    def default_model(self) -> tuple[str, list[str]]:
        """Return the registered network."""
        return "sqn", ["lightning_ding.model.sqn"]
