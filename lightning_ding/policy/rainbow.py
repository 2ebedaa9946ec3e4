"""Rainbow: C51 with double Q-learning, prioritised replay, a dueling network, n-step returns and noisy layers.

Papers: Hessel et al. 2018 (https://arxiv.org/abs/1710.02298); noise: Fortunato et al. 2018, eq. 10 and 11
(https://arxiv.org/abs/1706.10295); the others stand in ``c51`` and ``dqn``. The loss is C51's.

Where this differs: beside the noise a small epsilon explores, 0.05 at all times, as in DI-engine; set ``other.eps`` to
0 for the paper's way. Each update draws one noise for the network, with which it both predicts and chooses the next
action, and another one for the target. The envs of a step share a noise. An evaluation has neither.

Shapes: B batch, A actions, N atoms.
"""

from __future__ import annotations

from typing import Any, ClassVar, cast

from torch import Tensor, nn

from lightning_ding.policy.c51 import C51Policy
from lightning_ding.policy.config import PolicyConfig
from lightning_ding.policy.rainbow_config import RainbowConfig
from lightning_ding.registry import POLICY_REGISTRY


@POLICY_REGISTRY.register("rainbow")
class RainbowPolicy(C51Policy):
    """Rainbow for discrete actions; vector, image and dict observations; action masks.

    Args:
        cfg: A ``RainbowConfig``, or a mapping to merge over its defaults.
        model: A network to use instead of the one that the config describes; beside what C51's network does, it takes
            an argument ``noisy``, and has a method ``reset_noise(rng)``.
        enable_field: Which of learn, collect, eval and command to initialise; None means all.

    Example:
        >>> import torch
        >>> policy = RainbowPolicy({"model": {"obs_shape": 4, "action_shape": 2}})
        >>> policy.eval_mode.forward({0: torch.zeros(4), 1: torch.ones(4)})[1]["action"].shape
        torch.Size([])
    """

    config_class: ClassVar[type[PolicyConfig]] = RainbowConfig

    def _forward_collect(self, obs: Any, *, eps: float | None = None) -> dict[str, Tensor]:  # type: ignore[override]
        """Return noisy epsilon-greedy actions; ``eps`` overrides the schedule."""
        self._reset_noise(self.model)
        return super()._forward_collect(obs, eps=eps)

    def _forward_learn(self, batch: dict[str, Any]) -> dict[str, Any]:
        self._reset_noise(self.model)
        self._reset_noise(self.target_model)
        return super()._forward_learn(batch)

    def _output(self, model: nn.Module, obs: Any) -> dict[str, Any]:
        return cast("dict[str, Any]", model(obs, noisy=True))

    def _prepare_round(self, data: dict[str, Any]) -> dict[str, Any]:
        return data  # the target's noise changes with every update

    def _reset_noise(self, model: nn.Module) -> None:
        cast(Any, model).reset_noise(self.rng)

    def default_model(self) -> tuple[str, list[str]]:
        """Return the registered Q-network."""
        return "rainbowdqn", ["lightning_ding.model.rainbow"]
