"""The network of MAT: an encoder of what all agents see, and a decoder that gives one agent's action after the other.

Shapes: B batch, N agents, D numbers that an agent sees, A actions or dimensions of an agent, E width of a token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_ding.config import require
from lightning_ding.model.heads import full_precision
from lightning_ding.model.teams.agents import AgentEncoder, AgentMLP, Sharing, check_vectors, one_hot
from lightning_ding.model.teams.team_vac import AgentHead, OutputLayer, init_agents_orthogonally, last_layer
from lightning_ding.registry import MODEL_REGISTRY
from lightning_ding.utils.teams import AGENT_STATE, action_counts, alive


class Attention(nn.Module):
    """Attention of each agent's token to those of all agents, or of the agents up to it.

    Args:
        width: E, a multiple of ``n_heads``.
        n_heads: Heads, >= 1.
        is_causal: Whether a token sees those up to itself only.
    """

    def __init__(self, width: int, n_heads: int, is_causal: bool) -> None:
        super().__init__()
        self.n_heads, self.is_causal = n_heads, is_causal
        self.query, self.key_value = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.projection = nn.Linear(width, width)

    def forward(self, asking: Tensor, asked: Tensor) -> Tensor:
        """Return what tokens ``asking`` find in ``asked``, all of shape (..., N, E)."""
        parts = [self.query(asking), *self.key_value(asked).chunk(2, -1)]
        query, key, value = [
            part.unflatten(-1, (self.n_heads, -1)).transpose(-2, -3) for part in parts
        ]  # (..., heads, N, E / heads)
        found = F.scaled_dot_product_attention(query, key, value, is_causal=self.is_causal)
        return self.projection(found.transpose(-2, -3).flatten(-2))  # type: ignore[no-any-return]


class EncoderBlock(nn.Module):
    """Attention to all agents and a feed-forward layer, each added to its input and then normalised.

    Args:
        width: E, a multiple of ``n_heads``.
        n_heads: Heads of the attention, >= 1.
    """

    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.attention = Attention(width, n_heads, is_causal=False)
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2)])
        self.feed_forward = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens, shape (..., N, E), of tokens of that shape."""
        x = self.norms[0](x + self.attention(x, x))
        return self.norms[1](x + self.feed_forward(x))  # type: ignore[no-any-return]


class DecoderBlock(nn.Module):
    """Attention to the actions of agents before, then of what agents see to that, and a feed-forward layer.

    Args:
        width: E, a multiple of ``n_heads``.
        n_heads: Heads of both attentions, >= 1.
    """

    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.of_actions, self.of_agents = (Attention(width, n_heads, is_causal=True) for _ in range(2))
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(3)])
        self.feed_forward = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, x: Tensor, encoded: Tensor) -> Tensor:
        """Return tokens, shape (..., N, E), of tokens and encoded observations of that shape."""
        x = self.norms[0](x + self.of_actions(x, x))
        x = self.norms[1](encoded + self.of_agents(encoded, x))
        return self.norms[2](x + self.feed_forward(x))  # type: ignore[no-any-return]


@MODEL_REGISTRY.register("mat")
class MAT(nn.Module):
    """The transformer of a team; what a dead agent sees and does counts as zeros.

    Args:
        agent_num: Number of agents N.
        agent_obs_shape: Numbers that an agent sees D.
        global_obs_shape: Size of the global state, which is not used: the encoder sees what all agents see.
        action_shape: Number of actions of an agent, or of each agent, or number of dimensions of an agent.
        action_space: Kind of action space.
        n_blocks: Blocks of the encoder, and of the decoder, >= 1.
        n_heads: Heads of each attention, >= 1.
        parameter_sharing: Which agents share the layers before the encoder and those of values and actions, see
            :func:`~lightning_ding.model.teams.agents.groups_of`; the blocks are those of all.
        agent_id: Whether agents that share weights see their own number.
        encoder_hidden_size_list: Widths of the layers that make tokens of what agents see, the last one being E; None
            for 64, 64.
        activation: Activation of these layers.
        layer_norm: Apply layer normalisation before each activation of these layers.
        log_std_init: Logarithm of the initial standard deviation of continuous actions; None for -0.5.
        critic_hidden_size_list: Widths of the hidden layers of values after the encoder; None for E.

    Example:
        >>> network = MAT(agent_num=3, agent_obs_shape=4, global_obs_shape=12, action_shape=5)
        >>> output = network({"agent_state": torch.zeros(2, 3, 4)}, torch.zeros(2, 3, dtype=torch.long))
        >>> output["logit"].shape, output["value"].shape
        (torch.Size([2, 3, 5]), torch.Size([2, 3]))
    """

    def __init__(
        self,
        agent_num: int,
        agent_obs_shape: int,
        global_obs_shape: int,
        action_shape: int | Sequence[int],
        action_space: Literal["discrete", "continuous"] = "discrete",
        n_blocks: int = 1,
        n_heads: int = 1,
        parameter_sharing: Sharing = True,
        agent_id: bool = True,
        encoder_hidden_size_list: Sequence[int] | None = None,
        activation: str = "relu",
        layer_norm: bool = False,
        log_std_init: float | None = None,
        critic_hidden_size_list: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        check_vectors("mat", agent_obs_shape=agent_obs_shape)
        require(action_space in ("discrete", "continuous"), "action_space", "discrete or continuous", action_space)
        self.is_discrete = action_space == "discrete"
        require(
            self.is_discrete or isinstance(action_shape, int), "action_shape", "a number of dimensions", action_shape
        )
        require(not self.is_discrete or log_std_init is None, "log_std_init", "None for discrete actions", log_std_init)
        for name, number in (("n_blocks", n_blocks), ("n_heads", n_heads)):
            require(number >= 1, f"model.{name}", ">= 1", number)
        widths = (64, 64) if encoder_hidden_size_list is None else encoder_hidden_size_list
        allowed = f"widths of one layer or more, the last one a multiple of n_heads ({n_heads})"
        fits = bool(widths) and widths[-1] % n_heads == 0
        require(fits, "model.encoder_hidden_size_list", allowed, encoder_hidden_size_list)
        self.action_size, width = max(action_counts(1, action_shape)), widths[-1]
        self.encoder = AgentEncoder(
            agent_num, agent_obs_shape, parameter_sharing, agent_id, widths, activation, layer_norm
        )
        self.norm_seen, self.norm_actions = nn.LayerNorm(width), nn.LayerNorm(width)
        self.encoder_blocks = nn.Sequential(*(EncoderBlock(width, n_heads) for _ in range(n_blocks)))
        of_critic = (width,) if critic_hidden_size_list is None else critic_hidden_size_list
        self.critic = AgentMLP([width, *of_critic, 1], self.encoder.groups, "gelu")
        self.start = nn.Parameter(torch.zeros(width))  # stands for the action before that of the first agent
        self.embed_action = nn.Linear(self.action_size, width, bias=False)
        self.decoder_blocks = nn.ModuleList([DecoderBlock(width, n_heads) for _ in range(n_blocks)])
        self.actor = AgentHead(width, self.action_size, self.is_discrete, self.encoder.groups, log_std_init)

    def forward(self, obs: Mapping[str, Tensor], action: Tensor) -> dict[str, Any]:
        """Return ``logit`` and ``value``, the methods below in one."""
        encoded = self.encode(obs)
        return {"logit": self.decode(encoded, obs, action), "value": self._value(encoded)}

    def encode(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Return a token of each agent, shape (..., N, E), which knows what all agents see."""
        seen = obs[AGENT_STATE].masked_fill(alive(obs).unsqueeze(-1) == 0, 0.0)
        return self.encoder_blocks(self.norm_seen(self.encoder(seen)))  # type: ignore[no-any-return]

    def decode(self, encoded: Tensor, obs: Mapping[str, Tensor], action: Tensor) -> Any:
        """Return the ``logit`` of :func:`rl.distribution_of` of each agent, given the actions of those before it.

        Args:
            encoded: What :meth:`encode` returns for ``obs``.
            obs: Observations, leading axes (...).
            action: Actions of all agents, shape (..., N), counted from 0, or (..., N, A) if they are continuous. That
                of an agent and of those after it has no effect on the agent.
        """
        known: Tensor = one_hot(action, self.action_size) if self.is_discrete else action
        known = known.to(encoded.dtype).masked_fill(alive(obs).unsqueeze(-1) == 0, 0.0)
        embedded = self.embed_action(known[..., :-1, :])
        first = self.start.to(embedded.dtype).expand(*embedded.shape[:-2], 1, -1)
        tokens = self.norm_actions(F.gelu(torch.cat([first, embedded], -2)))
        for block in self.decoder_blocks:
            tokens = block(tokens, encoded)
        return self.actor(tokens)

    def compute_critic(self, obs: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return ``value``, shape (..., N)."""
        return {"value": self._value(self.encode(obs))}

    def _value(self, encoded: Tensor) -> Tensor:
        return full_precision(self.critic(encoded)).squeeze(-1)

    @property
    def critic_output(self) -> nn.Linear | OutputLayer:
        """The layer whose output is the value."""
        return last_layer(self.critic)

    def init_orthogonally(self, hidden: float = math.sqrt(2), actor: float = 0.01, critic: float = 1.0) -> None:
        """Initialise with orthogonal weights, zero biases and nearly uniform actors.

        The arguments are those of :meth:`VAC.init_orthogonally`.
        """
        for layers in (self.encoder.layers, self.encoder_blocks, self.decoder_blocks):
            init_agents_orthogonally(layers, hidden)
        nn.init.orthogonal_(self.embed_action.weight, hidden)
        init_agents_orthogonally(self.critic, critic)
        init_agents_orthogonally(self.actor.output, actor)
