"""The networks of on-policy algorithms of teams: an actor for each agent, and a critic that may see everything.

Shapes: T steps, B batch or envs, N agents, D numbers that an agent sees, A actions or dimensions of an agent, S size of
a recurrent state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.model.actor import FIRST_LOG_SIGMA
from lightning_ding.model.ensemble import EnsembleMLP
from lightning_ding.model.heads import full_precision
from lightning_ding.model.teams.agents import (
    AgentEncoder,
    AgentMLP,
    ImageFeatures,
    Shape,
    Sharing,
    check_image_options,
)
from lightning_ding.model.vac import MODES
from lightning_ding.registry import MODEL_REGISTRY
from lightning_ding.utils.teams import AGENT_STATE, action_counts, global_state


class OutputLayer(NamedTuple):
    """The weights and biases of the last linear layers of several groups of agents."""

    weight: Tensor
    bias: Tensor


class AgentHead(nn.Module):
    """Logits of each agent's actions, or mean and standard deviation of its continuous action.

    Args:
        input_size: Number of features of an agent.
        action_size: Largest number of actions, or number of dimensions, A.
        is_discrete: Whether agents choose one of several actions.
        groups: Number of the group of each of N agents; agents of a group share weights.
        log_std_init: Logarithm of the initial standard deviation of each dimension; None for -0.5.
    """

    def __init__(
        self, input_size: int, action_size: int, is_discrete: bool, groups: Sequence[int], log_std_init: float | None
    ) -> None:
        super().__init__()
        self.output = AgentMLP([input_size, action_size], groups)
        self.log_sigma: nn.Parameter | None = None
        if not is_discrete:
            first = FIRST_LOG_SIGMA if log_std_init is None else log_std_init
            self.log_sigma = nn.Parameter(torch.full((len(set(groups)), action_size), float(first)))

    def forward(self, features: Tensor) -> Any:
        """Return the ``logit`` of :func:`rl.distribution_of` for features (..., N, H): (..., N, A), or a dict of it."""
        output = full_precision(self.output(features))
        if self.log_sigma is None:
            return output
        return {"mu": output, "sigma": self.log_sigma[self.output.members].exp().expand_as(output)}


@MODEL_REGISTRY.register("team_vac")
class TeamVAC(nn.Module):
    """An actor for each agent, which sees what the agent sees, and a value for each agent.

    Args:
        agent_num: Number of agents N.
        agent_obs_shape: Numbers that an agent sees D, or shape of the image that it sees.
        global_obs_shape: Size of the global state, or its shape if it is an image.
        action_shape: Number of actions of an agent, or of each agent, or number of dimensions of an agent.
        action_space: Kind of action space.
        centralised: Whether the critic sees the global state in addition to what the agent sees.
        parameter_sharing: Which agents share weights, see :func:`~lightning_ding.model.teams.agents.groups_of`.
        agent_id: Whether agents that share weights see their own number.
        encoder_hidden_size_list: Widths of the layers of an actor; None for 64, 64.
        activation: Activation of all hidden layers.
        layer_norm: Apply layer normalisation before each hidden activation.
        log_std_init: Logarithm of the initial standard deviation of continuous actions; None for -0.5.
        core: Arguments of the recurrent layers of actor and critic; None for none.
        critic_hidden_size_list: Widths of the layers of the critic; None for those of the actor.
        encoder: Name of the registered encoder of images, see :class:`ImageFeatures`; actor and critic have one each.
        encoder_kwargs: Further arguments of that encoder.

    Example:
        >>> network = TeamVAC(agent_num=3, agent_obs_shape=4, global_obs_shape=12, action_shape=5)
        >>> output = network({"agent_state": torch.zeros(2, 3, 4)})
        >>> output["logit"].shape, output["value"].shape
        (torch.Size([2, 3, 5]), torch.Size([2, 3]))
    """

    def __init__(
        self,
        agent_num: int,
        agent_obs_shape: Shape,
        global_obs_shape: Shape,
        action_shape: int | Sequence[int],
        action_space: Literal["discrete", "continuous"] = "discrete",
        centralised: bool = True,
        parameter_sharing: Sharing = True,
        agent_id: bool = True,
        encoder_hidden_size_list: Sequence[int] | None = None,
        activation: str = "relu",
        layer_norm: bool = False,
        log_std_init: float | None = None,
        core: Mapping[str, Any] | None = None,
        critic_hidden_size_list: Sequence[int] | None = None,
        encoder: str | None = None,
        encoder_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        check_image_options(encoder, encoder_kwargs, agent_obs_shape, global_obs_shape)
        require(action_space in ("discrete", "continuous"), "action_space", "discrete or continuous", action_space)
        is_discrete = action_space == "discrete"
        require(is_discrete or isinstance(action_shape, int), "action_shape", "a number of dimensions", action_shape)
        require(not is_discrete or log_std_init is None, "log_std_init", "None for discrete actions", log_std_init)
        widths = (64, 64) if encoder_hidden_size_list is None else encoder_hidden_size_list
        of_critic = widths if critic_hidden_size_list is None else critic_hidden_size_list
        options = (activation, layer_norm, core)
        self.centralised = centralised
        of_images = (encoder, encoder_kwargs, activation, layer_norm)
        self.images, self.critic_images = (ImageFeatures(agent_obs_shape, *of_images) for _ in range(2))
        self.state_images = ImageFeatures(global_obs_shape if centralised else 0, *of_images)
        sizes = (self.images.output_size, max(action_counts(1, action_shape)))
        self._make_actors(agent_num, *sizes, is_discrete, log_std_init, parameter_sharing, agent_id, widths, *options)
        seen, outputs = self._critic_sizes(agent_num, sizes[0], self.state_images.output_size, sizes[1])
        self.critic_encoder = AgentEncoder(agent_num, seen, parameter_sharing, agent_id, of_critic, *options)
        self.critic = AgentMLP([self.critic_encoder.output_size, outputs], self.critic_encoder.groups)

    def _critic_sizes(self, agent_num: int, obs_size: int, state_size: int, action_size: int) -> tuple[int, int]:
        """Return the numbers of inputs and outputs of an agent's critic."""
        return obs_size + state_size * self.centralised, 1

    def _make_actors(
        self,
        agent_num: int,
        obs_size: int,
        action_size: int,
        is_discrete: bool,
        log_std_init: float | None,
        *options: Any,
    ) -> None:
        self.encoder = AgentEncoder(agent_num, obs_size, *options)
        features, groups = self.encoder.output_size, self.encoder.groups
        self.actor = AgentHead(features, action_size, is_discrete, groups, log_std_init)

    def forward(self, obs: Any, mode: str = "compute_actor_critic") -> dict[str, Any]:
        """Call the method named ``mode`` and return its output.

        Raises:
            ValueError: If ``mode`` is not one of ``MODES``.
        """
        require(mode in MODES, "mode", f"one of {MODES}", mode)
        return getattr(self, mode)(obs)  # type: ignore[no-any-return]

    def compute_actor(self, obs: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return ``logit``: a tensor (..., N, A), or for continuous actions ``mu`` and ``sigma`` of that shape."""
        return {"logit": self.actor(self.encoder(self.images(obs[AGENT_STATE])))}

    def compute_critic(self, obs: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return ``value``, shape (..., N)."""
        return {"value": self._value(self.critic_encoder(self.seen_by_critic(obs)))}

    def compute_actor_critic(self, obs: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return ``logit`` and ``value``."""
        return self.compute_actor(obs) | self.compute_critic(obs)

    def seen_by_critic(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Return the input of the critic, the leading axes of which end with the axis of agents."""
        seen: Tensor = self.critic_images(obs[AGENT_STATE])
        if not self.centralised:
            return seen
        state = self.state_images(global_state(obs)).to(seen.dtype).unsqueeze(-2)
        return torch.cat([seen, state.expand(*seen.shape[:-1], -1)], -1)

    def _value(self, features: Tensor) -> Tensor:
        return full_precision(self.critic(features)).squeeze(-1)

    def actor_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that determine actions."""
        return [*self.images.parameters(), *self.encoder.parameters(), *self.actor.parameters()]

    def critic_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that determine values."""
        images = [*self.critic_images.parameters(), *self.state_images.parameters()]
        return [*images, *self.critic_encoder.parameters(), *self.critic.parameters()]

    @property
    def critic_output(self) -> nn.Linear | OutputLayer:
        """The layer whose output is the value."""
        return last_layer(self.critic)

    def init_orthogonally(self, hidden: float = math.sqrt(2), actor: float = 0.01, critic: float = 1.0) -> None:
        """Initialise with orthogonal weights, zero biases and nearly uniform actors, but for recurrent layers.

        The arguments are those of :meth:`VAC.init_orthogonally`.
        """
        for images in (self.images, self.critic_images, self.state_images):
            init_agents_orthogonally(images, hidden)
        self._init_actors(hidden, actor)
        init_agents_orthogonally(self.critic_encoder.layers, hidden)
        init_agents_orthogonally(self.critic, critic)

    def _init_actors(self, hidden: float, output: float) -> None:
        init_agents_orthogonally(self.encoder.layers, hidden)
        init_agents_orthogonally(self.actor.output, output)


@MODEL_REGISTRY.register("recurrent_team_vac")
class RecurrentTeamVAC(TeamVAC):
    """A :class:`TeamVAC` whose actors and critics have a memory each; the state is that of all agents.

    The arguments are those of :class:`TeamVAC`, except for ``core``.

    Args:
        core: Arguments of :class:`~lightning_ding.model.core.RecurrentCore`; None for its defaults.

    Example:
        >>> network = RecurrentTeamVAC(3, agent_obs_shape=4, global_obs_shape=12, action_shape=5)
        >>> output = network({"agent_state": torch.zeros(7, 2, 3, 4)}, network.first_state(2))
        >>> output["logit"].shape, output["value"].shape
        (torch.Size([14, 3, 5]), torch.Size([14, 3]))
    """

    def __init__(self, *args: Any, core: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "core": core or {}})

    def forward(self, obs: Any, state: Tensor, starts: Tensor | None = None) -> dict[str, Any]:  # type: ignore[override]
        """Return outputs for T B rows, the B rows of the first step first.

        Args:
            obs: Observations, leading axes (T, B).
            state: State before the first step, shape (B, S).
            starts: Whether a step is the first of an episode, shape (T, B); None if none is.

        Returns:
            ``logit``, leading axes (T B, N); ``value``, shape (T B, N); ``state`` after the last step, shape (B, S).
        """
        before = state.split([self.encoder.state_size, self.critic_encoder.state_size], dim=1)
        features, of_actor = self.encoder.unroll(self.images(obs[AGENT_STATE]), before[0], starts)
        of_values, of_critic = self.critic_encoder.unroll(self.seen_by_critic(obs), before[1], starts)
        logit, value = self.actor(features.flatten(0, 1)), self._value(of_values.flatten(0, 1))
        return {"logit": logit, "value": value, "state": torch.cat([of_actor, of_critic], dim=1)}

    def first_state(self, batch_size: int) -> Tensor:
        """Return the state at the start of an episode, zeros of shape (B, S)."""
        return torch.cat([part.first_state(batch_size) for part in (self.encoder, self.critic_encoder)], dim=1)

    def act(self, obs: Any, state: Tensor) -> dict[str, Any]:
        """Return ``logit`` (B, N, ...), ``value`` (B, N) and ``state`` (B, S) of one observation of each env."""
        return self(nested.apply(lambda x: x.unsqueeze(0), obs), state)  # type: ignore[no-any-return]

    @property
    def state_size(self) -> int:
        """Size of the state of one env, S."""
        return self.encoder.state_size + self.critic_encoder.state_size


def last_layer(layers: AgentMLP) -> nn.Linear | OutputLayer:
    """Return the last linear layer, of all groups of agents."""
    if isinstance(layers.net, EnsembleMLP):
        return OutputLayer(layers.net.weights[-1], layers.net.biases[-1])
    return cast(nn.Linear, cast(Any, layers.net).layers[-1])


def init_agents_orthogonally(layers: nn.Module, gain: float) -> None:
    """Initialise the linear layers of each group of agents with orthogonal weights and zero biases."""
    for layer in layers.modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            nn.init.orthogonal_(layer.weight, gain)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        elif isinstance(layer, EnsembleMLP):
            for weight, bias in zip(layer.weights, layer.biases, strict=True):
                for of_group in weight.detach():
                    nn.init.orthogonal_(of_group, gain)
                nn.init.zeros_(bias)
