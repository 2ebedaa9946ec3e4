"""The Q-network of C51, and the head of distributions that it shares with QR-DQN.

Shapes: B batch, F features, A actions, N atoms of a support, or quantiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from lightning_ding.config import require
from lightning_ding.model.encoder import ObsShape, encoder_for
from lightning_ding.model.heads import DiscreteHead, check_action_shape, head_size
from lightning_ding.registry import MODEL_REGISTRY
from lightning_ding.rl.distributional import mean_return


@MODEL_REGISTRY.register("c51dqn")
class C51DQN(nn.Module):
    """Encoder and head that compute the distribution of every action's return (Bellemare et al. 2017, section 4).

    The arguments and errors that are not listed here are those of :class:`DQN`.

    Args:
        action_shape: Number of actions.
        v_min: Value of the first atom, < ``v_max``.
        v_max: Value of the last atom.
        n_atom: Number of atoms N, >= 2.

    Raises:
        TypeError: If ``action_shape`` is not an integer.

    Example:
        >>> C51DQN(obs_shape=4, action_shape=2)(torch.zeros(3, 4))["distribution"].shape
        torch.Size([3, 2, 51])
    """

    support: Tensor

    def __init__(
        self,
        obs_shape: ObsShape,
        action_shape: int,
        encoder: str | None = None,
        encoder_hidden_size_list: Sequence[int] | None = None,
        v_min: float = -10.0,
        v_max: float = 10.0,
        n_atom: int = 51,
        dueling: bool = False,
        head_hidden_size: int | None = None,
        head_layer_num: int | None = None,
        activation: str = "relu",
        layer_norm: bool = False,
        encoder_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        check_action_shape(action_shape)
        self.register_buffer("support", make_support(v_min, v_max, n_atom), persistent=False)
        self.encoder = encoder_for(obs_shape, encoder, encoder_hidden_size_list, activation, layer_norm, encoder_kwargs)
        features = self.encoder.output_size
        width, layers = head_size(features, head_hidden_size, head_layer_num, dueling)
        options = (width, layers, activation, dueling, layer_norm)
        self.head = DistributionHead(features, action_shape, n_atom, *options)

    def forward(self, obs: Any) -> dict[str, Tensor]:
        """Return the mean returns ``logit`` (B, A), and ``distribution`` and ``log_distribution`` (B, A, N)."""
        return categorical_output(self.head(self.encoder(obs)), self.support)


def make_support(v_min: float, v_max: float, n_atom: int) -> Tensor:
    """Return the values of the atoms, shape (N,).

    Raises:
        ValueError: If ``v_min`` is not below ``v_max``, or there are fewer than two atoms.
    """
    require(v_min < v_max, "v_min", f"below v_max ({v_max})", v_min)
    require(n_atom >= 2, "n_atom", ">= 2", n_atom)
    return torch.linspace(v_min, v_max, n_atom)


def categorical_output(score: Tensor, support: Tensor) -> dict[str, Tensor]:
    """Return the output of ``C51DQN.forward`` for logits of the atoms, shape (B, A, N), and a support, shape (N,)."""
    log_distribution = score.log_softmax(2)
    distribution = log_distribution.exp()
    return {
        "logit": mean_return(distribution, support),
        "distribution": distribution,
        "log_distribution": log_distribution,
    }


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
