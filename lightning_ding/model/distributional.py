"""Heads that give the distribution of each action's return.

Shapes: B batch, F features, A actions, N atoms of a support, or quantiles.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from lightning_ding.model.head import DiscreteHead


class DistributionHead(nn.Module):
    """N numbers for each action: features (B, F) in, (B, A, N) out.

    With ``dueling`` they are those of the state plus those of the action, less the mean over the actions (Wang et al.
    2016, eq. 9, for each of the N on its own, as in Hessel et al. 2018, https://arxiv.org/abs/1710.02298).

    Args:
        input_size: F.
        action_size: A.
        atom_size: N.
        hidden_size: Width of the hidden layers.
        layer_num: How many hidden layers, in each stream with ``dueling``.
        activation: After each hidden layer.
        dueling: Whether there is a stream for the state.
        layer_norm: Whether to normalise each hidden layer before its activation.
    """

    def __init__(
        self,
        input_size: int,
        action_size: int,
        atom_size: int,
        hidden_size: int,
        layer_num: int = 0,
        activation: str = "relu",
        dueling: bool = False,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        self.shape = (action_size, atom_size)
        options = (hidden_size, layer_num, activation, layer_norm)
        self.advantage = DiscreteHead(input_size, action_size * atom_size, *options)
        self.value = DiscreteHead(input_size, atom_size, *options) if dueling else None

    def forward(self, features: Tensor) -> Tensor:
        """Return N numbers for each action, shape (B, A, N), of features, shape (B, F)."""
        advantage = self.advantage(features).unflatten(1, self.shape)
        return cast(Tensor, advantage if self.value is None else duel(self.value(features), advantage))


def duel(value: Tensor, advantage: Tensor) -> Tensor:
    """Return V + A - mean(A), shape (B, A, N), of ``value`` (B, N) and ``advantage`` (B, A, N)."""
    return value.unsqueeze(1) + advantage - advantage.mean(1, keepdim=True)
