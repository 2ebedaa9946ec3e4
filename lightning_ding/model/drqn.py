"""The recurrent Q-network of R2D2.

Shapes: T steps, B sequences or envs, A actions, S size of a state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from torch import Tensor, nn

from lightning_ding import nested
from lightning_ding.model.core import RecurrentEncoder
from lightning_ding.model.encoder import ObsShape, encoder_for
from lightning_ding.model.heads import DiscreteHead, DuelingHead, check_action_shape, head_size
from lightning_ding.registry import MODEL_REGISTRY


@MODEL_REGISTRY.register("drqn")
class DRQN(nn.Module):
    """Encoder, core and head that compute the value of every action from the observations so far.

    Args:
        obs_shape: Size, shape or dict of these of an observation; an entry ``action_mask`` is not encoded.
        action_shape: Number of actions.
        core: Options of the core, see :func:`create_core`: ``type``, ``hidden_size`` and others; None for its defaults.
        encoder: Name of a registered encoder; None chooses one by the shape.
        encoder_hidden_size_list: Widths of the encoder's layers; None for the encoder's default.
        dueling: Use a dueling head with separate streams for the state and the actions.
        head_hidden_size: Width of the head's hidden layers; None for the core's width.
        head_layer_num: Number of hidden layers of the head; None means 1 with ``dueling`` or ``head_hidden_size``,
            otherwise 0.
        activation: Activation of all hidden layers: relu, tanh, elu, gelu or silu.
        layer_norm: Apply layer normalisation before the activation of each hidden layer, also in the encoder.
        encoder_kwargs: Further keyword arguments of the encoder, see ``create_encoder``.

    Raises:
        ValueError: If a size is out of its range.
        TypeError: If the action has several dimensions.

    Example:
        >>> import torch
        >>> network = DRQN(obs_shape=4, action_shape=2)
        >>> network(torch.zeros(5, 3, 4), torch.zeros(3, network.state_size))["logit"].shape
        torch.Size([5, 3, 2])
    """

    def __init__(
        self,
        obs_shape: ObsShape,
        action_shape: int,
        core: Mapping[str, Any] | None = None,
        encoder: str | None = None,
        encoder_hidden_size_list: Sequence[int] | None = None,
        dueling: bool = True,
        head_hidden_size: int | None = None,
        head_layer_num: int | None = None,
        activation: str = "relu",
        layer_norm: bool = False,
        encoder_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        check_action_shape(action_shape)
        below = encoder_for(obs_shape, encoder, encoder_hidden_size_list, activation, layer_norm, encoder_kwargs)
        self.encoder = RecurrentEncoder(below, core or {})
        features = self.encoder.output_size
        width, layers = head_size(features, head_hidden_size, head_layer_num, dueling)
        head_class = DuelingHead if dueling else DiscreteHead
        self.head = head_class(features, action_shape, width, layers, activation, layer_norm)

    @property
    def state_size(self) -> int:
        """Size of the state of one env, S."""
        return self.encoder.state_size

    def forward(self, obs: Any, state: Tensor, starts: Tensor | None = None) -> dict[str, Tensor]:
        """Return ``{"logit": values (T, B, A), "state": (B, S) after the last step}``; see :class:`RecurrentCore`.

        Args:
            obs: Nested observations, leading axes (T, B).
            state: State before the first step, shape (B, S).
            starts: Whether a step is the first of an episode, shape (T, B); None if none is.
        """
        features, state = self.encoder(obs, state, starts)
        return {"logit": self._values(features), "state": state}

    def after_burn_in(self, obs: Any, state: Tensor, burn_in: int, has_none: Tensor) -> Tensor:
        """Return values, shape (T, B, A); the arguments are those of :meth:`RecurrentEncoder.after_burn_in`."""
        return self._values(self.encoder.after_burn_in(obs, state, burn_in, has_none))

    def first_state(self, batch_size: int) -> Tensor:
        """Return the state at the start of an episode, zeros of shape (B, S)."""
        return self.encoder.core.first_state(batch_size)

    def act(self, obs: Any, state: Tensor) -> dict[str, Tensor]:
        """Return ``{"logit": values (B, A), "state": (B, S)}`` of one observation of each env, leading axis B."""
        output = self(nested.apply(lambda x: x.unsqueeze(0), obs), state)
        return {"logit": output["logit"].squeeze(0), "state": output["state"]}

    def _values(self, features: Tensor) -> Tensor:
        # -1, because the exporter of ONNX takes the batch size after the cell for a constant
        return cast(Tensor, self.head(features.flatten(0, 1)).unflatten(0, (features.shape[0], -1)))
