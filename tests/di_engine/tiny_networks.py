"""Small networks that policies of DI-engine and those here both take, so that both compute from the same weights.

Shapes: B batch, O = 3 entries of an observation, D = 2 dimensions of an action, K = 2 discrete actions.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

OBS, DIMENSIONS, ACTIONS, HIDDEN = 3, 2, 2, 4
ATOMS, V_MIN, V_MAX = 7, -3.0, 3.0
QUANTILES = 5
Output = dict[str, Any]


def body(size: int, outputs: int) -> nn.Sequential:
    """Return two layers."""
    return nn.Sequential(nn.Linear(size, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, outputs))


class Critics(nn.Module):
    """Critics of continuous actions, and a network of state values if there is one."""

    def __init__(self, number: int, outputs: int, with_value: bool) -> None:
        super().__init__()
        self.members = nn.ModuleList([body(OBS + DIMENSIONS, outputs) for _ in range(number)])
        self.value = body(OBS, 1) if with_value else None


class TinyQAC(nn.Module):
    """An actor and critics of continuous actions.

    Args:
        kind: Output of the actor: an action, or a normal distribution.
        number: Number of critics.
        has_atoms: Whether critics predict distributions of returns.
        with_value: Whether there is a network of state values.
    """

    def __init__(
        self,
        kind: Literal["action", "gaussian"],
        number: int = 2,
        has_atoms: bool = False,
        with_value: bool = False,
    ) -> None:
        super().__init__()
        self.kind, self.has_atoms = kind, has_atoms
        self.actor = body(OBS, DIMENSIONS if kind == "action" else 2 * DIMENSIONS)
        self.critic = Critics(number, ATOMS if has_atoms else 1, with_value)

    # ---------------------------------------------------------------- the interface here

    @property
    def value(self) -> Any:
        """The network of state values."""
        return self.critic.value

    def compute_actor(self, obs: Tensor) -> Output:
        """Return actions, or means and logarithms of standard deviations."""
        out = self.actor(obs)
        if self.kind == "action":
            return {"action": out.tanh()}
        mu, log_sigma = out.chunk(2, 1)
        return {"mu": mu, "log_sigma": log_sigma}

    def compute_critic(self, obs: Tensor, action: Tensor, members: int | None = None) -> Output:
        """Return values (E, B), and the distributions (E, B, N) if there are some."""
        joined = torch.cat([obs, action.to(obs)], 1)
        out = torch.stack([critic(joined) for critic in self.critic.members[:members]])
        if not self.has_atoms:
            return {"q_value": out.squeeze(2)}
        support, distribution = torch.linspace(V_MIN, V_MAX, ATOMS), out.softmax(2)
        found = {"distribution": distribution, "log_distribution": out.log_softmax(2), "support": support}
        return {**found, "q_value": distribution @ support}

    def compute_value(self, obs: Tensor) -> Tensor:
        """Return state values, shape (B,)."""
        value: Tensor = self.value(obs).squeeze(1)
        return value

    # ---------------------------------------------------------------- DI-engine's interface

    def forward(self, inputs: Any, mode: str) -> Output:
        """Return what DI-engine's policies take from ``compute_actor`` and ``compute_critic``."""
        if mode == "compute_actor":
            out = self.compute_actor(inputs)
            return out if self.kind == "action" else {"logit": (out["mu"], out["log_sigma"].exp())}
        if self.has_atoms:
            found = self.compute_critic(inputs["obs"], inputs["action"])
            return {"q_value": found["q_value"][0], "distribution": found["distribution"][0].unsqueeze(1)}
        joined = torch.cat([inputs["obs"], inputs["action"].to(inputs["obs"])], 1)
        values = {} if self.value is None else {"v_value": self.compute_value(inputs["obs"])}
        return {"q_value": [critic(joined).squeeze(1) for critic in self.critic.members], **values}


class TinyQuantiles(nn.Module):
    """Quantiles of each discrete action; DI-engine has levels of shape (B, N, 1).

    Args:
        is_theirs: Whether the levels have DI-engine's shape.
    """

    def __init__(self, is_theirs: bool) -> None:
        super().__init__()
        self.is_theirs, self.body = is_theirs, body(OBS, ACTIONS * QUANTILES)

    def forward(self, obs: Tensor) -> Output:
        """Return ``q`` (B, K, N), their means as ``logit``, and ``tau``."""
        q = self.body(obs).view(-1, ACTIONS, QUANTILES)
        tau = (torch.arange(QUANTILES) + 0.5) / QUANTILES
        return {"q": q, "logit": q.mean(2), "tau": tau.view(1, -1, 1).expand(len(q), -1, 1) if self.is_theirs else tau}


class TinyLogits(nn.Module):
    """Logits of discrete actions, or the mean of continuous ones."""

    def __init__(self, is_continuous: bool) -> None:
        super().__init__()
        self.is_continuous, self.body = is_continuous, body(OBS, DIMENSIONS if is_continuous else ACTIONS)

    def forward(self, obs: Tensor) -> Output:
        """Return what behaviour cloning takes, in DI-engine and here."""
        out = self.body(obs)
        if self.is_continuous:
            return {"action": out, "logit": {"mu": out, "sigma": torch.ones_like(out)}}
        return {"logit": out, "action": out.argmax(1)}


class TinyVAC(nn.Module):
    """An actor and a critic of observations, in the form that PPO has in DI-engine and here.

    Args:
        is_continuous: Whether actions are continuous, with a standard deviation that all observations share.
    """

    def __init__(self, is_continuous: bool) -> None:
        super().__init__()
        self.actor, self.critic = body(OBS, DIMENSIONS if is_continuous else ACTIONS), body(OBS, 1)
        self.log_sigma = nn.Parameter(torch.zeros(DIMENSIONS)) if is_continuous else None

    def compute_actor(self, obs: Tensor) -> Output:
        """Return ``logit`` (B, K), or ``mu`` and ``sigma`` (B, D) in it."""
        out = self.actor(obs)
        return {"logit": out if self.log_sigma is None else {"mu": out, "sigma": self.log_sigma.exp().expand_as(out)}}

    def compute_critic(self, obs: Tensor) -> Output:
        """Return ``value`` (B,)."""
        return {"value": self.critic(obs).squeeze(1)}

    def compute_actor_critic(self, obs: Tensor) -> Output:
        """Return what both methods return."""
        return {**self.compute_actor(obs), **self.compute_critic(obs)}

    def forward(self, obs: Tensor, mode: str) -> Output:
        """Return what a method of DI-engine's network returns."""
        found: Output = getattr(self, mode)(obs)
        return found
