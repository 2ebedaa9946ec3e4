"""The network of PPG: an actor and a critic without common layers, and a second value head on the actor's features.

Shapes: B batch.
"""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from lightning_ding.config import require
from lightning_ding.model.actor import ActionShape, init_orthogonally
from lightning_ding.model.encoder import ObsShape
from lightning_ding.model.vac import VAC, critic_head
from lightning_ding.registry import MODEL_REGISTRY


@MODEL_REGISTRY.register("ppg")
class PPG(VAC):
    """A :class:`VAC` with separate encoders whose actor has a head ``auxiliary`` too, with the sizes of the critic's.

    The arguments are those of :class:`VAC`, apart from ``share_encoder``, which must be false.

    Raises:
        ValueError: As in :class:`VAC`.

    Example:
        >>> import torch
        >>> PPG(obs_shape=4, action_shape=2).compute_auxiliary(torch.zeros(3, 4))["value"].shape
        torch.Size([3])
    """

    def __init__(
        self, obs_shape: ObsShape, action_shape: ActionShape, share_encoder: bool = False, **kwargs: Any
    ) -> None:
        require(not share_encoder, "share_encoder", "False with PPG", share_encoder)
        super().__init__(obs_shape, action_shape, share_encoder=False, **kwargs)
        width, layers, widths = (
            kwargs.get(f"critic_{name}") for name in ("head_hidden_size", "head_layer_num", "hidden_size_list")
        )
        activation, layer_norm = kwargs.get("activation", "relu"), kwargs.get("layer_norm", False)
        self.auxiliary = critic_head(self.encoder.output_size, width, layers, widths, activation, layer_norm)

    def compute_auxiliary(self, obs: Any) -> dict[str, Any]:
        """Return ``logit`` of the actor, and ``value`` of its second head, shape (B,)."""
        features = self.encoder(obs)
        return {"logit": self.actor(features), "value": self.auxiliary(features).squeeze(1)}

    def actor_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the actor and of its second head."""
        return [*super().actor_parameters(), *self.auxiliary.parameters()]

    def init_orthogonally(self, hidden: float = math.sqrt(2), actor: float = 0.01, critic: float = 1.0) -> None:
        """Initialise as :class:`VAC` does, the second value head like the first one."""
        init_orthogonally(self, {self.actor: actor, self.critic: critic, self.auxiliary: critic}, hidden)
