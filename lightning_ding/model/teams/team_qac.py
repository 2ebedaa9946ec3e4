"""The network of MADDPG and of SAC of teams: an actor for each agent, and critics that know more than an agent sees.

Papers: Lowe et al. 2017 (https://arxiv.org/abs/1706.02275), whose critics get the actions of all agents; Foerster et
al. 2018 (https://arxiv.org/abs/1705.08926), whose critics value all actions of an agent, given those of the others.

Shapes: B batch, N agents, D numbers that an agent sees, S size of the global state, A dimensions or actions of an
agent, E critics. Discrete actions are one-hot vectors here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Literal

import torch
from torch import Tensor, nn

from lightning_ding.config import require
from lightning_ding.model.actor import LOG_SIGMA_RANGE
from lightning_ding.model.ensemble import EnsembleMLP
from lightning_ding.model.heads import check_widths, full_precision
from lightning_ding.model.qac import EncoderAndHead
from lightning_ding.model.teams.agents import AgentEncoder, AgentMLP, Sharing, check_vectors, groups_of
from lightning_ding.registry import MODEL_REGISTRY
from lightning_ding.utils.teams import AGENT_STATE, ALIVE, action_counts, alive, global_state

WIDTHS = (64, 64)  # of the hidden layers of actors and critics
CriticInput = Literal["joint", "state", "local"]


def with_own(own: Tensor, others: Tensor) -> Tensor:
    """Return the joint action of each agent's critic: its own action, and those of the others from another source.

    Args:
        own: Action of each agent that its own critic gets, shape (B, N, A).
        others: Actions that the critics of the other agents get, shape (B, N, A).

    Returns:
        Joint actions, shape (B, N, N, A); entry [b, i, j] is the action of agent j for the critic of agent i.

    Example:
        >>> with_own(torch.ones(1, 2, 1), torch.zeros(1, 2, 1)).squeeze().tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    is_own = torch.eye(own.shape[1], dtype=torch.bool, device=own.device)[None, :, :, None]
    return torch.where(is_own, own.unsqueeze(1), others.unsqueeze(1))


class TeamCritics(nn.Module):
    """E critics of each agent, evaluated together; agents of a group share theirs.

    Args:
        agent_num: Number of agents N.
        inputs: Numbers that the critic of an agent gets, without the agent's own number.
        outputs: Values of an agent: 1, or one for each of its actions.
        number: Critics E of each agent, >= 1.
        parameter_sharing: Which agents share their critics, see :func:`groups_of`.
        agent_id: Whether agents that share critics get their number as a one-hot vector.
        hidden_sizes: Widths of the hidden layers.
        activation: Activation of the hidden layers.
        layer_norm: Apply layer normalisation before each activation.

    Example:
        >>> TeamCritics(3, 4, 1, number=2)(torch.zeros(5, 3, 4)).shape
        torch.Size([2, 5, 3, 1])
    """

    ids: Tensor
    members: Tensor

    def __init__(
        self,
        agent_num: int,
        inputs: int,
        outputs: int,
        number: int = 1,
        parameter_sharing: Sharing = True,
        agent_id: bool = True,
        hidden_sizes: Sequence[int] = WIDTHS,
        activation: str = "relu",
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        groups = groups_of(agent_num, parameter_sharing)
        self.number, count = number, len(set(groups))
        self.is_shared, self.has_ids = count == 1, agent_id and count < agent_num
        self.register_buffer("ids", torch.eye(agent_num), persistent=False)
        members = torch.arange(number)[:, None] * count + torch.tensor(groups)
        self.register_buffer("members", members, persistent=False)  # (E, N), the network of each critic
        sizes = [inputs + agent_num * self.has_ids, *hidden_sizes, outputs]
        self.net = EnsembleMLP(number * count, sizes, activation, layer_norm)

    def forward(self, x: Tensor, number: int | None = None) -> Tensor:
        """Return values, shape (E, B, N, outputs), of the first ``number`` critics; None means all.

        Args:
            x: Input of each agent's critics, shape (B, N, inputs).
            number: Critics of each agent to evaluate, counted from the first.
        """
        if self.has_ids:
            x = torch.cat([x, self.ids.to(x).expand(*x.shape[:-1], -1)], -1)
        count = self.number if number is None else number
        if self.is_shared:
            return self.net(x.flatten(0, 1), number).unflatten(1, x.shape[:2])  # type: ignore[no-any-return]
        rows = x.transpose(0, 1).repeat(count, 1, 1)  # (E N, B, inputs)
        found = self.net(rows, self.members[:count].flatten()).unflatten(0, (count, -1))
        return found.transpose(1, 2)  # type: ignore[no-any-return]


@MODEL_REGISTRY.register("team_qac")
class TeamQAC(nn.Module):
    """An actor and one or two critics for each agent; ``actor`` and ``critic`` share no parameters.

    Args:
        agent_num: Number of agents N.
        agent_obs_shape: Numbers that an agent sees D.
        global_obs_shape: Size of the global state S.
        action_shape: Number of dimensions or actions of an agent A; a sequence for agents with different numbers of
            actions, of which A is the largest.
        action_space: Output of the actors: ``regression`` for actions, ``reparameterization`` for distributions,
            ``discrete`` for logits.
        action_values: Whether critics return a value for each action of their agent; they do not get its action then.
            Needs ``discrete``.
        critic_input: What critics get: ``joint`` is the global state and the actions of all agents, ``local`` what the
            agent sees and its own action, ``state`` these and the global state.
        twin_critic: Use two critics for each agent instead of one.
        parameter_sharing: Which agents share their actor and critics, see :func:`groups_of`.
        agent_id: Whether agents that share networks get their number as a one-hot vector.
        encoder_hidden_size_list: Widths of the hidden layers of actors; None means 64, 64.
        critic_hidden_size_list: Widths of the hidden layers of critics; None means those of actors.
        activation: Activation after each hidden layer.
        layer_norm: Apply layer normalisation before each activation.
        last_layer_init: Initialise the last layers uniformly in [-x, x], x > 0; None initialises them like all others.

    Example:
        >>> model = TeamQAC(3, 4, 12, 2)
        >>> obs = {"agent_state": torch.zeros(5, 3, 4)}
        >>> model.compute_critic(obs, model.compute_actor(obs)["action"])["q_value"].shape
        torch.Size([1, 5, 3])
    """

    def __init__(
        self,
        agent_num: int,
        agent_obs_shape: int,
        global_obs_shape: int,
        action_shape: int | Sequence[int],
        action_space: Literal["regression", "reparameterization", "discrete"] = "regression",
        action_values: bool = False,
        critic_input: CriticInput = "joint",
        twin_critic: bool = False,
        parameter_sharing: Sharing = True,
        agent_id: bool = True,
        encoder_hidden_size_list: Sequence[int] | None = None,
        critic_hidden_size_list: Sequence[int] | None = None,
        activation: str = "relu",
        layer_norm: bool = False,
        last_layer_init: float | None = None,
    ) -> None:
        super().__init__()
        check_vectors("this one", agent_obs_shape=agent_obs_shape, global_obs_shape=global_obs_shape)
        require(action_space == "discrete" or not action_values, "action_values", "False without 'discrete'", True)
        check_widths("encoder_hidden_size_list", encoder_hidden_size_list)
        check_widths("critic_hidden_size_list", critic_hidden_size_list)
        self.action_space, self.action_values, self.critic_input = action_space, action_values, critic_input
        size = max(action_counts(agent_num, action_shape))
        hidden = list(WIDTHS if encoder_hidden_size_list is None else encoder_hidden_size_list)
        of_critics = hidden if critic_hidden_size_list is None else list(critic_hidden_size_list)
        layers = (activation, layer_norm)
        encoder = AgentEncoder(agent_num, agent_obs_shape, parameter_sharing, agent_id, hidden, *layers)
        outputs = size * (2 if action_space == "reparameterization" else 1)
        head = AgentMLP([encoder.output_size, outputs], encoder.groups)
        self.actor = EncoderAndHead(encoder, head)
        state = agent_obs_shape * (critic_input != "joint") + global_obs_shape * (critic_input != "local")
        actions = size * agent_num if critic_input == "joint" else size * (not action_values)
        values = size if action_values else 1
        sharing = (1 + twin_critic, parameter_sharing, agent_id)
        self.critic = TeamCritics(agent_num, state + actions, values, *sharing, of_critics, *layers)
        if last_layer_init is not None:
            critics = (self.critic.net.weights[-1], self.critic.net.biases[-1])
            for parameter in chain(_last_layer(head), critics):
                nn.init.uniform_(parameter, -last_layer_init, last_layer_init)

    def compute_actor(self, obs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the output of the actors for B observations of the team.

        Returns:
            With ``regression``, ``action`` (B, N, A) in [-1, 1]; with ``reparameterization``, ``mu`` and ``log_sigma``
            (B, N, A) of the actions before squashing; with ``discrete``, ``logit`` (B, N, A).
        """
        output = full_precision(self.actor.head(self.actor.encoder(obs[AGENT_STATE])))
        if self.action_space == "regression":
            return {"action": output.tanh()}
        if self.action_space == "discrete":
            return {"logit": output}
        mu, log_sigma = output.chunk(2, -1)
        return {"mu": mu, "log_sigma": log_sigma.clamp(*LOG_SIGMA_RANGE)}

    def compute_critic(
        self, obs: Mapping[str, Tensor], action: Tensor, members: int | None = None
    ) -> dict[str, Tensor]:
        """Return ``q_value``, the values of each agent, shape (E, B, N), or (E, B, N, A) with ``action_values``.

        Args:
            obs: B observations of the team.
            action: Actions of all agents, shape (B, N, A), or those that the critics of each agent get, shape (B, N, N,
                A), see :func:`with_own`. Those of agents that are not alive count as 0.
            members: Number of critics of each agent to evaluate, counted from the first; None means all.
        """
        seen, parts = obs[AGENT_STATE], self._actions(obs, action)
        if self.critic_input != "local":
            state = global_state(obs)
            state = state.unsqueeze(1) if state.ndim == 2 else state  # agents may have a global state each
            parts = [state.expand(*seen.shape[:2], -1), *parts]
        parts = parts if self.critic_input == "joint" else [seen, *parts]
        q = self.critic(torch.cat(parts, -1), members)
        return {"q_value": q if self.action_values else q.squeeze(-1)}

    def _actions(self, obs: Mapping[str, Tensor], action: Tensor) -> list[Tensor]:
        """Return what the critics of each agent get of the actions, shape (B, N, F); nothing if that is none."""
        number = obs[AGENT_STATE].shape[1]
        if self.critic_input != "joint":
            own = action if action.ndim == 3 else action.diagonal(dim1=1, dim2=2).movedim(-1, 1)
            return [] if self.action_values else [own]
        joint = action if action.ndim == 4 else action.unsqueeze(1).expand(-1, number, -1, -1)
        if ALIVE in obs:
            joint = joint * alive(obs)[:, None, :, None]
        if self.action_values:
            joint = joint * (1 - torch.eye(number, dtype=joint.dtype, device=joint.device))[:, :, None]
        return [joint.flatten(2)]


def _last_layer(head: AgentMLP) -> list[nn.Parameter]:
    """Return the weights and biases of the last layer of a head."""
    net = head.net
    return [net.weights[-1], net.biases[-1]] if isinstance(net, EnsembleMLP) else list(net.parameters())
