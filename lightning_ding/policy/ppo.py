"""PPO with generalised advantages, for discrete, multi-discrete, continuous, hybrid and masked actions.

Papers: Schulman et al. 2017, eq. 7 and 9 (https://arxiv.org/abs/1707.06347); advantages: Schulman et al. 2016, eq. 16
(https://arxiv.org/abs/1506.02438); dual clip: Ye et al. 2020, eq. 5 (https://arxiv.org/abs/1912.09729); initial
weights: Andrychowicz et al. 2021 (https://arxiv.org/abs/2006.05990); hybrid actions: Fan et al. 2019
(https://arxiv.org/abs/1903.01344), here with one critic for both.

Where this differs: a time limit and the end of the rollout bootstrap from the true next observation. Values are clipped
by a distance of their own, not by the clip ratio of the policy, which is a ratio, and by default not at all. With
``value_norm`` the critic predicts returns divided by their running root mean square; DI-engine divides by the standard
deviation, which makes targets huge where returns hardly vary. ``train_iter`` counts minibatches.

Shapes: B batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from lightning_ding import rl
from lightning_ding.policy.actor_critic import ActorCriticPolicy
from lightning_ding.policy.config import PolicyConfig
from lightning_ding.policy.ppo_config import PPOConfig
from lightning_ding.policy.rank_statistics import update_over_ranks
from lightning_ding.policy.round import Batch
from lightning_ding.registry import POLICY_REGISTRY


@POLICY_REGISTRY.register("ppo")
class PPOPolicy(ActorCriticPolicy[PPOConfig]):
    """PPO; vector, image and dict observations.

    Args:
        cfg: A ``PPOConfig``, or a mapping to merge over its defaults.
        model: A network with ``compute_actor``, ``compute_critic`` and ``compute_actor_critic`` to use instead of the
            one that the config describes.
        enable_field: Which of learn, collect and eval to initialise; None means all.

    Example:
        >>> import torch
        >>> policy = PPOPolicy({"model": {"obs_shape": 4, "action_shape": 2, "action_space": "discrete"}})
        >>> policy.eval_mode.forward(torch.zeros(3, 4))["action"].shape
        torch.Size([3])
    """

    config_class: ClassVar[type[PolicyConfig]] = PPOConfig
    config: PPOConfig

    def _initialise(self, model: nn.Module | None) -> None:
        super()._initialise(model)
        if model is None and self.config.learn.ppo_param_init:
            self.model.init_orthogonally()  # type: ignore[operator]

    def _init_learn(self) -> None:
        super()._init_learn()
        self.return_statistics = rl.RunningMeanStd()

    def loss(self, batch: Mapping[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a minibatch and what to report of it.

        Args:
            batch: ``obs``, ``action`` as it was drawn, ``log_prob`` and ``value`` (B,) of the policy that acted,
                ``advantage`` (B,), ``return`` (B,) in units of the network's output.

        Returns:
            The loss, and detached scalars: ``total_loss``, ``policy_loss``, ``value_loss``, ``entropy_loss``,
            ``approx_kl``, ``clip_fraction``.
        """
        learn, obs = self.config.learn, batch["obs"]
        output = self.model.compute_actor_critic(obs)  # type: ignore[operator]
        distribution = self._distribution(output["logit"], obs)
        log_prob = distribution.log_prob(batch["action"])
        clip_ratio = batch.get("clip_ratio", learn.clip_ratio)
        policy = rl.ppo_policy_loss(log_prob, batch["log_prob"], batch["advantage"], clip_ratio, learn.dual_clip)
        value_loss = rl.ppo_value_loss(output["value"], batch["value"], batch["return"], learn.value_clip)
        entropy = distribution.entropy().mean()
        loss = (
            policy.loss + learn.value_weight * value_loss - batch.get("entropy_weight", learn.entropy_weight) * entropy
        )
        report = {"total_loss": loss, "policy_loss": policy.loss, "value_loss": value_loss, "entropy_loss": entropy}
        report |= {"approx_kl": policy.approx_kl, "clip_fraction": policy.clip_fraction}
        return loss, {name: value.detach() for name, value in report.items()}

    def _epochs(self) -> int:
        return self.config.learn.epoch_per_collect

    def _standardised(self) -> str | None:
        return "advantage" if self.config.learn.adv_norm else None

    def _recomputes(self) -> bool:
        return self.config.recompute_adv

    def _value_scale(self) -> Tensor | float:
        return self.return_statistics.root_mean_square.float() if self.config.learn.value_norm else 1.0

    def _end_round(self, data: Batch) -> None:
        super()._end_round(data)
        if self.config.learn.value_norm:
            update_over_ranks(self.return_statistics, data["return"] * self._value_scale())

    def _state_dict_learn(self) -> dict[str, Any]:
        return super()._state_dict_learn() | {"return_statistics": self.return_statistics.state_dict()}

    def _load_state_dict_learn(self, state: dict[str, Any]) -> None:
        super()._load_state_dict_learn(state)
        self.return_statistics.load_state_dict(state["return_statistics"])

    def _monitor_vars_learn(self) -> list[str]:
        losses = ["total_loss", "policy_loss", "value_loss", "entropy_loss"]
        return ["cur_lr", *losses, "approx_kl", "clip_fraction"]
