"""The base of DDPG, SAC and their relatives: an actor, and critics of its actions, learned from replay.

Actions are continuous, unless a subclass has other ones. Envs, collectors and buffers see them in the env's units;
networks, noise and log-probabilities are in normalised ones, [-1, 1] in every dimension.

Shapes: B batch, U minibatches of a round, A dimensions of an action, E critics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypedDict, TypeVar, cast

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from lightning_ding import rl
from lightning_ding.config import moved, require, resolve
from lightning_ding.model.heads import check_widths
from lightning_ding.model.residual import LayersConfig, constrained_layers
from lightning_ding.policy.base.action_bounds import ActionBounds, continuous_action
from lightning_ding.policy.base.config import NetworkConfig
from lightning_ding.policy.base.optimizers import make_optimizer
from lightning_ding.policy.base.spaces import obs_shape
from lightning_ding.policy.replay_policy import ReplayConfig, ReplayLearnConfig, ReplayPolicy
from lightning_ding.utils.modes import not_implemented
from lightning_ding.worker.config import ReplayBufferConfig


@dataclass(frozen=True, kw_only=True)
class ActorAndCriticsConfig(NetworkConfig):
    """The actor and the critics, of any kind of actions and any number of critics."""

    MOVED: ClassVar[dict[str, str]] = NetworkConfig.MOVED | moved(
        core="this algorithm learns from single transitions; recurrent_ppo, from rollouts, has recurrent layers",
    )

    actor_head_hidden_size: int = 256
    """Width of the actor's hidden layers, >= 1."""
    actor_head_layer_num: int = 1
    """Number of hidden layers of the actor after the first one, >= 0."""
    critic_head_hidden_size: int = 256
    """Width of the critics' hidden layers, >= 1."""
    critic_head_layer_num: int = 1
    """Number of hidden layers of the critics after the first one, >= 0."""
    actor_hidden_size_list: Sequence[int] | None = None
    """Width of each hidden layer of the actor, >= 1, in place of the options above; None means theirs."""
    critic_hidden_size_list: Sequence[int] | None = None
    """Width of each hidden layer of the critics, >= 1, likewise."""
    encoder: str | None = None
    """Registered encoder (mlp, conv, impala, dict or your own); None chooses by the shape of observations, and uses
    no encoder for vectors."""
    encoder_hidden_size_list: Sequence[int] | None = None
    """Widths of the encoders; None uses no encoder for vectors, and the encoder's default widths for others."""
    share_encoder: bool = False
    """Use the critics' encoder for the actor; only the critics' loss trains it; needs an encoder."""
    last_layer_init: float | None = None
    """Initialise the last layers uniformly in [-x, x], x > 0; None initialises them like all other layers."""

    def __post_init__(self) -> None:
        init = self.last_layer_init
        require(init is None or init > 0, "model.last_layer_init", "> 0 or None", init)
        for head in ("actor_head", "critic_head"):
            layers, size = getattr(self, f"{head}_layer_num"), getattr(self, f"{head}_hidden_size")
            require(layers >= 0, f"model.{head}_layer_num", ">= 0", layers)
            require(size >= 1, f"model.{head}_hidden_size", ">= 1", size)
            self._check_list(head)

    def _check_list(self, head: str) -> None:
        """Raise if the layers of a head are described twice, or a width is below 1."""
        name = f"model.{head.removesuffix('_head')}_hidden_size_list"
        others = {one: getattr(self, one) for one in (f"{head}_hidden_size", f"{head}_layer_num")}
        changed = {f"model.{one}": None if got == getattr(type(self), one) else got for one, got in others.items()}
        check_widths(name, getattr(self, name.removeprefix("model.")), **changed)

    @staticmethod
    def from_older(section: dict[str, Any]) -> dict[str, Any]:
        """Return a saved section of a version in which the numbers of layers counted the first one."""
        layers = {name: section[name] - 1 for name in ("actor_head_layer_num", "critic_head_layer_num")}
        for name, number in layers.items():
            allowed = ">= 1 in a config that an older version saved: a head has at least one hidden layer now"
            require(number >= 0, f"model.{name}", allowed, number + 1)
        return NetworkConfig.from_older(section) | layers


@dataclass(frozen=True, kw_only=True)
class QACNetworkConfig(ActorAndCriticsConfig):
    """The actor and the critics, of any kind of actions."""

    twin_critic: bool = True
    """Use two critics; the target is the smaller of their values."""


@dataclass(frozen=True, kw_only=True)
class ContinuousNetworkConfig(ActorAndCriticsConfig):
    """The actor and any number of critics of continuous actions."""

    action_shape: Any = None
    """Number of dimensions of the action, hybrid: ``{action_type_shape, action_args_shape}``; None means that it is
    taken from the env."""
    action_low: Sequence[float] | None = None
    """Smallest value of each dimension of the action; None means the env's, or -1 without an env."""
    action_high: Sequence[float] | None = None
    """Largest value of each dimension of the action; None means the env's, or 1 without an env."""
    action_integer: bool | None = None
    """Whether continuous actions are rounded, for an env with a Box of integers; None means that it is taken from the
    env."""
    actor_layers: LayersConfig = field(default_factory=LayersConfig)
    """Kind and normalisation of the actor's layers."""
    critic_layers: LayersConfig = field(default_factory=LayersConfig)
    """Kind and normalisation of the critics' layers."""
    has_statistics: ClassVar[bool] = False
    """Whether the algorithm updates the running statistics of batch normalisation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("actor_layers", "critic_layers"):
            layers = resolve(LayersConfig, getattr(self, name), f"model.{name}.")
            object.__setattr__(self, name, layers)  # a mapping from the command line
            fits = self.has_statistics or not layers.uses_batch
            require(fits, f"model.{name}.norm", "'layer' or None; only crossq and xqc have the others", layers.norm)
            is_free = not layers.fixes_output or self.last_layer_init is None
            option = "type 'simba_v2'" if layers.type == "simba_v2" else "weights 'unit_all'"
            allowed = f"None with model.{name}.{option}, whose weights have norm 1"
            require(is_free, "model.last_layer_init", allowed, self.last_layer_init)


@dataclass(frozen=True, kw_only=True)
class QACModelConfig(QACNetworkConfig, ContinuousNetworkConfig):
    """The actor and one or two critics of continuous actions."""


@dataclass(frozen=True, kw_only=True)
class QACLearnConfig(ReplayLearnConfig):
    """Options for updates."""

    batch_size: int = 256
    """Transitions of a minibatch on each rank, >= 1."""
    target_theta: float | None = 0.005
    """Step size of the soft update of the target networks, in (0, 1]; None copies the networks instead."""


@dataclass(frozen=True, kw_only=True)
class QACOtherConfig:
    """Replay."""

    replay_buffer: ReplayBufferConfig = field(default_factory=lambda: ReplayBufferConfig(replay_buffer_size=1_000_000))
    """The replay buffer."""


@dataclass(frozen=True, kw_only=True)
class QACConfig(ReplayConfig):
    """The config of DDPG, SAC and their relatives."""

    random_collect_size: int = 1000
    """Transitions collected before the first update on each rank, >= 0: with random actions, or with those of the
    policy if it was trained before."""
    model: ActorAndCriticsConfig = field(default_factory=QACModelConfig)
    """The actor and the critics."""
    learn: QACLearnConfig = field(default_factory=QACLearnConfig)
    """Options for updates."""
    other: QACOtherConfig = field(default_factory=QACOtherConfig)
    """Replay."""


QACConfigT = TypeVar("QACConfigT", bound=QACConfig)


class ActorCriticBatch(TypedDict, total=False):
    """A minibatch as the losses read it, leading axis B, and what ``_process_transition`` of a subclass adds."""

    obs: Any
    """Observations: tensors, or nested dicts of them."""
    action: Any
    """Actions taken, normalised to [-1, 1], shape (B, A); discrete ones (B,); hybrid ones a dict."""
    reward: Tensor
    """Rewards of the n steps, discounted and summed, shape (B,)."""
    next_obs: Any
    """True observations after the n steps."""
    discount_t: Tensor
    """gamma^n, or 0 after termination, shape (B,)."""
    noise: Tensor
    """Standard normal noise of the actions at ``obs``, shape (B, A); of those that draw them."""
    next_noise: Tensor
    """Noise of the actions at ``next_obs``, shape (B, A)."""
    IS: Tensor
    """Importance-sampling weights, shape (B,); with ``priority_IS_weight``."""


class QACPolicy(ReplayPolicy[QACConfigT]):
    """Base of the policies with an actor and critics of continuous actions; the first optimizer is the critics'.

    A network passed as ``model`` must have ``compute_actor(obs)``, ``compute_critic(obs, action, members=None)``, which
    returns ``{"q_value": (E, B)}`` of the first ``members`` critics, or of all critics with None, and the modules
    ``actor`` and ``critic`` with the parameters of each.
    """

    parts_of_model: ClassVar[tuple[str, ...]] = ("compute_actor", "compute_critic", "actor", "critic")
    action_bounds: ActionBounds
    model: Any

    @property
    def _learning_rates(self) -> tuple[float, float]:
        """Step sizes of the critics and of the actor."""
        raise not_implemented(self, "_learning_rates")

    def _targets(self, batch: ActorCriticBatch) -> Tensor:
        """Return the critics' targets, shape (B,), of a prepared minibatch."""
        raise not_implemented(self, "_targets")

    def _init_spaces(self) -> None:
        super()._init_spaces()
        model = self.config.model
        if not isinstance(model, ContinuousNetworkConfig):
            return  # discrete actions have no bounds
        size = self._action_size()
        low, high = model.action_low or [-1.0] * size, model.action_high or [1.0] * size
        self.action_bounds = ActionBounds(size).to(self.device)
        self.action_bounds.set(low, high, bool(model.action_integer))

    def _action_size(self) -> int:
        model = cast(ContinuousNetworkConfig, self.config.model)
        if isinstance(model.action_shape, Mapping):
            return int(model.action_shape["action_args_shape"])
        if model.action_shape is None:  # a network was passed, and the env is not known yet
            return len(model.action_low or model.action_high or [0.0])
        return int(model.action_shape)

    def _init_learn(self) -> None:
        self._make_target()
        parts, kind = (self.model.critic, self.model.actor), self.config.learn.optimizer
        rates = zip(parts, self._learning_rates, strict=True)
        self.updater.optimizers = [make_optimizer(kind, part.parameters(), rate) for part, rate in rates]
        self.updater.constrained = dict(enumerate(map(constrained_layers, parts)))
        layers = constrained_layers(self.target_model) if self.has_target else []
        self._spectral = [layer for layer in layers if layer.weights == "spectral"]

    def _update_target(self, part: str | None = None) -> None:
        """Update the target network; averaged spectral weights keep the estimate of their own norm."""
        is_average = self._target_update.theta is not None
        vectors = [(layer.left.clone(), layer.right.clone()) for layer in self._spectral if is_average]
        super()._update_target(part)
        for layer, (left, right) in zip(self._spectral, vectors, strict=False):
            layer.left.copy_(left)
            layer.right.copy_(right)
            layer.after_step()

    def _learn_critics(self, batch: ActorCriticBatch) -> dict[str, Any]:
        """Update the critics once on a prepared minibatch, with the target networks in eval mode."""
        with self._target_in_eval_mode:  # outside of the loss, which may be compiled
            return self.updater.minimise(self.critic_loss, batch)

    def critic_loss(self, batch: ActorCriticBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the critics' loss on a minibatch that :meth:`prepare` made ready, and the metrics to report.

        Returns:
            The loss, summed over the critics, and the metrics to report, detached: ``critic_loss``, a scalar,
            ``q_value`` (E, B), ``target_q_value`` (B,), and ``priority`` (B,) with the option ``priority``.
        """
        with torch.no_grad(), self._in_eval_mode.context:
            target = self._targets(batch)
        return self._td_loss(batch, self._values_of_taken(batch), target)

    def _td_loss(self, batch: ActorCriticBatch, q: Tensor, target: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss and the metrics of :meth:`critic_loss`, of values, shape (E, B), and targets, shape (B,)."""
        loss = rl.critic_loss(q, target, batch["IS"] if self.config.priority_IS_weight else None)
        report = {"critic_loss": loss.detach(), "q_value": q.detach(), "target_q_value": target}
        if self.config.priority:
            report["priority"] = rl.critic_error(q, target)
        return loss, report

    def _values_of_taken(self, batch: ActorCriticBatch) -> Tensor:
        """Return the critics' values of the actions of a prepared minibatch, shape (E, B)."""
        return self.model.compute_critic(batch["obs"], batch["action"])["q_value"]  # type: ignore[no-any-return]

    def prepare(self, data: Mapping[str, Any]) -> Any:
        """Return an :class:`ActorCriticBatch`, or one of all minibatches of a round, leading axes (B,) or (U, B).

        Minibatches that are already prepared are returned unchanged.

        Args:
            data: ``obs``, ``action`` (..., A) in the env's units, or a dict with such ``action_args``, ``reward`` (...)
                summed over the steps, ``next_obs``, ``terminated`` (...), ``discount`` (...), which is gamma^n and may
                be missing when nstep is 1, and ``IS`` (...) with ``priority_IS_weight``.

        Raises:
            KeyError: If ``discount`` is needed and missing.
            ValueError: If ``reward`` and ``terminated`` have different shapes.
        """
        if "discount_t" in data:
            return dict(data)
        return {**self._with_discount(data), "action": self._normalised(data["action"])}

    def _prepare_round(self, data: dict[str, Any]) -> dict[str, Any]:
        return self.prepare(data)  # type: ignore[no-any-return]

    def _normalised(self, action: Any) -> Any:
        if isinstance(action, Mapping):
            return {**action, "action_args": self.action_bounds.from_env(action["action_args"])}
        return self.action_bounds.from_env(action)

    def _standard_normal(self, shape: Sequence[int]) -> Any:
        return self._source.standard_normal(tuple(shape), dtype=np.float32)

    @property
    def _source(self) -> Any:
        """The source of noise: ``rng``, or with tensor envs one whose results are tensors."""
        return self.noise_source or rl.TensorDraws(self.device)

    def _monitor_vars_learn(self) -> list[str]:
        return ["cur_lr", "critic_loss", "actor_loss", "q_value", "target_q_value"]

    def default_model(self) -> tuple[str, list[str]]:
        """Return the registered network of an actor and critics."""
        return "continuous_qac", ["lightning_ding.model.qac"]

    def _action_space_of_model(self) -> str:
        return "regression"

    def _model_cfg(self) -> dict[str, Any]:
        return super()._model_cfg() | {"action_space": self._action_space_of_model()}

    def _shapes_of(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> dict[str, Any]:
        return {"obs_shape": obs_shape(observation_space), **continuous_action(action_space, type(self).__name__)}
