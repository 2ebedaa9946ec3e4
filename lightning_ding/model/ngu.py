"""The network of Never Give Up: a recurrent Q-network for a family of policies.

Paper: Badia et al. 2020 (https://arxiv.org/abs/2002.06038), section 3.

Shapes: T steps, B sequences or envs, A actions, J policies, H hidden size, S size of a state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_ding.config import require
from lightning_ding.model.core import RecurrentEncoder, create_core
from lightning_ding.model.drqn import DRQN
from lightning_ding.model.encoder import ObsShape
from lightning_ding.model.novelty import Novelty
from lightning_ding.registry import MODEL_REGISTRY


class FamilyEncoder(RecurrentEncoder):
    """An encoder and a core that gets the policy's number as a one-hot vector after the features.

    The number is the last entry of the state, and stays the same for a whole sequence.

    Args:
        encoder: Maps observations (B, ...) to features (B, F), with an attribute ``output_size``.
        core: ``type`` of the core and its further arguments, see :func:`create_core`.
        num_policies: J, >= 1.
    """

    def __init__(self, encoder: Any, core: Mapping[str, Any], num_policies: int) -> None:
        super().__init__(encoder, core)
        self.num_policies = num_policies
        self.core = create_core(encoder.output_size + num_policies, core)
        self.state_size = self.core.state_size + 1

    def forward(self, obs: Any, state: Tensor, starts: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return features, shape (T, B, H), of nested observations with leading axes (T, B), and the last state."""
        output, last = self.core(self._features(obs, state), state[:, :-1], starts)
        return output, torch.cat([last, state[:, -1:]], 1)

    def after_burn_in(self, obs: Any, state: Tensor, burn_in: int, has_none: Tensor) -> Tensor:
        """Return features, shape (T, B, H); the arguments are those of the method of the base."""
        return self._after(self._features(obs, state), state[:, :-1], burn_in, has_none)

    def _features(self, obs: Any, state: Tensor) -> Tensor:
        features = self.encode(obs)
        numbers = torch.arange(self.num_policies, device=state.device)
        one_hot = (state[:, -1:].round() == numbers).to(features.dtype)
        return torch.cat([features, one_hot.expand(len(features), -1, -1)], 2)


@MODEL_REGISTRY.register("ngu")
class NGU(DRQN):
    """A :class:`DRQN` whose state ends with the number of the policy that acts, and ``novelty``, its networks.

    Args:
        obs_shape: Size, shape or dict of these of an observation; an entry ``action_mask`` is not encoded.
        action_shape: Number of actions.
        num_policies: J, >= 2.
        embedding_size: F, size of an embedding, >= 1.
        novelty_hidden_size_list: Widths of the encoders of the novelty; None for ``encoder_hidden_size_list``.
        core: As of :class:`DRQN`.
        encoder: As of :class:`DRQN`, for the novelty too.
        encoder_hidden_size_list: As of :class:`DRQN`.
        activation: As of :class:`DRQN`, for the novelty too.
        layer_norm: As of :class:`DRQN`, for the novelty too.
        encoder_kwargs: As of :class:`DRQN`, for the novelty too.
        kwargs: Further arguments of :class:`DRQN`.

    Example:
        >>> network = NGU(obs_shape=4, action_shape=2)
        >>> network(torch.zeros(5, 3, 4), torch.zeros(3, network.state_size))["logit"].shape
        torch.Size([5, 3, 2])
    """

    def __init__(
        self,
        obs_shape: ObsShape,
        action_shape: int,
        num_policies: int = 8,
        embedding_size: int = 32,
        novelty_hidden_size_list: Sequence[int] | None = None,
        core: Mapping[str, Any] | None = None,
        encoder: str | None = None,
        encoder_hidden_size_list: Sequence[int] | None = None,
        activation: str = "relu",
        layer_norm: bool = False,
        encoder_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        require(num_policies >= 2, "num_policies", ">= 2", num_policies)
        residual = (core or {}).get("residual", False)
        require(not residual, "core.residual", "False with ngu, whose core gets more than the features", residual)
        shared: dict[str, Any] = {"activation": activation, "layer_norm": layer_norm, "encoder_kwargs": encoder_kwargs}
        own: dict[str, Any] = {"core": core, "encoder": encoder, "encoder_hidden_size_list": encoder_hidden_size_list}
        super().__init__(obs_shape, action_shape, **own, **shared, **kwargs)
        self.encoder = FamilyEncoder(self.encoder.encoder, core or {}, num_policies)
        widths = encoder_hidden_size_list if novelty_hidden_size_list is None else novelty_hidden_size_list
        self.novelty = Novelty(obs_shape, action_shape, widths, embedding_size, encoder, **shared)

    def first_state(self, batch_size: int) -> Tensor:
        """Return the state at the start of an episode of the policy 0, zeros of shape (B, S)."""
        first = self.encoder.core.first_state(batch_size)
        return first.new_zeros(batch_size, self.state_size)
