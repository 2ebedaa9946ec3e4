"""Layers of actors and critics that learn from many updates per env step: SimBa, SimBa v2, BroNet, and normalised MLPs.

Each network is an ensemble of E networks, evaluated together with one batched matrix product for each layer.
:class:`LayersConfig` is the only place where their kind and their normalisation are chosen.

Papers: SimBa: Lee et al. 2024 (https://arxiv.org/abs/2410.09754); SimBa v2: Lee et al. 2025
(https://arxiv.org/abs/2502.15280); BroNet: Nauman et al. 2024 (https://arxiv.org/abs/2405.16158); unit weights next to
batch normalisation: Palenicek et al. 2025 (https://arxiv.org/abs/2502.07523); spectral normalisation: Miyato et al.
2018 (https://arxiv.org/abs/1802.05957).

Shapes: B batch, E networks, I inputs and O outputs of a layer, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_ding.config import require
from lightning_ding.model.batch_renorm import BatchRenorm
from lightning_ding.model.ensemble import select_members
from lightning_ding.model.heads import full_precision
from lightning_ding.model.mlp import activation_function

EXPANSION = 4  # width inside a block of SimBa, in widths of the network
CONSTANT_INPUT = 3.0  # appended to the inputs of SimBa v2 before they are projected, its c_shift
EPS = 1e-8
NEVER = 2**62  # updates before batch renormalisation begins, for batch normalisation


@dataclass(frozen=True, kw_only=True)
class LayersConfig:
    """The kind of the hidden layers of an actor or of critics, and how they are normalised."""

    type: Literal["mlp", "simba", "simba_v2", "bronet"] = "mlp"
    """``mlp`` is a chain of layers. The others have a first layer and residual blocks of one width, as many as
    hidden layers after the first one: ``simba``, ``bronet``, and ``simba_v2`` on the unit sphere."""
    norm: Literal["layer", "batch", "batch_renorm"] | None = None
    """Normalisation of the features; None means layer normalisation in simba and bronet, and none in the others.
    ``batch`` and ``batch_renorm`` also normalise the inputs of an mlp; only crossq and xqc have them, of which
    xqc's critics ``batch`` alone."""
    weights: Literal["unit", "unit_all", "spectral"] | None = None
    """Restriction of the weights of all layers but the last: ``unit`` projects the weights of each unit to norm 1 after
    every update, ``spectral`` divides each matrix by its largest singular value. ``unit_all`` is ``unit`` for the last
    layer too, whose biases are free. simba_v2 always has unit weights."""
    momentum: float = 0.01
    """Step size of the running statistics of batch normalisation, in (0, 1]."""
    warmup: int = 100_000
    """Updates with batch normalisation before batch renormalisation begins, >= 0."""

    def __post_init__(self) -> None:
        is_sphere = self.type == "simba_v2"
        require(not is_sphere or self.norm is None, "norm", "None for layers of type 'simba_v2'", self.norm)
        require(not is_sphere or self.weights is None, "weights", "None for layers of type 'simba_v2'", self.weights)
        require(0 < self.momentum <= 1, "momentum", "in (0, 1]", self.momentum)
        require(self.warmup >= 0, "warmup", ">= 0", self.warmup)
        batch, renorm = self.uses_batch, self.norm == "batch_renorm"
        require(batch or self.momentum == 0.01, "momentum", "0.01 without batch normalisation", self.momentum)
        require(renorm or self.warmup == 100_000, "warmup", "100000 without the norm 'batch_renorm'", self.warmup)

    @property
    def is_plain(self) -> bool:
        """Whether there are only linear layers and activations."""
        return (self.type, self.norm, self.weights) == ("mlp", None, None)

    @property
    def fixes_output(self) -> bool:
        """Whether the weights of the last layer have norm 1, so that they cannot begin near 0."""
        return self.weights == "unit_all" or self.type == "simba_v2"

    @property
    def uses_batch(self) -> bool:
        """Whether features are normalised by the statistics of a batch."""
        return self.norm in ("batch", "batch_renorm")


def make_layers(
    config: LayersConfig | Mapping[str, Any], ensemble_size: int, sizes: Sequence[int], activation: str = "relu"
) -> Any:
    """Return an ensemble of networks.

    Args:
        config: Its kind and normalisation.
        ensemble_size: Number of networks E, >= 1.
        sizes: Widths of the input, of each hidden layer and of the output; hidden layers of residual networks have one
            width.
        activation: Activation of the hidden layers: relu, tanh, elu, gelu or silu.

    Raises:
        ValueError: If the widths differ in a residual network, or an option does not fit the others.

    Example:
        >>> make_layers({"type": "simba"}, 2, [3, 16, 16, 1])(torch.zeros(5, 3)).shape
        torch.Size([2, 5, 1])
    """
    layers = config if isinstance(config, LayersConfig) else LayersConfig(**config)
    require(ensemble_size >= 1, "ensemble_size", ">= 1", ensemble_size)
    hidden = list(sizes[1:-1])
    is_residual = layers.type != "mlp"
    allowed = f"of one width for layers of type {layers.type!r}"
    require(not is_residual or len(set(hidden)) == 1, "the hidden layers", allowed, hidden)
    if layers.type == "simba_v2":
        return SphericalEnsemble(ensemble_size, sizes, activation)
    return NormalisedEnsemble(layers, ensemble_size, sizes, activation)


Initialisation = Callable[[Tensor], Any]
ORTHOGONAL: Initialisation = nn.init.orthogonal_
HE: Initialisation = partial(nn.init.kaiming_normal_, nonlinearity="relu")
WIDE: Initialisation = partial(nn.init.orthogonal_, gain=math.sqrt(2))


class EnsembleLinear(nn.Module):
    """A linear layer of E networks.

    Args:
        ensemble_size: Number of networks E.
        inputs: Number of inputs I.
        outputs: Number of outputs O.
        init: Initialises the weights of one network, shape (O, I), in place, and biases are then 0; None initialises
            both like ``nn.Linear``.
        weights: Restriction of the weights: ``unit``, ``spectral`` or None.
        bias: Add a bias.
    """

    left: Tensor
    right: Tensor

    def __init__(
        self,
        ensemble_size: int,
        inputs: int,
        outputs: int,
        init: Initialisation | None = None,
        weights: str | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        layers = [nn.Linear(inputs, outputs, bias) for _ in range(ensemble_size)]
        for layer in layers if init is not None else ():
            init(layer.weight.data)  # type: ignore[misc]
            if bias:
                nn.init.zeros_(layer.bias)
        self.weights = weights
        self.weight = nn.Parameter(torch.stack([layer.weight.detach().T for layer in layers]))  # (E, I, O)
        stacked = torch.stack([layer.bias.detach()[None] for layer in layers]) if bias else None
        self.bias = None if stacked is None else nn.Parameter(stacked)  # (E, 1, O)
        if weights == "spectral":
            u, _, v = torch.linalg.svd(self.weight.detach(), full_matrices=False)
            self.register_buffer("left", u[:, :, :1].contiguous())  # (E, I, 1)
            self.register_buffer("right", v[:, :1].mT.contiguous())  # (E, O, 1)
        self.after_step()

    @torch.no_grad()
    def after_step(self) -> None:
        """Restrict the weights again after an optimizer has changed them."""
        if self.weights == "unit":
            self.weight.copy_(F.normalize(self.weight, dim=1, eps=EPS))
        elif self.weights == "spectral":  # a step of the power iteration, so that forward stays a pure function
            self.right.copy_(F.normalize(self.weight.mT @ self.left, dim=1))
            self.left.copy_(F.normalize(self.weight @ self.right, dim=1))

    def forward(self, x: Tensor, members: int | Tensor | None = None) -> Tensor:
        """Return outputs, shape (E, B, O), of the chosen members for their inputs, shape (E, B, I)."""
        (weight,) = select_members([self.weight], members)
        if self.weights == "spectral":
            left, right = select_members([self.left, self.right], members)
            weight = weight / (left.mT @ weight @ right)
        if self.bias is None:
            return torch.bmm(x, weight)
        return torch.baddbmm(select_members([self.bias], members)[0], x, weight)


class EnsembleLayerNorm(nn.Module):
    """Layer normalisation of the features of E networks.

    Args:
        ensemble_size: Number of networks E.
        size: Number of features.
    """

    def __init__(self, ensemble_size: int, size: int) -> None:
        super().__init__()
        self.size = (size,)
        self.scale = nn.Parameter(torch.ones(ensemble_size, 1, size))
        self.shift = nn.Parameter(torch.zeros(ensemble_size, 1, size))

    def forward(self, x: Tensor, members: int | Tensor | None = None) -> Tensor:
        """Return normalised features of the chosen members, shape (E, B, size)."""
        scale, shift = select_members([self.scale, self.shift], members)
        return torch.addcmul(shift, F.layer_norm(x, self.size), scale)


class NormalisedEnsemble(nn.Module):
    """E networks of type ``mlp``, ``simba`` or ``bronet``; the arguments are those of :func:`make_layers`.

    With layer L, normalisation N and activation a, they compute:

    * mlp: x <- a(N(L x)) for each hidden layer; with batch normalisation after x <- N(x);
    * simba: x <- L x, then x <- x + L a(L N(x)) for each block, then x <- N(x);
    * bronet: x <- a(N(L x)), then x <- x + N(L a(N(L x))) for each block;

    and L x at the end. Inside a block of simba the width is four times that of the network. Layers have no bias where
    the mean of a batch would be subtracted from it.
    """

    def __init__(self, config: LayersConfig, ensemble_size: int, sizes: Sequence[int], activation: str) -> None:
        super().__init__()
        self.kind, self.ensemble_size, self.activate = config.type, ensemble_size, activation_function(activation)
        self.uses_batch = config.uses_batch
        width, blocks = sizes[1], len(sizes) - 3
        widths = list(pairwise(sizes[:-1]))
        inits: list[Initialisation | None] = [None] * len(widths)
        normed = ([sizes[0]] if self.uses_batch else []) + list(sizes[1:-1] if config.norm else ())
        if self.kind == "simba":
            widths = [(sizes[0], width), *[(width, EXPANSION * width), (EXPANSION * width, width)] * blocks]
            inits = [ORTHOGONAL, *[HE, HE] * blocks]
            normed = [width] * (blocks + 1)
        elif self.kind == "bronet":
            widths = [(sizes[0], width), *[(width, width)] * 2 * blocks]
            inits = [WIDE] * len(widths)
            normed = [width] * len(widths)
        restriction = "unit" if config.weights == "unit_all" else config.weights
        self.hidden = nn.ModuleList()
        for number, (size, init) in enumerate(zip(widths, inits, strict=True)):
            has_bias = not self.uses_batch or (self.kind == "simba" and number % 2 == 1)
            self.hidden.append(EnsembleLinear(ensemble_size, *size, init, restriction, has_bias))
        of_inputs = 1 if self.kind == "mlp" and self.uses_batch else 0
        shifts = [number >= of_inputs for number in range(len(normed))]
        norms = zip(normed, shifts, strict=True)
        self.norms = nn.ModuleList(_make_norm(config, ensemble_size, size, shift) for size, shift in norms)
        last = {"mlp": None, "simba": ORTHOGONAL, "bronet": WIDE}[self.kind]
        self.output = EnsembleLinear(ensemble_size, sizes[-2], sizes[-1], last, "unit" if config.fixes_output else None)

    @property
    def renorms(self) -> bool:
        """Whether features are normalised by the statistics of a batch."""
        return self.uses_batch

    def output_parameters(self) -> list[Tensor]:
        """Return the parameters of the last layer.

        Raises:
            ValueError: If its weights have norm 1.
        """
        fixed = self.output.weights
        if fixed is not None:
            raise ValueError(
                "last_layer_init must be None with the weights 'unit_all', which fixes those of the last layer"
            )
        return list(self.output.parameters())

    def forward(
        self,
        x: Tensor,
        members: int | Tensor | None = None,
        dropout: Tensor | None = None,
        statistics: list[Tensor] | None = None,
    ) -> Tensor:
        """Return the output of each member, shape (E, B, sizes[-1]).

        The arguments are those of :meth:`EnsembleMLP.forward`; there is no dropout.

        Raises:
            ValueError: If not all members of an ensemble with batch normalisation are to be evaluated.
        """
        require(members is None or not self.uses_batch, "members", "None with batch normalisation", members)
        number = self.ensemble_size if members is None else members if isinstance(members, int) else len(members)
        x = x.expand(number, *x.shape[-2:])
        layers = [partial(layer, members=members) for layer in self.hidden]
        norms = [partial(_normalise, norm, members, statistics) for norm in self.norms]
        compute = {"mlp": self._mlp, "simba": self._simba, "bronet": self._bronet}[self.kind]
        return full_precision(self.output(compute(x, layers, norms), members))

    def _mlp(self, x: Tensor, layers: list[Any], norms: list[Any]) -> Tensor:
        if self.uses_batch:
            x, norms = norms[0](x), norms[1:]
        for number, layer in enumerate(layers):
            x = self.activate(norms[number](layer(x)) if norms else layer(x))
        return x

    def _simba(self, x: Tensor, layers: list[Any], norms: list[Any]) -> Tensor:
        x = layers[0](x)
        for norm, widen, narrow in zip(norms[:-1], layers[1::2], layers[2::2], strict=True):
            x = x + narrow(self.activate(widen(norm(x))))
        normalised: Tensor = norms[-1](x)
        return normalised

    def _bronet(self, x: Tensor, layers: list[Any], norms: list[Any]) -> Tensor:
        x = self.activate(norms[0](layers[0](x)))
        for number in range(1, len(layers), 2):
            inner = self.activate(norms[number](layers[number](x)))
            x = x + norms[number + 1](layers[number + 1](inner))
        return x


class Scaler(nn.Module):
    """A learned factor of each feature of E networks, whose gradient does not depend on its size at the start.

    Args:
        ensemble_size: Number of networks E.
        size: Number of features.
        first: Factor at the start, > 0.
        scale: Value of the parameters at the start, > 0, which sets how fast they change relative to the factor.
    """

    def __init__(self, ensemble_size: int, size: int, first: float, scale: float) -> None:
        super().__init__()
        self.factor = first / scale
        self.scale = nn.Parameter(torch.full((ensemble_size, 1, size), float(scale)))

    def forward(self, x: Tensor, members: int | Tensor | None = None) -> Tensor:
        """Return scaled features of the chosen members, shape (E, B, size)."""
        return x * (select_members([self.scale], members)[0] * self.factor)


class SphericalEnsemble(nn.Module):
    """E networks of SimBa v2, whose features and weights lie on unit spheres (Lee et al. 2025, section 4).

    The inputs, with a constant appended, are projected, so that they keep their size. A block moves its input x to
    project(x + alpha (y - x)), where y is the projected output of its layers and alpha is learned for each feature.

    Where this differs from the authors' code: the mean and the standard deviation of an actor share the layer before
    the last.

    Args:
        ensemble_size: Number of networks E.
        sizes: Widths of the input, of each hidden layer, which are equal, and of the output.
        activation: Activation inside the blocks.
    """

    renorms = False

    def __init__(self, ensemble_size: int, sizes: Sequence[int], activation: str = "relu") -> None:
        super().__init__()
        self.ensemble_size, self.activate = ensemble_size, activation_function(activation)
        width, blocks = sizes[1], len(sizes) - 3
        inner, scale = EXPANSION * width, math.sqrt(2 / width)
        linear = partial(EnsembleLinear, ensemble_size, init=ORTHOGONAL, weights="unit", bias=False)
        scaler = partial(Scaler, ensemble_size)
        self.first, self.first_scaler = linear(sizes[0] + 1, width), scaler(width, scale, scale)
        wide = scale / math.sqrt(EXPANSION)
        self.widen = nn.ModuleList(linear(width, inner) for _ in range(blocks))
        self.scalers = nn.ModuleList(scaler(inner, wide, wide) for _ in range(blocks))
        self.narrow = nn.ModuleList(linear(inner, width) for _ in range(blocks))
        self.steps = nn.ModuleList(scaler(width, 1 / (blocks + 1), 1 / math.sqrt(width)) for _ in range(blocks))
        self.last, self.last_scaler = linear(width, width), scaler(width, 1.0, 1.0)
        self.output = linear(width, sizes[-1])
        self.bias = nn.Parameter(torch.zeros(ensemble_size, 1, sizes[-1]))

    def output_parameters(self) -> list[Tensor]:
        """Raise: the weights of the last layer have norm 1.

        Raises:
            ValueError: Always.
        """
        raise ValueError("last_layer_init must be None for layers of type 'simba_v2', whose weights have norm 1")

    def forward(
        self,
        x: Tensor,
        members: int | Tensor | None = None,
        dropout: Tensor | None = None,
        statistics: list[Tensor] | None = None,
    ) -> Tensor:
        """Return the output of each member, shape (E, B, sizes[-1]); see :meth:`NormalisedEnsemble.forward`."""
        number = self.ensemble_size if members is None else members if isinstance(members, int) else len(members)
        x = x.expand(number, *x.shape[-2:])
        x = _project(F.pad(x, (0, 1), value=CONSTANT_INPUT))
        x = _project(self.first_scaler(self.first(x, members), members))
        for widen, scaler, narrow, step in zip(self.widen, self.scalers, self.narrow, self.steps, strict=True):
            inner = self.activate(scaler(widen(x, members), members)) + EPS  # never a zero vector
            x = _project(x + step(_project(narrow(inner, members)) - x, members))
        x = self.last_scaler(self.last(x, members), members)
        return full_precision(self.output(x, members) + select_members([self.bias], members)[0])


def constrained_layers(network: nn.Module) -> list[EnsembleLinear]:
    """Return the layers of a network whose weights are restricted after each update."""
    return [one for one in network.modules() if isinstance(one, EnsembleLinear) and one.weights is not None]


def _make_norm(config: LayersConfig, ensemble_size: int, size: int, has_shift: bool) -> nn.Module:
    """Return the normalisation of features that the config describes."""
    if not config.uses_batch:
        return EnsembleLayerNorm(ensemble_size, size)
    warmup = NEVER if config.norm == "batch" else config.warmup
    return BatchRenorm(ensemble_size, size, config.momentum, warmup, has_shift)


def _normalise(norm: Any, members: int | Tensor | None, statistics: list[Tensor] | None, x: Tensor) -> Tensor:
    """Return normalised features, shape (E, B, F)."""
    normalised: Tensor = norm(x, statistics) if isinstance(norm, BatchRenorm) else norm(x, members)
    return normalised


def _project(x: Tensor) -> Tensor:
    """Return vectors along the last axis, divided by their norms, in single precision under mixed precision too."""
    return F.normalize(full_precision(x), dim=-1, eps=EPS)
