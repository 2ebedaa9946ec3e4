"""Networks of the agents of a team: one for all, or one for each group of agents, evaluated together.

Shapes: T steps, B sequences or envs, N agents, G groups, D numbers that an agent sees, H features, S size of a state,
F features of an image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lightning_ding.config import require
from lightning_ding.model.core import create_core
from lightning_ding.model.encoder import encoder_for
from lightning_ding.model.ensemble import EnsembleMLP
from lightning_ding.model.mlp import MLP, activation_function

Sharing = bool | Sequence[int]
Shape = int | Sequence[int]


def groups_of(agent_num: int, parameter_sharing: Sharing) -> tuple[int, ...]:
    """Return the number of the group of each agent.

    Args:
        agent_num: Number of agents N, >= 1.
        parameter_sharing: True for one group, False for a group of each agent, or the number of each agent's group,
            counted from 0.

    Raises:
        ValueError: If there is not a number for each agent, or a group has no agent.

    Example:
        >>> groups_of(3, True), groups_of(3, False), groups_of(3, [0, 1, 1])
        ((0, 0, 0), (0, 1, 2), (0, 1, 1))
    """
    if isinstance(parameter_sharing, bool):
        return (0,) * agent_num if parameter_sharing else tuple(range(agent_num))
    groups = tuple(parameter_sharing)
    fits = len(groups) == agent_num and set(groups) == set(range(max(groups, default=0) + 1))
    allowed = f"true, false, or the numbers of the groups of {agent_num} agents, counted from 0"
    require(fits, "model.parameter_sharing", allowed, parameter_sharing)
    return groups


class ImageFeatures(nn.Module):
    """Features of images, by an encoder that all agents share; vectors stay as they are.

    Args:
        shape: Size of a vector, or shape of an image or of a stack of images.
        encoder: Name of a registered encoder of images; None means ``conv``.
        encoder_kwargs: Further arguments of the encoder, see :func:`create_encoder`.
        activation: Activation of the encoder.
        layer_norm: Normalise the encoder's layers.

    Example:
        >>> images = ImageFeatures((3, 24, 24), encoder_kwargs={"channels": [4, 4, 4], "feature_size": 16})
        >>> images(torch.zeros(5, 2, 3, 24, 24)).shape, ImageFeatures(7)(torch.zeros(5, 2, 7)).shape
        (torch.Size([5, 2, 16]), torch.Size([5, 2, 7]))
    """

    def __init__(
        self,
        shape: Shape,
        encoder: str | None = None,
        encoder_kwargs: Mapping[str, Any] | None = None,
        activation: str = "relu",
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        self.layers: Any = None
        self.shape: tuple[int, ...] = (shape,) if isinstance(shape, int) else tuple(shape)
        self.output_size: int = self.shape[0]
        if not isinstance(shape, int):
            self.layers = encoder_for(self.shape, encoder, None, activation, layer_norm, encoder_kwargs)
            self.output_size = self.layers.output_size

    def forward(self, x: Tensor) -> Tensor:
        """Return features (..., F) of images (..., *shape), or vectors (..., D) as they are."""
        if self.layers is None:
            return x
        features: Tensor = self.layers(x.reshape(-1, *self.shape))
        return features.view(*x.shape[: x.ndim - len(self.shape)], -1)


def check_image_options(encoder: str | None, encoder_kwargs: Mapping[str, Any] | None, *shapes: Shape) -> None:
    """Raise if there are options of an encoder of images, but only vectors."""
    has_images = not all(isinstance(shape, int) for shape in shapes)
    for name, value in (("encoder", encoder), ("encoder_kwargs", encoder_kwargs)):
        require(has_images or not value, f"model.{name}", "left out for a team that sees vectors", value)


def check_vectors(network: str, **shapes: Shape) -> None:
    """Raise if a network that has no encoder of images gets the shape of one."""
    for name, shape in shapes.items():
        allowed = f"the size of a vector, as {network} has no encoder of images"
        require(isinstance(shape, int), f"model.{name}", allowed, shape)


class AgentMLP(nn.Module):
    """Linear layers for each agent, the same for the agents of a group; one batched product for each layer.

    Args:
        sizes: Widths of the input and of each layer.
        groups: Number of the group of each of N agents.
        activation: Activation of the layers: relu, tanh, elu, gelu or silu.
        activate_last: Apply the activation also to the last layer.
        layer_norm: Apply layer normalisation before each hidden activation.

    Example:
        >>> AgentMLP([4, 8, 2], groups=(0, 1, 1))(torch.zeros(5, 3, 4)).shape
        torch.Size([5, 3, 2])
    """

    members: Tensor

    def __init__(
        self,
        sizes: Sequence[int],
        groups: Sequence[int],
        activation: str = "relu",
        activate_last: bool = False,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        self.is_shared = len(set(groups)) == 1
        self.last = activation_function(activation) if activate_last else None
        if self.is_shared:
            self.net: nn.Module = MLP(sizes, activation, activate_last=False, layer_norm=layer_norm)
        else:
            self.net = EnsembleMLP(len(set(groups)), sizes, activation, layer_norm)
        self.register_buffer("members", torch.tensor(groups), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs, shape (..., N, sizes[-1]), for ``x``, shape (..., N, sizes[0])."""
        if self.is_shared:
            output: Tensor = self.net(x)
        else:
            rows = x.reshape(-1, *x.shape[-2:]).transpose(0, 1)  # (N, B, F)
            output = self.net(rows, self.members).transpose(0, 1).reshape(*x.shape[:-1], -1)
        return output if self.last is None else self.last(output)


class AgentEncoder(nn.Module):
    """Features of each agent from what it sees, perhaps with a memory.

    Args:
        agent_num: Number of agents N, >= 1.
        obs_size: Numbers that an agent sees D.
        parameter_sharing: Which agents share their weights, see :func:`groups_of`.
        agent_id: Whether agents that share weights see their own number, as a one-hot vector.
        hidden_sizes: Widths of the layers.
        activation: Activation after each layer.
        layer_norm: Apply layer normalisation before each activation.
        core: Options of the core, whose state each agent has, see :func:`create_core`; None has no memory.

    Example:
        >>> encoder = AgentEncoder(3, 4, hidden_sizes=[8])
        >>> encoder(torch.zeros(5, 3, 4)).shape
        torch.Size([5, 3, 8])
    """

    ids: Tensor

    def __init__(
        self,
        agent_num: int,
        obs_size: int,
        parameter_sharing: Sharing = True,
        agent_id: bool = True,
        hidden_sizes: Sequence[int] = (64, 64),
        activation: str = "relu",
        layer_norm: bool = False,
        core: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.agent_num, self.groups = agent_num, groups_of(agent_num, parameter_sharing)
        self.has_ids = agent_id and len(set(self.groups)) < agent_num
        self.register_buffer("ids", torch.eye(agent_num), persistent=False)
        first = obs_size + agent_num * self.has_ids
        self.layers = AgentMLP([first, *hidden_sizes], self.groups, activation, True, layer_norm)
        self.output_size = hidden_sizes[-1] if hidden_sizes else first
        self.core: Any = None
        self.state_size = 0
        if core is not None:
            shared = "true with recurrent layers, whose weights all agents share"
            require(len(set(self.groups)) == 1, "model.parameter_sharing", shared, parameter_sharing)
            self.core = create_core(self.output_size, core)
            self.output_size, self.state_size = self.core.output_size, agent_num * self.core.state_size

    def forward(self, seen: Tensor) -> Tensor:
        """Return features, shape (..., N, H), of what the agents see, shape (..., N, D); without memory."""
        if self.has_ids:
            seen = torch.cat([seen, self.ids.to(seen).expand(*seen.shape[:-1], -1)], -1)
        return self.layers(seen)  # type: ignore[no-any-return]

    def unroll(self, seen: Tensor, state: Tensor, starts: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return features of all steps, and the state after the last one.

        Args:
            seen: Observations of the agents, shape (T, B, N, D).
            state: State of all agents before the first step, shape (B, S).
            starts: Whether a step is the first of an episode, shape (T, B); there the state is zero before the step.

        Returns:
            Features, shape (T, B, N, H), and the state, shape (B, S).
        """
        assert self.core is not None
        features = self(seen).flatten(1, 2)  # each agent is a separate sequence, (T, B N, H)
        every = None if starts is None else starts.repeat_interleave(self.agent_num, 1)
        output, after = self.core(features, state.reshape(-1, self.core.state_size), every)
        return output.unflatten(1, (-1, self.agent_num)), after.reshape(-1, self.state_size)

    def first_state(self, batch_size: int) -> Tensor:
        """Return the state of all agents at the start of an episode, zeros of shape (B, S)."""
        return self.ids.new_zeros(batch_size, self.state_size)


def one_hot(action: Tensor, number: int) -> Tensor:
    """Return one-hot vectors, floats of shape (..., A), of actions, integers of shape (...), counted from 0.

    Unlike torch's function it looks at no values, so that it can be compiled and exported.

    Args:
        action: Actions.
        number: Number of actions A, >= 1.
    """
    return (action.unsqueeze(-1) == torch.arange(number, device=action.device)).float()
