"""The network of COMA: an actor for each agent, and a critic of an agent's actions that knows those of the others.

Shapes: B batch, N agents, A actions of an agent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_ding.model.heads import full_precision
from lightning_ding.model.teams.agents import Shape, one_hot
from lightning_ding.model.teams.team_vac import TeamVAC
from lightning_ding.registry import MODEL_REGISTRY
from lightning_ding.utils.teams import action_counts, alive


@MODEL_REGISTRY.register("coma")
class COMA(TeamVAC):
    """A :class:`TeamVAC` whose critic values each action of an agent, given the actions of all others.

    The arguments are those of :class:`TeamVAC`; actions are discrete. An agent's critic sees the global state, what the
    agent sees, and the actions of all others as one-hot vectors, zeros for one that is not alive.

    Example:
        >>> network = COMA(agent_num=3, agent_obs_shape=4, global_obs_shape=12, action_shape=5)
        >>> obs, action = {"agent_state": torch.zeros(2, 3, 4)}, torch.zeros(2, 3, dtype=torch.long)
        >>> network.compute_actor(obs)["logit"].shape, network.compute_critic(obs, action)["q_value"].shape
        (torch.Size([2, 3, 5]), torch.Size([2, 3, 5]))
    """

    others: Tensor

    def __init__(
        self,
        agent_num: int,
        agent_obs_shape: Shape,
        global_obs_shape: Shape,
        action_shape: int | Sequence[int],
        **options: Any,
    ) -> None:
        super().__init__(agent_num, agent_obs_shape, global_obs_shape, action_shape, **options)
        self.action_size = max(action_counts(1, action_shape))
        self.register_buffer("others", 1 - torch.eye(agent_num), persistent=False)

    def _critic_sizes(self, agent_num: int, obs_size: int, state_size: int, action_size: int) -> tuple[int, int]:
        return obs_size + state_size + agent_num * action_size, action_size

    def forward(self, obs: Mapping[str, Tensor], action: Tensor) -> dict[str, Any]:  # type: ignore[override]
        """Return ``logit`` and ``q_value``."""
        return self.compute_actor(obs) | self.compute_critic(obs, action)

    def compute_critic(self, obs: Mapping[str, Tensor], action: Tensor) -> dict[str, Any]:  # type: ignore[override]
        """Return ``q_value``, the values of each agent's actions while the others do what they did, shape (..., N, A).

        Args:
            obs: Observations, leading axes (...).
            action: Actions of all agents, counted from 0, shape (..., N).
        """
        seen = self.seen_by_critic(obs)
        taken = one_hot(action, self.action_size).to(seen.dtype) * alive(obs).unsqueeze(-1)  # (..., N, A)
        of_others = (self.others.to(seen).unsqueeze(-1) * taken.unsqueeze(-3)).flatten(-2)  # (..., N, N A)
        return {"q_value": full_precision(self.critic(self.critic_encoder(torch.cat([seen, of_others], -1))))}
