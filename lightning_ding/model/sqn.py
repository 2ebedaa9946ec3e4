"""The network of SQN: two Q-networks, of which the smaller value counts, and the temperature of their softmax.

Shapes: B batch, A actions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lightning_ding.model.dqn import DQN
from lightning_ding.registry import MODEL_REGISTRY


@MODEL_REGISTRY.register("sqn")
class SQN(nn.Module):
    """Two networks of action values, and ``log_alpha``, the logarithm of a temperature, which is 0 at first.

    The arguments are those of :class:`DQN`.

    Example:
        >>> SQN(obs_shape=4, action_shape=2)(torch.zeros(3, 4))["logit"].shape
        torch.Size([3, 2])
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.critics = nn.ModuleList([DQN(*args, **kwargs) for _ in range(2)])
        self.log_alpha = nn.Parameter(torch.zeros(()))

    def forward(self, obs: Any) -> dict[str, Any]:
        """Return the action values of both networks, and the smaller ones.

        Returns:
            ``logit``, the smaller values, shape (B, A), or a list of such tensors for a multi-discrete action;
            ``q_value``, a list of the values of each network.
        """
        both = [critic(obs)["logit"] for critic in self.critics]
        first, second = both
        return {"logit": _smaller(first, second), "q_value": both}


def _smaller(first: Any, second: Any) -> Tensor | list[Tensor]:
    if isinstance(first, list):
        return [torch.minimum(*pair) for pair in zip(first, second, strict=True)]
    return torch.minimum(first, second)
