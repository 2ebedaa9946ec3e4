"""Actor heads of policy gradient methods, and the orthogonal initialisation of networks.

Shapes: B batch, F features, A number of actions, or dimensions of a continuous action, K choices of a hybrid action.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from lightning_ding.config import require
from lightning_ding.model.encoder import MLP
from lightning_ding.model.heads import DiscreteHead, MultiHead, full_precision, hidden_layers
from lightning_ding.model.layers import apply_linear

ActionShape = int | Sequence[int] | Mapping[str, Any]
ActionSpace = Literal["discrete", "continuous", "hybrid"]
SigmaType = Literal["independent", "conditioned", "fixed"]
FIRST_LOG_SIGMA = -0.5  # initial actions cover most of [-1, 1], and few are outside
LOG_SIGMA_RANGE = (-20.0, 2.0)  # bounds of a network's output (code of Haarnoja et al. 2018)
FIXED_SIGMA = 0.3


class GaussianHead(nn.Module):
    """Mean and standard deviation of a continuous action.

    Args:
        input_size: Number of features F.
        action_size: Number of dimensions A.
        hidden_size: Width of the hidden layers.
        layer_num: Number of hidden layers, >= 0.
        activation: Activation of the hidden layers.
        sigma_type: Source of the standard deviation: ``"independent"`` for a parameter of each dimension that starts at
            e^-0.5, ``"conditioned"`` for a linear layer whose output, the logarithm, is clamped to [-20, 2],
            ``"fixed"`` for a constant.
        fixed_sigma_value: Standard deviation with ``sigma_type="fixed"``, > 0.
        bound_type: ``"tanh"`` bounds the mean to (-1, 1); None does not bound it.
        layer_norm: Apply layer normalisation before each activation.
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
        """Return ``mu`` and ``sigma``, shapes (B, A), for features, shape (B, F); 32-bit also under mixed precision."""
        x = self.trunk(features)
        mu = full_precision(apply_linear(self.mu, x))
        if self.is_bounded:
            mu = torch.tanh(mu)
        if self.sigma_layer is None:
            return {"mu": mu, "sigma": self.log_sigma.exp().expand_as(mu)}
        log_sigma = full_precision(apply_linear(self.sigma_layer, x))
        return {"mu": mu, "sigma": log_sigma.clamp(*LOG_SIGMA_RANGE).exp()}


class HybridHead(nn.Module):
    """Head of a hybrid action: a choice of one of K types, and continuous arguments.

    Args:
        action_type: Head of the choice.
        action_args: Head of the arguments.
    """

    def __init__(self, action_type: DiscreteHead, action_args: GaussianHead) -> None:
        super().__init__()
        self.action_type, self.action_args = action_type, action_args

    def forward(self, features: Tensor) -> dict[str, Any]:
        """Return ``action_type`` (B, K) and ``action_args`` with ``mu`` and ``sigma`` (B, A), for features (B, F)."""
        return {"action_type": self.action_type(features), "action_args": self.action_args(features)}


def create_actor(
    input_size: int,
    action_shape: ActionShape,
    action_space: ActionSpace = "discrete",
    hidden_size: int | None = None,
    layer_num: int | None = None,
    activation: str = "relu",
    sigma_type: SigmaType = "independent",
    fixed_sigma_value: float = FIXED_SIGMA,
    bound_type: Literal["tanh"] | None = None,
    layer_norm: bool = False,
) -> nn.Module:
    """Return the head that describes a distribution over actions.

    ``action_shape`` and ``action_space`` are those of :class:`VAC`, all other arguments are those of
    :class:`GaussianHead`. If ``hidden_size`` is None, it is ``input_size``; if ``layer_num`` is None, it is 1 with a
    ``hidden_size`` and 0 without.

    Returns:
        A module that maps features (B, F) to the argument of ``rl.distribution_of``.

    Raises:
        ValueError: If a value is out of its range, does not fit the action space, or would have no effect.
    """
    width, layers = hidden_layers("actor_head", input_size, hidden_size, layer_num)
    _check_gaussian(action_space, sigma_type, fixed_sigma_value, bound_type)
    _check_action_shape(action_space, action_shape)

    def discrete(size: int) -> DiscreteHead:
        return DiscreteHead(input_size, size, width, layers, activation, layer_norm)

    def gaussian(shape: int | Sequence[int]) -> GaussianHead:
        size = shape if isinstance(shape, int) else math.prod(shape)
        options = (activation, sigma_type, fixed_sigma_value, bound_type, layer_norm)
        return GaussianHead(input_size, size, width, layers, *options)

    shape: Any = action_shape
    if action_space == "hybrid":
        return HybridHead(discrete(shape["action_type_shape"]), gaussian(shape["action_args_shape"]))
    if action_space == "continuous":
        return gaussian(shape)
    return discrete(shape) if isinstance(shape, int) else MultiHead([discrete(size) for size in shape])


@torch.no_grad()
def init_orthogonally(network: nn.Module, output_gains: Mapping[nn.Module, float], gain: float) -> None:
    """Initialise all linear and convolution layers with orthogonal weights and zero biases.

    Args:
        network: The network. The weights are drawn from torch's global generator.
        output_gains: Gain of the output layers of each of these heads.
        gain: Gain of all other layers.
    """
    gains = {layer: scale for head, scale in output_gains.items() for layer in output_layers(head)}
    for layer in network.modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            nn.init.orthogonal_(layer.weight, gains.get(layer, gain))
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def output_layers(head: nn.Module) -> list[nn.Module]:
    """Return the output layers of a head, one for each tensor that it returns."""
    if isinstance(head, MLP):
        return [head.layers[-1]]
    if isinstance(head, GaussianHead):
        return [head.mu] if head.sigma_layer is None else [head.mu, head.sigma_layer]
    parts = cast("Iterable[nn.Module]", head.heads) if isinstance(head, MultiHead) else head.children()
    return [layer for part in parts for layer in output_layers(part)]


def _check_gaussian(action_space: str, sigma_type: str, fixed_sigma_value: float, bound_type: str | None) -> None:
    """Raise if a value is out of its range or would have no effect."""
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
    """Raise if the shape does not fit the action space."""
    keys = {"action_type_shape", "action_args_shape"}
    is_hybrid = isinstance(action_shape, Mapping) and set(action_shape) == keys
    hybrid = "a dict with action_type_shape and action_args_shape"
    require(action_space != "hybrid" or is_hybrid, "action_shape", f"{hybrid} for hybrid actions", action_shape)
    is_plain = not isinstance(action_shape, Mapping)
    require(action_space == "hybrid" or is_plain, "action_shape", f"a size for {action_space} actions", action_shape)
