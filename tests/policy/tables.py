"""For losses that are worked out by hand: a minibatch of two rows, a network that is a table, and the loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

IS = torch.tensor([0.5, 2.0])
SECOND_ONLY = torch.tensor([False, True])
NEXT_WITHOUT_ACTION_1 = {"state": torch.ones(2, 1), "action_mask": torch.tensor([[1, 1], [1, 0]])}  # in the second row


class TableNet(nn.Module):
    """Looks up the values of a state."""

    def __init__(self, table: list[list[float]]) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.tensor(table))

    def forward(self, obs: Any) -> dict[str, Tensor]:
        return {"logit": self.table[(obs["state"] if isinstance(obs, dict) else obs).long().reshape(-1)]}


def make_batch(**changes: Any) -> dict[str, Any]:
    """Return two steps from state 0 to state 1, with the actions 0 and 1."""
    return {
        "obs": torch.zeros(2, 1),
        "action": torch.tensor([0, 1]),
        "reward": torch.tensor([1.0, -1.0]),
        "next_obs": torch.ones(2, 1),
        "terminated": torch.tensor([False, False]),
        "truncated": torch.tensor([False, False]),
        **changes,
    }


def prepared_loss(policy: Any, batch: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss and the report of a policy for a minibatch as a buffer gives it, which it prepares first."""
    found: tuple[Tensor, dict[str, Tensor]] = policy.loss(policy.prepare(batch))
    return found


class Weights(nn.Module):
    """Parameters that are the output."""

    def __init__(self, values: Any) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.tensor(values))


class TinyActor(nn.Module):
    """Outputs weights, whatever the observation; a subclass says what its critics make of theirs."""

    def __init__(self, critics: Any, actor: Any = (0.0, 0.0)) -> None:
        super().__init__()
        self.actor, self.critic = Weights(actor), Weights(critics)

    def compute_actor(self, obs: Tensor) -> dict[str, Tensor]:
        values = self.actor.values.expand(len(obs), -1)
        return {"action": values[:, :1], "mu": values[:, :1], "log_sigma": values[:, 1:]}


def make_box_batch(**changes: Any) -> dict[str, Any]:
    """Return two steps with action 1, the first of which is truncated and the second terminated."""
    actions = {"obs": torch.zeros(2, 3), "action": torch.ones(2, 1), "next_obs": torch.ones(2, 3)}
    return make_batch(**{**actions, "terminated": SECOND_ONLY, "truncated": ~SECOND_ONLY, **changes})


class ActorCriticTable(nn.Module):
    """Looks up the logits and the value of a state."""

    def __init__(self, probability: list[list[float]], value: list[float]) -> None:
        super().__init__()
        self.logit = nn.Parameter(torch.tensor(probability).log())
        self.value = nn.Parameter(torch.tensor(value))

    def _look_up(self, table: Tensor, obs: Any) -> Tensor:
        state: Tensor = obs["state"] if isinstance(obs, dict) else obs
        return table[(state.squeeze(-1) if state.dim() > 1 else state).long()]

    def compute_actor(self, obs: Any) -> Any:
        return {"logit": self._look_up(self.logit, obs)}

    def compute_critic(self, obs: Any) -> Any:
        return {"value": self._look_up(self.value, obs)}

    def compute_actor_critic(self, obs: Any) -> Any:
        return self.compute_actor(obs) | self.compute_critic(obs)
