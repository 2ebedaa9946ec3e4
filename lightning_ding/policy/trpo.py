"""TRPO: natural gradient steps of the actor, as long as a limit of the divergence from the last policy allows.

Paper: Schulman et al. 2015, section 6 and appendix C (https://arxiv.org/abs/1502.05477); advantages: Schulman et al.
2016, eq. 16 (https://arxiv.org/abs/1506.02438). From each rollout the actor makes one step, which solves

    maximise L(theta) = mean(pi(a | s) / pi_old(a | s) * A)  subject to  mean(KL(pi_old || pi)) <= max_kl   (eq. 14)

approximately. With the gradient g of L and the Fisher information matrix F, the Hessian of the divergence, the
direction is s = F^-1 g, and the longest step is sqrt(2 max_kl / s^T F s) s (appendix C). F is known by its products
with vectors, and conjugate gradients solve F s = g. The step is shortened until L rises and the divergence keeps its
limit. The critic is a separate network, which learns from the same rollout by ``learn.optimizer``.

Where this differs: the critic fits returns in several passes over shuffled minibatches; the paper's rollouts have Monte
Carlo returns. The line search compares L with its value before the step, without a share of the expected gain. Products
with F take all transitions of the rollout. A multiple of the identity, ``learn.cg_damping``, is added to F, as in the
authors' code. With ``learn.entropy_weight`` the mean entropy is a part of L. The actor's step has the precision of the
weights under mixed precision, and ``compile`` covers the critic only. The actor's step is computed in evaluation mode,
because dropout would add to the divergence. ``train_iter`` counts the actor's step and the
critic's minibatches. All transitions of a rollout are in memory with the actor's activations.

Shapes: S transitions of a rollout, P parameters of the actor.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor

from lightning_ding import rl
from lightning_ding.config import require
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.base.optimizers import OptimizerConfig, make_optimizer
from lightning_ding.policy.base.round import Batch
from lightning_ding.policy.on_policy import ActorCriticPolicy, RolloutBatch
from lightning_ding.policy.on_policy_options import (
    ActorCriticLearnConfig,
    OnPolicyConfig,
    SDEActorCriticModelConfig,
)
from lightning_ding.policy.ppo import PPOCollectConfig
from lightning_ding.policy.state_dependent_exploration import check_sde
from lightning_ding.registry import POLICY_REGISTRY
from lightning_ding.utils.ranks import sum_over_ranks, world_size

CRITIC, ACTOR = 0, 1  # indices of the optimizers


@dataclass(frozen=True, kw_only=True)
class TRPOModelConfig(SDEActorCriticModelConfig):
    """The network, whose actor and critic are separate."""

    share_encoder: bool = False
    """Must be false: a step of the critic would move the policy out of its trust region."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(not self.share_encoder, "model.share_encoder", "False with trpo", self.share_encoder)


@dataclass(frozen=True, kw_only=True)
class TRPOLearnConfig(ActorCriticLearnConfig):
    """Options for updates; the step size, the minibatches, the optimizer and the clipping are those of the critic."""

    max_kl: float = 0.01
    """Largest mean of KL(old policy || policy) after a step, in nats, > 0."""
    cg_iterations: int = 10
    """Iterations of conjugate gradients for the direction, >= 1."""
    cg_damping: float = 0.1
    """Multiple of the identity that is added to the Fisher matrix, >= 0."""
    backtrack_factor: float = 0.8
    """Factor by which the line search shortens a step that is not accepted, in (0, 1)."""
    max_backtracks: int = 10
    """Times that the step is shortened before the actor stays as it is, >= 0."""
    epoch_per_collect: int = 10
    """Passes of the critic over a rollout, >= 1."""
    learning_rate: float = 1e-3
    """Step size of the critic at the start, > 0."""
    grad_clip_norm: float | None = None
    """Largest norm of the critic's gradient, > 0; None for no limit."""
    ppo_param_init: bool = True
    """Orthogonal weights at the start, and an actor that is nearly uniform (Andrychowicz et al. 2021)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.max_kl > 0, "learn.max_kl", "> 0", self.max_kl)
        require(self.cg_iterations >= 1, "learn.cg_iterations", ">= 1", self.cg_iterations)
        require(self.cg_damping >= 0, "learn.cg_damping", ">= 0", self.cg_damping)
        require(0 < self.backtrack_factor < 1, "learn.backtrack_factor", "in (0, 1)", self.backtrack_factor)
        require(self.max_backtracks >= 0, "learn.max_backtracks", ">= 0", self.max_backtracks)
        require(self.epoch_per_collect >= 1, "learn.epoch_per_collect", ">= 1", self.epoch_per_collect)
        rate = "None with trpo: learn.learning_rate is that of the critic, and learn.max_kl limits the actor's step"
        for name in ("learning_rate_actor", "learning_rate_critic"):
            require(getattr(self, name) is None, f"learn.{name}", rate, getattr(self, name))
        require(self.rpo_alpha == 0, "learn.rpo_alpha", "0 with trpo", self.rpo_alpha)


@dataclass(frozen=True, kw_only=True)
class TRPOConfig(OnPolicyConfig):
    """Everything that can be set of TRPO."""

    model: TRPOModelConfig = field(default_factory=TRPOModelConfig)
    """The network."""
    learn: TRPOLearnConfig = field(default_factory=TRPOLearnConfig)
    """Options for updates."""
    collect: PPOCollectConfig = field(default_factory=PPOCollectConfig)
    """Options for collecting: the amount and the collector."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sde(self.model, self.collect)


class Step(NamedTuple):
    """A step of the actor, and its effect."""

    change: Tensor
    """Change of the parameters, shape (P,); 0 if no length was accepted."""
    gain: Tensor
    """Change of L, a scalar."""
    kl: Tensor
    """Mean divergence in nats, a scalar."""


@POLICY_REGISTRY.register("trpo")
class TRPOPolicy(ActorCriticPolicy[TRPOConfig]):
    """TRPO; the actions and observations of :class:`PPOPolicy`.

    The arguments are those of :class:`Policy`; a ``model`` has the methods of :class:`VAC`, of which ``compute_actor``
    and ``compute_critic`` have no parameter in common, ``actor_parameters()`` and ``critic_parameters()``.

    Example:
        >>> policy = TRPOPolicy({"model": {"obs_shape": 4, "action_shape": 2, "action_space": "discrete"}})
        >>> policy.eval_mode.forward(torch.zeros(3, 4))["action"].shape
        torch.Size([3])
    """

    config_class: ClassVar[type[PolicyConfig]] = TRPOConfig
    supports_tensors: ClassVar[bool] = True
    config: TRPOConfig

    def _init_learn(self) -> None:
        super()._init_learn()
        learn, model = self.config.learn, cast(Any, self.model)
        of_actor = make_optimizer(OptimizerConfig(type="sgd"), model.actor_parameters(), 1.0)  # takes a step as it is
        of_critic = make_optimizer(learn.optimizer, model.critic_parameters(), learn.learning_rate)
        self.updater.optimizers = [of_critic, of_actor]
        self.updater.unscheduled.add(ACTOR)

    def _forward_learn(self, batch: Any) -> dict[str, Any]:
        """Learn from a rollout with leading axis S: a step of the actor, then passes of the critic."""
        data = self._renew_scale(self._learning_data(batch, self._sequences_of(batch)))
        actor = self._actor_update(data | self.updater.schedules.tensors)
        for _ in range(self.config.learn.epoch_per_collect):
            critic = self._make_pass(data)[-1]
        return {**critic, **actor, "total_loss": actor["total_loss"] + critic["total_loss"]}

    def _update(self, minibatch: Batch) -> dict[str, Any]:
        return self.updater.minimise(self.loss_of_critic, minibatch, CRITIC)

    def _value_loss(self, value: Tensor, batch: RolloutBatch) -> Tensor:
        return (value - batch["return"]).square().mean()

    def _policy_loss(self, log_prob: Tensor, batch: RolloutBatch) -> tuple[Tensor, dict[str, Tensor]]:
        ratio = (log_prob - batch["log_prob"]).exp()
        return -(ratio * batch["advantage"]).mean(), {}

    # ------------------------------------------------------------------ the step of the actor

    def _actor_update(self, data: Batch) -> dict[str, Any]:
        """Move the actor within its trust region, and return metrics."""
        if self.config.learn.adv_norm:
            (advantage,) = self._standardise([data["advantage"][None]], [data["obs"]])
            data = {**data, "advantage": advantage[0]}
        with torch.autocast(self.device.type, enabled=False), self._in_eval_mode.context:
            step = self.natural_step(cast(RolloutBatch, data))
            with torch.no_grad():
                report = self.loss_of_actor(cast(RolloutBatch, data))[1]
        self.make_step(step.change)
        self.progress.train_iter += 1
        return {**report, "approx_kl": step.kl, "surrogate_gain": step.gain}

    def make_step(self, change: Tensor) -> None:
        """Add ``change``, shape (P,), to the actor's parameters, by a loss whose gradient is its negative."""
        loss = -torch.cat([one.flatten() for one in self._actor_parameters()]).dot(change)
        self.updater.step(loss, ACTOR)

    def natural_step(self, data: RolloutBatch) -> Step:
        """Return the step of the actor on the transitions of a rollout; the weights stay as they are.

        A gradient that is not finite gives a change that is not finite.

        Args:
            data: ``obs``, ``action``, ``log_prob`` and ``advantage``, leading axis S.
        """
        learn, parameters = self.config.learn, self._actor_parameters()
        gradient = -self._flat_gradient(self.loss_of_actor(data)[0], parameters)
        if not gradient.isfinite().all():
            unknown = gradient.new_zeros(())
            return Step(torch.full_like(gradient, torch.nan), unknown, unknown)
        fisher = partial(self.fisher_product, self.kl_slope(data))
        direction = rl.conjugate_gradient(fisher, gradient, learn.cg_iterations)
        length = rl.trust_region_length(direction, fisher(direction), learn.max_kl)
        return self._line_search(data, length * direction)

    @torch.no_grad()
    def _line_search(self, data: RolloutBatch, longest: Tensor) -> Step:
        """Return the longest of the steps that raises L and keeps the divergence within its limit."""
        learn, parameters = self.config.learn, self._actor_parameters()
        before = torch.cat([one.flatten() for one in parameters])
        old, loss = self._actor_distribution(data), self._mean(self.loss_of_actor(data)[0])
        found = Step(torch.zeros_like(longest), loss.new_zeros(()), loss.new_zeros(()))
        for tries in range(learn.max_backtracks + 1):
            change = learn.backtrack_factor**tries * longest
            _assign(parameters, before + change)
            gain = loss - self._mean(self.loss_of_actor(data)[0])
            kl = self._mean(cast(Any, old).kl(self._actor_distribution(data)).mean())
            if gain > 0 and kl <= learn.max_kl:
                found = Step(change, gain, kl)
                break
        _assign(parameters, before)
        return found

    def kl_slope(self, data: RolloutBatch) -> Tensor:
        """Return the gradient of this rank's mean divergence from the present policy, shape (P,).

        Its values are 0, and its derivative is F.
        """
        with torch.no_grad():
            old = self._actor_distribution(data)
        divergence = cast(Any, old).kl(self._actor_distribution(data)).mean()
        return self._flat_gradient(divergence, self._actor_parameters(), create_graph=True)

    def fisher_product(self, slope: Tensor, vector: Tensor) -> Tensor:
        """Return (F + cg_damping I) v, shape (P,), for the result of :meth:`kl_slope` and a vector v, shape (P,)."""
        product = self._flat_gradient(slope.dot(vector), self._actor_parameters(), retain_graph=True)
        return product + self.config.learn.cg_damping * vector

    def _flat_gradient(self, scalar: Tensor, parameters: list[Tensor], **options: Any) -> Tensor:
        """Return the gradient of a scalar, averaged over ranks, shape (P,)."""
        found = torch.autograd.grad(scalar, parameters, allow_unused=True, materialize_grads=True, **options)
        flat = torch.cat([one.flatten() for one in found])
        return flat if options.get("create_graph") else self._mean(flat)

    def _mean(self, x: Tensor) -> Tensor:
        """Return the mean of a tensor over the ranks."""
        return x if world_size() == 1 else sum_over_ranks(x) / world_size()

    def _actor_distribution(self, data: RolloutBatch) -> rl.Distribution:
        return self._distribution(self._logit(data["obs"]), data["obs"])

    def _actor_parameters(self) -> list[Tensor]:
        groups = self.updater.optimizers[ACTOR].param_groups
        return [one for group in groups for one in group["params"] if one.requires_grad]

    # ------------------------------------------------------------------ attributes

    @property
    def update_per_collect(self) -> int:
        """Updates that a rollout gives: the actor's step, and those of the critic in all passes."""
        return 1 + self.config.learn.epoch_per_collect * super().update_per_collect

    def _monitor_vars_learn(self) -> list[str]:
        return [*super()._monitor_vars_learn(), "approx_kl", "surrogate_gain"]


def _assign(parameters: list[Tensor], flat: Tensor) -> None:
    """Set parameters to the numbers of a vector, shape (P,)."""
    for parameter, numbers in zip(parameters, flat.split([one.numel() for one in parameters]), strict=True):
        parameter.copy_(numbers.view_as(parameter))
