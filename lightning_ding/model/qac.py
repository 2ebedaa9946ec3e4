"""The network of DDPG, SAC and their relatives: an actor for continuous actions, and critics.

Shapes: B batch, A dimensions of a continuous action, K choices of a hybrid action, E critics, F features, N quantiles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from lightning_ding.config import require
from lightning_ding.model.actor import LOG_SIGMA_RANGE, SDE, GaussianHead, output_layers
from lightning_ding.model.batch_renorm import flat_statistics
from lightning_ding.model.encoder import ObsShape, encoder_for
from lightning_ding.model.ensemble import EnsembleMLP, critic_values
from lightning_ding.model.heads import check_widths, full_precision
from lightning_ding.model.layers import InEvalMode
from lightning_ding.model.mlp import MLP
from lightning_ding.model.residual import LayersConfig, make_layers
from lightning_ding.registry import MODEL_REGISTRY

FIRST_LOG_STD = -3.0  # of state-dependent noise, as in Stable-Baselines3's SAC
LARGEST_MEAN = 2.0  # before squashing, with state-dependent noise
Noise = tuple[float, SDE]
"""State-dependent noise: the logarithm of its initial standard deviation, and its options."""


class EncoderAndHead(nn.Module):
    """The actor, or the critics, which share an encoder.

    Args:
        encoder: Encoder with an attribute ``output_size``; None if the actor uses the critics' features.
        head: Layers that take the features.
    """

    def __init__(self, encoder: Any, head: Any) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head
        self._in_eval_mode: InEvalMode | None = None

    def fixed_features(self, obs: Any) -> Tensor:
        """Return the features of observations for a loss that does not train the encoder; see :mod:`layers`."""
        if self._in_eval_mode is None or self._in_eval_mode.model is not self.encoder:
            self._in_eval_mode = InEvalMode(self.encoder, where_it_matters=True)
        with self._in_eval_mode:
            features: Tensor = self.encoder(obs)
        return features.detach()


@MODEL_REGISTRY.register("continuous_qac")
class ContinuousQAC(nn.Module):
    """An actor and any number of critics of normalised actions; ``actor`` and ``critic`` share no parameters.

    Args:
        obs_shape: Size, shape or dict of these of an observation; an entry ``action_mask``, the mask of a hybrid
            action's choices, is not encoded.
        action_shape: Number of dimensions A; hybrid: ``{"action_type_shape": K, "action_args_shape": A}``.
        action_space: Output of the actor: ``regression`` for an action, ``reparameterization`` for a distribution,
            ``hybrid`` for a choice with arguments.
        twin_critic: Use two critics instead of one.
        ensemble_num: Number of critics E, >= 1; None for one, or two with ``twin_critic``.
        critic_layer_norm: Apply layer normalisation in the hidden layers of the critics, but not elsewhere.
        batch_renorm: Apply batch renormalisation before each layer of the actor and the critics, see
            :class:`BatchRenorm`, which describes ``renorm_momentum`` and ``renorm_warmup``.
        critic_dropout: Probability that a hidden unit of a critic is left out during updates, in [0, 1).
        num_quantiles: Number of quantiles N that each critic predicts, >= 1; None for critics that predict the mean.
        n_atom: Number of atoms N of the categorical distribution that each critic predicts, >= 2; None for others.
        v_min: Value of the first atom, < ``v_max``; needs ``n_atom``.
        v_max: Value of the last atom; needs ``n_atom``.
        actor_head_hidden_size: Width of the actor's hidden layers.
        actor_head_layer_num: Number of hidden layers of the actor after the first one, >= 0.
        critic_head_hidden_size: Width of the critics' hidden layers.
        critic_head_layer_num: Number of hidden layers of the critics after the first one, >= 0.
        encoder: Name of a registered encoder; None chooses one by the shape, and no encoder for vectors.
        encoder_hidden_size_list: Widths of the encoders' layers; None for the encoder's default.
        share_encoder: Use the critics' features as the actor's input; only the critics' loss trains the encoder (Yarats
            et al. 2021, https://arxiv.org/abs/1910.01741).
        activation: Activation of all hidden layers: relu, tanh, elu, gelu or silu.
        last_layer_init: Bound x of the uniform initial weights in [-x, x] of the output layers (Lillicrap et al. 2016,
            section 7); None initialises them like all other layers.
        layer_norm: Apply layer normalisation before the activation of each hidden layer, also in the encoders.
        encoder_kwargs: Further keyword arguments of the encoders, see ``create_encoder``. If it is not empty, vectors
            get an encoder too.
        with_value: Add a network of the values of observations, with the sizes of the critics and its own encoder.
        actor_hidden_size_list: Width of each hidden layer of the actor, in place of ``actor_head_hidden_size`` and
            ``actor_head_layer_num``; None for those.
        critic_hidden_size_list: Width of each hidden layer of the critics, likewise.
        actor_layers: Options of :class:`LayersConfig`, the kind and the normalisation of the actor's layers; None for
            plain layers.
        critic_layers: The same for the critics' layers.
        use_sde: Make the standard deviation that of state-dependent noise, see :class:`StateDependentSigma`, which also
            describes ``full_std`` and ``use_expln``; needs ``reparameterization``.
        log_std_init: Logarithm of the initial standard deviation with ``use_sde``; None for -3.
        clip_mean: Bound of the mean before squashing with ``use_sde``, >= 0; 0 for no bound, None for 2.

    Raises:
        ValueError: If a size is out of its range, there is no encoder to share, the observation has a mask and the
            action no choice, or an argument would have no effect.

    Example:
        >>> model = ContinuousQAC(obs_shape=3, action_shape=1)
        >>> action = model.compute_actor(torch.zeros(5, 3))["action"]
        >>> model.compute_critic(torch.zeros(5, 3), action)["q_value"].shape
        torch.Size([1, 5])
    """

    def __init__(
        self,
        obs_shape: ObsShape,
        action_shape: int | Mapping[str, int],
        action_space: Literal["regression", "reparameterization", "hybrid"] = "regression",
        twin_critic: bool = False,
        actor_head_hidden_size: int = 256,
        actor_head_layer_num: int = 1,
        critic_head_hidden_size: int = 256,
        critic_head_layer_num: int = 1,
        encoder_hidden_size_list: Sequence[int] | None = None,
        share_encoder: bool = False,
        activation: str = "relu",
        last_layer_init: float | None = None,
        encoder: str | None = None,
        layer_norm: bool = False,
        encoder_kwargs: Mapping[str, Any] | None = None,
        with_value: bool = False,
        ensemble_num: int | None = None,
        num_quantiles: int | None = None,
        n_atom: int | None = None,
        v_min: float = -10.0,
        v_max: float = 10.0,
        critic_layer_norm: bool = False,
        critic_dropout: float = 0.0,
        batch_renorm: bool = False,
        renorm_momentum: float = 0.01,
        renorm_warmup: int = 100_000,
        actor_hidden_size_list: Sequence[int] | None = None,
        critic_hidden_size_list: Sequence[int] | None = None,
        actor_layers: Mapping[str, Any] | None = None,
        critic_layers: Mapping[str, Any] | None = None,
        use_sde: bool = False,
        log_std_init: float | None = None,
        full_std: bool = True,
        use_expln: bool = False,
        clip_mean: float | None = None,
    ) -> None:
        super().__init__()
        require(ensemble_num is None or not twin_critic, "twin_critic", "False with ensemble_num", twin_critic)
        number = 1 + twin_critic if ensemble_num is None else ensemble_num
        self.values = critic_values(num_quantiles, n_atom, v_min, v_max)
        self.action_space = action_space
        self.choices, self.action_size = action_sizes(obs_shape, action_shape, action_space)
        actor_hidden = hidden_sizes("actor", actor_head_hidden_size, actor_head_layer_num, actor_hidden_size_list)
        critic_hidden = hidden_sizes("critic", critic_head_hidden_size, critic_head_layer_num, critic_hidden_size_list)
        renorm = (renorm_momentum, renorm_warmup) if batch_renorm else None
        self._layers = {"actor": LayersConfig(**actor_layers or {}), "critic": LayersConfig(**critic_layers or {})}
        self._check_layers(layer_norm, critic_layer_norm, critic_dropout, batch_renorm, use_sde)
        sde = SDE.of(use_sde, full_std, use_expln, learn_features=True)
        self.clip_mean, noise = _check_sde(sde, action_space, batch_renorm, log_std_init, clip_mean)
        options = (encoder, encoder_hidden_size_list, activation, layer_norm, encoder_kwargs)
        make_encoder = partial(encoder_for, obs_shape, *options, keeps_vectors=True)
        critic_encoder, own = make_encoder(), None if share_encoder else make_encoder
        self.actor = self._make_actor(critic_encoder, own, actor_hidden, activation, layer_norm, renorm, noise)
        critic_options = (activation, layer_norm or critic_layer_norm, critic_dropout, renorm)
        self.critic = self._make_critics(critic_encoder, number, critic_hidden, *critic_options)
        self._init_last_layers(last_layer_init)
        if with_value:
            self.value = _state_value(critic_encoder.output_size, critic_hidden, activation, layer_norm, make_encoder)

    def _make_actor(
        self,
        critic_encoder: Any,
        make_encoder: Callable[[], Any] | None,
        hidden: list[int],
        activation: str,
        layer_norm: bool,
        renorm: tuple[float, int] | None,
        noise: Noise | None,
    ) -> EncoderAndHead:
        """Return the actor, whose encoder is the critic's if ``make_encoder`` is None."""
        has_encoder = any(True for _ in critic_encoder.parameters())
        is_shared = make_encoder is None
        require(has_encoder or not is_shared, "share_encoder", "False without an encoder", is_shared)
        inputs, outputs = self._actor_widths(critic_encoder.output_size)
        sizes = [inputs, *hidden, outputs]
        encoder = None if make_encoder is None else make_encoder()
        if not self._layers["actor"].is_plain:
            return EncoderAndHead(encoder, make_layers(self._layers["actor"], 1, sizes, activation))
        if noise is not None:
            options: dict[str, Any] = {"activation": activation, "layer_norm": layer_norm, "hidden_size_list": hidden}
            size = critic_encoder.output_size
            head = GaussianHead(size, self.action_size, 0, log_std_init=noise[0], sde=noise[1], **options)
            return EncoderAndHead(encoder, head)
        if renorm is None:
            return EncoderAndHead(encoder, MLP(sizes, activation, activate_last=False, layer_norm=layer_norm))
        return EncoderAndHead(encoder, EnsembleMLP(1, sizes, activation, layer_norm, renorm=renorm))

    def _make_critics(self, encoder: Any, number: int, hidden: list[int], *options: Any) -> EncoderAndHead:
        """Return the critics; ``options`` are those of ``EnsembleMLP`` after the sizes."""
        inputs, outputs = self._critic_widths(encoder.output_size)
        sizes, layers = [inputs, *hidden, outputs], self._layers["critic"]
        if layers.is_plain:
            return EncoderAndHead(encoder, EnsembleMLP(number, sizes, *options))
        return EncoderAndHead(encoder, make_layers(layers, number, sizes, options[0]))

    def _check_layers(self, layer_norm: bool, critic_layer_norm: bool, dropout: float, renorm: bool, sde: bool) -> None:
        """Raise if layers of another kind are asked for together with an option of plain ones."""
        actor, critic = self._layers["actor"].is_plain, self._layers["critic"].is_plain
        require(not layer_norm or (actor and critic), "layer_norm", "False with other layers; set their norm", True)
        require(not critic_layer_norm or critic, "critic_layer_norm", "False with critic_layers; set their norm", True)
        require(not dropout or critic, "critic_dropout", "0 with critic_layers", dropout)
        require(not renorm or (actor and critic), "batch_renorm", "False with other layers; set their norm", True)
        require(not sde or actor, "use_sde", "False with actor_layers", True)

    def _actor_widths(self, features: int) -> tuple[int, int]:
        """Return the numbers of inputs and outputs of the actor's layers."""
        return features, self.choices + self.action_size * (2 if self.action_space == "reparameterization" else 1)

    def _critic_widths(self, features: int) -> tuple[int, int]:
        """Return the numbers of inputs and outputs of a critic's layers."""
        return features + self.choices + self.action_size, self.values.output_size

    def _init_last_layers(self, bound: float | None) -> None:
        """Draw the weights of the last layers uniformly within a bound; None leaves them as they are."""
        if bound is None:
            return
        for head in (self.actor.head, self.critic.head):
            is_plain = isinstance(head, (MLP, GaussianHead))
            for parameter in output_layers(head)[0].parameters() if is_plain else head.output_parameters():
                nn.init.uniform_(parameter, -bound, bound)

    def forward(self, inputs: Any, mode: Literal["compute_actor", "compute_critic"]) -> dict[str, Any]:
        """Return the output of the actor or of the critics by the name of the part.

        Args:
            inputs: For ``compute_actor`` B observations; for ``compute_critic`` a mapping with ``obs`` and ``action``,
                normalised, shape (B, A) or, of one dimension, (B,). For a hybrid action, ``action`` has
                ``action_args``, and the mapping also ``logit``, shape (B, K).
            mode: The part of the network.

        Returns:
            ``compute_actor``: ``action`` (B, A); with ``reparameterization``, ``logit``, a list of the mean and the
            standard deviation (B, A) before squashing; with ``hybrid``, ``logit`` (B, K) and ``action_args`` (B, A).
            ``compute_critic``: ``q_value`` (B,), or a list of two of them with separate graphs, so that each may be
            differentiated alone, unless the critics have batch renormalisation.

        Raises:
            ValueError: If there is no such mode.
        """
        require(mode in ("compute_actor", "compute_critic"), "mode", "'compute_actor' or 'compute_critic'", mode)
        if mode == "compute_actor":
            output = self.compute_actor(inputs)
            is_gaussian = self.action_space == "reparameterization"
            return {"logit": [output["mu"], output["log_sigma"].exp()]} if is_gaussian else output
        action = inputs["action"]
        if self.choices:
            action = {"action_type": inputs["logit"].softmax(dim=-1), "action_args": action["action_args"]}
        parts = action if isinstance(action, Mapping) else {"action_args": action}
        columns = {name: part.unsqueeze(1) if part.ndim == 1 else part for name, part in parts.items()}
        given = (inputs["obs"], columns if self.choices else columns["action_args"])
        number, is_joint = self.critic.head.ensemble_size, bool(self.critic.head.renorms)
        if number == 1 or is_joint:
            q_value = self.compute_critic(*given)["q_value"]
            return {"q_value": list(q_value) if number > 1 else q_value[0]}
        members = torch.arange(number, device=columns["action_args"].device).split(1)
        return {"q_value": [self.compute_critic(*given, members=one)["q_value"][0] for one in members]}

    def compute_actor(self, obs: Any, by_batch: bool = False) -> dict[str, Tensor]:
        """Return the actor's output for B observations, in normalised units.

        Args:
            obs: B observations.
            by_batch: Normalise by the statistics of the batch, and return them too; needs ``batch_renorm``.

        Returns:
            With ``regression``, ``action`` (B, A) in [-1, 1]; with ``reparameterization``, ``mu`` and ``log_sigma`` (B,
            A) of the action before squashing; with ``hybrid``, ``logit`` (B, K) and ``action_args`` (B, A) in [-1, 1].
            With ``by_batch`` also ``statistics``, see :func:`flat_statistics`. With ``use_sde`` also the output of
            :class:`StateDependentSigma`.
        """
        encoder = self.actor.encoder
        features = self.critic.fixed_features(obs) if encoder is None else encoder(obs)
        if by_batch:
            statistics: list[Tensor] = []
            output = self.actor.head(features, statistics=statistics)[0]
            return {**self._actor_output(output), "statistics": flat_statistics(statistics)}
        output = self.actor.head(features)
        if isinstance(output, dict):
            bound = self.clip_mean
            mu = output["mu"].clamp(-bound, bound) if bound else output["mu"]
            return {**output, "mu": mu, "log_sigma": output["sigma"].log()}
        output = full_precision(output)
        return self._actor_output(output[0] if output.ndim == 3 else output)

    def _actor_output(self, output: Tensor) -> dict[str, Tensor]:
        if self.action_space == "regression":
            return {"action": output.tanh()}
        if self.action_space == "hybrid":
            logit, action_args = output.split([self.choices, self.action_size], dim=1)
            return {"logit": logit, "action_args": action_args.tanh()}
        mu, log_sigma = output.chunk(2, dim=1)
        return {"mu": mu, "log_sigma": log_sigma.clamp(*LOG_SIGMA_RANGE)}

    def compute_critic(
        self,
        obs: Any,
        action: Tensor | Mapping[str, Tensor],
        members: int | Tensor | None = None,
        dropout: Tensor | None = None,
        by_batch: bool = False,
    ) -> Any:
        """Return ``q_value``, shape (E, B), and the distributions of critics that predict them.

        :class:`QuantileValue` and :class:`CategoricalValue` describe their form.

        Args:
            obs: B observations.
            action: Normalised actions, shape (B, A), or those of each critic, shape (E, B, A); hybrid: ``action_type``
                (B,), or weights of the choices (B, K), and ``action_args`` (B, A).
            members: Number of critics to evaluate, counted from the first, or their indices; None means all.
            dropout: Random numbers that choose the units to leave out, see :class:`UnitDropout`; None leaves out none.
            by_batch: Normalise by the statistics of the batch, and return them too as ``statistics``, see
                :func:`flat_statistics`; needs ``batch_renorm``.
        """
        parts = [self.critic.encoder(obs)]
        if isinstance(action, Mapping):
            choice = action["action_type"]
            if choice.ndim == 1:  # F.one_hot cannot be compiled
                none = parts[0].new_zeros(len(choice), self.choices)
                choice = none.scatter(1, choice.long().unsqueeze(1), 1.0)
            parts.append(choice)
            action = action["action_args"]
        if action.ndim == 3:
            parts = [part.expand(len(action), *part.shape) for part in parts]
        x = torch.cat([*parts, action], dim=-1)
        statistics: list[Tensor] | None = [] if by_batch else None
        found = self.values(self.critic.head(x, members, dropout, statistics))
        return found if statistics is None else {**found, "statistics": flat_statistics(statistics)}

    def compute_value(self, obs: Any) -> Tensor:
        """Return the values of B observations, shape (B,); needs ``with_value``."""
        return full_precision(self.value.head(self.value.encoder(obs))).squeeze(1)


def _state_value(
    inputs: int, hidden: list[int], activation: str, layer_norm: bool, make_encoder: Callable[[], Any]
) -> EncoderAndHead:
    """Return a network of state values; the weights of the head are drawn before those of the encoder."""
    head = MLP([inputs, *hidden, 1], activation, activate_last=False, layer_norm=layer_norm)
    return EncoderAndHead(make_encoder(), head)


def action_sizes(obs_shape: ObsShape, action_shape: int | Mapping[str, int], action_space: str) -> tuple[int, int]:
    """Return the number of choices, 0 without, and the number of dimensions of a continuous action.

    Raises:
        ValueError: If a network without choices is given the shape or the mask of choices.
    """
    is_hybrid = action_space == "hybrid"
    is_masked = not is_hybrid and isinstance(obs_shape, Mapping) and "action_mask" in obs_shape
    require(not is_masked, "obs_shape", "without action_mask for actions without a choice", obs_shape)
    if not is_hybrid:
        allowed = "a number of dimensions for actions without a choice"
        require(not isinstance(action_shape, Mapping), "action_shape", allowed, action_shape)
        return 0, cast(int, action_shape)
    shapes = cast("Mapping[str, int]", action_shape)
    return shapes["action_type_shape"], shapes["action_args_shape"]


def hidden_sizes(part: str, size: int, layers: int, widths: Sequence[int] | None) -> list[int]:
    """Return the widths of the hidden layers of a head.

    Args:
        part: ``actor`` or ``critic``, for errors.
        size: Width of all layers, unless there are ``widths``.
        layers: Number of layers after the first one, >= 0, unless there are ``widths``.
        widths: Width of each layer, >= 1; None for layers of equal width.

    Raises:
        ValueError: If a number is out of its range.

    Example:
        >>> hidden_sizes("actor", 256, 1, None), hidden_sizes("actor", 256, 1, [400, 300])
        ([256, 256], [400, 300])
    """
    require(layers >= 0, f"{part}_head_layer_num", ">= 0", layers)
    check_widths(f"{part}_hidden_size_list", widths)
    return [size] * (1 + layers) if widths is None else list(widths)


def _check_sde(
    sde: SDE | None, action_space: str, batch_renorm: bool, log_std_init: float | None, clip_mean: float | None
) -> tuple[float, Noise | None]:
    """Return the bound of the mean, and the noise; raise if an argument has no effect or does not fit."""
    fits = sde is None or (action_space == "reparameterization" and not batch_renorm)
    require(fits, "use_sde", "False without 'reparameterization', and with batch_renorm", True)
    require(sde is not None or log_std_init is None, "log_std_init", "None without use_sde", log_std_init)
    require(sde is not None or clip_mean is None, "clip_mean", "None without use_sde", clip_mean)
    require(clip_mean is None or clip_mean >= 0, "clip_mean", ">= 0 or None", clip_mean)
    first = FIRST_LOG_STD if log_std_init is None else log_std_init
    return LARGEST_MEAN if clip_mean is None else float(clip_mean), None if sde is None else (first, sde)
