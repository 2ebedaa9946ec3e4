"""DQfD: DQN that first learns from demonstrations, and keeps a share of them in each minibatch.

Paper: Hester et al. 2018 (https://arxiv.org/abs/1704.03732): the loss is eq. 2, the margin loss the equation before it.

Where this differs: each minibatch has a fixed share of demonstrations (``demonstration_share`` of the datamodule), as
in DI-engine, and not a larger priority for them; the other parts are those of ``dqn``. The options of ``learn`` that
DQN does not have are named as in DI-engine and have its defaults. The margin loss is averaged over the whole minibatch,
and importance-sampling weights weigh it too. They are divided by the largest one of the buffer, so most are small after
annealing; the L2 loss is multiplied by their mean, so that its share of the loss does not grow. The priority is the
size of the one-step error.

Shapes: B batch, A actions, U minibatches of a round.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from lightning_ding import rl
from lightning_ding.config import require, searched
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.dqn import DQNConfig, DQNLearnConfig, DQNPolicy
from lightning_ding.policy.q_learning import QBatch, QLearningOtherConfig
from lightning_ding.registry import POLICY_REGISTRY
from lightning_ding.worker.config import ReplayBufferConfig


def check_weights(config: Any, *names: str) -> None:
    """Raise if a weight, a margin or a number of updates, or one of further fields, is negative."""
    for name in ("lambda1", "lambda2", "lambda3", "margin_function", "per_train_iter_k", *names):
        require(getattr(config, name) >= 0, f"learn.{name}", ">= 0", getattr(config, name))


@dataclass(frozen=True, kw_only=True)
class DQfDLearnConfig(DQNLearnConfig):
    """Options for updates."""

    lambda1: float = 1.0
    """Weight of the loss of the n-step return, >= 0; that of the one-step return has the weight 1."""
    lambda2: float = 1.0
    """Weight of the margin loss of the demonstrations, >= 0."""
    lambda3: float = 1e-5
    """Weight of half the sum of the squared parameters, >= 0."""
    margin_function: float = 0.8
    """Least distance of the demonstrated action's value to the others, >= 0."""
    per_train_iter_k: int = 10
    """Updates from demonstrations only, before the first collection, >= 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_weights(self)


def _dqfd_other() -> QLearningOtherConfig:
    return QLearningOtherConfig(replay_buffer=ReplayBufferConfig(type="advanced", replay_buffer_size=1_000_000))


@dataclass(frozen=True, kw_only=True)
class DQfDConfig(DQNConfig):
    """Everything that can be set of DQfD."""

    nstep: int | None = searched(10, "int(1, 10)")
    """Steps of the return, >= 1; fewer at an episode's end. None means 3 where a buffer sums the rewards, and 1
    for batches without discount, which do not come from such a buffer."""
    priority: bool = True
    """Pass the size of each error to the buffer as its priority; needs a prioritised buffer."""
    priority_IS_weight: bool = True  # noqa: N815 - a documented name
    """Weigh errors by the buffer's importance-sampling weights; needs priority."""
    random_collect_size: int = 0
    """Transitions collected before the first update on each rank, >= 0: with random actions, or with those of the
    policy if it was trained before."""
    learn: DQfDLearnConfig = field(default_factory=DQfDLearnConfig)
    """Options for updates."""
    other: QLearningOtherConfig = field(default_factory=_dqfd_other)
    """Exploration, and prioritised replay."""


class DQfDBatch(QBatch, total=False):
    """A minibatch of DQfD, leading axis B."""

    is_expert: Tensor
    """Whether a transition is a demonstration, shape (B,)."""
    reward_1: Tensor
    """Reward of the first of the n steps, shape (B,)."""
    terminated_1: Tensor
    """Whether the first step terminated, shape (B,)."""
    next_obs_1: Any
    """True observations after the first step."""


@POLICY_REGISTRY.register("dqfd")
class DQfDPolicy(DQNPolicy):
    """DQfD for discrete, multi-discrete and multi-binary actions; all kinds of observations; action masks.

    It needs a :class:`ReplayDataModule` with ``demonstrations``. The arguments are those of :class:`Policy`; a
    ``model`` maps observations to ``{"logit": action values}``.

    Example:
        >>> policy = DQfDPolicy({"model": {"obs_shape": 4, "action_shape": 2}})
        >>> policy.eval_mode.forward({0: torch.zeros(4), 1: torch.ones(4)})[1]["action"].shape
        torch.Size([])
    """

    config_class: ClassVar[type[PolicyConfig]] = DQfDConfig
    supports_tensors: ClassVar[bool] = False
    demonstrations: ClassVar[Literal["optional", "needed", "imitated"]] = "needed"
    config: DQfDConfig

    @property
    def pretraining_updates(self) -> int:
        """Updates from demonstrations only, before the first collection."""
        return self.config.learn.per_train_iter_k

    def target_outputs(self, batch: Any) -> dict[str, Any]:
        """Return the target network's values of the next observations, and ``first``, those after the first step."""
        return {**super().target_outputs(batch), "first": self._of_target(batch["next_obs_1"], "logit")}

    def loss(self, batch: DQfDBatch) -> tuple[Tensor, dict[str, Tensor]]:  # type: ignore[override]
        """Return the loss of a minibatch and its metrics; see :meth:`DQNPolicy.loss`."""
        learn, weight = self.config.learn, self._weight(batch)
        first = self._targets(self._first_step(batch))
        targets = list(zip(first, self._targets(batch), strict=True))
        values = self._values(self._output(self.model, batch["obs"]), batch["obs"])
        errors, margins, predictions = [], [], []
        for (q, _), action, (one_step, n_step) in zip(values, self._parts(batch["action"]), targets, strict=True):
            prediction = rl.take_action_value(q, action)
            long = rl.td_loss(prediction, n_step, weight, learn.loss)
            errors.append(rl.td_loss(prediction, one_step, weight, learn.loss) + learn.lambda1 * long)
            margins.append(rl.large_margin(q, action, learn.margin_function) * batch["is_expert"])
            predictions.append(prediction)
        margin = torch.stack(margins).mean(0)
        margin_loss = (margin if weight is None else weight * margin).mean()
        decay = half_square(self.model) if weight is None else weight.mean() * half_square(self.model)
        loss = torch.stack(errors).mean() + learn.lambda2 * margin_loss + learn.lambda3 * decay
        q_value, target = torch.stack(predictions).mean(0).detach(), torch.stack(first).mean(0)
        report = {"total_loss": loss.detach(), "q_value": q_value, "target_q_value": target}
        report["margin_loss"] = margin_loss.detach()
        if self.config.priority:
            pairs = zip(predictions, first, strict=True)
            report["priority"] = torch.stack([rl.td_error(one, other) for one, other in pairs]).mean(0)
        return loss, report

    def _first_step(self, batch: DQfDBatch) -> QBatch:
        """Return what :meth:`_targets` reads, of the first of the n steps of each transition."""
        reward, gamma = batch["reward_1"], torch.full_like(batch["reward_1"], self.config.discount_factor)
        discount_t = self._discount({"reward": reward, "terminated": batch["terminated_1"], "discount": gamma})
        target = batch["target"]["first"]
        return {"reward": reward, "next_obs": batch["next_obs_1"], "discount_t": discount_t, "target": target}

    @property
    def sample_options(self) -> dict[str, Any]:
        """Arguments of a replay buffer's ``sample``."""
        return {**super().sample_options, "first_step": True}

    def _monitor_vars_learn(self) -> list[str]:
        return [*super()._monitor_vars_learn(), "margin_loss"]


def half_square(network: nn.Module) -> Tensor:
    """Return half the sum of the squared parameters, a scalar."""
    return 0.5 * torch.stack([one.square().sum() for one in network.parameters()]).sum()
