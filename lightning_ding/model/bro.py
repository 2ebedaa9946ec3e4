"""The network of BRO: an actor, critics, and an exploring actor that shifts the actor's mean.

Shapes: B batch, A dimensions of an action.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lightning_ding.config import require
from lightning_ding.model.encoder import ObsShape
from lightning_ding.model.ensemble import EnsembleMLP
from lightning_ding.model.qac import ContinuousQAC, EncoderAndHead, hidden_sizes
from lightning_ding.model.residual import make_layers
from lightning_ding.registry import MODEL_REGISTRY

FIRST_SHIFT = 0.01  # size of the orthogonal initial weights of the explorer's last layer, as in the authors' code


@MODEL_REGISTRY.register("optimistic_qac")
class OptimisticQAC(ContinuousQAC):
    """:class:`ContinuousQAC` with an explorer, whose layers have the kind and the widths of the actor's.

    The explorer takes the features of an observation and the actor's mean, and returns what to add to the mean. It has
    no encoder: its features are the critics', which its loss does not train.

    Args:
        obs_shape: Size, shape or dict of these of an observation.
        action_shape: Number of dimensions A.
        actor_head_hidden_size: Width of the hidden layers of the actor and of the explorer.
        actor_head_layer_num: Number of their hidden layers after the first one, >= 0.
        actor_hidden_size_list: Width of each of their hidden layers, in place of the two above; None for those.
        actor_layers: Options of :class:`LayersConfig` for both; None for plain layers.
        activation: Activation of all hidden layers.
        layer_norm: Apply layer normalisation in plain layers, before the activation of each hidden one.
        kwargs: Further arguments of :class:`ContinuousQAC`.

    Raises:
        ValueError: If the layers of the actor are of type ``simba_v2``, whose last layer cannot begin near 0, or an
            argument does not fit :class:`ContinuousQAC`.

    Example:
        >>> model = OptimisticQAC(obs_shape=3, action_shape=1, action_space="reparameterization")
        >>> obs = torch.zeros(5, 3)
        >>> model.compute_explorer(obs, model.compute_actor(obs)["mu"]).shape
        torch.Size([5, 1])
    """

    def __init__(
        self,
        obs_shape: ObsShape,
        action_shape: int,
        *,
        actor_head_hidden_size: int = 256,
        actor_head_layer_num: int = 1,
        actor_hidden_size_list: Sequence[int] | None = None,
        actor_layers: Mapping[str, Any] | None = None,
        activation: str = "relu",
        layer_norm: bool = False,
        **kwargs: Any,
    ) -> None:
        kind = (actor_layers or {}).get("type", "mlp")
        require(kind != "simba_v2", "actor_layers.type", "mlp, simba or bronet with an explorer", kind)
        super().__init__(
            obs_shape,
            action_shape,
            actor_head_hidden_size=actor_head_hidden_size,
            actor_head_layer_num=actor_head_layer_num,
            actor_hidden_size_list=actor_hidden_size_list,
            actor_layers=actor_layers,
            activation=activation,
            layer_norm=layer_norm,
            **kwargs,
        )
        hidden = hidden_sizes("actor", actor_head_hidden_size, actor_head_layer_num, actor_hidden_size_list)
        sizes = [self.critic.encoder.output_size + action_shape, *hidden, action_shape]
        layers = self._layers["actor"]
        head = (
            EnsembleMLP(1, sizes, activation, layer_norm)
            if layers.is_plain
            else make_layers(layers, 1, sizes, activation)
        )
        weight, bias = head.output_parameters()
        nn.init.orthogonal_(weight.data[0], FIRST_SHIFT)
        nn.init.zeros_(bias)
        self.explorer = EncoderAndHead(None, head)

    def compute_explorer(self, obs: Any, mu: Tensor) -> Tensor:
        """Return the explorer's means before squashing, shape (B, A).

        Args:
            obs: B observations.
            mu: The actor's means of them before squashing, shape (B, A).
        """
        with torch.no_grad():
            features = self.critic.fixed_features(obs)
        return mu + self.explorer.head(torch.cat([features, mu], 1))[0]  # type: ignore[no-any-return]
