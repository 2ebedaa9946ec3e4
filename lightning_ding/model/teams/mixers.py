"""Values of a team, from the values of its agents and the global state.

Papers: VDN, Sunehag et al. 2017 (https://arxiv.org/abs/1706.05296); QMIX, Rashid et al. 2018
(https://arxiv.org/abs/1803.11485); WQMIX, Rashid et al. 2020 (https://arxiv.org/abs/2006.10800); QTRAN, Son et al. 2019
(https://arxiv.org/abs/1905.05408).

Shapes: N agents, S size of the global state, E width of a mixer, H features of an agent, A actions.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_ding.config import require
from lightning_ding.model.heads import full_precision
from lightning_ding.model.mlp import MLP


class MonotonicMixer(nn.Module):
    """QMIX's mixer: two layers whose weights depend on the state and are not negative (figure 2).

    The value of the team therefore does not fall when the value of an agent rises, so that the best joint action is
    the best action of each agent.

    Args:
        agent_num: Number of agents N.
        state_size: Size of the global state S.
        mixing_embed_dim: Width of the hidden layer E, >= 1.
        hypernet_embed: Width of the hidden layers of the networks that compute the weights, >= 1.

    Example:
        >>> MonotonicMixer(3, 4)(torch.zeros(5, 2, 3), torch.zeros(5, 2, 4)).shape
        torch.Size([5, 2])
    """

    def __init__(self, agent_num: int, state_size: int, mixing_embed_dim: int = 32, hypernet_embed: int = 64) -> None:
        super().__init__()
        require(mixing_embed_dim >= 1, "model.mixing_embed_dim", ">= 1", mixing_embed_dim)
        require(hypernet_embed >= 1, "model.hypernet_embed", ">= 1", hypernet_embed)
        width = mixing_embed_dim
        self.first_weight = MLP([state_size, hypernet_embed, width * agent_num], activate_last=False)
        self.last_weight = MLP([state_size, hypernet_embed, width], activate_last=False)
        self.first_bias = nn.Linear(state_size, width)
        self.state_value = MLP([state_size, width, 1], activate_last=False)

    def forward(self, value: Tensor, state: Tensor) -> Tensor:
        """Return the value of the team, shape (...,), of those of its agents, shape (..., N), and states (..., S)."""
        first = self.first_weight(state).abs().unflatten(-1, (value.shape[-1], -1))  # (..., N, E)
        hidden = F.elu((value.unsqueeze(-1) * first).sum(-2) + self.first_bias(state))
        total = (hidden * self.last_weight(state).abs()).sum(-1) + self.state_value(state).squeeze(-1)
        return full_precision(total)


class UnrestrictedMixer(nn.Module):
    """WQMIX's central mixer: layers over the state and the values of all agents, with any weights (section 5.1).

    Args:
        agent_num: Number of agents N.
        state_size: Size of the global state S.
        central_embed_dim: Width of the three hidden layers E, >= 1.
    """

    def __init__(self, agent_num: int, state_size: int, central_embed_dim: int = 256) -> None:
        super().__init__()
        require(central_embed_dim >= 1, "model.central_embed_dim", ">= 1", central_embed_dim)
        width = central_embed_dim
        self.layers = MLP([state_size + agent_num, width, width, width, 1], activate_last=False)
        self.state_value = MLP([state_size, width, 1], activate_last=False)

    def forward(self, value: Tensor, state: Tensor) -> Tensor:
        """Return the value of the team, shape (...,), of those of its agents, shape (..., N), and states (..., S)."""
        total = self.layers(torch.cat([state, value], -1)) + self.state_value(state)
        return full_precision(total.squeeze(-1))


class JointValues(nn.Module):
    """QTRAN's value of a joint action, and of a state (section 4.1).

    Args:
        feature_size: Features of an agent H.
        action_size: Actions of an agent A.
        state_size: Size of the global state S.
        embedding_size: Width of the hidden layers of both networks, >= 1.

    Example:
        >>> joint = JointValues(8, 5, 4)
        >>> joint(torch.zeros(2, 3, 8), torch.zeros(2, 3, dtype=torch.int64), torch.ones(2, 3), torch.zeros(2, 4)).shape
        torch.Size([2])
    """

    def __init__(self, feature_size: int, action_size: int, state_size: int, embedding_size: int = 64) -> None:
        super().__init__()
        require(embedding_size >= 1, "model.embedding_size", ">= 1", embedding_size)
        self.action_size, size, width = action_size, feature_size + action_size, embedding_size
        self.encoder = MLP([size, size, size], activate_last=False)
        self.action_value = MLP([state_size + size, width, width, 1], activate_last=False)
        self.state_value = MLP([state_size, width, width, 1], activate_last=False)

    def forward(self, feature: Tensor, action: Tensor, alive: Tensor, state: Tensor) -> Tensor:
        """Return the value of joint actions, shape (...,).

        Args:
            feature: Features of the agents, shape (..., N, H).
            action: Their actions, shape (..., N).
            alive: 1 for agents that are in the episode, and 0 for those that are left out, shape (..., N).
            state: Global states, shape (..., S).
        """
        taken = (action.unsqueeze(-1) == torch.arange(self.action_size, device=action.device)).to(feature)
        encoded = self.encoder(torch.cat([feature, taken], -1)) * alive.unsqueeze(-1)
        total = self.action_value(torch.cat([state, encoded.sum(-2)], -1))
        return full_precision(total.squeeze(-1))

    def of_state(self, state: Tensor) -> Tensor:
        """Return the values of states, shape (...,), of states (..., S)."""
        return full_precision(self.state_value(state).squeeze(-1))
