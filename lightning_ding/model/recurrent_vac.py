"""The recurrent network of actor-critic methods.

Shapes: T steps, B sequences or envs, A number of actions, or dimensions of a continuous action, S size of a state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from lightning_ding import nested
from lightning_ding.model.actor import FIXED_SIGMA, ActionShape, ActionSpace, SigmaType, create_actor, init_orthogonally
from lightning_ding.model.core import RecurrentEncoder
from lightning_ding.model.encoder import ObsShape, encoder_for
from lightning_ding.model.vac import both_lists, critic_head
from lightning_ding.registry import MODEL_REGISTRY


@MODEL_REGISTRY.register("recurrent_vac")
class RecurrentVAC(nn.Module):
    """Actor and critic that compute a distribution over actions and a value from the observations so far.

    The arguments are those of :class:`VAC`, except for ``core`` and ``share_encoder``, without those of state-dependent
    noise. The heads, and so the layers of the lists of widths, follow the core.

    Args:
        core: Options of the core, see :func:`create_core`: ``type``, ``hidden_size`` and others; None for its defaults.
        share_encoder: Use one encoder and one core for actor and critic; otherwise each has its own, and the state
            is twice as long.

    Raises:
        ValueError: If a value is out of its range, does not fit the action space, or would have no effect.

    Example:
        >>> network = RecurrentVAC(obs_shape=4, action_shape=2)
        >>> output = network(torch.zeros(5, 3, 4), torch.zeros(3, network.state_size))
        >>> output["logit"].shape, output["value"].shape
        (torch.Size([15, 2]), torch.Size([15]))
    """

    def __init__(
        self,
        obs_shape: ObsShape,
        action_shape: ActionShape,
        action_space: ActionSpace = "discrete",
        core: Mapping[str, Any] | None = None,
        share_encoder: bool = True,
        encoder: str | None = None,
        encoder_hidden_size_list: Sequence[int] | None = None,
        actor_head_hidden_size: int | None = None,
        actor_head_layer_num: int | None = None,
        critic_head_hidden_size: int | None = None,
        critic_head_layer_num: int | None = None,
        activation: str = "relu",
        sigma_type: SigmaType = "independent",
        fixed_sigma_value: float = FIXED_SIGMA,
        bound_type: Literal["tanh"] | None = None,
        layer_norm: bool = False,
        encoder_kwargs: Mapping[str, Any] | None = None,
        actor_hidden_size_list: Sequence[int] | None = None,
        critic_hidden_size_list: Sequence[int] | None = None,
        log_std_init: float | None = None,
    ) -> None:
        super().__init__()
        has_lists = both_lists(actor_hidden_size_list, critic_hidden_size_list)
        options = (obs_shape, encoder, encoder_hidden_size_list, activation, layer_norm, encoder_kwargs, has_lists)
        self.encoder = RecurrentEncoder(encoder_for(*options), core or {})
        self.critic_encoder = None if share_encoder else RecurrentEncoder(encoder_for(*options), core or {})
        features = self.encoder.output_size
        head = (actor_head_hidden_size, actor_head_layer_num, activation)
        gaussian = (sigma_type, fixed_sigma_value, bound_type)
        added = (layer_norm, actor_hidden_size_list, log_std_init)
        self.actor = create_actor(features, action_shape, action_space, *head, *gaussian, *added)
        sizes = (critic_head_hidden_size, critic_head_layer_num, critic_hidden_size_list)
        self.critic = critic_head(features, *sizes, activation, layer_norm)

    @property
    def state_size(self) -> int:
        """Size of the state of one env, S."""
        return self.encoder.state_size * (1 if self.critic_encoder is None else 2)

    def forward(self, obs: Any, state: Tensor, starts: Tensor | None = None) -> dict[str, Any]:
        """Return outputs for T B rows, the B rows of the first step first.

        Args:
            obs: Nested observations, leading axes (T, B).
            state: State before the first step, shape (B, S).
            starts: Whether a step is the first of an episode, shape (T, B); None if none is.

        Returns:
            ``logit``, leading axis T B, see :meth:`VAC.compute_actor`; ``value``, shape (T B,); ``state`` after the
            last step, shape (B, S).
        """
        if self.critic_encoder is None:
            features, last = self.encoder(obs, state, starts)
            of_critic = features
        else:
            of_both = state.split(self.encoder.state_size, dim=1)
            features, actor_state = self.encoder(obs, of_both[0], starts)
            of_critic, critic_state = self.critic_encoder(obs, of_both[1], starts)
            last = torch.cat([actor_state, critic_state], dim=1)
        value = self.critic(of_critic.flatten(0, 1)).squeeze(1)
        return {"logit": self.actor(features.flatten(0, 1)), "value": value, "state": last}

    def first_state(self, batch_size: int) -> Tensor:
        """Return the state at the start of an episode, zeros of shape (B, S)."""
        of_one = self.encoder.core.first_state(batch_size)
        return of_one if self.critic_encoder is None else torch.cat([of_one, of_one], dim=1)

    def act(self, obs: Any, state: Tensor) -> dict[str, Any]:
        """Return ``logit`` (B, ...), ``value`` (B,) and ``state`` (B, S) of one observation of each env."""
        return self(nested.apply(lambda x: x.unsqueeze(0), obs), state)  # type: ignore[no-any-return]

    @property
    def critic_output(self) -> nn.Linear:
        """The layer whose output is the value."""
        return cast(nn.Linear, self.critic.layers[-1])

    def init_orthogonally(self, hidden: float = math.sqrt(2), actor: float = 0.01, critic: float = 1.0) -> None:
        """Initialise with orthogonal weights, zero biases and a nearly uniform actor, but for the core.

        The arguments are those of :meth:`VAC.init_orthogonally`.
        """
        below = [one.encoder for one in (self.encoder, self.critic_encoder) if one is not None]
        for part in (*below, self.actor, self.critic):
            init_orthogonally(part, {self.actor: actor, self.critic: critic}, hidden)
