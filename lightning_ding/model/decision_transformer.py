"""The network of the Decision Transformer: causal attention over returns to go, observations and actions.

Shapes: B batch, T steps of a context, A actions or dimensions of an action, E width of a token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.model.encoder import ObsShape, encoder_for
from lightning_ding.registry import MODEL_REGISTRY

TOKENS = 3  # of a step: return to go, observation, action


class CausalBlock(nn.Module):
    """Self-attention to earlier tokens only, and a feed-forward layer, each normalised first and added to its input.

    Args:
        embed_dim: E, a multiple of ``n_heads``.
        n_heads: Heads of the attention, >= 1.
        dropout_p: Share of zeroed weights and outputs in training, in [0, 1).
    """

    def __init__(self, embed_dim: int, n_heads: int, dropout_p: float) -> None:
        super().__init__()
        self.n_heads, self.dropout_p = n_heads, dropout_p
        self.norm_attention, self.norm_feed_forward = nn.LayerNorm(embed_dim), nn.LayerNorm(embed_dim)
        self.query_key_value = nn.Linear(embed_dim, 3 * embed_dim)
        self.projection = nn.Linear(embed_dim, embed_dim)
        self.feed_forward = nn.Sequential(
            nn.Linear(embed_dim, 4 * embed_dim), nn.GELU(), nn.Linear(4 * embed_dim, embed_dim)
        )
        self.dropout = nn.Dropout(dropout_p)

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens, shape (B, L, E), of tokens of that shape."""
        batch, length, width = x.shape
        parts = self.query_key_value(self.norm_attention(x)).view(batch, length, 3, self.n_heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)  # each (B, heads, L, E / heads)
        rate = self.dropout_p if self.dropout.training else 0.0
        attended = F.scaled_dot_product_attention(query, key, value, dropout_p=rate, is_causal=True)
        x = x + self.dropout(self.projection(attended.transpose(1, 2).reshape(batch, length, width)))
        fed: Tensor = self.dropout(self.feed_forward(self.norm_feed_forward(x)))
        return x + fed


@MODEL_REGISTRY.register("dt")
class DecisionTransformer(nn.Module):
    """Predicts the action of each step from the returns to go and observations up to it, and the actions before it.

    Args:
        obs_shape: Size or shape of an observation, or a dict of them.
        action_shape: A.
        action_space: Kind of action.
        max_timestep: Steps of an episode with an embedding of their own, >= 1; later ones have that of the last.
        n_blocks: Blocks, >= 1.
        embed_dim: E, a multiple of ``n_heads``.
        n_heads: Heads of the attention, >= 1.
        dropout_p: Share of zeroed weights and outputs in training, in [0, 1).
        encoder: Registered encoder of observations; None chooses by their shape.
        encoder_hidden_size_list: Widths of the encoder; None means its default.
        activation: Activation function of the encoder.
        layer_norm: Normalise the hidden layers of the encoder.
        encoder_kwargs: Further options of the encoder.

    Raises:
        ValueError: If a size is out of its range.

    Example:
        >>> network = DecisionTransformer(obs_shape=4, action_shape=2, embed_dim=8, n_heads=2)
        >>> steps = torch.zeros(3, 5)
        >>> network(torch.zeros(3, 5, 4), steps.long(), steps, steps.long())["logit"].shape
        torch.Size([3, 5, 2])
    """

    def __init__(
        self,
        obs_shape: ObsShape,
        action_shape: int,
        action_space: Literal["discrete", "continuous"] = "discrete",
        max_timestep: int = 1000,
        n_blocks: int = 3,
        embed_dim: int = 128,
        n_heads: int = 1,
        dropout_p: float = 0.1,
        encoder: str | None = None,
        encoder_hidden_size_list: Sequence[int] | None = None,
        activation: str = "relu",
        layer_norm: bool = False,
        encoder_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        for name, size in (("max_timestep", max_timestep), ("n_blocks", n_blocks), ("n_heads", n_heads)):
            require(size >= 1, name, ">= 1", size)
        fits = embed_dim >= 1 and embed_dim % n_heads == 0
        require(fits, "embed_dim", f"a positive multiple of n_heads ({n_heads})", embed_dim)
        require(0 <= dropout_p < 1, "dropout_p", "in [0, 1)", dropout_p)
        self.max_timestep = max_timestep
        is_discrete = action_space == "discrete"
        self.encoder = encoder_for(obs_shape, encoder, encoder_hidden_size_list, activation, layer_norm, encoder_kwargs)
        self.embed_obs = nn.Linear(self.encoder.output_size, embed_dim)
        self.embed_action = nn.Embedding(action_shape, embed_dim) if is_discrete else nn.Linear(action_shape, embed_dim)
        self.embed_return = nn.Linear(1, embed_dim)
        self.embed_timestep = nn.Embedding(max_timestep, embed_dim)
        self.norm_tokens, self.norm = nn.LayerNorm(embed_dim), nn.LayerNorm(embed_dim)
        self.dropout = nn.Dropout(dropout_p)
        self.blocks = nn.Sequential(*(CausalBlock(embed_dim, n_heads, dropout_p) for _ in range(n_blocks)))
        head = nn.Linear(embed_dim, action_shape)
        self.head = head if is_discrete else nn.Sequential(head, nn.Tanh())

    def forward(self, obs: Any, action: Tensor, return_to_go: Tensor, timestep: Tensor) -> dict[str, Tensor]:
        """Return ``logit`` (B, T, A): logits of a discrete action, or the continuous action in units of [-1, 1].

        That of step t depends on the actions of earlier steps only.

        Args:
            obs: Observations, nested, leading axes (B, T).
            action: Actions, shape (B, T) if they are discrete, counted from 0, or (B, T, A).
            return_to_go: Scaled sums of the rewards from each step to the episode's end, shape (B, T).
            timestep: Number of each step in its episode, from 0, shape (B, T).
        """
        batch, length = timestep.shape
        features = self.encoder(nested.apply(lambda x: x.flatten(0, 1), obs)).unflatten(0, (batch, length))
        time = self.embed_timestep(timestep.clamp(max=self.max_timestep - 1))
        embedded = [self.embed_return(return_to_go.unsqueeze(-1)), self.embed_obs(features), self.embed_action(action)]
        tokens = torch.stack([token + time for token in embedded], 2).flatten(1, 2)  # (B, 3 T, E)
        seen = self.norm(self.blocks(self.dropout(self.norm_tokens(tokens))))
        return {"logit": self.head(seen[:, 1::TOKENS])}
