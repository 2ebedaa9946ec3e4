"""What the networks of policy gradient methods share: the actor, and how its weights start.

Shapes: B batch, F features, A actions (of a continuous action: dimensions), K choices of a hybrid action.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_ding.config import require
from lightning_ding.model.encoder import MLP
from lightning_ding.model.head import DiscreteHead, MultiHead, full_precision

ActionShape = int | Sequence[int] | Mapping[str, Any]
ActionSpace = Literal["discrete", "continuous", "hybrid"]
SigmaType = Literal["independent", "conditioned", "fixed"]

FIRST_LOG_SIGMA = -0.5  # actions at the start reach most of [-1, 1], and few leave it
LOG_SIGMA_RANGE = (-20.0, 2.0)  # what a network may say (Haarnoja et al. 2018)
FIXED_SIGMA = 0.3


class GaussianHead(nn.Module):
    """Mean and standard deviation of a continuous action.

    Args:
        input_size: F.
        action_size: A.
        hidden_size: Width of the hidden layers.
        layer_num: How many hidden layers, >= 0.
        activation: Behind each hidden layer.
        sigma_type: Where the standard deviation comes from: ``"independent"`` is a parameter for each dimension,
            e^-0.5 at the start; ``"conditioned"`` a linear layer, its log kept in [-20, 2]; ``"fixed"`` a constant.
        fixed_sigma_value: The constant, > 0.
        bound_type: ``"tanh"`` keeps the mean in (-1, 1); None leaves it free.
        layer_norm: Whether to normalise each hidden layer before its activation.
    """

    def __init__(
        self,
        input_size: int,
        action_size: int,
        hidden_size: int,
        layer_num: int = 0,
        activation: str = "relu",
        sigma_type: SigmaType = "independent",
        fixed_sigma_value: float = FIXED_SIGMA,
        bound_type: Literal["tanh"] | None = None,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        sizes = [input_size, *[hidden_size] * layer_num]
        self.trunk = MLP(sizes, activation, layer_norm=layer_norm)
        self.mu = nn.Linear(sizes[-1], action_size)
        self.is_bounded = bound_type == "tanh"
        self.sigma_layer = nn.Linear(sizes[-1], action_size) if sigma_type == "conditioned" else None
        if sigma_type == "independent":
            self.log_sigma = nn.Parameter(torch.full((action_size,), FIRST_LOG_SIGMA))
        elif sigma_type == "fixed":
            self.register_buffer("log_sigma", torch.full((action_size,), math.log(fixed_sigma_value)))

    def forward(self, features: Tensor) -> dict[str, Tensor]:
        """Return ``mu`` and ``sigma``, shapes (B, A), of features, shape (B, F); 32-bit under mixed precision too."""
        x = self.trunk(features)
        mu = full_precision(F.linear(x, self.mu.weight, self.mu.bias))
        if self.is_bounded:
            mu = torch.tanh(mu)
        if self.sigma_layer is None:
            return {"mu": mu, "sigma": self.log_sigma.exp().expand_as(mu)}
        log_sigma = full_precision(F.linear(x, self.sigma_layer.weight, self.sigma_layer.bias))
        return {"mu": mu, "sigma": log_sigma.clamp(*LOG_SIGMA_RANGE).exp()}


class HybridHead(nn.Module):
    """A choice among K, and the continuous arguments of it.

    Args:
        action_type: Head of the choice.
        action_args: Head of the arguments.
    """

    def __init__(self, action_type: DiscreteHead, action_args: GaussianHead) -> None:
        super().__init__()
        self.action_type, self.action_args = action_type, action_args

    def forward(self, features: Tensor) -> dict[str, Any]:
        """Return ``action_type`` (B, K) and ``action_args`` with ``mu`` and ``sigma`` (B, A), of features (B, F)."""
        return {"action_type": self.action_type(features), "action_args": self.action_args(features)}


def create_actor(
    input_size: int,
    action_shape: ActionShape,
    action_space: ActionSpace = "discrete",
    hidden_size: int | None = None,
    layer_num: int = 0,
    activation: str = "relu",
    sigma_type: SigmaType = "independent",
    fixed_sigma_value: float = FIXED_SIGMA,
    bound_type: Literal["tanh"] | None = None,
    layer_norm: bool = False,
) -> nn.Module:
    """Return the head that describes a distribution over actions.

    Args:
        input_size: F.
        action_shape: Number of actions, or a number for each dimension of a multi-discrete action; the dimensions of a
            continuous one; ``action_type_shape`` and ``action_args_shape`` of a hybrid one.
        action_space: Kind of action.
        hidden_size: Width of the hidden layers; ``input_size`` if None.
        layer_num: How many hidden layers, >= 0.
        activation: Behind each hidden layer.
        sigma_type: See ``GaussianHead``; only for actions with a continuous part, as the next two.
        fixed_sigma_value: See ``GaussianHead``; only with ``sigma_type="fixed"``.
        bound_type: See ``GaussianHead``.
        layer_norm: Whether to normalise each hidden layer before its activation.

    Returns:
        A module that maps features (B, F) to what ``rl.distribution_of`` takes.

    Raises:
        ValueError: If a value is out of its range, does not fit the kind of action, or would have no effect.
    """
    width = head_width("actor_head", input_size, hidden_size, layer_num)
    _check_gaussian(action_space, sigma_type, fixed_sigma_value, bound_type)
    _check_action_shape(action_space, action_shape)

    def discrete(size: int) -> DiscreteHead:
        return DiscreteHead(input_size, size, width, layer_num, activation, layer_norm)

    def gaussian(shape: int | Sequence[int]) -> GaussianHead:
        size = shape if isinstance(shape, int) else math.prod(shape)
        options = (activation, sigma_type, fixed_sigma_value, bound_type, layer_norm)
        return GaussianHead(input_size, size, width, layer_num, *options)

    shape: Any = action_shape
    if action_space == "hybrid":
        return HybridHead(discrete(shape["action_type_shape"]), gaussian(shape["action_args_shape"]))
    if action_space == "continuous":
        return gaussian(shape)
    return discrete(shape) if isinstance(shape, int) else MultiHead([discrete(size) for size in shape])


def head_width(name: str, input_size: int, hidden_size: int | None, layer_num: int) -> int:
    """Return the width of a head's hidden layers.

    Args:
        name: Of the head, as in the config.
        input_size: F, the width if there is none.
        hidden_size: The width asked for.
        layer_num: How many hidden layers.

    Raises:
        ValueError: If a number is out of its range, or a width is asked for without hidden layers.
    """
    require(layer_num >= 0, f"{name}_layer_num", ">= 0", layer_num)
    no_width = "None when the head has no hidden layers"
    require(hidden_size is None or layer_num > 0, f"{name}_hidden_size", no_width, hidden_size)
    width = input_size if hidden_size is None else hidden_size
    require(width >= 1, f"{name}_hidden_size", ">= 1", width)
    return width


@torch.no_grad()
def init_orthogonally(network: nn.Module, output_gains: Mapping[nn.Module, float], gain: float) -> None:
    """Make the weights of all linear and convolution layers orthogonal and their biases 0.

    Args:
        network: Its layers are initialised with torch's global generator, as they are when they are made.
        output_gains: Gains of the last layer of each head: of all layers below these modules that nothing follows.
        gain: Gain of all other layers.
    """
    gains = {layer: scale for head, scale in output_gains.items() for layer in output_layers(head)}
    for layer in network.modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            nn.init.orthogonal_(layer.weight, gains.get(layer, gain))
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def output_layers(head: nn.Module) -> list[nn.Module]:
    """Return the layers of a head that nothing follows: one for each tensor that it gives."""
    if isinstance(head, MLP):
        return [head.layers[-1]]
    if isinstance(head, GaussianHead):
        return [head.mu] if head.sigma_layer is None else [head.mu, head.sigma_layer]
    parts = cast("Iterable[nn.Module]", head.heads) if isinstance(head, MultiHead) else head.children()
    return [layer for part in parts for layer in output_layers(part)]


def _check_gaussian(action_space: str, sigma_type: str, fixed_sigma_value: float, bound_type: str | None) -> None:
    """Refuse values out of their range, and those that would have no effect."""
    kinds = ("discrete", "continuous", "hybrid")
    require(action_space in kinds, "action_space", f"one of {kinds}", action_space)
    sigma_types = ("independent", "conditioned", "fixed")
    require(sigma_type in sigma_types, "sigma_type", f"one of {sigma_types}", sigma_type)
    require(bound_type in (None, "tanh"), "bound_type", "'tanh' or None", bound_type)
    require(fixed_sigma_value > 0, "fixed_sigma_value", "> 0", fixed_sigma_value)
    is_used = sigma_type == "fixed" or fixed_sigma_value == FIXED_SIGMA
    require(is_used, "fixed_sigma_value", f"{FIXED_SIGMA} unless sigma_type is 'fixed'", fixed_sigma_value)
    if action_space == "discrete":
        require(sigma_type == "independent", "sigma_type", "'independent' for discrete actions", sigma_type)
        require(bound_type is None, "bound_type", "None for discrete actions", bound_type)


def _check_action_shape(action_space: str, action_shape: object) -> None:
    """Refuse a shape that does not fit the kind of action."""
    keys = {"action_type_shape", "action_args_shape"}
    is_hybrid = isinstance(action_shape, Mapping) and set(action_shape) == keys
    hybrid = "a dict with action_type_shape and action_args_shape"
    require(action_space != "hybrid" or is_hybrid, "action_shape", f"{hybrid} for hybrid actions", action_shape)
    is_plain = not isinstance(action_shape, Mapping)
    require(action_space == "hybrid" or is_plain, "action_shape", f"a size for {action_space} actions", action_shape)
