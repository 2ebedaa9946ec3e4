"""PPO with a recurrent network, which learns from sequences of a rollout.

Papers: Schulman et al. 2017 (https://arxiv.org/abs/1707.06347); stored states: Kapturowski et al. 2019, section 3
(https://openreview.net/forum?id=r1lyTjAqYX).

Where this differs from the RecurrentPPO of Stable-Baselines3's contrib package: a rollout is cut into sequences of
``learn_unroll_len`` steps, each with the state that the policy had before its first step, and a minibatch has whole
sequences. An episode may end inside a sequence, where the state is set to zero. Actor and critic share one core by
default. From ``ppo`` here, only the network, the sequences and the minibatches differ.

Shapes: S transitions of a rollout, T steps of a sequence, B sequences of a minibatch, R real steps of a minibatch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from lightning_ding import nested, rl
from lightning_ding.config import require
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.base.recurrent import EnvStates, RecurrentModelConfig, act, memory_of, with_memory
from lightning_ding.policy.base.round import Batch
from lightning_ding.policy.on_policy import ActorCriticPolicy
from lightning_ding.policy.on_policy_options import ActorCriticModelConfig
from lightning_ding.policy.ppo import PPOConfig, PPOPolicy
from lightning_ding.registry import POLICY_REGISTRY
from lightning_ding.utils.modes import IS_FIRST, STATE
from lightning_ding.utils.ranks import min_over_ranks

OF_SEQUENCES = (STATE, IS_FIRST)  # all other columns of a minibatch are of real steps only


@dataclass(frozen=True, kw_only=True)
class RecurrentPPOModelConfig(RecurrentModelConfig, ActorCriticModelConfig):
    """The network of an actor and a critic, with recurrent layers."""

    share_encoder: bool = True
    """Use one encoder and one core for actor and critic."""


@dataclass(frozen=True, kw_only=True)
class RecurrentPPOConfig(PPOConfig):
    """Everything that can be set of recurrent PPO."""

    learn_unroll_len: int = 32
    """Steps of a sequence, >= 1; the gradient reaches no further back."""
    model: RecurrentPPOModelConfig = field(default_factory=RecurrentPPOModelConfig)  # type: ignore[assignment]
    """The network."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.learn_unroll_len >= 1, "learn_unroll_len", ">= 1", self.learn_unroll_len)
        for name in ("learning_rate_actor", "learning_rate_critic"):
            rate = getattr(self.learn, name)
            require(rate is None, f"learn.{name}", "None with recurrent_ppo, which has one optimizer", rate)


@POLICY_REGISTRY.register("recurrent_ppo")
@with_memory
class RecurrentPPOPolicy(ActorCriticPolicy[RecurrentPPOConfig]):
    """PPO with memory; the actions and observations of :class:`PPOPolicy`.

    The arguments are those of :class:`Policy`; a ``model`` has the methods of :class:`RecurrentVAC`. The policy keeps
    the state of each env between the calls of its modes, until ``reset`` with the env's number;
    ``forward`` keeps none and acts as at the start of an episode.

    Example:
        >>> policy = RecurrentPPOPolicy({"model": {"obs_shape": 4, "action_shape": 2, "action_space": "discrete"}})
        >>> policy.eval_mode.forward(torch.zeros(3, 4))["action"].shape
        torch.Size([3])
    """

    config_class: ClassVar[type[PolicyConfig]] = RecurrentPPOConfig
    supports_tensors: ClassVar[bool] = True
    config: RecurrentPPOConfig
    parts_of_model: ClassVar[tuple[str, ...]] = ("first_state", "act")
    _collecting: EnvStates
    _evaluating: EnvStates
    _sequences: rl.Sequences  # of the rollout that is being learned from

    # ------------------------------------------------------------------ acting

    def _forward_collect(self, obs: Any) -> dict[str, Any]:  # type: ignore[override]
        output = act(self, self._collecting, obs)
        distribution = self._distribution(output["logit"], obs)
        drawn = distribution.sample(self.noise_source)
        acted = {"action": self._to_env(drawn), "drawn": drawn, "log_prob": distribution.log_prob(drawn)}
        return acted | memory_of(output)

    def _forward_eval(self, obs: Any) -> dict[str, Any]:
        output = act(self, self._evaluating, obs)
        return {"action": self._to_env(self._distribution(output["logit"], obs).mode())}

    # ------------------------------------------------------------------ learning

    # the passes over a rollout and the losses are those of PPO
    _forward_learn: Any = PPOPolicy._forward_learn
    _has_moved_far: Any = PPOPolicy._has_moved_far
    _policy_loss: Any = PPOPolicy._policy_loss
    _value_loss: Any = PPOPolicy._value_loss

    def _network_output(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``logit`` and ``value`` of the R real steps of a minibatch.

        Args:
            batch: ``sequences``, the observations with leading axes (T, B), ``recurrent_state`` (B, S) before their
                first step, ``is_first`` (T, B), and ``rows`` (R,), the numbers of the real steps among all T B. Of
                these, leading axis R: ``obs``, and what :meth:`ActorCriticPolicy.loss` reads.
        """
        output = self.model(batch["sequences"], batch[STATE], batch[IS_FIRST])
        logit, rows = output["logit"], batch["rows"]
        chosen = [part[rows] for part in logit] if isinstance(logit, list) else nested.index(logit, rows)
        return {"logit": chosen, "value": output["value"][rows]}

    @torch.no_grad()
    def _learning_data(self, rollout: Batch, sequences: rl.Sequences) -> Batch:
        self._sequences = sequences
        value = self._rollout_values(rollout)
        final = {name: rollout[name] for name in ("obs", "next_obs", STATE)}  # what _values needs
        advantage, target = self._advantage(rollout | {"next_obs": final}, value, sequences)
        kept = {name: rollout[name] for name in ("obs", "action", "log_prob", STATE, IS_FIRST)}
        return self._added_columns(rollout) | kept | {"value": value, "advantage": advantage, "return": target}

    def _rollout_values(self, rollout: Batch) -> Tensor:
        """Return the values of all observations, shape (S,), with the states that lead to them from the stored ones."""
        index, valid = self._sequences.cut(self.config.learn_unroll_len)
        obs, starts = nested.index(rollout["obs"], index), rollout[IS_FIRST][index]
        with self._in_eval_mode:
            value = self.model(obs, rollout[STATE][index[0]], starts)["value"]
        real = valid.flatten()
        values: Tensor = value.new_empty(len(rollout[IS_FIRST]), *value.shape[1:])
        return values.index_put((index.flatten()[real],), self._corrected(value)[real])

    def _values(self, obs: Any) -> Tensor:
        """Return the values of ``next_obs``, from the ``obs`` before it and the state before that."""
        with self._in_eval_mode:
            value: Tensor = self.model(nested.stack([obs["obs"], obs["next_obs"]]), obs[STATE])["value"]
        return self._corrected(value)[len(obs[STATE]) :]

    def _minibatches(self, data: Batch) -> Iterator[Batch]:
        """Yield minibatches of shuffled whole sequences, whose numbers differ by one at most, as many on every rank."""
        index, valid = self._sequences.cut(self.config.learn_unroll_len)
        amount, size = index.shape[1], nested.length(data)
        wanted = max(1, round(size / (self.config.learn.batch_size or size)))
        number = min_over_ranks(min(amount, wanted))
        order = self._permutation(amount)
        parts = [self._minibatch(data, index[:, some], valid[:, some]) for some in order.tensor_split(number)]
        if self._standardised() is not None:
            rows = [nested.apply(lambda x: x.unsqueeze(0), part["obs"]) for part in parts]
            tables = self._standardise([part["advantage"].unsqueeze(0) for part in parts], rows)
            parts = [part | {"advantage": table[0]} for part, table in zip(parts, tables, strict=True)]
        yield from parts

    def _minibatch(self, data: Batch, index: Tensor, valid: Tensor) -> Batch:
        rows = valid.flatten().nonzero().squeeze(1)
        real = index.flatten()[rows]
        unrolled = {"sequences": nested.index(data["obs"], index), STATE: data[STATE][index[0]], "rows": rows}
        of_steps = {name: nested.index(column, real) for name, column in data.items() if name not in OF_SEQUENCES}
        return {**unrolled, IS_FIRST: data[IS_FIRST][index], **of_steps}

    @property
    def update_per_collect(self) -> int:
        """Updates that a rollout gives, in all passes."""
        return self.config.learn.epoch_per_collect * super().update_per_collect

    def _monitor_vars_learn(self) -> list[str]:
        return [*super()._monitor_vars_learn(), "approx_kl", "clip_fraction"]

    def default_model(self) -> tuple[str, list[str]]:
        """Return the registered recurrent actor-critic network."""
        return "recurrent_vac", ["lightning_ding.model.recurrent_vac"]
