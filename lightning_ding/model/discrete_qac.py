"""The network of discrete SAC: an actor that chooses one of A actions, and critics that value all of them.

Shapes: B batch, A actions, E critics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from lightning_ding.config import require
from lightning_ding.model.encoder import ObsShape, encoder_for
from lightning_ding.model.ensemble import EnsembleMLP
from lightning_ding.model.heads import check_action_shape, full_precision
from lightning_ding.model.mlp import MLP
from lightning_ding.model.qac import EncoderAndHead, hidden_sizes
from lightning_ding.registry import MODEL_REGISTRY


@MODEL_REGISTRY.register("discrete_qac")
class DiscreteQAC(nn.Module):
    """An actor and one or two critics of discrete actions; ``actor`` and ``critic`` share no parameters.

    The arguments that are not listed here are those of :class:`ContinuousQAC`.

    Args:
        obs_shape: Size, shape or dict of these of an observation; an entry ``action_mask`` is not encoded.
        action_shape: Number of actions A.

    Raises:
        TypeError: If ``action_shape`` is not an integer.
        ValueError: If a size is out of its range, or there is no encoder to share.

    Example:
        >>> import torch
        >>> DiscreteQAC(obs_shape=4, action_shape=2).compute_critic(torch.zeros(5, 4))["q_value"].shape
        torch.Size([1, 5, 2])
    """

    def __init__(
        self,
        obs_shape: ObsShape,
        action_shape: int,
        twin_critic: bool = False,
        actor_head_hidden_size: int = 256,
        actor_head_layer_num: int = 1,
        critic_head_hidden_size: int = 256,
        critic_head_layer_num: int = 1,
        encoder_hidden_size_list: Sequence[int] | None = None,
        share_encoder: bool = False,
        activation: str = "relu",
        last_layer_init: float | None = None,
        encoder: str | None = None,
        layer_norm: bool = False,
        encoder_kwargs: Mapping[str, Any] | None = None,
        actor_hidden_size_list: Sequence[int] | None = None,
        critic_hidden_size_list: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        check_action_shape(action_shape)
        actor_hidden = hidden_sizes("actor", actor_head_hidden_size, actor_head_layer_num, actor_hidden_size_list)
        critic_hidden = hidden_sizes("critic", critic_head_hidden_size, critic_head_layer_num, critic_hidden_size_list)

        def make() -> Any:
            options = (encoder, encoder_hidden_size_list, activation, layer_norm, encoder_kwargs)
            return encoder_for(obs_shape, *options, keeps_vectors=True)

        critic_encoder = make()
        features = critic_encoder.output_size
        has_encoder = any(True for _ in critic_encoder.parameters())
        require(has_encoder or not share_encoder, "share_encoder", "False without an encoder", share_encoder)
        actor_sizes = [features, *actor_hidden, action_shape]
        critic_sizes = [features, *critic_hidden, action_shape]
        actor_head = MLP(actor_sizes, activation, activate_last=False, layer_norm=layer_norm)
        self.actor = EncoderAndHead(None if share_encoder else make(), actor_head)
        self.critic = EncoderAndHead(critic_encoder, EnsembleMLP(1 + twin_critic, critic_sizes, activation, layer_norm))
        if last_layer_init is not None:
            last = (*actor_head.layers[-1].parameters(), self.critic.head.weights[-1], self.critic.head.biases[-1])
            for parameter in last:
                nn.init.uniform_(parameter, -last_layer_init, last_layer_init)

    def compute_actor(self, obs: Any) -> dict[str, Tensor]:
        """Return ``{"logit": unnormalised log probabilities}``, shape (B, A), for B observations."""
        encoder = self.actor.encoder
        features = self.critic.fixed_features(obs) if encoder is None else encoder(obs)
        return {"logit": full_precision(self.actor.head(features))}

    def compute_critic(self, obs: Any, action: Tensor | None = None) -> dict[str, Tensor]:
        """Return ``{"q_value": values}``.

        Args:
            obs: B observations.
            action: Indices of actions, shape (B,), for values of shape (E, B); None means the values of all actions,
                shape (E, B, A).
        """
        q = self.critic.head(self.critic.encoder(obs))
        if action is not None:
            q = q.gather(2, action.expand(len(q), -1).unsqueeze(2)).squeeze(2)
        return {"q_value": q}
