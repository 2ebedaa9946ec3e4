"""Cal-QL: CQL whose values do not fall below those of the policy that made the data, so that training continues online.

Paper: Nakamoto et al. 2023, eq. 5.1 (https://arxiv.org/abs/2303.05479). CQL's values are so low after training on data
that every new action looks better at first, and the policy is lost in the first steps online. Here the conservative
term of an action of the actor is the maximum of its value and the data's discounted return from the same state on, so
values are pushed down to that return only. As in the authors' code, this holds for the actor's actions and not for the
random ones of the term.

Where this differs: as in CQL, see ``cql``. A part of an episode that did not terminate is continued forever with its
mean reward, because its return would be too high where rewards are negative; the authors do so for failed episodes of
sparse rewards, with the same result. Transitions that the policy collects have no return, because they are learned from
before their episode ends: their term is that of CQL.

Shapes: B batch, E critics, N actions of each kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from lightning_ding.config import require
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.cql import CQLBatch, CQLConfig, CQLPolicy
from lightning_ding.registry import POLICY_REGISTRY

NO_RETURN = -float("inf")  # of a transition that is not bounded


@dataclass(frozen=True, kw_only=True)
class CalQLConfig(CQLConfig):
    """Everything that can be set of Cal-QL."""

    def __post_init__(self) -> None:
        super().__post_init__()
        kind = self.reward_model.type
        require(kind is None, "reward_model.type", "None, because the returns are those of the data", kind)


class CalQLBatch(CQLBatch, total=False):
    """A minibatch of Cal-QL, leading axis B."""

    data_return: Tensor
    """Discounted return of the data from each step on, or minus infinity, shape (B,)."""


@POLICY_REGISTRY.register("calql")
class CalQLPolicy(CQLPolicy):
    """Cal-QL for continuous actions; vector, image and dict observations.

    :class:`SACPolicy` describes a network passed as ``model``.

    Example:
        >>> policy = CalQLPolicy({"model": {"obs_shape": 3, "action_shape": 1}})
        >>> policy.eval_mode.forward(torch.zeros(5, 3))["action"].shape
        torch.Size([5, 1])
    """

    config_class: ClassVar[type[PolicyConfig]] = CalQLConfig
    config: CalQLConfig

    def dataset_columns(self, dataset: Any, reward: Any) -> dict[str, Any]:
        """Return ``data_return``, the discounted return from each step on, shape (N,); see ``Dataset``."""
        return {"data_return": dataset.discounted_returns(self.config.discount_factor, reward)}

    def _process_transition(self, obs: Any, output: Mapping[str, Any], timestep: Any) -> dict[str, Any]:
        transition = super()._process_transition(obs, output, timestep)
        missing = torch.full((len(transition["reward"]),), NO_RETURN).numpy()
        return {**transition, "data_return": missing}

    def _in_penalty(self, batch: CalQLBatch, q: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        if "data_return" not in batch:
            raise KeyError("a batch needs 'data_return', the discounted return of the data, or minus infinity")
        value = self.normaliser.scale_return(batch["data_return"])[:, None]  # of the same observation in all N
        uniform, own = q.tensor_split([self.config.learn.num_actions], -1)
        bound_rate = (own < value).to(q.dtype).mean((1, 2))
        return torch.cat([uniform, torch.maximum(own, value)], -1), {"bound_rate": bound_rate.detach()}

    def _monitor_vars_learn(self) -> list[str]:
        return [*super()._monitor_vars_learn(), "bound_rate"]
