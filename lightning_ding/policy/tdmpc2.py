"""TD-MPC2: plans in the latent space of a learned model, whose value function sees beyond the plan.

Paper: Hansen et al. 2024 (https://arxiv.org/abs/2310.16828); numbers and details are those of the authors' code, with
its later prediction of terminations. An encoder and a model of the next latent state learn to agree with each other on
sequences of ``horizon`` steps, and predict rewards and values; nothing is decoded. A policy prior learns to maximise
the values. Actions are planned by MPPI, see :mod:`lightning_ding.rl.planning`: candidates are drawn around the previous
plan and from the prior, and valued by the model. The means of the plans are state of the envs, as that of a recurrent
network is: workers reset it where an episode ends, and checkpoints hold that of collecting.

Collecting and evaluations plan unless ``collect.planning`` or ``eval.planning`` is false. ``predict``, ``forward`` and
exported graphs take the action of the policy prior, which needs no plan; ``policy.actor()`` plans.

The authors set ``discount_factor`` by the steps n of an episode: 1 - 5 / n, within [0.95, 0.995].

Where this differs: every evaluation draws the same random numbers, equal in all envs, from a separate generator, so
that it is repeatable and does not disturb the run. Sequences end with their episode, and their missing steps count as
0. The scale of values that the prior's loss divides by is that before the update, and its smallest value, 1, applies to
the average. Dropout leaves out units of both hidden layers of the critics. Both optimizers have one epsilon. There are
no additional updates after the random steps. Plans whose value is NaN are the worst ones, not those of value 0. One
task is learned.

Shapes: T steps of a sequence (``horizon``), L = T + 1 latent states, B sequences or envs, A dimensions of an action, Z
size of a latent state, E critics, K candidates, P of them from the prior, I iterations, S = T A.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypedDict

import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor

from lightning_ding import rl
from lightning_ding.policy.base.action_bounds import ActionBounds, continuous_action
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.base.optimizers import make_optimizer
from lightning_ding.policy.base.recurrent import EnvStates, with_env_states
from lightning_ding.policy.base.spaces import obs_shape
from lightning_ding.policy.replay_policy import ReplayPolicy
from lightning_ding.policy.tdmpc2_options import TDMPC2Config
from lightning_ding.registry import POLICY_REGISTRY
from lightning_ding.rl.world_models import without_cache
from lightning_ding.utils.ranks import gather_rows

if TYPE_CHECKING:
    from lightning_ding.policy.base.export import Format
    from lightning_ding.policy.base.predict import Way

PAIR = 2  # critics that are drawn for a value


class PlanNoise(NamedTuple):
    """The random numbers of plans in B envs; with an axis of 1 for B, all envs have the same."""

    candidates: Tensor
    """Standard normal numbers, shape (I, B, K - P, T, A)."""
    proposals: Tensor
    """Standard normal numbers of the prior's plans, shape (T, B, P, A)."""
    last: Tensor
    """Standard normal numbers of the prior's actions after the plans, shape (I, B, K, A)."""
    critics: Tensor
    """Indices of the critics of an iteration, shape (I, 2)."""
    elite: Tensor
    """Standard Gumbel numbers that select an elite, shape (B, M)."""


class TDMPC2Batch(TypedDict, total=False):
    """A minibatch of B sequences of T steps, as the losses read it."""

    obs: Tensor
    """Observations before the steps, of which the first are read, shape (T, B, ...)."""
    next_obs: Tensor
    """Observations after the steps, shape (T, B, ...)."""
    action: Tensor
    """Actions in [-1, 1], shape (T, B, A)."""
    reward: Tensor
    """Rewards, shape (T, B)."""
    discount_t: Tensor
    """gamma, or 0 after termination, shape (T, B)."""
    end: Tensor
    """1 where a step terminated its episode, else 0, shape (T, B)."""
    mask: Tensor
    """1 for latent states of real steps, 0 for padding, shape (L, B); the first row is 1."""
    next_noise: Tensor
    """Standard normal numbers of the next actions, shape (T, B, A)."""
    noise: Tensor
    """Standard normal numbers of the actions that the prior's loss values, shape (L, B, A)."""
    critics: Tensor
    """Indices of the critics of the targets and of the prior's loss, equal in all sequences, shape (2, B, 2)."""
    dropout: Tensor
    """Random integers for the dropout in the steps, shape (T, B); with ``model.dropout``."""
    actor_dropout: Tensor
    """Random integers for the dropout in the prior's loss, shape (L, B)."""
    latent: Tensor
    """Latent states, predicted after the first one, shape (L, B, Z); of the prior's loss."""


@POLICY_REGISTRY.register("tdmpc2")
@with_env_states
class TDMPC2Policy(ReplayPolicy[TDMPC2Config]):
    """TD-MPC2 for continuous actions; vector observations.

    The arguments are those of :class:`Policy`; a ``model`` has the parts of :class:`~lightning_ding.model.TDMPC2`.
    The policy keeps the mean of each env's plan between the calls of its modes, until ``reset`` with the env's number.

    Example:
        >>> policy = TDMPC2Policy({"model": {"obs_shape": 3, "action_shape": 1}, "plan": {"num_samples": 64}})
        >>> policy.eval_mode.forward({0: torch.zeros(3), 1: torch.ones(3)})[1]["action"].shape
        torch.Size([1])
    """

    config_class: ClassVar[type[PolicyConfig]] = TDMPC2Config
    learns_from_sequences: ClassVar[bool] = True
    parts_of_model: ClassVar[tuple[str, ...]] = ("encoder", "dynamics", "reward", "actor", "critic", "bins")
    action_bounds: ActionBounds
    model: Any
    _plans = True
    _collecting: EnvStates
    _evaluating: EnvStates
    _evaluating_rng: np.random.Generator

    def _init_spaces(self) -> None:
        super()._init_spaces()
        model = self.config.model
        size = self.model.action_size
        low, high = model.action_low or [-1.0] * size, model.action_high or [1.0] * size
        self.action_bounds = ActionBounds(size).to(self.device)
        self.action_bounds.set(low, high, bool(model.action_integer))

    def _init_learn(self) -> None:
        learn, model = self.config.learn, self.model
        self._make_target()
        self.value_range = rl.ReturnRange()
        """Percentiles of the values of the prior's actions, by which its loss is scaled."""
        parts = (model.dynamics, model.reward, model.critic, *([] if model.end is None else [model.end]))
        groups: Any = [
            {"params": [parameter for part in parts for parameter in part.parameters()]},
            {"params": model.encoder.parameters(), "lr": learn.learning_rate * learn.encoder_lr_scale},
        ]
        trained = (groups, model.actor.parameters())
        self.updater.optimizers = [make_optimizer(learn.optimizer, one, learn.learning_rate) for one in trained]

    # ------------------------------------------------------------------ acting

    def _forward_collect(self, obs: Any) -> dict[str, Tensor]:  # type: ignore[override]
        """Return planned actions with the plan's noise, or sampled actions of the policy prior."""
        number, size = len(obs), self.model.action_size
        noise = torch.from_numpy(self.rng.standard_normal((number, size), dtype=np.float32)).to(self.device)
        if self._plans and self.config.collect.planning:
            plan, drawn = self._plan(self._collecting, obs, self._plan_noise(self.rng, number))
            action = rl.first_action(plan, drawn.elite, noise)
        else:
            action, _ = self.model.prior(self.model.encoder(obs), noise)
        return {"action": self.action_bounds.to_env(action)}

    def _forward_eval(self, obs: Any) -> dict[str, Tensor]:
        if not (self._plans and self.config.eval.planning):
            return {"action": self.action_bounds.to_env(self.model.prior(self.model.encoder(obs))[0])}
        plan, drawn = self._plan(self._evaluating, obs, self._plan_noise(self._evaluating_rng, 1))
        return {"action": self.action_bounds.to_env(rl.first_action(plan, drawn.elite))}

    def _plan(self, states: EnvStates, obs: Any, noise: PlanNoise) -> tuple[rl.Plan, PlanNoise]:
        """Return the plans of B envs and the random numbers, on the device; keep the means for the next step."""
        model, config = self.model, self.config.plan
        drawn = PlanNoise(*(one.to(self.device) for one in noise))
        latent = model.encoder(obs).unsqueeze(1)
        shape = (len(latent), self.config.horizon, model.action_size)
        env_ids: Any = self._action_selector.env_ids  # type: ignore[attr-defined]
        mean, _ = states.read(env_ids, latent.new_zeros(shape).flatten(1))
        starts = latent.expand(-1, config.num_policy_samples, -1)
        proposals = model.rollout(starts, drawn.proposals.expand(-1, len(latent), -1, -1))
        candidates = latent.expand(-1, config.num_samples, -1)

        def value_of(plans: Tensor, iteration: int) -> Tensor:
            numbers = drawn.last[iteration].expand(len(latent), -1, -1), drawn.critics[iteration]
            value: Tensor = model.plan_value(candidates, plans, self.config.discount_factor, *numbers)
            return value

        spread: dict[str, Any] = {
            "min_std": config.min_std,
            "max_std": config.max_std,
            "temperature": config.temperature,
        }
        given = (mean.view(shape), proposals, drawn.candidates)
        plan = rl.mppi(value_of, *given, num_elites=config.num_elites, **spread)
        states.write(env_ids, rl.moved_on(plan.mean).flatten(1))
        return plan, drawn

    def _plan_noise(self, rng: np.random.Generator, envs: int) -> PlanNoise:
        config, steps, size = self.config.plan, self.config.horizon, self.model.action_size
        samples, proposed = config.num_samples, config.num_policy_samples
        shapes = (
            (config.iterations, envs, samples - proposed, steps, size),
            (steps, envs, proposed, size),
            (config.iterations, envs, samples, size),
        )
        candidates, proposals, last = (torch.from_numpy(rng.standard_normal(one, dtype=np.float32)) for one in shapes)
        elite = torch.from_numpy(rng.gumbel(size=(envs, config.num_elites)).astype(np.float32))
        return PlanNoise(candidates, proposals, last, self._pairs(rng, config.iterations), elite)

    def _pairs(self, rng: np.random.Generator, number: int) -> Tensor:
        """Return the indices of pairs of different critics, shape (number, 2)."""
        order = rng.random((number, self.model.ensemble_num)).argsort(1)
        return torch.from_numpy(order[:, :PAIR].copy())

    # ------------------------------------------------------------------ acting without plans

    def new_memory(self, way: Way) -> dict[str, Any]:
        """Return what plans of envs need, by the attribute that holds it; nothing where actions are not planned."""
        if way == "collect":
            return {"_collecting": EnvStates()} if self._plans and self.config.collect.planning else {}
        if not (self._plans and self.config.eval.planning):
            return {}
        return {"_evaluating": EnvStates(), "_evaluating_rng": np.random.default_rng(0)}

    def _reset_eval(self, data_id: Sequence[int] | None = None) -> None:
        self._evaluating.reset(data_id)
        if data_id is None:  # an evaluation begins
            self._evaluating_rng = np.random.default_rng(0)

    @contextmanager
    def _without_plans(self) -> Iterator[None]:
        self._plans = False
        try:
            yield
        finally:
            self._plans = True

    def predict(self, obs: Any, *, deterministic: bool = True) -> Any:
        """Return the action of the policy prior, as ``env.step`` takes it; ``actor`` plans instead."""
        with self._without_plans():
            return super().predict(obs, deterministic=deterministic)

    def forward(self, obs: Any) -> Tensor:
        """Return the mean action of the policy prior for each of B observations."""
        with self._without_plans():
            return super().forward(obs)

    def export(self, path: str | os.PathLike[str], format: Format = "onnx", agent: int | None = None) -> Path:
        """Write the policy prior as a graph, or the whole policy as safetensors; see :meth:`Policy.export`."""
        with self._without_plans():
            return super().export(path, format, agent)

    # ------------------------------------------------------------------ learning

    def prepare(self, data: Mapping[str, Any]) -> Any:
        """Return a :class:`TDMPC2Batch` of a minibatch of T steps, which a sequence buffer gives.

        Minibatches that are already prepared are returned unchanged.
        """
        if "next_noise" in data:
            return dict(data)
        reward = data["reward"]
        mask = data["mask"].to(reward)
        found = {
            "obs": data["obs"],
            "next_obs": data["next_obs"],
            "action": self.action_bounds.from_env(data["action"]).to(reward),
            "reward": reward,
            "discount_t": self._discount(data),
            "end": data["terminated"].to(reward) * (not self.config.learn.ignore_done),
            "mask": torch.cat([torch.ones_like(mask[:1]), mask]),
            "critics": self._pairs(self.rng, 2).unsqueeze(1).expand(-1, reward.shape[1], -1).to(reward.device),
        }
        return found | {name: value.to(reward.device) for name, value in self._noise_of(reward).items()}

    def _noise_of(self, reward: Tensor) -> dict[str, Tensor]:
        steps, size = reward.shape
        numbers = self.rng.standard_normal((2 * steps + 1, size, self.model.action_size), dtype=np.float32)
        next_noise, noise = torch.from_numpy(numbers).to(reward.dtype).split([steps, steps + 1])
        found = {"next_noise": next_noise, "noise": noise}
        if self.config.model.dropout:
            integers = torch.from_numpy(self.rng.integers(2**32, size=(2 * steps + 1, size)))
            found["dropout"], found["actor_dropout"] = integers.split([steps, steps + 1])
        return found

    def _prepare_round(self, data: dict[str, Any]) -> dict[str, Any]:
        return data

    def _forward_learn(self, batch: Any) -> dict[str, Any]:
        with self._target_in_eval_mode:  # outside of the loss, which may be compiled
            report = self.updater.minimise(self.loss, batch)
        report |= self.updater.minimise(self.actor_loss, {**batch, "latent": report.pop("latent")}, index=1)
        self.value_range.update(gather_rows(report.pop("first_values")))
        self._update_target("critic")
        return report

    def loss(self, batch: TDMPC2Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of the model and the critics (section 3.1), and the metrics to report, detached.

        It reports ``latent``, the latent states of the sequences, shape (L, B, Z), ``q_value`` (E, T, B),
        ``target_q_value`` (T, B), and scalars: ``total_loss`` and its parts.
        """
        with without_cache(batch["reward"].device.type):
            return self._loss(batch)

    def _loss(self, batch: TDMPC2Batch) -> tuple[Tensor, dict[str, Tensor]]:
        model, learn, action = self.model, self.config.learn, batch["action"]
        with torch.no_grad(), self._in_eval_mode.context:
            next_latent, target = self._targets(batch)
        latents, errors = [model.encoder(batch["obs"][0])], list[Tensor]()
        for step, expected in enumerate(next_latent):
            latents.append(model.next(latents[-1], action[step]))
            errors.append((latents[-1] - expected).square().mean(-1))
        latent = torch.stack(latents)
        logit = model.value_logit(latent[:-1], action, dropout=batch.get("dropout"))
        losses = {
            "consistency_loss": self._mean(torch.stack(errors), batch),
            "reward_loss": self._mean(
                model.cross_entropy(model.reward_logit(latent[:-1], action), batch["reward"]), batch
            ),
            "critic_loss": self._mean(model.cross_entropy(logit, target.expand(logit.shape[:-1])).mean(0), batch),
        }
        weights = [learn.consistency_weight, learn.reward_weight, learn.value_weight]
        if model.end is not None:
            ends = F.binary_cross_entropy_with_logits(model.end_logit(latent[1:]), batch["end"], reduction="none")
            losses["end_loss"] = (ends * batch["mask"][1:]).sum() / ends.numel()
            weights.append(learn.end_weight)
        loss = torch.stack([weight * one for weight, one in zip(weights, losses.values(), strict=True)]).sum()
        report = {name: one.detach() for name, one in losses.items()}
        report |= {"latent": latent.detach(), "q_value": model.decoded(logit.detach()), "target_q_value": target}
        return loss, {"total_loss": loss.detach(), **report}

    def _targets(self, batch: TDMPC2Batch) -> tuple[Tensor, Tensor]:
        """Return the latent states of the next observations, (T, B, Z), and the targets of the critics, (T, B)."""
        model, next_obs = self.model, batch["next_obs"]
        latent = model.encoder(next_obs.flatten(0, 1)).unflatten(0, next_obs.shape[:2])
        action, _ = model.prior(latent, batch["next_noise"])
        logit = model.value_logit(latent, action, batch["critics"][0, 0], critic=self.target_model.critic)
        return latent, batch["reward"] + batch["discount_t"] * model.decoded(logit).amin(0)

    def actor_loss(self, batch: TDMPC2Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of the policy prior (section 3.1), and the metrics to report, detached.

        It maximises the mean of two critics, divided by the scale of values, and the entropy. The estimate of the
        entropy is that of the authors: minus the log density before squashing, times A. It reports ``first_values``,
        shape (B,), and scalars.
        """
        model, latent = self.model, batch["latent"]
        action, log_prob = model.prior(latent, batch["noise"])
        logit = model.value_logit(latent, action, batch["critics"][1, 0], batch.get("actor_dropout"))
        value, entropy = model.decoded(logit).mean(0), -model.action_size * log_prob
        gain = value / self.value_range.scale + self.config.learn.entropy_weight * entropy
        loss = -self._mean(gain, batch)
        first = torch.where(loss.isfinite(), value[0], torch.nan).detach()  # of a step that is skipped, nothing counts
        report = {"actor_loss": loss.detach(), "entropy": -log_prob.detach().mean(), "first_values": first}
        return loss, {**report, "value_scale": self.value_range.scale}

    def _mean(self, x: Tensor, batch: TDMPC2Batch) -> Tensor:
        """Return the sum over real rows, weighted by rho to the power of the step, divided by the number of all rows.

        Args:
            x: Losses of the T steps or of the L latent states, shape (T, B) or (L, B).
            batch: The minibatch.
        """
        mask = batch["mask"][len(batch["mask"]) - len(x) :]
        rho = self.config.learn.rho ** torch.arange(len(x), device=x.device)
        return (x * mask * rho.to(x).unsqueeze(1)).sum() / x.numel()

    # ------------------------------------------------------------------ attributes

    def default_model(self) -> tuple[str, list[str]]:
        """Return the registered networks."""
        return "tdmpc2", ["lightning_ding.model.tdmpc2"]

    def _shapes_of(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> dict[str, Any]:
        return {"obs_shape": obs_shape(observation_space), **continuous_action(action_space, type(self).__name__)}

    @property
    def sample_options(self) -> dict[str, Any]:
        """Return the arguments of the buffer's ``sample``."""
        return {"n_step": 1, "discount_factor": self.config.discount_factor, "sequence": self.config.horizon}

    def _monitor_vars_learn(self) -> list[str]:
        losses = ("consistency_loss", "reward_loss", "critic_loss", "actor_loss")
        return [*super()._monitor_vars_learn(), *losses, "q_value", "target_q_value", "entropy"]

    def _state_dict_learn(self) -> dict[str, Any]:
        return super()._state_dict_learn() | {"value_range": self.value_range.state_dict()}

    def _load_state_dict_learn(self, state: dict[str, Any]) -> None:
        super()._load_state_dict_learn(state)
        self.value_range.load_state_dict(state["value_range"])
