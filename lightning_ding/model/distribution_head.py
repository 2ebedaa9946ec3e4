"""The head that maps features to distributions of returns.

Shapes: B batch, F features, A actions, N atoms of a support, or quantiles.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from lightning_ding.model.heads import DiscreteHead


class DistributionHead(nn.Module):
    """Head with N outputs, atoms or quantiles, for each action.

    With ``dueling`` the two streams are added as in ``DuelingHead``, separately for each of the N outputs (Hessel et
    al. 2018, https://arxiv.org/abs/1710.02298). The arguments that are not listed are those of :class:`DiscreteHead`.

    Args:
        atom_size: Number of atoms or quantiles N.
        dueling: Add a stream for the state.
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
        """Return outputs, shape (B, A, N), for features, shape (B, F)."""
        advantage = self.advantage(features).unflatten(1, self.shape)
        return cast(Tensor, advantage if self.value is None else duel(self.value(features), advantage))


def duel(value: Tensor, advantage: Tensor) -> Tensor:
    """Return V + A - mean(A), shape (B, A, N), for ``value`` (B, N) and ``advantage`` (B, A, N)."""
    return value.unsqueeze(1) + advantage - advantage.mean(1, keepdim=True)
