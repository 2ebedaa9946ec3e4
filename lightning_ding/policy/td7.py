"""TD7: TD3 with learned embeddings of states and actions (SALE), prioritised replay (LAP) and clipped target values.

Paper: Fujimoto et al. 2023, "For SALE", algorithm 1 (https://arxiv.org/abs/2306.02451); prioritised replay: Fujimoto et
al. 2020 (https://arxiv.org/abs/2007.06049). An encoder of states and actions learns to predict the encoding of the next
state. The actor and the critics see an earlier copy of it, which is fixed between two updates of the targets. At those,
every ``learn.target_update_freq`` updates, the targets become copies of the actor, of the critics and of the fixed
encoders, and the fixed encoders copies of the trained ones. The next value in a target is clipped to the range of all
targets before the last such update; it is 0 until the first one.

Where this differs: there are no checkpoints of the policy, which the paper assesses over whole episodes between its
updates (section 4.3): updates follow each round of collecting here, and ``BestCheckpoint`` keeps the policy with the
best evaluation. There is no behaviour cloning term for offline data; see ``td3_bc``. Replay draws stratified samples,
and a new transition gets the largest priority in the buffer, which follows the other ones at once instead of at the
updates of the targets. Acting is random for the first 1,000 steps, not 25,000 (``random_collect_size``). Noise is in
normalised units. With ``nstep`` above 1 the encoder predicts the state after these steps.

Shapes: B batch, A dimensions of an action, E critics.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal  # noqa: F401 - the command line evaluates the types of all fields of a section here

import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor

from lightning_ding import rl
from lightning_ding.config import require, searched
from lightning_ding.model.residual import LayersConfig
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.base.optimizers import make_optimizer
from lightning_ding.policy.ddpg import DDPGCollectConfig, DDPGPolicy
from lightning_ding.policy.qac import ActorCriticBatch, ContinuousNetworkConfig, QACConfig, QACOtherConfig, QACPolicy
from lightning_ding.policy.replay_policy import copy_parameters
from lightning_ding.policy.td3 import TD3LearnConfig
from lightning_ding.registry import POLICY_REGISTRY
from lightning_ding.utils.ranks import gather_rows
from lightning_ding.worker.config import ReplayBufferConfig

SMALLEST_PRIORITY = 1.0  # of an error within the quadratic part of the Huber loss; LAP, section 4
UNUSED = ("action_space", "share_encoder", "actor_layers", "critic_layers")


@dataclass(frozen=True, kw_only=True)
class TD7ModelConfig(ContinuousNetworkConfig):
    """The actor, the critics and the embeddings."""

    ensemble_num: int = 2
    """Number of critics, >= 1; the target is the smallest of their values."""
    embedding_size: int = 256
    """Size of the embeddings of states and of states with actions, >= 1."""
    embedding_hidden_size: int = 256
    """Width of the two hidden layers of both encoders of embeddings, >= 1."""
    actor_head_layer_num: int = 2
    """Number of hidden layers of the actor after the first one, which is normalised, >= 0."""
    critic_head_layer_num: int = 2
    """Number of hidden layers of the critics after the first one, which is normalised, >= 0."""
    critic_activation: str = "elu"
    """Activation of the critics and of the embeddings: relu, tanh, elu, gelu or silu; ``activation`` is the actor's."""
    share_encoder: bool = False
    """False: the actor, the critics and the embeddings have an encoder each."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("ensemble_num", "embedding_size", "embedding_hidden_size"):
            require(getattr(self, name) >= 1, f"model.{name}", ">= 1", getattr(self, name))
        require(not self.share_encoder, "model.share_encoder", "False for td7", self.share_encoder)
        for name in ("actor_layers", "critic_layers"):
            layers = getattr(self, name)
            require(layers == LayersConfig(), f"model.{name}", "left at its default for td7", layers)


@dataclass(frozen=True, kw_only=True)
class TD7LearnConfig(TD3LearnConfig):
    """Options for updates."""

    default_copy_freq: ClassVar[int] = 250
    delays_target: ClassVar[bool] = False

    learning_rate_actor: float = searched(3e-4, "log(1e-5, 1e-2)")
    """Step size of the actor's optimizer, > 0."""
    learning_rate_critic: float = searched(3e-4, "log(1e-5, 1e-2)")
    """Step size of the critics' optimizer, > 0."""
    learning_rate_embedding: float = 3e-4
    """Step size of the optimizer of the embeddings, > 0."""
    target_update_freq: int | None = searched(250, "choice(50, 100, 250, 500, 1000)")
    """Updates between two copies into the target networks and into the fixed encoders, >= 1; None means 250."""
    actor_update_freq: int = 2
    """Updates of the critics between two of the actor, >= 1."""
    target_theta: float | None = None
    """None: the targets are copied, as the fixed encoders are."""

    def __post_init__(self) -> None:
        require(self.target_theta is None, "learn.target_theta", "None for td7, which copies", self.target_theta)
        super().__post_init__()
        rate = self.learning_rate_embedding
        require(rate > 0, "learn.learning_rate_embedding", "> 0", rate)


def _prioritised() -> QACOtherConfig:
    return QACOtherConfig(replay_buffer=ReplayBufferConfig(type="lap", replay_buffer_size=1_000_000))


@dataclass(frozen=True, kw_only=True)
class TD7Config(QACConfig):
    """Everything that can be set of TD7; the defaults are those of the paper, except as said above."""

    priority: bool = True
    """Pass the size of each error to the buffer as its priority; needs a prioritised buffer."""
    model: TD7ModelConfig = field(default_factory=TD7ModelConfig)
    """The actor, the critics and the embeddings."""
    learn: TD7LearnConfig = field(default_factory=TD7LearnConfig)
    """Options for updates."""
    collect: DDPGCollectConfig = field(default_factory=DDPGCollectConfig)
    """Options for collecting: the amount, the collector and the exploration."""
    other: QACOtherConfig = field(default_factory=_prioritised)
    """Prioritised replay."""


@POLICY_REGISTRY.register("td7")
class TD7Policy(DDPGPolicy):
    """TD7 for continuous actions; vector, image and dict observations.

    In addition to DDPG's interface, a network passed as ``model`` has the modules ``embedding`` and
    ``fixed_embedding``, of the same parameters, with ``of_state(obs)`` and ``of_action(state, action)``, which return
    embeddings; ``compute_actor`` and ``compute_critic`` use the fixed one.

    Example:
        >>> policy = TD7Policy({"model": {"obs_shape": 3, "action_shape": 1}})
        >>> policy.eval_mode.forward(torch.zeros(5, 3))["action"].shape
        torch.Size([5, 1])
    """

    config_class: ClassVar[type[PolicyConfig]] = TD7Config
    config: TD7Config  # type: ignore[assignment]
    parts_of_model: ClassVar[tuple[str, ...]] = (*DDPGPolicy.parts_of_model, "embedding", "fixed_embedding")
    value_range: Tensor

    def _init_learn(self) -> None:
        super()._init_learn()
        learn = self.config.learn
        parameters = self.model.embedding.parameters()
        self.updater.optimizers.append(make_optimizer(learn.optimizer, parameters, learn.learning_rate_embedding))
        # the smallest and largest target so far, and those at the last update of the targets
        self.register_buffer("value_range", torch.tensor([[math.inf, -math.inf], [0.0, 0.0]]), persistent=True)

    def _forward_learn(self, batch: Any) -> dict[str, Any]:
        report = self.updater.minimise(self.embedding_loss, batch, 2) | self._learn_critics(batch)
        self._widen_range(report)
        if (self.progress.train_iter + 1) % self.config.learn.actor_update_freq == 0:
            report |= self.updater.minimise(self.actor_loss, batch, 1)
        self._update_target()
        return report

    def embedding_loss(self, batch: ActorCriticBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the mean squared error of predicted next embeddings (eq. 3), and ``embedding_loss`` to report."""
        embedding = self.model.embedding
        with torch.no_grad(), self._in_eval_mode.context:
            target = embedding.of_state(batch["next_obs"])
        prediction = embedding.of_action(embedding.of_state(batch["obs"]), batch["action"])
        loss = F.mse_loss(prediction, target)
        return loss, {"embedding_loss": loss.detach()}

    def _targets(self, batch: ActorCriticBatch) -> Tensor:
        action = self._target_actions(batch["next_obs"], batch.get("next_noise"))
        q_t = self.target_model.compute_critic(batch["next_obs"], action)["q_value"]
        low, high = self.value_range[1]
        return rl.pessimistic_target(batch["reward"], batch["discount_t"], q_t.clamp(low, high))

    def _td_loss(self, batch: ActorCriticBatch, q: Tensor, target: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        loss = rl.huber_critic_loss(q, target, batch["IS"] if self.config.priority_IS_weight else None)
        report = {"critic_loss": loss.detach(), "q_value": q.detach(), "target_q_value": target}
        if self.config.priority:
            report["priority"] = (q.detach() - target).abs().amax(0).clamp(min=SMALLEST_PRIORITY)
        return loss, report

    def actor_loss(self, batch: ActorCriticBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return minus the mean value of all critics of the actor's actions, and ``actor_loss`` to report."""
        action = self.model.compute_actor(batch["obs"])["action"]
        loss = -self.model.compute_critic(batch["obs"], action)["q_value"].mean()
        return loss, {"actor_loss": loss.detach()}

    def _widen_range(self, report: dict[str, Any]) -> None:
        """Extend the range of all targets by those of a minibatch of all ranks, unless its loss is not finite."""
        target, (low, high) = report["target_q_value"], self.value_range[0]
        extremes = torch.stack([low.minimum(target.amin()), high.maximum(target.amax())])
        rows = gather_rows(torch.where(report["critic_loss"].isfinite(), extremes, self.value_range[0]))
        self.value_range[0] = torch.stack([rows[:, 0].amin(), rows[:, 1].amax()])

    def _update_target(self, part: str | None = None) -> None:
        super()._update_target(part)
        if (self.progress.train_iter + 1) % (self._target_update.freq or self._target_update.default_freq) == 0:
            copy_parameters(self.model.embedding, self.model.fixed_embedding)
            found = self.value_range[0]
            self.value_range[1] = torch.where(found.isfinite(), found, self.value_range[1])  # not before the first one

    def default_model(self) -> tuple[str, list[str]]:
        """Return the registered network of an actor, critics and embeddings."""
        return "sale_qac", ["lightning_ding.model.td7"]

    def _model_cfg(self) -> dict[str, Any]:
        return {name: value for name, value in super()._model_cfg().items() if name not in UNUSED}

    def _shapes_of(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> dict[str, Any]:
        return QACPolicy._shapes_of(self, observation_space, action_space)  # without hybrid actions

    def _state_dict_learn(self) -> dict[str, Any]:
        return super()._state_dict_learn() | {"value_range": self.value_range.clone()}

    def _load_state_dict_learn(self, state: dict[str, Any]) -> None:
        super()._load_state_dict_learn(state)
        self.value_range.copy_(state["value_range"])

    def _monitor_vars_learn(self) -> list[str]:
        return [*super()._monitor_vars_learn(), "embedding_loss"]
