"""The base of actor-critic algorithms with generalised advantages: their config, values, loss and optimizers.

Papers: Schulman et al. 2016, eq. 16 (https://arxiv.org/abs/1506.02438); noise on the mean: Rahman and Xue 2022,
algorithm 1 (https://arxiv.org/abs/2212.07536); PopArt: van Hasselt et al. 2016 (https://arxiv.org/abs/1602.07714);
symlog: Hafner et al. 2023, eq. 9 (https://arxiv.org/abs/2301.04104).

Where this differs: the scale of the critic (PopArt's mean and standard deviation, or the root mean square) is renewed
once a round, before the updates. It is a moving average in which older returns have at most the weight of 1,024 ones,
so a few large returns are forgotten.

Shapes: S transitions of a rollout, T steps, N envs, B batch, A dimensions of a continuous action.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from lightning_ding import nested, rl
from lightning_ding.config import require
from lightning_ding.model.layers import has_own_weights, output_layer
from lightning_ding.policy.actor_policy import ActorModelConfig
from lightning_ding.policy.base.config import WITHOUT_SDE
from lightning_ding.policy.base.optimizers import make_optimizer
from lightning_ding.policy.base.policy import ConfigT
from lightning_ding.policy.base.rank_statistics import update_over_ranks
from lightning_ding.policy.base.round import Batch
from lightning_ding.policy.on_policy import OnPolicyCollectConfig, OnPolicyLearnConfig, OnPolicyPolicy
from lightning_ding.policy.state_dependent_exploration import SDEModelConfig, explores_by_state, uses_sde, with_noise
from lightning_ding.rl.value_scales import CriticScale
from lightning_ding.utils.modes import not_implemented
from lightning_ding.utils.ranks import rank_and_world_size


@dataclass(frozen=True, kw_only=True)
class ActorCriticModelConfig(ActorModelConfig):
    """The network of an actor and a critic."""

    share_encoder: bool = True
    """Use one encoder for actor and critic."""
    critic_head_hidden_size: int | None = None
    """Width of the critic head's hidden layers; None means the encoder's last width."""
    critic_head_layer_num: int | None = None
    """Number of hidden layers of the critic's head, >= 0; None means 1 with critic_head_hidden_size, else 0."""
    critic_hidden_size_list: Sequence[int] | None = None
    """Width of each layer of the critic's head, >= 1, in place of the two options above; needs
    actor_hidden_size_list."""


@dataclass(frozen=True, kw_only=True)
class SDEActorCriticModelConfig(SDEModelConfig, ActorCriticModelConfig):
    """The network of an actor, which may explore with state-dependent noise, and a critic."""

    MOVED: ClassVar[dict[str, str]] = {
        key: hint for key, hint in ActorCriticModelConfig.MOVED.items() if key not in WITHOUT_SDE
    }


@dataclass(frozen=True, kw_only=True)
class ActorCriticLearnConfig(OnPolicyLearnConfig):
    """Options for updates."""

    learning_rate_actor: float | None = None
    """Step size of a separate optimizer of the actor, > 0; needs learning_rate_critic and share_encoder false; None for
    one optimizer with learning_rate."""
    learning_rate_critic: float | None = None
    """Step size of a separate optimizer of the critic, > 0; needs learning_rate_actor."""
    value_weight: float = 0.5
    """Weight of the critic's loss, half its mean squared error, >= 0."""
    adv_norm: bool = True
    """Standardise the advantages of each minibatch, over all ranks; a single one stays as it is."""
    ignore_done: bool = False
    """Bootstrap from terminal states too; for old configs of envs that only a time limit ends."""
    value_norm: bool | Literal["symlog", "popart"] = False
    """Train the critic to predict returns divided by their root mean square (True), less their mean and divided by
    their standard deviation (popart), or their symmetric logarithm (symlog). Of the first two, a change leaves all
    values as they are."""
    ppo_param_init: bool = False
    """Orthogonal weights at the start, and an actor that is nearly uniform (Andrychowicz et al. 2021)."""
    rpo_alpha: float = 0.0
    """Largest uniform noise on the mean of continuous actions in updates, >= 0, in units of half the action's range;
    0.5 in the paper of RPO."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.value_weight >= 0, "learn.value_weight", ">= 0", self.value_weight)
        require(self.rpo_alpha >= 0, "learn.rpo_alpha", ">= 0", self.rpo_alpha)
        self._check_rates()

    def _check_rates(self) -> None:
        for name, other in (("actor", "critic"), ("critic", "actor")):
            rate, of_other = (getattr(self, f"learning_rate_{one}") for one in (name, other))
            require(rate is None or rate > 0, f"learn.learning_rate_{name}", "> 0 or None", rate)
            both = f"set with learn.learning_rate_{other}, and None without it"
            require((rate is None) == (of_other is None), f"learn.learning_rate_{name}", both, rate)
        unused = not self.has_two_rates or self.learning_rate == type(self).learning_rate
        allowed = "left at its default with learning_rate_actor and learning_rate_critic"
        require(unused, "learn.learning_rate", allowed, self.learning_rate)

    @property
    def has_two_rates(self) -> bool:
        """Whether actor and critic have separate optimizers."""
        return self.learning_rate_actor is not None

    def check_model(self, model: ActorCriticModelConfig) -> None:
        """Raise if actor and critic have separate optimizers and the network would share an encoder."""
        allowed = "False with learning_rate_actor and learning_rate_critic"
        require(not (self.has_two_rates and model.share_encoder), "model.share_encoder", allowed, model.share_encoder)


@dataclass(frozen=True, kw_only=True)
class ActorCriticCollectConfig(OnPolicyCollectConfig):
    """Options for collecting: the amount and the collector."""

    gae_lambda: float = 0.95
    """Bias-variance mix of the advantages, in [0, 1]."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.gae_lambda <= 1, "collect.gae_lambda", "in [0, 1]", self.gae_lambda)


logger = logging.getLogger(__name__)

LARGEST_FORWARD = 4096  # rows of a forward pass without gradient
SMALLEST_STD = 1e-4  # of returns, for PopArt
RETURNS_KEPT = 1024  # older returns have at most the weight of so many in the scale of the critic


@explores_by_state
class ActorCriticPolicy(OnPolicyPolicy[ConfigT]):
    """A policy that weighs its actions by generalised advantages, of rollouts or of replayed ones.

    A sequence that a time limit or the end of the rollout cuts bootstraps from the value of its final next observation;
    a terminated one does not. Values are computed when a rollout is learned from; ``value`` is that of the weights at
    its first pass. A subclass implements ``_policy_loss`` and ``_value_loss``.

    With separate optimizers, a network passed as ``model`` also has ``actor_parameters()`` and ``critic_parameters()``;
    the scale of the critic (``value_norm`` true or "popart") changes ``critic_output``, the last linear layer of its
    critic, or else the ``nn.Linear`` whose output is the value. If there is none, or its weights are computed from
    others, as pruned ones are, an affine function after the network changes, a ``rl.value_scales.CriticScale``.
    """

    parts_of_model: ClassVar[tuple[str, ...]] = ("compute_actor", "compute_critic", "compute_actor_critic")
    _loaded_kind: Any = None  # learn.value_norm of the checkpoint that was loaded last

    # ------------------------------------------------------------------ to implement

    def _policy_loss(self, log_prob: Tensor, batch: Mapping[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss that the log probabilities, shape (B,), of the actions have, and metrics in addition."""
        raise not_implemented(self, "_policy_loss")

    def _value_loss(self, value: Tensor, batch: Mapping[str, Any]) -> Tensor:
        """Return the loss that the outputs of the critic, shape (B,), have."""
        raise not_implemented(self, "_value_loss")

    # ------------------------------------------------------------------ setting up

    def _initialise(self, model: nn.Module | None) -> None:
        super()._initialise(model)
        if model is None and self._needs_model() and self.config.learn.ppo_param_init:
            self.model.init_orthogonally()  # type: ignore[operator]

    def _init_spaces(self) -> None:
        super()._init_spaces()
        alpha, is_used = self.config.learn.rpo_alpha, self.config.model.action_space != "discrete"
        require(is_used or not alpha, "learn.rpo_alpha", "0 for discrete actions, which have no mean", alpha)

    def _init_learn(self) -> None:
        super()._init_learn()
        learn, model = self.config.learn, cast(Any, self.model)
        self._make_return_statistics()
        if learn.has_two_rates:
            actor, critic = model.actor_parameters(), model.critic_parameters()
            rates = (actor, learn.learning_rate_actor), (critic, learn.learning_rate_critic)
            self.updater.optimizers = [make_optimizer(learn.optimizer, part, rate) for part, rate in rates]

    def _make_return_statistics(self) -> None:
        """Make the statistics by which the critic's outputs are scaled, unless there are some or none are needed."""
        learn = self.config.learn
        is_used = learn.value_norm or type(learn).value_norm  # a checkpoint of PPO has them with value_norm false too
        if is_used and not hasattr(self, "return_statistics"):
            self.return_statistics = CriticScale()

    def _logit(self, obs: Any) -> Any:
        model: Any = self.model
        return model.compute_actor(obs)["logit"]

    def _draw(self, distribution: rl.Distribution, logit: Any) -> Any:
        return with_noise(self, logit) if uses_sde(self) else super()._draw(distribution, logit)

    def default_model(self) -> tuple[str, list[str]]:
        """Return the registered actor-critic network."""
        return "vac", ["lightning_ding.model.vac"]

    # ------------------------------------------------------------------ advantages

    @torch.no_grad()
    def _learning_data(self, rollout: Batch, sequences: rl.Sequences) -> Batch:
        value = self._values(rollout["obs"])  # in one pass, not at every step of the envs
        rollout.setdefault("value", value)
        advantage, target = self._advantage(rollout, value, sequences)
        kept = {name: rollout[name] for name in ("obs", "action", "log_prob", "value")}
        return self._added_columns(rollout) | kept | {"advantage": advantage, "return": target}

    def _advantage(self, rollout: Batch, value: Tensor, sequences: rl.Sequences) -> tuple[Tensor, Tensor]:
        """Return advantages in units of the reward, and the targets of the critic's output, both of shape (S,)."""
        config = self.config
        terminated = rollout["terminated"]
        if config.learn.ignore_done:
            terminated = torch.zeros_like(terminated)
        table = {"reward": rollout["reward"], "value": self._returns_of(value), "terminated": terminated}
        steps = {name: sequences.lay_out(column) for name, column in table.items()}
        next_value = self._next_value(rollout, steps["value"], steps["terminated"], sequences)
        gamma, gae_lambda = config.discount_factor, config.collect.gae_lambda
        advantage = rl.gae(
            steps["reward"], steps["value"], next_value, steps["terminated"], sequences.ended, gamma, gae_lambda
        )
        advantage = sequences.flatten(advantage)
        return advantage, self._outputs_for(advantage + table["value"])

    def _next_value(self, rollout: Batch, value: Tensor, terminated: Tensor, sequences: rl.Sequences) -> Tensor:
        """Return the values of the next observations, shape (T, N), at the end of a sequence of the final one."""
        next_value = torch.cat([value[1:], value[-1:]])
        rows = sequences.flatten(sequences.ended & ~terminated)
        flat = sequences.flatten(next_value)
        final = nested.index(rollout["next_obs"], rows)
        if nested.length(final):  # none where every sequence ends with a terminal state
            flat[rows] = self._returns_of(self._values(final))
        return sequences.lay_out(flat)

    def _values(self, obs: Any) -> Tensor:
        parts = nested.split(obs, LARGEST_FORWARD)
        with self._in_eval_mode:
            outputs = [self.model.compute_critic(part)["value"] for part in parts]  # type: ignore[operator]
        return self._corrected(torch.cat(outputs))

    def _standardised(self) -> str | None:
        return "advantage" if self.config.learn.adv_norm else None

    # ------------------------------------------------------------------ learning

    def _forward_learn(self, batch: Batch) -> dict[str, Any]:
        """Learn from a rollout with leading axis S in one pass; return the metrics of the last update."""
        data = self._learning_data(batch, rl.time_major(batch["env_id"], batch["episode_id"]))
        return self._make_pass(self._renew_scale(data))[-1]

    def _update(self, minibatch: Batch) -> dict[str, Any]:
        alpha = self.config.learn.rpo_alpha
        if alpha:
            action = minibatch["action"]
            mean = action["action_args"] if isinstance(action, Mapping) else action
            minibatch["mean_noise"] = torch.from_numpy(self.rng.uniform(-alpha, alpha, tuple(mean.shape))).to(mean)
        if not self.config.learn.has_two_rates:
            return self.updater.minimise(self.loss, minibatch)
        actor = self.updater.minimise(self.loss_of_actor, minibatch)
        critic = self.updater.minimise(self.loss_of_critic, minibatch, 1)
        return {**critic, **actor, "total_loss": actor["total_loss"] + critic["total_loss"]}

    def loss(self, batch: Mapping[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a minibatch and the metrics to report.

        Args:
            batch: ``obs``, ``action`` as it was drawn, ``log_prob`` and ``value`` (B,) of the policy that acted,
                ``advantage`` (B,), ``return`` (B,) in units of the network's output; ``mean_noise`` (B, A) with
                ``rpo_alpha``.

        Returns:
            The loss, and detached scalars: ``total_loss``, ``policy_loss``, ``value_loss``, ``entropy_loss``, and what
            an algorithm adds.
        """
        output = self._network_output(batch)
        policy_loss, entropy, report = self._actor_terms(output["logit"], batch)
        value_loss = self._value_loss(self._corrected(output["value"]), batch)
        learn = self.config.learn
        loss = (
            policy_loss + learn.value_weight * value_loss - batch.get("entropy_weight", learn.entropy_weight) * entropy
        )
        report |= {"total_loss": loss, "policy_loss": policy_loss, "value_loss": value_loss, "entropy_loss": entropy}
        return loss, {name: value.detach() for name, value in report.items()}

    def loss_of_actor(self, batch: Mapping[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the part of :meth:`loss` that trains the actor, and its metrics."""
        policy_loss, entropy, report = self._actor_terms(self._logit(batch["obs"]), batch)
        loss = policy_loss - batch.get("entropy_weight", self.config.learn.entropy_weight) * entropy
        report |= {"total_loss": loss, "policy_loss": policy_loss, "entropy_loss": entropy}
        return loss, {name: value.detach() for name, value in report.items()}

    def loss_of_critic(self, batch: Mapping[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the part of :meth:`loss` that trains the critic, and its metrics."""
        output = self.model.compute_critic(batch["obs"])["value"]  # type: ignore[operator]
        value_loss = self._value_loss(self._corrected(output), batch)
        loss = self.config.learn.value_weight * value_loss
        return loss, {"total_loss": loss.detach(), "value_loss": value_loss.detach()}

    def _network_output(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``logit`` and ``value`` of a minibatch."""
        return self.model.compute_actor_critic(batch["obs"])  # type: ignore[operator, no-any-return]

    def _actor_terms(self, logit: Any, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return the policy's loss, its mean entropy, and metrics in addition."""
        if "mean_noise" in batch:
            logit = _shifted(logit, batch["mean_noise"])
        distribution = self._distribution(logit, batch["obs"])
        loss, report = self._policy_loss(distribution.log_prob(batch["action"]), batch)
        return loss, distribution.entropy().mean(), report

    # ------------------------------------------------------------------ the scale of the critic

    def _renew_scale(self, data: Batch) -> Batch:
        """Let the scale of the critic follow the returns of learning data, and return the data in the new units.

        The output of the critic changes with the scale, so all values stay as they are.
        """
        if self.config.learn.value_norm in (False, "symlog"):
            return data
        known = {name: self._returns_of(data[name]) for name in ("value", "return")}
        self._take_in_returns(known["return"], data["obs"])
        return {**data, **{name: self._outputs_for(column) for name, column in known.items()}}

    def _take_in_returns(self, value: Tensor, obs: Any = None) -> None:
        """Add returns, in units of the reward, to the statistics of the critic's scale; no value changes.

        Args:
            value: Returns, shape (S,).
            obs: Some observations, leading axis B, which tell the output layer of a network without ``critic_output``.
        """
        if self.config.learn.value_norm in (False, "symlog"):
            return
        before = self._moments()
        self.return_statistics.forget(RETURNS_KEPT)
        update_over_ranks(self.return_statistics, value)
        self._keep_values(before, self._output_layer(obs))

    def _keep_values(self, before: tuple[Tensor, Tensor], layer: nn.Linear | None) -> None:
        """Change the output of the critic so that it has the same values as with other moments before."""
        if layer is None or self.return_statistics.corrects:
            if not self.return_statistics.corrects and rank_and_world_size()[0] == 0:
                logger.warning(
                    "the last layer of the critic cannot follow the scale of the returns (learn.value_norm), so an "
                    "affine function after it does, and large returns are learned more slowly: end the critic with a "
                    "plain nn.Linear with one output and a bias, or name such a layer critic_output"
                )
            weight, bias = self.return_statistics.correction()
        else:
            weight, bias = layer.weight, layer.bias
        rl.rescale_output(weight, bias, *before, *self._moments())
        torch.clear_autocast_cache()  # it would keep the layer from before

    def _output_layer(self, obs: Any) -> nn.Linear | None:
        """Return the layer whose output is the value; None if it is not known or cannot be changed in place."""
        layer, model = getattr(self.model, "critic_output", None), cast(Any, self.model)
        if layer is None and obs is not None and hasattr(model, "compute_critic"):
            few = nested.index(obs, slice(0, 2))
            with torch.no_grad(), self._in_eval_mode:
                layer = output_layer(self.model, lambda: model.compute_critic(few)["value"])
        return layer if has_own_weights(layer) else None

    def _corrected(self, output: Tensor) -> Tensor:
        """Return the critic's output in its present scale, for the output of the network."""
        if self.config.learn.value_norm in (False, "symlog") or not self.return_statistics.corrects:
            return output
        gain, offset = self.return_statistics.correction()
        return output * gain.to(output) + offset.to(output)

    def _returns_of(self, output: Tensor) -> Tensor:
        kind = self.config.learn.value_norm
        if kind == "symlog":
            return rl.symexp(output)
        if kind is False:
            return output
        mean, scale = self._moments()
        return output * scale + mean

    def _outputs_for(self, value: Tensor) -> Tensor:
        kind = self.config.learn.value_norm
        if kind == "symlog":
            return rl.symlog(value)
        if kind is False:
            return value
        mean, scale = self._moments()
        return (value - mean) / scale

    def _moments(self, kind: Any = None) -> tuple[Tensor, Tensor]:
        """Return the shift and the scale of the critic's output, with the config's ``value_norm`` or another one."""
        statistics = self.return_statistics
        if (kind or self.config.learn.value_norm) == "popart":
            return statistics.mean.float(), statistics.std.clamp(min=SMALLEST_STD).float()
        return torch.zeros_like(statistics.mean, dtype=torch.float), statistics.root_mean_square.float()

    # ------------------------------------------------------------------ state

    def _state_dict_learn(self) -> dict[str, Any]:
        state, statistics = super()._state_dict_learn(), getattr(self, "return_statistics", None)
        return state if statistics is None else state | {"return_statistics": statistics.state_dict()}

    def _load_state_dict_learn(self, state: dict[str, Any]) -> None:
        super()._load_state_dict_learn(state)
        if "return_statistics" in state:
            self.return_statistics.load_state_dict(state["return_statistics"])

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Note the scale of the critic in a checkpoint (Lightning hook)."""
        super().on_load_checkpoint(checkpoint)
        cfg = checkpoint.get("hyper_parameters", {}).get("cfg", {})
        self._loaded_kind = cfg.get("learn", {}).get("value_norm")

    def on_train_start(self) -> None:
        """Keep the values of a checkpoint whose ``value_norm`` was true and is "popart" now, or the other way round."""
        super().on_train_start()
        kinds = (self._loaded_kind, self.config.learn.value_norm)
        if kinds in ((True, "popart"), ("popart", True)):
            self._keep_values(self._moments(kinds[0]), self._output_layer(None))
        self._loaded_kind = None

    def _monitor_vars_learn(self) -> list[str]:
        return ["cur_lr", "total_loss", "policy_loss", "value_loss", "entropy_loss"]


def _shifted(logit: Any, noise: Tensor) -> Any:
    """Return the output of an actor with another mean of the continuous action."""
    if "action_args" in logit:
        return {**logit, "action_args": _shifted(logit["action_args"], noise)}
    return {**logit, "mu": logit["mu"] + noise}
