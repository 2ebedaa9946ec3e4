"""BCQ: Q-learning on a data set over actions that the data could have.

Paper: Fujimoto et al. 2019, algorithm 1 (https://arxiv.org/abs/1812.02900). A variational auto-encoder makes actions as
the data have for an observation, an actor shifts each by at most ``model.phi``, and the critics choose among them.

Where this differs: the actor and the critics have two layers of 256 units, where the paper has 400 and 300; evaluations
decode the same ``model.candidates`` latent variables at every step, so that they are deterministic; importance-sampling
weights weigh the critics' loss only. Collecting, when training continues in an env, draws ``learn.num_actions`` new
candidates for each action.

Shapes: B batch, A dimensions of an action, L dimensions of a latent variable, N candidates, E critics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from lightning_ding import nested, rl
from lightning_ding.config import require, searched
from lightning_ding.model.heads import check_widths
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.base.optimizers import make_optimizer
from lightning_ding.policy.qac import ActorCriticBatch, QACConfig, QACLearnConfig, QACPolicy
from lightning_ding.policy.td3_bc import TD3BCModelConfig
from lightning_ding.registry import POLICY_REGISTRY


@dataclass(frozen=True, kw_only=True)
class BCQModelConfig(TD3BCModelConfig):
    """The actor, the critics and the auto-encoder of actions."""

    phi: float = 0.05
    """Largest change of an action by the actor, in normalised units, >= 0."""
    latent_size: int | None = None
    """Dimensions of the auto-encoder's latent variable, >= 1; None means twice those of an action."""
    vae_hidden_size_list: Sequence[int] = (750, 750)
    """Width of each hidden layer of the auto-encoder's two halves, >= 1."""
    candidates: int = 100
    """Actions of which evaluations take the best, >= 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.phi >= 0, "model.phi", ">= 0", self.phi)
        require(self.latent_size is None or self.latent_size >= 1, "model.latent_size", ">= 1", self.latent_size)
        check_widths("model.vae_hidden_size_list", self.vae_hidden_size_list)
        require(self.candidates >= 1, "model.candidates", ">= 1", self.candidates)


@dataclass(frozen=True, kw_only=True)
class BCQLearnConfig(QACLearnConfig):
    """Options for updates."""

    update_per_collect: int = 10
    """Updates of a round, >= 1."""
    batch_size: int = searched(100, "choice(32, 64, 100, 128, 256, 512)")
    """Transitions of a minibatch on each rank, >= 1."""
    learning_rate_actor: float = searched(1e-3, "log(1e-5, 1e-2)")
    """Step size of the actor's optimizer, > 0."""
    learning_rate_critic: float = searched(1e-3, "log(1e-5, 1e-2)")
    """Step size of the critics' optimizer, > 0."""
    learning_rate_vae: float = 1e-3
    """Step size of the auto-encoder's optimizer, > 0."""
    lmbda: float = 0.75
    """Weight of the smaller value of the critics in the targets, against the larger one, in [0, 1]."""
    num_actions: int = 10
    """Candidates for the next action in the targets, of which the best counts, >= 1."""
    kl_weight: float | None = None
    """Weight of the divergence of the latent variable from a standard normal one in the auto-encoder's loss, >= 0; None
    means 1 / (2 L), as in the paper."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("learning_rate_actor", "learning_rate_critic", "learning_rate_vae"):
            require(getattr(self, name) > 0, f"learn.{name}", "> 0", getattr(self, name))
        require(0 <= self.lmbda <= 1, "learn.lmbda", "in [0, 1]", self.lmbda)
        require(self.num_actions >= 1, "learn.num_actions", ">= 1", self.num_actions)
        require(self.kl_weight is None or self.kl_weight >= 0, "learn.kl_weight", ">= 0 or None", self.kl_weight)


@dataclass(frozen=True, kw_only=True)
class BCQConfig(QACConfig):
    """Everything that can be set of BCQ."""

    model: BCQModelConfig = field(default_factory=BCQModelConfig)
    """The actor, the critics and the auto-encoder of actions."""
    learn: BCQLearnConfig = field(default_factory=BCQLearnConfig)
    """Options for updates."""


class BCQBatch(ActorCriticBatch, total=False):
    """A minibatch of BCQ, leading axis B."""

    vae_noise: Tensor
    """Standard normal noise of the latent variables of the data's actions, shape (B, L)."""


@POLICY_REGISTRY.register("bcq")
class BCQPolicy(QACPolicy[BCQConfig]):
    """BCQ for continuous actions; vector, image and dict observations.

    In addition to what :class:`QACPolicy` describes, a network passed as ``model`` has the other methods of
    :class:`BCQ`, the module ``vae``, and ``latent_size``; its ``compute_actor`` takes latent variables too.

    Example:
        >>> policy = BCQPolicy({"model": {"obs_shape": 3, "action_shape": 1}})
        >>> policy.eval_mode.forward(torch.zeros(5, 3))["action"].shape
        torch.Size([5, 1])
    """

    config_class: ClassVar[type[PolicyConfig]] = BCQConfig
    trains_on: ClassVar[str] = "dataset"
    parts_of_model: ClassVar[tuple[str, ...]] = (
        *QACPolicy.parts_of_model,
        *("vae", "latent_size", "encode", "reconstruct", "decode", "perturb", "values_of"),
    )

    def _init_learn(self) -> None:
        super()._init_learn()
        learn, parameters = self.config.learn, self.model.vae.parameters()
        self.updater.optimizers.append(make_optimizer(learn.optimizer, parameters, learn.learning_rate_vae))

    def _forward_collect(self, obs: Any, **kwargs: Any) -> dict[str, Tensor]:
        shape = (len(next(iter(nested.leaves(obs)))), self.config.learn.num_actions, self.model.latent_size)
        latents = torch.as_tensor(self._standard_normal(shape)).to(self.device)
        return {"action": self.action_bounds.to_env(self.model.compute_actor(obs, latents)["action"])}

    def _forward_eval(self, obs: Any) -> dict[str, Tensor]:
        return {"action": self.action_bounds.to_env(self.model.compute_actor(obs)["action"])}

    def _forward_learn(self, batch: Any) -> dict[str, Any]:
        report = self.updater.minimise(self.vae_loss, batch, 2)
        report |= self._learn_critics(batch)
        report |= self.updater.minimise(self.actor_loss, batch, 1)
        self._update_target()
        return report

    def vae_loss(self, batch: BCQBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the auto-encoder's loss on a prepared minibatch, and the metrics to report, detached.

        It reports scalars: ``vae_loss``, ``recons_loss``, the mean squared distance to the data's actions, and
        ``kl_loss``, the divergence of the latent variables from standard normal ones, in nats.
        """
        mu, log_sigma = self.model.encode(batch["obs"], batch["action"])
        latent = torch.addcmul(mu, log_sigma.exp(), batch["vae_noise"])
        recons_loss = F.mse_loss(self.model.reconstruct(batch["obs"], latent), batch["action"])
        kl_loss = rl.standard_normal_kl(mu, log_sigma).mean()
        weight = self.config.learn.kl_weight
        loss = recons_loss + (0.5 / self.model.latent_size if weight is None else weight) * kl_loss
        report = {"vae_loss": loss, "recons_loss": recons_loss, "kl_loss": kl_loss}
        return loss, {name: one.detach() for name, one in report.items()}

    def _targets(self, batch: ActorCriticBatch) -> Tensor:
        obs = batch["next_obs"]
        action = self.target_model.perturb(obs, self.model.decode(obs, batch["next_noise"]))
        q_t = self.target_model.values_of(obs, action)
        return rl.best_candidate_target(batch["reward"], batch["discount_t"], q_t, self.config.learn.lmbda)

    def actor_loss(self, batch: ActorCriticBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return minus the first critic's value of actions that the actor has shifted, and ``actor_loss`` to report."""
        with torch.no_grad(), self._in_eval_mode.context:
            action = self.model.decode(batch["obs"], batch["noise"])
        shifted = self.model.perturb(batch["obs"], action)
        loss = -self.model.compute_critic(batch["obs"], shifted, members=1)["q_value"].mean()
        return loss, {"actor_loss": loss.detach()}

    @property
    def _learning_rates(self) -> tuple[float, float]:
        return self.config.learn.learning_rate_critic, self.config.learn.learning_rate_actor

    def _noise(self, shape: Sequence[int]) -> dict[str, Any]:
        size = self.model.latent_size
        next_noise = self._standard_normal([*shape, self.config.learn.num_actions, size])
        noise = {name: self._standard_normal([*shape, size]) for name in ("vae_noise", "noise")}
        return {**noise, "next_noise": next_noise}

    def _monitor_vars_learn(self) -> list[str]:
        return [*super()._monitor_vars_learn(), "vae_loss", "recons_loss", "kl_loss"]

    def default_model(self) -> tuple[str, list[str]]:
        """Return the registered network of BCQ."""
        return "bcq", ["lightning_ding.model.bcq"]
