"""Ensembles of critics as one batched network, and what their outputs mean.

Shapes: B batch, E critics, N quantiles, or atoms of a support.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_ding.config import require
from lightning_ding.model.batch_renorm import BatchRenorm
from lightning_ding.model.c51 import categorical_output, make_support
from lightning_ding.model.heads import full_precision
from lightning_ding.model.mlp import activation_function


class EnsembleMLP(nn.Module):
    """E networks of linear layers, evaluated together with one batched matrix product for each layer.

    Each member is initialised like ``nn.Linear`` layers. The output is 32-bit also under mixed precision.

    Args:
        ensemble_size: Number of networks E, >= 1.
        sizes: Widths of the input and of each layer.
        activation: Activation of all layers but the last: relu, tanh, elu, gelu or silu.
        layer_norm: Apply layer normalisation before each activation.
        dropout: Probability that a hidden unit is left out, in [0, 1), before layer normalisation (Hiraoka et al. 2022,
            https://arxiv.org/abs/2110.02034); needs random numbers as an argument of ``forward``.
        renorm: Momentum and warm-up of batch renormalisation before each layer, see :class:`BatchRenorm`; None has
            none.

    Example:
        >>> EnsembleMLP(2, [3, 8, 1])(torch.zeros(5, 3)).shape
        torch.Size([2, 5, 1])
    """

    def __init__(
        self,
        ensemble_size: int,
        sizes: Sequence[int],
        activation: str = "relu",
        layer_norm: bool = False,
        dropout: float = 0.0,
        renorm: tuple[float, int] | None = None,
    ) -> None:
        super().__init__()
        require(ensemble_size >= 1, "ensemble_size", ">= 1", ensemble_size)
        self.ensemble_size = ensemble_size
        self.dropout = UnitDropout(ensemble_size, sizes[1:-1], dropout) if dropout else None
        renorms = () if renorm is None else (BatchRenorm(ensemble_size, size, *renorm) for size in sizes[:-1])
        self.renorms = nn.ModuleList(renorms)
        self.activate = activation_function(activation)
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()  # (E, in, out) and (E, 1, out)
        for layer_in, layer_out in pairwise(sizes):
            layers = [nn.Linear(layer_in, layer_out) for _ in range(ensemble_size)]
            self.weights.append(nn.Parameter(torch.stack([layer.weight.detach().T for layer in layers])))
            self.biases.append(nn.Parameter(torch.stack([layer.bias.detach()[None] for layer in layers])))
        self.scales, self.shifts = nn.ParameterList(), nn.ParameterList()  # layer normalisation, shape (E, 1, out)
        for size in sizes[1:-1] if layer_norm else ():
            self.scales.append(nn.Parameter(torch.ones(ensemble_size, 1, size)))
            self.shifts.append(nn.Parameter(torch.zeros(ensemble_size, 1, size)))

    def output_parameters(self) -> list[Tensor]:
        """Return the parameters of the last layer."""
        return [self.weights[-1], self.biases[-1]]

    def forward(
        self,
        x: Tensor,
        members: int | Tensor | None = None,
        dropout: Tensor | None = None,
        statistics: list[Tensor] | None = None,
    ) -> Tensor:
        """Return the output of each member, shape (E, B, sizes[-1]), for ``x``, shape (B, sizes[0]).

        Args:
            x: Input of all members, or one for each member, shape (E, B, sizes[0]).
            members: Number of members to evaluate, counted from the first, or their indices; None means all.
            dropout: Random integers in [0, 2^32), shape (B,), see :class:`UnitDropout`; None leaves out no units.
            statistics: A list to which each layer with batch renormalisation appends the statistics of the batch; None
                normalises by the running statistics.

        Raises:
            ValueError: If not all members of an ensemble with batch renormalisation are to be evaluated.
        """
        renorms = list(self.renorms)
        require(members is None or not renorms, "members", "None with batch renormalisation", members)
        weights, biases = select_members(self.weights, members), select_members(self.biases, members)
        scales, shifts = select_members(self.scales, members), select_members(self.shifts, members)
        factors = None if self.dropout is None or dropout is None else self.dropout(dropout, members)
        x = x.expand(len(weights[0]), *x.shape[-2:])
        for number, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            x = torch.baddbmm(bias, renorms[number](x, statistics) if renorms else x, weight)
            if number < len(weights) - 1:
                x = x if factors is None else x * factors[number]
                if scales:
                    x = torch.addcmul(shifts[number], F.layer_norm(x, x.shape[-1:]), scales[number])
                x = self.activate(x)
        return full_precision(x)


class UnitDropout(nn.Module):
    """Dropout of the hidden units of E networks, as a function of one random number for each item.

    Compiled and eager code leave out the same units, and a checkpoint needs no state, because the random numbers come
    from outside. A unit of an item is left out if the product of the item's number and the unit's odd constant, modulo
    2^32, is below a threshold. Over items this product is uniform, and it is close to independent between units
    (multiply-shift hashing, Dietzfelbinger et al. 1997). The other units are scaled, so that the mean stays.

    Args:
        ensemble_size: Number of networks E.
        sizes: Widths of the hidden layers.
        probability: Probability that a unit is left out, in [0, 1).
    """

    constants: Tensor

    def __init__(self, ensemble_size: int, sizes: Sequence[int], probability: float) -> None:
        super().__init__()
        require(0 <= probability < 1, "dropout", "in [0, 1)", probability)
        self.sizes, self.probability = list(sizes), probability
        generator = torch.Generator().manual_seed(0)  # the same in every process
        numbers = torch.randint(2**31, (ensemble_size, 1, sum(sizes)), generator=generator)
        self.register_buffer("constants", numbers | 1, persistent=False)

    def forward(self, number: Tensor, members: int | Tensor | None = None) -> list[Tensor]:
        """Return a factor for each unit of each hidden layer, 0 or 1 / (1 - probability), shapes (E, B, size).

        Args:
            number: Random integers in [0, 2^32), shape (B,).
            members: Number of networks, counted from the first, or their indices; None means all.
        """
        (constants,) = select_members([self.constants], members)
        is_kept = (number[:, None] * constants) & (2**32 - 1) >= int(self.probability * 2**32)
        return list(is_kept.to(torch.get_default_dtype()).div(1 - self.probability).split(self.sizes, 2))


def select_members(parameters: Iterable[Tensor], members: int | Tensor | None) -> list[Tensor]:
    """Return the parameters, shapes (E, ...), of the first members or of those with these indices; None means all."""
    if members is None:
        return list(parameters)
    if isinstance(members, Tensor):
        return [parameter.index_select(0, members) for parameter in parameters]
    return [parameter[:members] for parameter in parameters]


class MeanValue(nn.Module):
    """Output of critics that predict the mean of the return."""

    output_size = 1

    def forward(self, output: Tensor) -> dict[str, Tensor]:
        """Return ``q_value``, shape (E, B), for the output of critics, shape (E, B, 1)."""
        return {"q_value": output.squeeze(2)}


class QuantileValue(nn.Module):
    """Output of critics that predict quantiles of the return (Dabney et al. 2018, https://arxiv.org/abs/1710.10044).

    Args:
        num_quantiles: Number of quantiles N, >= 1; their levels are the midpoints (2 i - 1) / 2N.

    Example:
        >>> QuantileValue(2)(torch.tensor([[[1.0, 3.0]]]))
        {'q_value': tensor([[2.]]), 'quantile': tensor([[[1., 3.]]]), 'tau': tensor([0.2500, 0.7500])}
    """

    tau: Tensor

    def __init__(self, num_quantiles: int) -> None:
        super().__init__()
        require(num_quantiles >= 1, "num_quantiles", ">= 1", num_quantiles)
        self.output_size = num_quantiles
        self.register_buffer("tau", (torch.arange(num_quantiles) + 0.5) / num_quantiles, persistent=False)

    def forward(self, output: Tensor) -> dict[str, Tensor]:
        """Return ``q_value`` (E, B), ``quantile`` (E, B, N) and ``tau`` (N,) for the output of critics, (E, B, N)."""
        return {"q_value": output.mean(2), "quantile": output, "tau": self.tau}


class CategoricalValue(nn.Module):
    """Output of critics that predict a distribution over a fixed support (Bellemare et al. 2017, section 4).

    See https://arxiv.org/abs/1707.06887.

    Args:
        v_min: Value of the first atom, < ``v_max``.
        v_max: Value of the last atom.
        n_atom: Number of atoms N, >= 2.

    Example:
        >>> CategoricalValue(0.0, 4.0, 3)(torch.zeros(1, 1, 3))["q_value"].round().tolist()
        [[2.0]]
    """

    support: Tensor

    def __init__(self, v_min: float, v_max: float, n_atom: int) -> None:
        super().__init__()
        self.output_size = n_atom
        self.register_buffer("support", make_support(v_min, v_max, n_atom), persistent=False)

    def forward(self, output: Tensor) -> dict[str, Tensor]:
        """Return the means and the distributions of critics for their output, shape (E, B, N).

        Returns:
            ``q_value`` (E, B), ``distribution`` and ``log_distribution`` (E, B, N), and ``support`` (N,).
        """
        found = categorical_output(output, self.support)
        return {"q_value": found.pop("logit"), **found, "support": self.support}


def critic_values(num_quantiles: int | None, n_atom: int | None, v_min: float, v_max: float) -> Any:
    """Return the module that reads the output of critics: a mean, quantiles or a categorical distribution.

    Args:
        num_quantiles: Number of quantiles, >= 1; None for none.
        n_atom: Number of atoms, >= 2; None for no categorical distribution.
        v_min: Value of the first atom.
        v_max: Value of the last atom.

    Raises:
        ValueError: If a value is out of its range, or both numbers are given.
    """
    require(num_quantiles is None or n_atom is None, "num_quantiles", "None with n_atom", num_quantiles)
    if n_atom is not None:
        return CategoricalValue(v_min, v_max, n_atom)
    return MeanValue() if num_quantiles is None else QuantileValue(num_quantiles)
