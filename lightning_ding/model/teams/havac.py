"""The network of HAPPO: an actor with its own parameters for each agent, and the critic of a team.

Shapes: B batch, N agents, D numbers that an agent sees, A actions or dimensions of an agent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_ding.model.actor import FIRST_LOG_SIGMA
from lightning_ding.model.ensemble import EnsembleMLP
from lightning_ding.model.heads import full_precision
from lightning_ding.model.teams.agents import check_vectors
from lightning_ding.model.teams.team_vac import TeamVAC
from lightning_ding.registry import MODEL_REGISTRY
from lightning_ding.utils.teams import AGENT_STATE


class AgentActor(nn.Module):
    """The parameters of the actor of one agent, which :func:`stacked` evaluates.

    Args:
        sizes: Widths of the input, the hidden layers and the output.
        activation: Activation of the hidden layers.
        layer_norm: Apply layer normalisation before each hidden activation.
        log_std_init: Logarithm of the initial standard deviation of each dimension; None for discrete actions.
    """

    def __init__(self, sizes: Sequence[int], activation: str, layer_norm: bool, log_std_init: float | None) -> None:
        super().__init__()
        self.net = EnsembleMLP(1, sizes, activation, layer_norm)
        is_discrete = log_std_init is None
        self.log_sigma = None if is_discrete else nn.Parameter(torch.full((sizes[-1],), float(log_std_init or 0.0)))


@MODEL_REGISTRY.register("havac")
class HAVAC(TeamVAC):
    """A :class:`TeamVAC` whose actors have separate parameters, so that each can have an optimizer.

    The arguments are those of :class:`TeamVAC`; ``parameter_sharing`` and ``agent_id`` are those of the critics.

    Example:
        >>> network = HAVAC(agent_num=3, agent_obs_shape=4, global_obs_shape=12, action_shape=5)
        >>> network({"agent_state": torch.zeros(2, 3, 4)})["logit"].shape, len(network.agents)
        (torch.Size([2, 3, 5]), 3)
    """

    def __init__(self, agent_num: int, agent_obs_shape: int, global_obs_shape: int, *args: Any, **options: Any) -> None:
        check_vectors("happo", agent_obs_shape=agent_obs_shape, global_obs_shape=global_obs_shape)
        super().__init__(agent_num, agent_obs_shape, global_obs_shape, *args, **options)

    def _make_actors(
        self,
        agent_num: int,
        obs_size: int,
        action_size: int,
        is_discrete: bool,
        log_std_init: float | None,
        *options: Any,
    ) -> None:
        _, _, widths, activation, layer_norm, _ = options
        first = None if is_discrete else FIRST_LOG_SIGMA if log_std_init is None else log_std_init
        sizes = [obs_size, *widths, action_size]
        self.agents = nn.ModuleList([AgentActor(sizes, activation, layer_norm, first) for _ in range(agent_num)])

    def compute_actor(self, obs: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return ``logit``: a tensor (..., N, A), or for continuous actions ``mu`` and ``sigma`` of that shape."""
        agents: Any = self.agents
        output = full_precision(stacked([agent.net for agent in agents], self.images(obs[AGENT_STATE])))
        if agents[0].log_sigma is None:
            return {"logit": output}
        sigma = torch.stack([agent.log_sigma for agent in agents]).exp()
        return {"logit": {"mu": output, "sigma": sigma.expand_as(output)}}

    def actor_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that determine actions."""
        return list(self.agents.parameters())

    def _init_actors(self, hidden: float, output: float) -> None:
        agents: Any = self.agents
        for agent in agents:
            *weights, last = agent.net.weights
            for weight, gain in [*((weight, hidden) for weight in weights), (last, output)]:
                nn.init.orthogonal_(weight.detach()[0], gain)
            for bias in agent.net.biases:
                nn.init.zeros_(bias)


def stacked(nets: Sequence[EnsembleMLP], x: Tensor) -> Tensor:
    """Return the outputs of N networks of equal sizes, one batched product for each layer.

    Args:
        nets: A network for each agent, an ensemble of one.
        x: Inputs of all agents, shape (..., N, D).
    """
    rows, first = x.reshape(-1, *x.shape[-2:]).transpose(0, 1), nets[0]  # (N, B, D)
    for number in range(len(first.weights)):
        weight, bias = _layer(nets, number, "weights"), _layer(nets, number, "biases")
        rows = torch.baddbmm(bias, rows, weight)
        if number < len(first.weights) - 1:
            if len(first.scales):
                scale, shift = _layer(nets, number, "scales"), _layer(nets, number, "shifts")
                rows = torch.addcmul(shift, F.layer_norm(rows, rows.shape[-1:]), scale)
            rows = first.activate(rows)
    return rows.transpose(0, 1).reshape(*x.shape[:-1], -1)


def _layer(nets: Sequence[EnsembleMLP], number: int, part: str) -> Tensor:
    """Return the parameters of a layer of all networks, with the axis of agents first."""
    return torch.cat([getattr(net, part)[number] for net in nets])
