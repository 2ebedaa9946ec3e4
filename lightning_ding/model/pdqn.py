"""The network of P-DQN: arguments for all choices at once, and values of all choices with these arguments.

Shapes: B batch, K choices, A arguments of all choices, E critics, F features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_ding.config import require
from lightning_ding.model.encoder import ObsShape
from lightning_ding.model.heads import full_precision
from lightning_ding.model.qac import ContinuousQAC
from lightning_ding.registry import MODEL_REGISTRY


def check_argument_mask(name: str, mask: Any, action_shape: Any) -> None:
    """Raise if a mask is not one of the arguments of each choice.

    Args:
        name: Name of the mask, for errors.
        mask: The mask, of any form; None for none.
        action_shape: Numbers of the choices and of their arguments, by name; None if they are not known yet.

    Raises:
        ValueError: If an entry is neither 0 nor 1, or the shape is not (K, A).
    """
    if mask is None or action_shape is None:
        return
    require(isinstance(action_shape, Mapping), name, "None for actions without a choice", mask)
    shape = [action_shape["action_args_shape"]] * action_shape["action_type_shape"]
    rows = [list(row) for row in mask]
    allowed = f"{len(shape)} rows, one for each choice, of {shape[0]} entries, 1 for an argument of the choice or 0"
    is_mask = [len(row) for row in rows] == shape and all(entry in (0, 1) for row in rows for entry in row)
    require(is_mask, name, allowed, rows)


@MODEL_REGISTRY.register("pdqn")
class PDQN(ContinuousQAC):
    """An actor of the arguments of all choices, and values of the choices with them (Xiong et al. 2018, section 4).

    The arguments that are not listed are those of :class:`ContinuousQAC`. An action without a choice has one value, so
    that the network is that of DDPG.

    Args:
        argument_mask: Whether an argument belongs to a choice, shape (K, A), of 0 and 1: the value of a choice then
            depends on its own arguments alone (Bester et al. 2019, https://arxiv.org/abs/1905.04388). None lets it
            depend on all.

    Raises:
        ValueError: If the mask has another shape or other entries.

    Example:
        >>> model = PDQN(4, {"action_type_shape": 3, "action_args_shape": 2}, "hybrid")
        >>> [(name, tuple(part.shape)) for name, part in model.compute_actor(torch.zeros(5, 4)).items()]
        [('logit', (5, 3)), ('action_args', (5, 2))]
    """

    argument_mask: Tensor

    def __init__(
        self,
        obs_shape: ObsShape,
        action_shape: int | Mapping[str, int],
        action_space: Any = "regression",
        argument_mask: Sequence[Sequence[int]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(obs_shape, action_shape, action_space, **kwargs)
        check_argument_mask("argument_mask", argument_mask, action_shape)
        self.has_mask = argument_mask is not None
        if argument_mask is not None:
            self.register_buffer("argument_mask", torch.tensor(argument_mask).float(), persistent=False)

    def _actor_widths(self, features: int) -> tuple[int, int]:
        return features, self.action_size

    def _critic_widths(self, features: int) -> tuple[int, int]:
        return features + self.action_size, self.choices or 1

    def compute_actor(self, obs: Any, by_batch: bool = False) -> dict[str, Tensor]:
        """Return the arguments of all choices, and the first critic's values of the choices with them.

        Args:
            obs: B observations.
            by_batch: False: there is no batch renormalisation.

        Returns:
            ``action_args``, shape (B, A), in [-1, 1], and ``logit``, the values, shape (B, K); for actions without a
            choice ``action``, shape (B, A).
        """
        action = self.compute_arguments(obs)
        if not self.choices:
            return {"action": action}
        return {"logit": self.compute_values(obs, action, members=1)[0], "action_args": action}

    def compute_arguments(self, obs: Any) -> Tensor:
        """Return the arguments of all choices, shape (B, A), in [-1, 1]."""
        encoder = self.actor.encoder
        features = self.critic.fixed_features(obs) if encoder is None else encoder(obs)
        output: Tensor = self.actor.head(features)
        return full_precision(output[0] if output.ndim == 3 else output).tanh()

    def compute_values(self, obs: Any, arguments: Tensor, members: int | None = None) -> Tensor:
        """Return the values of all choices, shape (E, B, K), with arguments, shape (B, A), of ``members`` critics."""
        features = self.critic.encoder(obs)
        if not self.has_mask:
            return self.critic.head(torch.cat([features, arguments], 1), members)  # type: ignore[no-any-return]
        own = arguments.unsqueeze(1) * self.argument_mask  # (B, K, A)
        x = torch.cat([features.unsqueeze(1).expand(-1, self.choices, -1), own], 2)
        each: Tensor = self.critic.head(x.flatten(0, 1), members)  # (E, B K, K)
        rows: Tensor = each.unflatten(1, own.shape[:2])
        return rows.diagonal(dim1=2, dim2=3)

    def compute_critic(  # type: ignore[override]
        self, obs: Any, action: Tensor | Mapping[str, Tensor], members: int | None = None
    ) -> dict[str, Tensor]:
        """Return ``q_value``, shape (E, B), of normalised actions, shape (B, A), or of choices with their arguments.

        Args:
            obs: B observations.
            action: Actions, shape (B, A); hybrid: ``action_type`` (B,) and ``action_args`` (B, A).
            members: Number of critics to evaluate, counted from the first; None means all.
        """
        if not isinstance(action, Mapping):
            return self.values(self.compute_values(obs, action, members))  # type: ignore[no-any-return]
        q = self.compute_values(obs, action["action_args"], members)
        index = action["action_type"].long().view(1, -1, 1).expand(len(q), -1, 1)
        return self.values(q.gather(2, index))  # type: ignore[no-any-return]
