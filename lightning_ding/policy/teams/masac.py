"""SAC of teams: an actor for each agent that maximises reward and entropy, and critics that know the actions of all.

Papers: SAC, Haarnoja et al. 2018b (https://arxiv.org/abs/1812.05905), its form for discrete actions, Christodoulou 2019
(https://arxiv.org/abs/1910.07207), and the centralised critics of MADDPG, Lowe et al. 2017
(https://arxiv.org/abs/1706.02275). As in Iqbal and Sha 2019, section 3.2 (https://arxiv.org/abs/1810.02912), the
actions of the other agents in the losses are those of their current actors and not those of the replay buffer. The
critics of discrete actions value all actions of their agent, given a sample of the others', so the expectation over the
agent's own actions is exact.

Where this differs: each agent's temperature may be its own. Agents that have left the episode have the value 0 and
count in no loss. With ``model.critic_input: local`` agents learn independently, each as in SAC. The other differences
are those of SAC and discrete SAC.

Shapes: B batch, N agents, A dimensions or actions of an agent, E critics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from lightning_ding import rl
from lightning_ding.config import require
from lightning_ding.model.teams.agents import one_hot
from lightning_ding.model.teams.team_qac import with_own
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.discrete_sac import ENTROPY_SHARE, DiscreteSACOtherConfig
from lightning_ding.policy.sac import SACConfig, SACLearnConfig, SACPolicy, SoftConfig
from lightning_ding.policy.teams.actor_critic import (
    TeamQACModelConfig,
    TeamQACPolicy,
    gumbel,
    living_mean,
    living_weight,
)
from lightning_ding.registry import POLICY_REGISTRY
from lightning_ding.utils.teams import legal_actions


@dataclass(frozen=True, kw_only=True)
class MASACModelConfig(TeamQACModelConfig):
    """The actors and the critics."""

    twin_critic: bool = True
    """Use two critics for each agent; the target is the smaller of their values."""


@dataclass(frozen=True, kw_only=True)
class MASACLearnConfig(SACLearnConfig):
    """Options for updates."""

    target_entropy: float | None = None
    """Entropy of an agent's policy to reach, in nats; None means minus the dimensions of its action, or 0.98 log(A) in
    a state with A legal actions. Needs auto_alpha."""
    alpha_per_agent: bool = False
    """Learn a temperature for each agent instead of one for all; needs auto_alpha."""

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = self.auto_alpha or not self.alpha_per_agent
        require(fits, "learn.alpha_per_agent", "False without learn.auto_alpha", self.alpha_per_agent)


@dataclass(frozen=True, kw_only=True)
class MASACConfig(SACConfig):
    """Everything that can be set of SAC of teams."""

    model: MASACModelConfig = field(default_factory=MASACModelConfig)  # type: ignore[assignment]
    """The actors and the critics."""
    learn: MASACLearnConfig = field(default_factory=MASACLearnConfig)
    """Options for updates."""
    other: DiscreteSACOtherConfig = field(default_factory=DiscreteSACOtherConfig)
    """Exploration in addition to the policy's, which needs discrete actions, and replay."""

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = self.model.action_space != "continuous" or self.other.eps == DiscreteSACOtherConfig().eps
        require(fits, "other.eps", "left at its default with continuous actions", self.other.eps)


@POLICY_REGISTRY.register("masac")
class MASACPolicy(TeamQACPolicy[SoftConfig], SACPolicy):
    """SAC for teams with continuous or discrete actions; rewards of each agent or of the team; action masks.

    A network passed as ``model`` must have the modules ``actor`` and ``critic`` and the methods of :class:`TeamQAC`.

    Example:
        >>> shapes = {"agent_num": 3, "agent_obs_shape": 4, "global_obs_shape": 12, "action_shape": 5}
        >>> policy = MASACPolicy({"model": {**shapes, "action_space": "discrete"}})
        >>> policy.eval_mode.forward({"agent_state": torch.zeros(5, 3, 4)})["action"].shape
        torch.Size([5, 3])
    """

    config_class: ClassVar[type[PolicyConfig]] = MASACConfig

    def _temperature_shape(self) -> tuple[int, ...]:
        if not self._has_own_alpha:
            return ()
        number = self._section.agent_num
        require(number is not None, "model.agent_num", "given with a network and learn.alpha_per_agent", number)
        return (cast(int, number),)

    @property
    def _has_own_alpha(self) -> bool:
        return cast(MASACLearnConfig, self.config.learn).alpha_per_agent

    def _forward_collect(  # type: ignore[override]
        self, obs: Mapping[str, Tensor], *, eps: float | None = None
    ) -> dict[str, Tensor]:
        """Return sampled actions; ``eps`` overrides the schedule of random discrete ones."""
        if self.is_discrete:
            epsilon = self._epsilon_at(self.progress.env_step) if eps is None else eps
            return {"action": self.action_start.to_env(self._sampled(self._logit(self.model, obs), epsilon))}
        output = self.model.compute_actor(obs)
        noise = torch.as_tensor(self._standard_normal(output["mu"].shape)).to(output["mu"])
        return {"action": self._to_env(torch.addcmul(output["mu"], output["log_sigma"].exp(), noise).tanh())}

    def _forward_eval(self, obs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if self.is_discrete:
            return {"action": self.action_start.to_env(self._logit(self.model, obs).argmax(-1))}
        return {"action": self._to_env(self.model.compute_actor(obs)["mu"].tanh())}

    def _targets(self, batch: Any) -> Tensor:
        """Return the targets of each agent, shape (B, N)."""
        if not self.is_discrete:
            return super()._targets(batch)
        log_p = self._log_p(batch["next_obs"])
        q_t = self._values(self.target_model, batch["next_obs"], log_p, batch["next_noise"])
        value = rl.expected_soft_value(log_p, q_t, self.alpha.unsqueeze(-1))
        return torch.addcmul(batch["reward"], batch["discount_t"], value)

    def _values_of_taken(self, batch: Any) -> Tensor:
        q = super()._values_of_taken(batch)
        return q.mul(batch["action"]).sum(-1) if self.is_discrete else q

    def actor_loss(self, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the actors' loss over living agents on a prepared minibatch, and the metrics to report, detached.

        It reports ``actor_loss``, ``alpha``, and ``log_prob`` (B, N), of discrete actions minus the entropy.
        """
        if not self.is_discrete:
            return super().actor_loss(batch)
        log_p, alpha = self._log_p(batch["obs"]), self.alpha
        with torch.no_grad(), self._in_eval_mode.context:
            q = self._values(self.model, batch["obs"], log_p, batch["noise"])
        loss = -living_mean(rl.expected_soft_value(log_p, q, alpha.unsqueeze(-1)), batch["alive"])
        report = {"actor_loss": loss.detach(), "log_prob": rl.expectation(log_p, log_p).detach(), "alpha": alpha}
        legal = legal_actions(batch["obs"], self.counts)
        if legal is not None:
            report["max_entropy"] = legal.sum(-1).clamp(min=1).to(log_p).log()
        return loss, report | {"alive": batch["alive"]}

    def _loss_of_actions(self, output: dict[str, Tensor], batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        action, log_prob = rl.squashed_gaussian_sample(output["mu"], output["log_sigma"], batch["noise"])
        alpha, q = self.alpha, self._actor_values(batch, with_own(action, action.detach()))
        loss = rl.soft_actor_loss(q, log_prob, alpha, living_weight(batch["alive"]))
        report = {"actor_loss": loss.detach(), "log_prob": log_prob.detach(), "alpha": alpha}
        return loss, report | {"alive": batch["alive"]}

    def alpha_loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the temperatures' loss for the report of :meth:`actor_loss`, and ``alpha_loss`` to report.

        A temperature for all agents follows the mean over living agents, that of an agent its own mean.
        """
        error = batch["log_prob"] + self._target_entropy(batch)
        mean = living_mean(error, batch["alive"], 0 if self._has_own_alpha else None)
        loss = -(self.temperature * mean).sum()
        return loss, {"alpha_loss": loss.detach()}

    def _target_entropy(self, report: dict[str, Tensor]) -> float | Tensor:
        """Return the entropy of each agent to reach in nats, for all states or shape (B, N)."""
        given = self.config.learn.target_entropy
        if given is not None:
            return given
        if not self.is_discrete:
            return -float(cast(int, self._section.action_shape))
        bound: float | Tensor = report.get("max_entropy", math.log(max(self.counts)))
        return ENTROPY_SHARE * bound

    def _values(self, model: Any, obs: Mapping[str, Tensor], log_p: Tensor, noise: Tensor) -> Tensor:
        """Return critics' values of all actions, shape (E, B, N, A), with sampled actions of the other agents."""
        others = one_hot((log_p + gumbel(noise)).argmax(-1), log_p.shape[-1])
        return model.compute_critic(obs, others)["q_value"]  # type: ignore[no-any-return]

    def _log_p(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Return the log probabilities of all actions, shape (B, N, A)."""
        return rl.Categorical(self.model.compute_actor(obs)["logit"], legal_actions(obs, self.counts)).log_p

    def _action_space_of_model(self) -> str:
        return "discrete" if self.is_discrete else "reparameterization"

    def _model_cfg(self) -> dict[str, Any]:
        return super()._model_cfg() | {"action_values": self.is_discrete}
