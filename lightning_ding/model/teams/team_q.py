"""Networks of the action values of a team: those of its agents, and a mixer of them.

Shapes: T steps, B sequences or envs, N agents, A actions, H features of an agent, S size of a recurrent state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lightning_ding.model.heads import full_precision
from lightning_ding.model.teams.agents import (
    AgentEncoder,
    AgentMLP,
    ImageFeatures,
    Shape,
    Sharing,
    check_image_options,
)
from lightning_ding.model.teams.mixers import JointValues, MonotonicMixer, UnrestrictedMixer
from lightning_ding.registry import MODEL_REGISTRY
from lightning_ding.utils.teams import AGENT_STATE, action_counts, global_state


class AgentValues(nn.Module):
    """The action values of each agent: an encoder, perhaps with a memory, and a head.

    Args:
        action_size: Largest number of actions of an agent A.
        seen: Size D, or shape of the image, of what an agent sees.
        images: Arguments of :class:`ImageFeatures` after the shape.
        added: Numbers that an agent sees in addition.
        encoder: Arguments of :class:`AgentEncoder`, except for ``obs_size``.
    """

    def __init__(
        self, action_size: int, seen: Shape, images: Mapping[str, Any], added: int = 0, **encoder: Any
    ) -> None:
        super().__init__()
        self.images = ImageFeatures(seen, **images)
        self.encoder = AgentEncoder(obs_size=self.images.output_size + added, **encoder)
        self.head = AgentMLP([self.encoder.output_size, action_size], self.encoder.groups)

    def forward(
        self, seen: Tensor, state: Tensor, starts: Tensor | None = None, added: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return values (T, B, N, A), features (T, B, N, H) and the state after the last step, shape (B, S).

        Args:
            seen: Observations of the agents, shape (T, B, N, D) or (T, B, N, *image).
            state: State before the first step, shape (B, S).
            starts: Whether a step is the first of an episode, shape (T, B); None if none is.
            added: Inputs that all agents have in addition, shape (T, B, number); None for nothing.
        """
        seen = self.images(seen)
        if added is not None:
            seen = torch.cat([seen, added.unsqueeze(-2).expand(*seen.shape[:-1], -1)], -1)
        if self.encoder.core is None:
            feature = self.encoder(seen)
        else:
            feature, state = self.encoder.unroll(seen, state, starts)
        return full_precision(self.head(feature)), feature, state


@MODEL_REGISTRY.register("iql_ma")
class TeamQ(nn.Module):
    """The action values of the agents of a team, each for itself.

    Args:
        agent_num: Number of agents N.
        agent_obs_shape: Numbers that an agent sees, or shape of the image that it sees.
        global_obs_shape: Size of the global state, or its shape if it is an image.
        action_shape: Number of actions of an agent, or of each agent where they differ.
        parameter_sharing: Which agents share their weights: true for all, false for none, or the number of each
            agent's group.
        agent_id: Whether agents that share weights see their own number.
        encoder_hidden_size_list: Widths of the layers of an agent; None means 64, 64.
        activation: Activation of all hidden layers: relu, tanh, elu, gelu or silu.
        layer_norm: Apply layer normalisation before the activation of each hidden layer.
        core: Arguments of :class:`RecurrentCore`; None, or the type None, for agents without memory.
        encoder: Name of the registered encoder of images, see :class:`ImageFeatures`.
        encoder_kwargs: Further arguments of that encoder.

    Example:
        >>> network = TeamQ(agent_num=3, agent_obs_shape=4, global_obs_shape=12, action_shape=2)
        >>> network({"agent_state": torch.zeros(5, 7, 3, 4)}, network.first_state(7))["logit"].shape
        torch.Size([5, 7, 3, 2])
    """

    def __init__(
        self,
        agent_num: int,
        agent_obs_shape: Shape,
        global_obs_shape: Shape,
        action_shape: int | Sequence[int],
        parameter_sharing: Sharing = True,
        agent_id: bool = True,
        encoder_hidden_size_list: Sequence[int] | None = None,
        activation: str = "relu",
        layer_norm: bool = False,
        core: Mapping[str, Any] | None = None,
        encoder: str | None = None,
        encoder_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        check_image_options(encoder, encoder_kwargs, agent_obs_shape, global_obs_shape)
        self.agent_num, self.global_shape = agent_num, global_obs_shape
        self.action_size = max(action_counts(agent_num, action_shape))
        widths = (64, 64) if encoder_hidden_size_list is None else tuple(encoder_hidden_size_list)
        layers: dict[str, Any] = {"hidden_sizes": widths, "activation": activation, "layer_norm": layer_norm}
        layers["core"] = core if core and core["type"] else None
        ids = {"parameter_sharing": parameter_sharing, "agent_id": agent_id}
        self.image_options: dict[str, Any] = {"encoder": encoder, "encoder_kwargs": encoder_kwargs}
        self.image_options |= {"activation": activation, "layer_norm": layer_norm}
        self.options = {"agent_num": agent_num, "seen": agent_obs_shape, "images": self.image_options, **ids, **layers}
        self.agents = AgentValues(self.action_size, **self.options)
        self.state_size = self.agents.encoder.state_size

    def first_state(self, batch_size: int) -> Tensor:
        """Return the state of all agents at the start of an episode, zeros of shape (B, S)."""
        return self.agents.encoder.ids.new_zeros(batch_size, self.state_size)

    def forward(self, obs: Mapping[str, Tensor], state: Tensor, starts: Tensor | None = None) -> dict[str, Tensor]:
        """Return ``logit`` (T, B, N, A), ``feature`` (T, B, N, H) and ``state`` (B, S), see :class:`AgentValues`.

        Args:
            obs: Observations of the team, leading axes (T, B).
            state: State before the first step, shape (B, S); without memory S is 0.
            starts: Whether a step is the first of an episode, shape (T, B); None if none is.
        """
        logit, feature, after = self.agents(obs[AGENT_STATE], state, starts)
        return {"logit": logit, "feature": feature, "state": after}

    def act(self, obs: Mapping[str, Tensor], state: Tensor) -> dict[str, Tensor]:
        """Return ``logit``, shape (B, N, A), and ``state`` (B, S) for a single step."""
        output = self({name: x.unsqueeze(0) for name, x in obs.items()}, state)
        return {"logit": output["logit"].squeeze(0), "state": output["state"]}

    def mix(self, value: Tensor, obs: Mapping[str, Tensor]) -> Tensor:
        """Return the values that are learned, here those of each agent, shape (..., N), of their chosen actions."""
        return value

    def _state_images(self) -> ImageFeatures:
        """Return the features of the global state."""
        return ImageFeatures(self.global_shape, **self.image_options)


@MODEL_REGISTRY.register("vdn")
class VDNNetwork(TeamQ):
    """The action values of agents whose sum is the value of the team; the arguments are those of :class:`TeamQ`."""

    def mix(self, value: Tensor, obs: Mapping[str, Tensor]) -> Tensor:
        """Return the value of the team, shape (...,), of those of its agents, shape (..., N)."""
        return value.sum(-1)


@MODEL_REGISTRY.register("qmix")
class QMIXNetwork(TeamQ):
    """The action values of agents, and a monotonic mixer.

    Args:
        mixing_embed_dim: Width of the mixer's hidden layer.
        hypernet_embed: Width of the networks that compute the mixer's weights.
        agents: Arguments of :class:`TeamQ`.
    """

    def __init__(self, *, mixing_embed_dim: int = 32, hypernet_embed: int = 64, **agents: Any) -> None:
        super().__init__(**agents)
        self.state_images = self._state_images()
        sizes = (self.agent_num, self.state_images.output_size)
        self.mixer = MonotonicMixer(*sizes, mixing_embed_dim, hypernet_embed)

    def mix(self, value: Tensor, obs: Mapping[str, Tensor]) -> Tensor:
        """Return the value of the team, shape (...,), of those of its agents, shape (..., N)."""
        return self.mixer(value, self.state_images(global_state(obs)))  # type: ignore[no-any-return]


@MODEL_REGISTRY.register("wqmix")
class WQMIXNetwork(QMIXNetwork):
    """QMIX's network, and a central one: other agents with an unrestricted mixer. Both have their own state.

    Args:
        central_embed_dim: Width of the central mixer's hidden layers.
        agents: Arguments of :class:`QMIXNetwork`.
    """

    def __init__(self, *, central_embed_dim: int = 256, **agents: Any) -> None:
        super().__init__(**agents)
        self.central = AgentValues(self.action_size, **self.options)
        self.central_images = self._state_images()
        sizes = (self.agent_num, self.central_images.output_size)
        self.central_mixer = UnrestrictedMixer(*sizes, central_embed_dim)
        self.state_size *= 2

    def forward(self, obs: Mapping[str, Tensor], state: Tensor, starts: Tensor | None = None) -> dict[str, Tensor]:
        """Return what :class:`TeamQ` returns, and ``central`` (T, B, N, A), the values of the central agents."""
        own, others = state.chunk(2, 1) if self.state_size else (state, state)
        output = super().forward(obs, own, starts)
        output["central"], _, after = self.central(obs[AGENT_STATE], others, starts)
        return output | {"state": torch.cat([output["state"], after], 1)}

    def mix_central(self, value: Tensor, obs: Mapping[str, Tensor]) -> Tensor:
        """Return the central value of the team, shape (...,), of those of the central agents, shape (..., N)."""
        return self.central_mixer(value, self.central_images(global_state(obs)))  # type: ignore[no-any-return]


@MODEL_REGISTRY.register("madqn")
class MADQNNetwork(VDNNetwork):
    """The action values of agents, and others of the same actions that know more. Both have their own state.

    Args:
        global_cooperation: Whether the others see the global state in addition to what the agent sees.
        agents: Arguments of :class:`TeamQ`.
    """

    def __init__(self, *, global_cooperation: bool = True, **agents: Any) -> None:
        super().__init__(**agents)
        self.state_images = self._state_images() if global_cooperation else None
        size = 0 if self.state_images is None else self.state_images.output_size
        self.cooperation = AgentValues(self.action_size, added=size, **self.options)
        self.state_size *= 2

    def forward(self, obs: Mapping[str, Tensor], state: Tensor, starts: Tensor | None = None) -> dict[str, Tensor]:
        """Return what :class:`TeamQ` returns, and ``cooperation`` (T, B, N, A), the values that know more."""
        own, others = state.chunk(2, 1) if self.state_size else (state, state)
        output = super().forward(obs, own, starts)
        known = None if self.state_images is None else self.state_images(global_state(obs))
        output["cooperation"], _, after = self.cooperation(obs[AGENT_STATE], others, starts, known)
        return output | {"state": torch.cat([output["state"], after], 1)}


@MODEL_REGISTRY.register("qtran")
class QTRANNetwork(VDNNetwork):
    """The action values of agents, their sum, the value of a joint action, and that of a state.

    Args:
        embedding_size: Width of the hidden layers of the values of joint actions and states.
        agents: Arguments of :class:`TeamQ`.
    """

    def __init__(self, *, embedding_size: int = 64, **agents: Any) -> None:
        super().__init__(**agents)
        self.state_images = self._state_images()
        sizes = (self.agents.encoder.output_size, self.action_size, self.state_images.output_size)
        self.joint = JointValues(*sizes, embedding_size)

    def state_of(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Return the global state, or the features of one that is an image, for ``joint``; shape (..., F)."""
        return self.state_images(global_state(obs))  # type: ignore[no-any-return]
