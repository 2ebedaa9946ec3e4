"""P-DQN: Q-learning over choices, whose continuous arguments an actor gives.

Paper: Xiong et al. 2018, section 4 (https://arxiv.org/abs/1810.06394). For an observation, the actor gives the
arguments of all choices; the critic gives the value of each choice with them, and the best choice is taken. The actor
maximises the sum of these values. With ``model.argument_mask`` it is MP-DQN (Bester et al. 2019,
https://arxiv.org/abs/1905.04388): the value of a choice depends on its own arguments alone.

Where this differs: transitions come from a replay buffer, and the targets from target networks of the critic and of the
actor; with ``learn.double_q`` the trained networks choose the next action. For exploration, the choice is random with
probability epsilon, and the arguments get noise as in ``ddpg``. If an observation has an ``action_mask``, only legal
choices enter actions, targets and the actor's loss. Actions without a choice have one value, which is DDPG. With
``learn.turn`` the critic and the actor learn in turns.

Shapes: B batch, A arguments of all choices, K choices, E critics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from lightning_ding import rl
from lightning_ding.config import require
from lightning_ding.model.pdqn import check_argument_mask
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.ddpg import DDPGConfig, DDPGLearnConfig, DDPGModelConfig, DDPGPolicy, mask_of
from lightning_ding.policy.qac import ActorCriticBatch
from lightning_ding.registry import POLICY_REGISTRY


@dataclass(frozen=True, kw_only=True)
class PDQNModelConfig(DDPGModelConfig):
    """The actor of the arguments, and the critic of the choices."""

    argument_mask: Sequence[Sequence[int]] | None = None
    """Which arguments belong to each choice, a row of 0 and 1 for each choice; the value of a choice then depends on
    its own arguments alone. None lets it depend on all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_argument_mask("model.argument_mask", self.argument_mask, self.action_shape)


@dataclass(frozen=True, kw_only=True)
class PDQNLearnConfig(DDPGLearnConfig):
    """Options for updates."""

    double_q: bool = False
    """Choose the next action with the trained networks instead of the target networks."""
    turn: int | None = None
    """Updates of the critic alone and then of the actor alone, in turns, >= 1; None updates both each time."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.turn is None or self.turn >= 1, "learn.turn", ">= 1 or None", self.turn)
        freq = self.actor_update_freq
        require(self.turn is None or freq == 1, "learn.actor_update_freq", "1 with learn.turn", freq)


@dataclass(frozen=True, kw_only=True)
class PDQNConfig(DDPGConfig):
    """Everything that can be set of P-DQN."""

    model: PDQNModelConfig = field(default_factory=PDQNModelConfig)
    """The actor of the arguments, and the critic of the choices."""
    learn: PDQNLearnConfig = field(default_factory=PDQNLearnConfig)
    """Options for updates."""


@POLICY_REGISTRY.register("pdqn")
class PDQNPolicy(DDPGPolicy):
    """P-DQN for hybrid and continuous actions; all kinds of observations; masks of hybrid actions' choices.

    :class:`QACPolicy` describes a network passed as ``model``; its ``compute_actor`` returns ``action``, or for hybrid
    actions the values ``logit`` and ``action_args``; it also has ``compute_arguments`` and ``compute_values`` of
    :class:`PDQN`.

    Example:
        >>> import torch
        >>> shape = {"action_type_shape": 3, "action_args_shape": 2}
        >>> policy = PDQNPolicy({"model": {"obs_shape": 4, "action_shape": shape}})
        >>> {name: tuple(part.shape) for name, part in policy.eval_mode.forward(torch.zeros(5, 4))["action"].items()}
        {'action_type': (5,), 'action_args': (5, 2)}
    """

    config_class: ClassVar[type[PolicyConfig]] = PDQNConfig
    parts_of_model: ClassVar[tuple[str, ...]] = (*DDPGPolicy.parts_of_model, "compute_arguments", "compute_values")
    config: PDQNConfig

    def _forward_learn(self, batch: Any) -> dict[str, Any]:
        turn = self.config.learn.turn
        if turn is None:
            return super()._forward_learn(batch)
        if (self.progress.train_iter + 1) // turn % 2:
            return self.updater.minimise(self.actor_loss, batch, 1)
        report = self._learn_critics(batch)
        self._update_target()
        return report

    def _targets(self, batch: ActorCriticBatch) -> Tensor:
        obs, noise = batch["next_obs"], batch.get("next_noise")
        chooser = self.model if self.config.learn.double_q else self.target_model
        arguments = chooser.compute_arguments(obs)
        arguments = arguments if noise is None else rl.smoothed_action(arguments, noise)
        q_t = self.target_model.compute_values(obs, arguments)
        q = chooser.compute_values(obs, arguments, members=1)[0] if self.config.learn.double_q else q_t[0]
        choice = rl.masked(q, mask_of(obs)).argmax(1)
        taken = q_t.gather(2, choice.view(1, -1, 1).expand(len(q_t), -1, 1)).squeeze(2)
        return rl.pessimistic_target(batch["reward"], batch["discount_t"], taken)

    def actor_loss(self, batch: ActorCriticBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return minus the sum of the values of all legal choices (section 4), and ``actor_loss`` to report."""
        obs, mask = batch["obs"], mask_of(batch["obs"])
        q = self.model.compute_values(obs, self.model.compute_arguments(obs), members=1)[0]
        q = q if mask is None else q.masked_fill(~mask.bool(), 0.0)
        loss = -q.sum(1).mean()
        return loss, {"actor_loss": loss.detach()}

    def default_model(self) -> tuple[str, list[str]]:
        """Return the registered network of P-DQN."""
        return "pdqn", ["lightning_ding.model.pdqn"]
