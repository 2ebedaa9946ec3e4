"""The recurrent part of a network: an LSTM or a GRU between an encoder and its heads.

Papers: Hochreiter and Schmidhuber 1997 (https://doi.org/10.1162/neco.1997.9.8.1735); Cho et al. 2014
(https://arxiv.org/abs/1406.1078).

Shapes: T steps, B sequences or envs, F features, H hidden size, L layers, S size of a state, which is 2 L H of an LSTM
and L H of a GRU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.model.gtrxl import GTrXLCore
from lightning_ding.model.heads import full_precision
from lightning_ding.utils.private_api import is_plain

CORES: dict[str, Any] = {"lstm": nn.LSTM, "gru": nn.GRU}


class RecurrentCore(nn.Module):
    """An LSTM or a GRU whose state is one vector for each sequence, so that it can be a column of a transition.

    It computes in 32 bits also under mixed precision, because the rounding of its state would add up over the steps.

    Args:
        input_size: Number of features F, >= 1.
        type: ``"lstm"`` or ``"gru"``.
        hidden_size: Width of each layer H, >= 1.
        num_layers: Number of layers L, >= 1.
        residual: Whether the features are added to the outputs; F is H then.

    Raises:
        ValueError: If an argument is out of its range.

    Example:
        >>> core = RecurrentCore(3, hidden_size=4)
        >>> output, state = core(torch.zeros(5, 2, 3), core.first_state(2))
        >>> output.shape, state.shape
        (torch.Size([5, 2, 4]), torch.Size([2, 8]))
    """

    def __init__(
        self, input_size: int, type: str = "lstm", hidden_size: int = 64, num_layers: int = 1, residual: bool = False
    ) -> None:
        super().__init__()
        require(type in CORES, "core.type", f"one of {[*sorted(CORES), 'gtrxl']}", type)
        require(hidden_size >= 1, "core.hidden_size", ">= 1", hidden_size)
        require(num_layers >= 1, "core.num_layers", ">= 1", num_layers)
        fits = f"the number of features, {input_size}, with core.residual"
        require(not residual or hidden_size == input_size, "core.hidden_size", fits, hidden_size)
        self.residual = residual
        self.rnn: Any = CORES[type](input_size, hidden_size, num_layers)
        self.is_lstm = type == "lstm"
        self.output_size = hidden_size
        self.state_shape = (2 if self.is_lstm else 1, num_layers, hidden_size)
        self.state_size = self.state_shape[0] * num_layers * hidden_size

    def first_state(self, batch_size: int) -> Tensor:
        """Return the state at the start of an episode, zeros of shape (B, S)."""
        weight = next(self.parameters(), torch.empty(0))  # a quantised layer has none
        return weight.new_zeros(batch_size, self.state_size)

    def forward(self, x: Tensor, state: Tensor, starts: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the outputs of all steps, and the state after the last one.

        Args:
            x: Features, shape (T, B, F).
            state: State before the first step, shape (B, S).
            starts: Whether a step is the first of an episode, shape (T, B); there the state is zero before the step.
                None means that no step is, except where ``state`` is zero anyway.

        Returns:
            Outputs, shape (T, B, H), and the state, shape (B, S).
        """
        if torch.is_autocast_enabled(x.device.type):
            with torch.autocast(x.device.type, enabled=False):
                return self(full_precision(x), full_precision(state), starts)  # type: ignore[no-any-return]
        parts = state.unflatten(1, self.state_shape).movedim(0, 2)  # (1 or 2, L, B, H)
        if starts is None and len(x) > 1:
            output, parts = self._whole(x, parts)
        else:
            output, parts = self._by_step(x, parts, starts)
        if self.residual:
            output = output + x
        return output, parts.movedim(2, 0).flatten(1)

    def _whole(self, x: Tensor, parts: Tensor) -> tuple[Tensor, Tensor]:
        if self.is_lstm:
            output, (hidden, cell) = self.rnn(x, (parts[0].contiguous(), parts[1].contiguous()))
            return output, torch.stack([hidden, cell])
        output, hidden = self.rnn(x, parts[0].contiguous())
        return output, hidden.unsqueeze(0)

    def _by_step(self, x: Tensor, parts: Tensor, starts: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return what :meth:`_whole` returns, with the state zeroed before the first step of an episode.

        The cells of a plain layer are computed one by one; any other layer is called for each step.
        """
        continues = None if starts is None else (~starts.bool()).to(parts.dtype).unsqueeze(2)
        if not is_plain(self.rnn, nn.LSTM if self.is_lstm else nn.GRU):
            steps = []
            for step, row in enumerate(x.unbind(0)):
                output, parts = self._whole(row[None], parts if continues is None else parts * continues[step])
                steps.append(output)
            return torch.cat(steps), parts
        layers = [[part[layer] for part in parts.unbind(0)] for layer in range(self.state_shape[1])]
        outputs = []
        for step, row in enumerate(x.unbind(0)):
            for layer, before in enumerate(layers):
                kept = before if continues is None else [part * continues[step] for part in before]
                layers[layer] = self._cell(layer, row, kept)
                row = layers[layer][0]
            outputs.append(row)
        return torch.stack(outputs), torch.stack([torch.stack(part) for part in zip(*layers, strict=True)])

    def _cell(self, layer: int, x: Tensor, parts: list[Tensor]) -> list[Tensor]:
        """Return the new parts of the state of one layer, shapes (B, H); the first is the layer's output."""
        rnn = self.rnn
        names = [f"{kind}_l{layer}" for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        weights = [getattr(rnn, name) for name in names]
        if self.is_lstm:
            return list(torch.lstm_cell(x, (parts[0], parts[1]), *weights))
        return [torch.gru_cell(x, parts[0], *weights)]


def create_core(input_size: int, options: Mapping[str, Any]) -> RecurrentCore | GTrXLCore:
    """Return a core for features.

    Args:
        input_size: Number of features, >= 1.
        options: ``type``, which is ``"lstm"`` if it is missing, ``"gru"`` or ``"gtrxl"``, and the arguments of
            :class:`RecurrentCore`, or :class:`GTrXLCore`, after the first. Those that are None have their defaults.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if given.get("type") != "gtrxl":
        return RecurrentCore(input_size, **given)
    residual = given.pop("residual", False)
    require(not residual, "core.residual", "false with core.type 'gtrxl', whose layers have gates", residual)
    return GTrXLCore(input_size, **{name: value for name, value in given.items() if name != "type"})


class RecurrentEncoder(nn.Module):
    """An encoder, followed by a core.

    Args:
        encoder: Maps observations (B, ...) to features (B, F), with an attribute ``output_size``.
        core: ``type`` of the core and its further arguments, see :func:`create_core`.
    """

    def __init__(self, encoder: Any, core: Mapping[str, Any]) -> None:
        super().__init__()
        self.encoder = encoder
        self.core = create_core(encoder.output_size, core)
        self.output_size, self.state_size = self.core.output_size, self.core.state_size

    def forward(self, obs: Any, state: Tensor, starts: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return features, shape (T, B, H), of nested observations with leading axes (T, B), and the last state."""
        return self.core(self.encode(obs), state, starts)  # type: ignore[no-any-return]

    def after_burn_in(self, obs: Any, state: Tensor, burn_in: int, has_none: Tensor) -> Tensor:
        """Return features, shape (T, B, H), where no gradient reaches the first steps through the state after them.

        Args:
            obs: Nested observations, leading axes (T, B).
            state: State before the first step, shape (B, S).
            burn_in: Number of first steps, in [0, T).
            has_none: Which sequences have no burn-in, so that the gradient does reach their first steps, shape (B,).
        """
        return self._after(self.encode(obs), state, burn_in, has_none)

    def _after(self, features: Tensor, state: Tensor, burn_in: int, has_none: Tensor) -> Tensor:
        """Return what :meth:`after_burn_in` returns, of features, shape (T, B, F)."""
        if not burn_in:
            return self.core(features, state)[0]  # type: ignore[no-any-return]
        first, state = self.core(features[:burn_in], state)
        state = torch.where(has_none.bool().unsqueeze(1), state, state.detach())
        rest, _ = self.core(features[burn_in:], state)
        return torch.cat([first, rest])

    def encode(self, obs: Any) -> Tensor:
        """Return features of the single observations, shape (T, B, F)."""
        shape = nested.leaves(obs)[0].shape[:2]
        features = self.encoder(nested.apply(lambda x: x.flatten(0, 1), obs))
        return cast(Tensor, features.unflatten(0, shape))
