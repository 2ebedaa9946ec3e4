"""The transformer core of a network: GTrXL, a gated Transformer-XL, whose memory is the recurrent state.

Papers: Parisotto et al. 2019 (https://arxiv.org/abs/1910.06764), figure 1 and section 3.2: layer normalisation of the
inputs, an activation before each gate, GRU gates with a bias. Relative positions: Dai et al. 2019
(https://arxiv.org/abs/1901.02860), section 3.3 and appendix B.

Where this differs: a step attends to itself and to at most M steps before it, whether those are in the memory or in the
same sequence, so that a sequence has the outputs of its single steps. In the paper a step sees the memory and all
earlier steps of the sequence. Each layer has its own biases u and v. Queries, keys and
values are computed from normalised inputs. There is no dropout.

Shapes: T steps, B sequences or envs, F features, H hidden size, L layers, M steps of memory, K = M + T keys, N heads,
D size of a head, S = 1 + L M H size of a state.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_ding.config import require
from lightning_ding.model.heads import full_precision
from lightning_ding.model.mlp import MLP


class GTrXLCore(nn.Module):
    """A gated transformer whose state is one vector for each sequence, as that of :class:`RecurrentCore`.

    The state is the number of steps that the memory holds, then the last M inputs of each layer, the latest last. It
    is zero at the start of an episode. It computes in 32 bits also under mixed precision, as the other cores.

    Args:
        input_size: Number of features F, >= 1. A linear layer maps them to H features, unless F is H.
        hidden_size: Width of each layer H, an even number >= 2.
        num_layers: Number of layers L, >= 1.
        num_heads: Attention heads of a layer N, >= 1.
        head_size: Size of a head D, >= 1; None means H / N.
        memory_length: Steps before the present one that a layer attends to M, >= 1.
        gate_bias: Initial bias of the gates; the larger it is, the nearer the layers are to the identity.

    Raises:
        ValueError: If an argument is out of its range.

    Example:
        >>> core = GTrXLCore(3, hidden_size=4, num_heads=2, memory_length=5)
        >>> output, state = core(torch.zeros(7, 2, 3), core.first_state(2))
        >>> output.shape, state.shape, state[:, 0]
        (torch.Size([7, 2, 4]), torch.Size([2, 21]), tensor([5., 5.], grad_fn=<SelectBackward0>))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int = 64,
        num_layers: int = 1,
        num_heads: int = 4,
        head_size: int | None = None,
        memory_length: int = 32,
        gate_bias: float = 2.0,
    ) -> None:
        super().__init__()
        even = hidden_size >= 2 and hidden_size % 2 == 0
        require(even, "core.hidden_size", "an even number >= 2 with core.type 'gtrxl'", hidden_size)
        for name, value in {"num_layers": num_layers, "num_heads": num_heads, "memory_length": memory_length}.items():
            require(value >= 1, f"core.{name}", ">= 1", value)
        fits = f"a multiple of core.num_heads, {num_heads}, without core.head_size"
        require(head_size is not None or hidden_size % num_heads == 0, "core.hidden_size", fits, hidden_size)
        width = hidden_size // num_heads if head_size is None else head_size
        require(width >= 1, "core.head_size", ">= 1 or None", head_size)
        self.embedding = nn.Identity() if input_size == hidden_size else nn.Linear(input_size, hidden_size)
        self.layers = nn.ModuleList(GTrXLLayer(hidden_size, num_heads, width, gate_bias) for _ in range(num_layers))
        self.output_size = hidden_size
        self.memory_shape = (num_layers, memory_length, hidden_size)
        self.state_size = 1 + num_layers * memory_length * hidden_size

    def first_state(self, batch_size: int) -> Tensor:
        """Return the state at the start of an episode, zeros of shape (B, S)."""
        return next(self.parameters()).new_zeros(batch_size, self.state_size)

    def forward(self, x: Tensor, state: Tensor, starts: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the outputs of all steps, and the state after the last one; see :class:`RecurrentCore`.

        Args:
            x: Features, shape (T, B, F).
            state: State before the first step, shape (B, S).
            starts: Whether a step is the first of an episode, shape (T, B); it and the steps after it do not attend to
                earlier ones. None means that no step is, except where ``state`` is zero anyway.

        Returns:
            Outputs, shape (T, B, H), and the state, shape (B, S).
        """
        if torch.is_autocast_enabled(x.device.type):
            with torch.autocast(x.device.type, enabled=False):
                return self(full_precision(x), full_precision(state), starts)  # type: ignore[no-any-return]
        length = self.memory_shape[1]
        visible = self._visible(state[:, 0], len(x), starts)
        positions = sinusoids(length + len(x), self.output_size, x)
        memory = state[:, 1:].unflatten(1, self.memory_shape).permute(1, 2, 0, 3)  # (L, M, B, H)
        rows, after = self.embedding(x), []
        for layer, before in zip(self.layers, memory.unbind(0), strict=True):
            keys = torch.cat([before, rows])
            after.append(keys[-length:])
            rows = layer(keys, len(x), positions, visible)
        kept = visible[:, -1, -length:]  # all that the last step sees, without the oldest step, which leaves the memory
        memory = torch.stack(after).permute(2, 0, 1, 3).masked_fill(~kept[:, None, :, None], 0.0)
        return rows, torch.cat([kept.sum(1, keepdim=True).to(rows.dtype), memory.flatten(1)], dim=1)

    def _visible(self, count: Tensor, steps: int, starts: Tensor | None) -> Tensor:
        """Return which keys each step attends to, shape (B, T, K): those of its episode, at most M steps back.

        Args:
            count: Number of steps in the memory, shape (B,).
            steps: Number of steps T.
            starts: Whether a step is the first of an episode, shape (T, B), or None.
        """
        length = self.memory_shape[1]
        key = torch.arange(length + steps, device=count.device)
        back = key[length:, None] - key  # steps from a key to the present one, shape (T, K)
        near = (back >= 0) & (back <= length)
        is_empty = key < length - count[:, None].clamp(min=0)  # (B, K); a step always sees itself
        if starts is None:
            return near & ~is_empty[:, None]
        episode = starts.to(torch.int64).cumsum(0).movedim(0, 1)  # number of starts up to a step, shape (B, T)
        of_key = torch.cat([torch.zeros_like(is_empty[:, :length], dtype=torch.int64), episode], dim=1)
        return near & ~is_empty[:, None] & (episode[:, :, None] == of_key[:, None])


class GTrXLLayer(nn.Module):
    """Attention and an MLP, each after a layer normalisation and before a gate."""

    def __init__(self, size: int, num_heads: int, head_size: int, gate_bias: float) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(size), RelativeAttention(size, num_heads, head_size)
        self.attention_gate = GRUGate(size, gate_bias)
        self.mlp_norm, self.mlp = nn.LayerNorm(size), MLP([size, size, size], "relu")
        self.mlp_gate = GRUGate(size, gate_bias)

    def forward(self, keys: Tensor, steps: int, positions: Tensor, visible: Tensor) -> Tensor:
        """Return the outputs of the last T of K rows, shape (T, B, H); see :class:`RelativeAttention`."""
        x = keys[-steps:]
        seen = self.attention(self.attention_norm(keys), steps, positions, visible)
        x = self.attention_gate(x, seen.relu())
        return self.mlp_gate(x, self.mlp(self.mlp_norm(x)))  # type: ignore[no-any-return]


class RelativeAttention(nn.Module):
    """Attention of several heads, whose scores depend on the number of steps between query and key."""

    def __init__(self, size: int, num_heads: int, head_size: int) -> None:
        super().__init__()
        self.heads, width = (num_heads, head_size), num_heads * head_size
        self.query, self.key_value = nn.Linear(size, width), nn.Linear(size, 2 * width)
        self.position = nn.Linear(size, width, bias=False)  # a bias would be the same for all keys, so without effect
        self.output = nn.Linear(width, size)
        self.content_bias = nn.Parameter(torch.zeros(self.heads))  # u in the paper
        self.position_bias = nn.Parameter(torch.zeros(self.heads))  # v

    def forward(self, rows: Tensor, steps: int, positions: Tensor, visible: Tensor) -> Tensor:
        """Return what the last T rows see, shape (T, B, H).

        Args:
            rows: Inputs, shape (K, B, H).
            steps: Number of rows that are queries T.
            positions: Embedding of the numbers of steps K - 1 to 0, shape (K, H).
            visible: Which keys each query attends to, one at least, shape (B, T, K).
        """
        query = self.query(rows[-steps:]).unflatten(2, self.heads)  # (T, B, N, D)
        key, value = (part.unflatten(2, self.heads) for part in self.key_value(rows).chunk(2, dim=2))
        position = self.position(positions).unflatten(1, self.heads)  # (K, N, D)
        content = (query + self.content_bias).permute(1, 2, 0, 3) @ key.permute(1, 2, 3, 0)  # (B, N, T, K)
        place = (query + self.position_bias).permute(1, 2, 0, 3) @ position.permute(1, 2, 0)
        score = (content + relative_shift(place)) / self.heads[1] ** 0.5
        weight = score.masked_fill(~visible[:, None], -torch.inf).softmax(3)
        seen = (weight @ value.permute(1, 2, 0, 3)).permute(2, 0, 1, 3)  # (T, B, N, D)
        return self.output(seen.flatten(2))  # type: ignore[no-any-return]


class GRUGate(nn.Module):
    """The gate of a GRU between a layer's input and its output, in place of their sum."""

    def __init__(self, size: int, bias: float) -> None:
        super().__init__()
        self.of_output = nn.Linear(size, 3 * size, bias=False)  # W_r, W_z, W_g in the paper
        self.of_input = nn.Linear(size, 2 * size, bias=False)  # U_r, U_z
        self.of_reset = nn.Linear(size, size, bias=False)  # U_g
        self.bias = nn.Parameter(torch.full((size,), float(bias)))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the gated sum of a layer's input ``x`` and its output ``y``, all of shape (..., H)."""
        reset, update, new = self.of_output(y).chunk(3, dim=-1)
        reset_input, update_input = self.of_input(x).chunk(2, dim=-1)
        update = (update + update_input - self.bias).sigmoid()
        new = (new + self.of_reset((reset + reset_input).sigmoid() * x)).tanh()
        return (1 - update) * x + update * new  # type: ignore[no-any-return]


def relative_shift(score: Tensor) -> Tensor:
    """Return scores of numbers of steps as scores of keys, by the trick of Transformer-XL's appendix B.

    Args:
        score: Scores of the numbers of steps K - 1 to 0, shape (B, N, T, K).

    Returns:
        Scores of the keys 0 to K - 1, shape (B, N, T, K). Query t is key K - T + t; scores of later keys are arbitrary.

    Example:
        >>> relative_shift(torch.tensor([[[[2, 1, 0], [2, 1, 0]]]]))[0, 0]  # the last of the first row is arbitrary
        tensor([[1, 0, 0],
                [2, 1, 0]])
    """
    steps, keys = score.shape[2:]
    padded = F.pad(score, [1, 0]).flatten(2).unflatten(2, (keys + 1, steps))
    shifted: Tensor = padded[:, :, 1:].flatten(2).unflatten(2, (steps, keys))
    return shifted


def sinusoids(number: int, size: int, like: Tensor) -> Tensor:
    """Return the embedding of the numbers of steps ``number`` - 1 to 0: sines and cosines, shape (number, size).

    Args:
        number: How many there are, >= 1.
        size: Width of the embedding, an even number.
        like: A tensor of the wanted device and type.
    """
    kind: dict[str, Any] = {"device": like.device, "dtype": like.dtype}
    frequency = 10000.0 ** (torch.arange(0, size, 2, **kind) / -size)
    angle = torch.arange(number - 1, -1, -1, **kind)[:, None] * frequency
    return torch.cat([angle.sin(), angle.cos()], dim=1)
