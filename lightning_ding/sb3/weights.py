"""The tensors of a model's policy, taken layer by layer, and their forms here.

Shapes: I inputs and O outputs of a layer, E critics.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_ding.config import require

Tensors = dict[str, Tensor]


class Linear(NamedTuple):
    """A linear layer."""

    weight: Tensor
    """Shape (O, I)."""
    bias: Tensor
    """Shape (O,)."""

    def with_inputs(self, index: Tensor, factor: Tensor) -> Linear:
        """Return the layer for inputs in another order, each divided by a factor; inputs after them stay."""
        rest = self.weight[:, len(index) :]
        return Linear(torch.cat([self.weight[:, index] * factor, rest], 1), self.bias)

    def rows(self, index: Tensor | slice) -> Linear:
        """Return the layer with some of its outputs, in another order."""
        return Linear(self.weight[index], self.bias[index])


class Weights:
    """The state dict of a policy, which keeps track of the tensors that were taken.

    Args:
        tensors: The state dict.

    Example:
        >>> weights = Weights({"net.0.weight": torch.zeros(2, 3), "net.0.bias": torch.zeros(2)})
        >>> [layer.weight.shape for layer in weights.layers("net")], weights.left()
        ([torch.Size([2, 3])], [])
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = dict(tensors)
        self._taken: set[str] = set()

    def has(self, prefix: str) -> bool:
        """Return whether there is a tensor of this name, or below it."""
        return any(name == prefix or name.startswith(f"{prefix}.") for name in self._tensors)

    def below(self, prefix: str) -> list[str]:
        """Return the names directly below a prefix, in order."""
        found = (name[len(prefix) + 1 :].partition(".")[0] for name in self._tensors if name.startswith(f"{prefix}."))
        return list(dict.fromkeys(found))

    def take(self, name: str) -> Tensor:
        """Return a tensor.

        Raises:
            ValueError: If there is none of this name.
        """
        got = [*list(self._tensors)[:4], "..."]
        require(name in self._tensors, "the weights of the model", f"a state dict with {name!r}", got)
        self._taken.add(name)
        return self._tensors[name]

    def linear(self, name: str) -> Linear:
        """Return a linear layer.

        Raises:
            ValueError: If there is none, or its tensors do not fit each other.
        """
        weight, bias = self.take(f"{name}.weight"), self.take(f"{name}.bias")
        fits = weight.ndim >= 2 and bias.shape == weight.shape[:1]
        require(fits, f"the layer {name!r} of the model", "a weight and a bias", [weight.shape, bias.shape])
        return Linear(weight, bias)

    def layers(self, prefix: str) -> list[Linear]:
        """Return the linear layers below a prefix, in order; other layers there are left."""
        numbers = [number for number in self.below(prefix) if number.isdecimal()]
        found = [f"{prefix}.{number}" for number in sorted(numbers, key=int)]
        return [self.linear(name) for name in found if f"{name}.weight" in self._tensors]

    def ignore(self, pattern: str) -> None:
        """Treat the tensors whose names match as taken."""
        self._taken |= {name for name in self._tensors if re.match(pattern, name)}

    def left(self) -> list[str]:
        """Return the names of the tensors that were not taken."""
        return [name for name in self._tensors if name not in self._taken]


def widths(layers: Sequence[Linear]) -> list[int]:
    """Return the number of outputs of each layer."""
    return [len(layer.bias) for layer in layers]


def stack(layers: Sequence[Linear], target: str) -> Tensors:
    """Return the layers as those of an ``MLP`` named ``target``."""
    named: Tensors = {}
    for number, layer in enumerate(layers):
        named |= linear(layer, f"{target}.layers.{number}")
    return named


def linear(layer: Linear, target: str) -> Tensors:
    """Return a layer as one named ``target``."""
    return {f"{target}.weight": layer.weight, f"{target}.bias": layer.bias}


def ensemble(members: Sequence[Sequence[Linear]], target: str) -> Tensors:
    """Return the layers of E networks as those of an ``EnsembleMLP`` named ``target``."""
    named: Tensors = {}
    for number, layers in enumerate(zip(*members, strict=True)):
        named[f"{target}.weights.{number}"] = torch.stack([layer.weight.T for layer in layers])
        named[f"{target}.biases.{number}"] = torch.stack([layer.bias[None] for layer in layers])
    return named


def joined(layers: Sequence[Linear]) -> Linear:
    """Return layers of the same inputs as one with the outputs of all."""
    return Linear(torch.cat([layer.weight for layer in layers]), torch.cat([layer.bias for layer in layers]))


Change = Callable[[Linear], Linear]


def with_first(layers: Sequence[Linear], change: Change) -> list[Linear]:
    """Return the layers, of which the first is changed."""
    return [change(layers[0]), *layers[1:]]
