"""The Q-network of BDQ: one value of the state, and a branch of advantages for each dimension of the action.

Shapes: B batch, D dimensions of an action, A_d choices in dimension d, F features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from lightning_ding.model.encoder import ObsShape, encoder_for
from lightning_ding.model.heads import DiscreteHead, head_size
from lightning_ding.registry import MODEL_REGISTRY


@MODEL_REGISTRY.register("bdq")
class BDQ(nn.Module):
    """An encoder, a state value, and advantages of each dimension (Tavakoli et al. 2018, section 4).

    The gradient that the encoder gets is divided by D + 1, the number of parts that read its features. The arguments
    that are not listed are those of :class:`DQN`.

    Args:
        action_shape: Number of actions, or a number for each dimension.
        head_layer_num: Number of hidden layers of the value and of each branch, >= 0; None means 1.
        a_layer_num: Number of hidden layers of each branch; None means ``head_layer_num``.
        v_layer_num: Number of hidden layers of the value; None means ``head_layer_num``.

    Raises:
        ValueError: If a size is out of its range.

    Example:
        >>> import torch
        >>> [q.shape for q in BDQ(obs_shape=4, action_shape=[2, 3])(torch.zeros(5, 4))["logit"]]
        [torch.Size([5, 2]), torch.Size([5, 3])]
    """

    def __init__(
        self,
        obs_shape: ObsShape,
        action_shape: int | Sequence[int],
        encoder: str | None = None,
        encoder_hidden_size_list: Sequence[int] | None = None,
        head_hidden_size: int | None = None,
        head_layer_num: int | None = None,
        a_layer_num: int | None = None,
        v_layer_num: int | None = None,
        activation: str = "relu",
        layer_norm: bool = False,
        encoder_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder_for(obs_shape, encoder, encoder_hidden_size_list, activation, layer_norm, encoder_kwargs)
        features, self.is_joint = self.encoder.output_size, not isinstance(action_shape, int)
        sizes = [action_shape] if isinstance(action_shape, int) else list(action_shape)
        self.gradient_share = 1 / (len(sizes) + 1)

        def head(size: int, layer_num: int | None) -> DiscreteHead:
            number = head_layer_num if layer_num is None else layer_num
            width, layers = head_size(features, head_hidden_size, number, dueling=True)
            return DiscreteHead(features, size, width, layers, activation, layer_norm)

        self.value = head(1, v_layer_num)
        self.branches = nn.ModuleList([head(size, a_layer_num) for size in sizes])

    def forward(self, obs: Any) -> dict[str, Tensor | list[Tensor]]:
        """Return ``{"logit": values}``: shape (B, A), or a list of D tensors (B, A_d) for a multi-discrete action."""
        features = self.encoder(obs)
        features = features.detach().lerp(features, self.gradient_share) if features.requires_grad else features
        value, advantages = self.value(features), [branch(features) for branch in self.branches]
        q = [value + advantage - advantage.mean(1, keepdim=True) for advantage in advantages]
        return {"logit": q if self.is_joint else q[0]}
