"""The network of TD7: an actor and critics that also see learned embeddings of states and of states with actions.

Paper: Fujimoto et al. 2023, "For SALE" (https://arxiv.org/abs/2306.02451), section 4.1 and appendix A.

Shapes: B batch, A dimensions of an action, E critics, F features of an encoder, Z size of an embedding.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lightning_ding.config import require
from lightning_ding.model.actor import output_layers
from lightning_ding.model.encoder import ObsShape, encoder_for
from lightning_ding.model.ensemble import EnsembleMLP
from lightning_ding.model.heads import full_precision
from lightning_ding.model.mlp import MLP
from lightning_ding.model.qac import action_sizes, hidden_sizes
from lightning_ding.model.residual import EnsembleLinear
from lightning_ding.registry import MODEL_REGISTRY

EPS = 1e-8


def avg_l1_norm(x: Tensor) -> Tensor:
    """Return vectors along the last axis, divided by the mean of their absolute values (Fujimoto et al. 2023, eq. 5).

    Example:
        >>> avg_l1_norm(torch.tensor([1.0, -3.0]))
        tensor([ 0.5000, -1.5000])
    """
    return x / x.abs().mean(-1, keepdim=True).clamp(min=EPS)


class Embedding(nn.Module):
    """Encoders of states and of states with actions, in one space, in which the latter predicts the next state.

    Args:
        encoder: Encoder of observations with an attribute ``output_size``.
        action_size: Number of dimensions A.
        size: Size of an embedding Z.
        hidden: Width of the two hidden layers of both encoders.
        activation: Activation of the hidden layers.
        layer_norm: Apply layer normalisation before each activation.
    """

    def __init__(
        self, encoder: Any, action_size: int, size: int, hidden: int, activation: str, layer_norm: bool
    ) -> None:
        super().__init__()
        make = partial(MLP, activation=activation, activate_last=False, layer_norm=layer_norm)
        self.encoder = encoder
        self.state = make([encoder.output_size, hidden, hidden, size])
        self.state_action = make([size + action_size, hidden, hidden, size])

    def of_state(self, obs: Any) -> Tensor:
        """Return the normalised embeddings of B observations, shape (B, Z)."""
        return avg_l1_norm(full_precision(self.state(self.encoder(obs))))

    def of_action(self, state: Tensor, action: Tensor) -> Tensor:
        """Return the embeddings of states, embedded, shape (B, Z), with actions, shape (B, A); shape (B, Z)."""
        return full_precision(self.state_action(torch.cat([state, action], 1)))


class SALEActor(nn.Module):
    """The actor; its first layer is normalised and joined with the embedding of the state.

    Args:
        encoder: Encoder of observations with an attribute ``output_size``.
        embedding_size: Z.
        hidden: Widths of the first layer and of the hidden layers after it.
        action_size: A.
        activation: Activation of the hidden layers.
        layer_norm: Apply layer normalisation before each activation.
    """

    def __init__(
        self,
        encoder: Any,
        embedding_size: int,
        hidden: Sequence[int],
        action_size: int,
        activation: str,
        layer_norm: bool,
    ) -> None:
        super().__init__()
        self.encoder, self.first = encoder, nn.Linear(encoder.output_size, hidden[0])
        sizes = [hidden[0] + embedding_size, *hidden[1:], action_size]
        self.head = MLP(sizes, activation, activate_last=False, layer_norm=layer_norm)

    def forward(self, obs: Any, state: Tensor) -> Tensor:
        """Return actions in [-1, 1], shape (B, A), of observations and their embeddings, shape (B, Z)."""
        first = avg_l1_norm(full_precision(self.first(self.encoder(obs))))
        return full_precision(self.head(torch.cat([first, state], 1))).tanh()


class SALECritics(nn.Module):
    """E critics; their first layers are normalised and joined with both embeddings.

    Args:
        encoder: Encoder of observations with an attribute ``output_size``.
        ensemble_size: E.
        embedding_size: Z.
        hidden: Widths of the first layer and of the hidden layers after it.
        action_size: A.
        activation: Activation of the hidden layers.
        layer_norm: Apply layer normalisation before each activation.
    """

    def __init__(
        self,
        encoder: Any,
        ensemble_size: int,
        embedding_size: int,
        hidden: Sequence[int],
        action_size: int,
        activation: str,
        layer_norm: bool,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.first = EnsembleLinear(ensemble_size, encoder.output_size + action_size, hidden[0])
        sizes = [hidden[0] + 2 * embedding_size, *hidden[1:], 1]
        self.head = EnsembleMLP(ensemble_size, sizes, activation, layer_norm)

    def forward(
        self, obs: Any, action: Tensor, state: Tensor, state_action: Tensor, members: int | None = None
    ) -> Tensor:
        """Return values of actions, shape (E, B), by the first ``members`` critics; None means all.

        Args:
            obs: B observations.
            action: Normalised actions, shape (B, A).
            state: Embeddings of the observations, shape (B, Z).
            state_action: Embeddings of the observations with the actions, shape (B, Z).
            members: Number of critics.
        """
        number = self.head.ensemble_size if members is None else members
        x = torch.cat([self.encoder(obs), action], 1).expand(number, -1, -1)
        first = avg_l1_norm(full_precision(self.first(x, members)))
        embeddings = torch.cat([state_action, state], 1).expand(number, -1, -1)
        return self.head(torch.cat([first, embeddings], 2), members).squeeze(2)  # type: ignore[no-any-return]


@MODEL_REGISTRY.register("sale_qac")
class SALEQAC(nn.Module):
    """An actor and critics of normalised actions with learned embeddings (SALE).

    The actor and the critics see ``fixed_embedding``, an earlier copy of the trained ``embedding``. Images and other
    observations that are no vectors pass through an encoder of each of the three parts first.

    Args:
        obs_shape: Size, shape or dict of these of an observation.
        action_shape: Number of dimensions A.
        embedding_size: Size of the embeddings Z, >= 1.
        embedding_hidden_size: Width of the two hidden layers of both encoders of embeddings, >= 1.
        ensemble_num: Number of critics E, >= 1.
        actor_head_hidden_size: Width of the actor's hidden layers.
        actor_head_layer_num: Number of hidden layers of the actor after the first one, which is normalised, >= 0.
        critic_head_hidden_size: Width of the critics' hidden layers.
        critic_head_layer_num: Number of hidden layers of the critics after the first one, >= 0.
        actor_hidden_size_list: Width of each hidden layer of the actor, in place of the two above; None for those.
        critic_hidden_size_list: Width of each hidden layer of the critics, likewise.
        activation: Activation of the actor and of the encoders of observations.
        critic_activation: Activation of the critics and of the embeddings.
        layer_norm: Apply layer normalisation before the activation of each hidden layer but the first ones.
        last_layer_init: Bound x of the uniform initial weights in [-x, x] of the output layers of the actor and of the
            critics; None initialises them like all other layers.
        encoder: Name of a registered encoder; None chooses one by the shape, and no encoder for vectors.
        encoder_hidden_size_list: Widths of the encoders' layers; None for the encoder's default.
        encoder_kwargs: Further keyword arguments of the encoders. If it is not empty, vectors get an encoder too.

    Raises:
        ValueError: If a size is out of its range, or the action is hybrid or has a mask.

    Example:
        >>> model = SALEQAC(obs_shape=3, action_shape=1)
        >>> action = model.compute_actor(torch.zeros(5, 3))["action"]
        >>> model.compute_critic(torch.zeros(5, 3), action)["q_value"].shape
        torch.Size([2, 5])
    """

    def __init__(
        self,
        obs_shape: ObsShape,
        action_shape: int,
        embedding_size: int = 256,
        embedding_hidden_size: int = 256,
        ensemble_num: int = 2,
        actor_head_hidden_size: int = 256,
        actor_head_layer_num: int = 2,
        critic_head_hidden_size: int = 256,
        critic_head_layer_num: int = 2,
        actor_hidden_size_list: Sequence[int] | None = None,
        critic_hidden_size_list: Sequence[int] | None = None,
        activation: str = "relu",
        critic_activation: str = "elu",
        layer_norm: bool = False,
        last_layer_init: float | None = None,
        encoder: str | None = None,
        encoder_hidden_size_list: Sequence[int] | None = None,
        encoder_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        for name, size in {"embedding_size": embedding_size, "embedding_hidden_size": embedding_hidden_size}.items():
            require(size >= 1, name, ">= 1", size)
        action_sizes(obs_shape, action_shape, "regression")  # raises for a choice
        options = (encoder, encoder_hidden_size_list, activation, layer_norm, encoder_kwargs)
        make_encoder = partial(encoder_for, obs_shape, *options, keeps_vectors=True)
        actor_hidden = hidden_sizes("actor", actor_head_hidden_size, actor_head_layer_num, actor_hidden_size_list)
        critic_hidden = hidden_sizes("critic", critic_head_hidden_size, critic_head_layer_num, critic_hidden_size_list)
        widths = (embedding_size, embedding_hidden_size)
        self.embedding = Embedding(make_encoder(), action_shape, *widths, critic_activation, layer_norm)
        self.fixed_embedding = copy.deepcopy(self.embedding).requires_grad_(False)
        self.actor = SALEActor(make_encoder(), embedding_size, actor_hidden, action_shape, activation, layer_norm)
        sizes = (ensemble_num, embedding_size, critic_hidden, action_shape)
        self.critic = SALECritics(make_encoder(), *sizes, critic_activation, layer_norm)
        if last_layer_init is not None:
            outputs = [*output_layers(self.actor.head)[0].parameters(), *self.critic.head.output_parameters()]
            for parameter in outputs:
                nn.init.uniform_(parameter, -last_layer_init, last_layer_init)

    def compute_actor(self, obs: Any) -> dict[str, Tensor]:
        """Return ``action`` in [-1, 1], shape (B, A), for B observations."""
        return {"action": self.actor(obs, self.fixed_embedding.of_state(obs))}

    def compute_critic(self, obs: Any, action: Tensor, members: int | None = None) -> dict[str, Tensor]:
        """Return ``q_value``, shape (E, B).

        Args:
            obs: B observations.
            action: Normalised actions, shape (B, A).
            members: Number of critics to evaluate, counted from the first; None means all.
        """
        state = self.fixed_embedding.of_state(obs)
        return {"q_value": self.critic(obs, action, state, self.fixed_embedding.of_action(state, action), members)}
