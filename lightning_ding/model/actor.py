"""Actor heads of policy gradient methods, and the orthogonal initialisation of networks.

Shapes: B batch, F features, A number of actions, or dimensions of a continuous action, K choices of a hybrid action.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from lightning_ding.config import require
from lightning_ding.model.heads import DiscreteHead, MultiHead, check_widths, full_precision, hidden_layers
from lightning_ding.model.mlp import MLP

ActionShape = int | Sequence[int] | Mapping[str, Any]
ActionSpace = Literal["discrete", "continuous", "hybrid"]
SigmaType = Literal["independent", "conditioned", "fixed"]
FIRST_LOG_SIGMA = -0.5  # initial actions cover most of [-1, 1], and few are outside
LOG_SIGMA_RANGE = (-20.0, 2.0)  # bounds of a network's output (code of Haarnoja et al. 2018)
FIXED_SIGMA = 0.3
SMALLEST_VARIANCE = 1e-6  # added to the variance that depends on the state, as in Stable-Baselines3


class SDE(NamedTuple):
    """Options of generalised state-dependent exploration, see :class:`StateDependentSigma`."""

    full_std: bool = True
    use_expln: bool = False
    learn_features: bool = False

    @staticmethod
    def of(use_sde: bool, full_std: bool, use_expln: bool, learn_features: bool = False) -> SDE | None:
        """Return the options, or None without ``use_sde``.

        Raises:
            ValueError: If an option is given that has no effect without ``use_sde``.
        """
        require(use_sde or full_std, "full_std", "True without use_sde", full_std)
        require(use_sde or not use_expln, "use_expln", "False without use_sde", use_expln)
        return SDE(full_std, use_expln, learn_features) if use_sde else None


class StateDependentSigma(nn.Module):
    """Standard deviation of noise that is a linear function of the features of a state.

    Generalised state-dependent exploration (Raffin et al. 2022, section 3.2, https://arxiv.org/abs/2005.05719) acts
    with mu(s) + W z(s), where the entries of W are normally distributed. Over all W, dimension j of this action has the
    variance sum_i z_i(s)^2 std_ij^2.

    Args:
        feature_size: Number of features F.
        action_size: Number of dimensions A.
        log_std_init: Logarithm of all initial standard deviations of W.
        full_std: Learn a standard deviation for each entry of W; otherwise one for each feature.
        use_expln: Use exp(x) up to 0 and log(1 + x) + 1 above as the standard deviation for the parameter x, which
            grows more slowly; otherwise exp(x).
        learn_features: Train the features by the gradient of the standard deviation too.

    Example:
        >>> sigma = StateDependentSigma(feature_size=2, action_size=1)(torch.tensor([[3.0, 4.0]]))["sigma"]
        >>> round(sigma.item(), 4)  # the square root of 3^2 + 4^2
        5.0
    """

    def __init__(
        self,
        feature_size: int,
        action_size: int,
        log_std_init: float = 0.0,
        full_std: bool = True,
        use_expln: bool = False,
        learn_features: bool = False,
    ) -> None:
        super().__init__()
        self.action_size, self.use_expln, self.learn_features = action_size, use_expln, learn_features
        self.log_std = nn.Parameter(torch.full((feature_size, action_size if full_std else 1), float(log_std_init)))

    def std(self) -> Tensor:
        """Return the standard deviations of W, shape (F, A)."""
        x = self.log_std
        std = torch.where(x > 0, x.clamp(min=0).log1p() + 1, x.clamp(max=0).exp()) if self.use_expln else x.exp()
        return std.expand(-1, self.action_size)

    def forward(self, features: Tensor) -> dict[str, Tensor]:
        """Return what describes the noise of B states, 32-bit also under mixed precision.

        Args:
            features: Features of the states, shape (B, F).

        Returns:
            ``sigma``, the standard deviations of the actions, shape (B, A); ``features`` (B, F) and ``std`` (F, A).
        """
        features, std = full_precision(features if self.learn_features else features.detach()), self.std()
        if torch.is_autocast_enabled(features.device.type):
            with torch.autocast(features.device.type, enabled=False):
                variance = features.square() @ std.square()
        else:
            variance = features.square() @ std.square()
        return {"sigma": (variance + SMALLEST_VARIANCE).sqrt(), "features": features, "std": std}


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
        hidden_size_list: Width of each hidden layer, in place of ``hidden_size`` and ``layer_num``.
        log_std_init: Logarithm of the initial standard deviation with ``sigma_type="independent"``; None for -0.5, and
            0 with ``sde``.
        sde: Options of generalised state-dependent exploration, which replaces ``sigma_type``; None for none.
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
        hidden_size_list: Sequence[int] | None = None,
        log_std_init: float | None = None,
        sde: SDE | None = None,
    ) -> None:
        super().__init__()
        sizes = [input_size, *([hidden_size] * layer_num if hidden_size_list is None else hidden_size_list)]
        self.trunk = MLP(sizes, activation, layer_norm=layer_norm)
        self.mu = nn.Linear(sizes[-1], action_size)
        self.is_bounded = bound_type == "tanh"
        self.sigma_layer = nn.Linear(sizes[-1], action_size) if sigma_type == "conditioned" else None
        self.sde = None if sde is None else StateDependentSigma(sizes[-1], action_size, log_std_init or 0.0, *sde)
        if sde is not None:
            return
        if sigma_type == "independent":
            first = FIRST_LOG_SIGMA if log_std_init is None else float(log_std_init)
            self.log_sigma = nn.Parameter(torch.full((action_size,), first))
        elif sigma_type == "fixed":
            self.register_buffer("log_sigma", torch.full((action_size,), math.log(fixed_sigma_value)))

    def forward(self, features: Tensor) -> dict[str, Tensor]:
        """Return ``mu`` and ``sigma``, shapes (B, A), for features, shape (B, F); 32-bit also under mixed precision.

        With ``sde`` it also returns the ``features`` and the ``std`` of :class:`StateDependentSigma`.
        """
        x = self.trunk(features)
        mu = full_precision(self.mu(x))
        if self.is_bounded:
            mu = torch.tanh(mu)
        if self.sde is not None:
            return {"mu": mu, **self.sde(x)}
        if self.sigma_layer is None:
            return {"mu": mu, "sigma": self.log_sigma.exp().expand_as(mu)}
        log_sigma = full_precision(self.sigma_layer(x))
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
    hidden_size_list: Sequence[int] | None = None,
    log_std_init: float | None = None,
    sde: SDE | None = None,
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
    others = {"actor_head_hidden_size": hidden_size, "actor_head_layer_num": layer_num}
    check_widths("actor_hidden_size_list", hidden_size_list, **others)
    _check_gaussian(action_space, sigma_type, fixed_sigma_value, bound_type)
    _check_first_sigma(action_space, sigma_type, log_std_init, sde)
    _check_action_shape(action_space, action_shape)

    def discrete(size: int) -> DiscreteHead:
        return DiscreteHead(input_size, size, width, layers, activation, layer_norm, hidden_size_list)

    def gaussian(shape: int | Sequence[int]) -> GaussianHead:
        size = shape if isinstance(shape, int) else math.prod(shape)
        options = (activation, sigma_type, fixed_sigma_value, bound_type, layer_norm)
        return GaussianHead(input_size, size, width, layers, *options, hidden_size_list, log_std_init, sde)

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


def _check_first_sigma(action_space: str, sigma_type: str, log_std_init: float | None, sde: SDE | None) -> None:
    """Raise if there is no standard deviation to start from, or state-dependent exploration does not fit."""
    is_free = log_std_init is None or (action_space != "discrete" and sigma_type == "independent")
    allowed = "None unless actions are continuous and sigma_type is 'independent'"
    require(is_free, "log_std_init", allowed, log_std_init)
    require(sde is None or action_space == "continuous", "use_sde", f"False for {action_space} actions", True)
    require(sde is None or sigma_type == "independent", "sigma_type", "'independent' with use_sde", sigma_type)


def _check_action_shape(action_space: str, action_shape: object) -> None:
    """Raise if the shape does not fit the action space."""
    keys = {"action_type_shape", "action_args_shape"}
    is_hybrid = isinstance(action_shape, Mapping) and set(action_shape) == keys
    hybrid = "a dict with action_type_shape and action_args_shape"
    require(action_space != "hybrid" or is_hybrid, "action_shape", f"{hybrid} for hybrid actions", action_shape)
    is_plain = not isinstance(action_shape, Mapping)
    require(action_space == "hybrid" or is_plain, "action_shape", f"a size for {action_space} actions", action_shape)
