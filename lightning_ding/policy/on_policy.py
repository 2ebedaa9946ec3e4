"""The base of algorithms that learn from rollouts: acting, minibatches, and generalised advantages with a critic.

Papers: advantages: Schulman et al. 2016, eq. 16 (https://arxiv.org/abs/1506.02438); noise on the mean: Rahman and Xue
2022, algorithm 1 (https://arxiv.org/abs/2212.07536).

Shapes: S transitions of a rollout, T steps, N envs, B batch, A dimensions of a continuous action.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, TypedDict, cast

import torch
from gymnasium import spaces
from torch import Tensor, nn

from lightning_ding import nested, rl
from lightning_ding.config import require
from lightning_ding.policy.base.action_bounds import ActionBounds, actor_shapes
from lightning_ding.policy.base.optimizers import make_optimizer
from lightning_ding.policy.base.policy import ConfigT, Policy
from lightning_ding.policy.base.rank_statistics import standardise_over_ranks
from lightning_ding.policy.base.round import Batch
from lightning_ding.policy.base.spaces import obs_shape
from lightning_ding.policy.critic_scale import ScaledCriticPolicy
from lightning_ding.policy.state_dependent_exploration import explores_by_state, uses_sde, with_noise
from lightning_ding.utils.modes import IS_FIRST, STATE, not_implemented
from lightning_ding.utils.ranks import min_over_ranks

USUAL_COLUMNS = frozenset(
    {
        *("obs", "action", "log_prob", "reward", "next_obs", "terminated", "truncated", "done", STATE, IS_FIRST),
        *("env_id", "episode_id", "policy_version", "collect_iter", "seed", "data_id", "is_expert"),
        *("value", "advantage", "return", "discount", "is_prepared", "mask"),
        *("IS", "priority", "replay_unique_id", "replay_buffer_idx"),
    }
)
"""Columns that collectors, buffers and these algorithms make; a subclass has added all others."""
LARGEST_FORWARD = 4096  # rows of a forward pass without gradient

RolloutBatch = TypedDict(
    "RolloutBatch",
    {
        "obs": Any,  # observations, leading axis B
        "action": Any,  # actions as they were drawn, in the network's units
        "log_prob": Tensor,  # of the actions by the policy that acted, shape (B,)
        "value": Tensor,  # output of the critic before the updates, shape (B,)
        "advantage": Tensor,  # shape (B,)
        "return": Tensor,  # target of the critic's output, shape (B,)
        "mean_noise": Tensor,  # added to the mean of continuous actions, shape (B, A); with rpo_alpha
        "entropy_weight": Tensor,  # in place of learn.entropy_weight; with a schedule
        "clip_ratio": Tensor,  # in place of learn.clip_ratio; with a schedule
    },
    total=False,
)
"""A minibatch as losses read it, and what ``_process_transition`` of a subclass adds and ``loss_columns`` names."""


class ActorPolicy(Policy[ConfigT]):
    """A policy that acts by a distribution over actions.

    Actions are discrete, multi-discrete, continuous or hybrid, as the config's ``model.action_space`` or the env says.
    Networks give continuous actions in units of half the env's range; what leaves the range is clipped for the env
    only, so that probabilities stay those of the action drawn.
    """

    shape_names: ClassVar[tuple[str, ...]] = ("obs_shape", "action_shape", "action_space")
    config: Any

    def _forward_eval(self, obs: Any) -> dict[str, Any]:
        return {"action": self._to_env(self._distribution(self._logit(obs), obs).mode())}

    def _logit(self, obs: Any) -> Any:
        """Return the parameters of the distribution over actions, see :func:`rl.distribution_of`."""
        return self.model(obs)["logit"]

    def _distribution(self, logit: Any, obs: Any) -> rl.Distribution:
        return rl.distribution_of(logit, obs.get("action_mask") if isinstance(obs, Mapping) else None)

    def _to_env(self, action: Any) -> Any:
        if isinstance(action, Mapping):
            return self.action_start.to_env({**action, "action_args": self._to_env(action["action_args"])})
        if not action.is_floating_point():
            return self.action_start.to_env(action)
        section, names = self.config.model, "model.action_space and model.action_shape"
        needed = "set if a custom network has continuous actions and there is no env"
        require(self.bounds is not None, names, needed, (section.action_space, section.action_shape))
        return cast(ActionBounds, self.bounds).to_env(action)

    def _init_spaces(self) -> None:
        super()._init_spaces()
        self.bounds: ActionBounds | None = None
        section = self.config.model
        shape, low, high = section.action_shape, section.action_low, section.action_high
        if section.action_space in ("discrete", None) or shape is None:  # a custom network's size is known from the env
            return
        size = self._continuous_size()
        self.bounds = ActionBounds(size, allow_unbounded=True).to(self.device)
        self.bounds.set(low or [-1.0] * size, high or [1.0] * size, bool(section.action_integer))

    def _continuous_size(self) -> int:
        """Return the number of continuous dimensions of an action of the env."""
        shape = self.config.model.action_shape
        return int(shape["action_args_shape"] if isinstance(shape, Mapping) else shape)

    def _shapes_of(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> dict[str, Any]:
        return {"obs_shape": obs_shape(observation_space), **actor_shapes(action_space, type(self).__name__)}


class OnPolicyPolicy(ActorPolicy[ConfigT]):
    """A policy that keeps the probabilities of its actions, and learns from rollouts.

    It learns once from each rollout that it collected, in a pass over shuffled minibatches. A subclass with
    ``on_policy`` false learns from the minibatches of a replay buffer, whose config is a :class:`ReplayedConfig`.

    A subclass implements ``_learning_data``, which gives the columns that its ``loss`` reads, and ``loss``. An update
    is a minibatch, so ``train_iter`` counts minibatches. Under DDP all ranks make equally many of them, however many
    transitions each has.
    """

    on_policy: ClassVar[bool] = True
    compiles_acting: ClassVar[bool] = True
    """Whether ``_forward_collect`` is a function of tensors that changes nothing."""
    loss_columns: ClassVar[tuple[str, ...]] = ()
    """Usual columns of a transition that ``loss`` reads in addition, such as "next_obs"; those that a subclass adds to
    a transition are always there."""

    # ------------------------------------------------------------------ to implement

    def loss(self, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a minibatch of the data of ``_learning_data``, and the metrics to report, detached."""
        raise not_implemented(self, "loss")

    def _learning_data(self, rollout: Batch, sequences: rl.Sequences) -> Batch:
        """Return the columns that ``loss`` reads, leading axis S; ``advantage`` among them is perhaps standardised."""
        raise not_implemented(self, "_learning_data")

    def _added_columns(self, data: Mapping[str, Any]) -> Batch:
        """Return the columns that a subclass has added to transitions, and those that ``loss_columns`` names.

        Raises:
            ValueError: If transitions have no column of such a name.
        """
        for name in self.loss_columns:
            require(name in data, "loss_columns", f"names of columns, one of {sorted(data)}", name)
        return {name: column for name, column in data.items() if name not in USUAL_COLUMNS or name in self.loss_columns}

    def _standardised(self) -> str | None:
        """Return the column that is standardised in each minibatch, if any."""
        return None

    # ------------------------------------------------------------------ acting

    def _forward_collect(self, obs: Any) -> dict[str, Any]:  # type: ignore[override]
        logit = self._logit(obs)
        distribution = self._distribution(logit, obs)
        drawn = self._draw(distribution, logit)
        return {"action": self._to_env(drawn), "drawn": drawn, "log_prob": distribution.log_prob(drawn)}

    def _draw(self, distribution: rl.Distribution, logit: Any) -> Any:
        """Return actions to collect with, for the output of the network and the distribution that it describes."""
        return distribution.sample(self.noise_source)

    def _process_transition(self, obs: Any, output: Mapping[str, Any], timestep: Any) -> dict[str, Any]:
        """Return the columns of a transition; ``action`` is what was drawn, in the network's units."""
        transition = super()._process_transition(obs, output, timestep)
        return transition | {"action": output["drawn"], "log_prob": output["log_prob"]}

    # ------------------------------------------------------------------ learning

    def _init_learn(self) -> None:
        learn = self.config.learn
        self.updater.optimizers = [make_optimizer(learn.optimizer, self.model.parameters(), learn.learning_rate)]

    def _forward_learn(self, batch: Any) -> dict[str, Any]:
        """Learn from a rollout with leading axis S in one pass; return the metrics of the last update."""
        return self._make_pass(self._learning_data(batch, self._sequences_of(batch)))[-1]

    def _sequences_of(self, rollout: Batch) -> rl.Sequences:
        """Return the layout of the rows of a rollout."""
        return rl.time_major(rollout["env_id"], rollout["episode_id"], self.tensor_envs)

    def _in_parts(self, method: Callable[[Any], Tensor], obs: Any) -> Tensor:
        """Return the results of a method for S observations, which it gets in parts; compiled with tensor envs."""
        compiler = None if self.tensor_envs is None else self.updater.compiler
        with self._in_eval_mode:
            parts = nested.split(obs, LARGEST_FORWARD)
            found = [method(part) if compiler is None else compiler.call(method, part, sized=True) for part in parts]
            return torch.cat(found)

    def _permutation(self, size: int) -> Tensor:
        """Return the numbers from 0 to ``size`` - 1 in random order, on the device."""
        if self.noise_source is None:
            return torch.randperm(size, device=self.device)
        return torch.from_numpy(self.noise_source.permutation(size)).to(self.device)

    def _make_pass(self, data: Batch) -> list[dict[str, Any]]:
        """Make an update on each minibatch of the learning data, and return the metrics of the updates."""
        if self.updater.notes is not None:
            self.updater.notes.data = data
        reports, minibatches, meanwhile = [], self._minibatches(data), self.learner.meanwhile
        for minibatch in minibatches if meanwhile is None else meanwhile.between(minibatches):
            reports.append(self._update(minibatch | self.updater.schedules.tensors))
            self.progress.train_iter += 1
        return reports

    def _update(self, minibatch: Batch) -> dict[str, Any]:
        """Make an update on a minibatch of the learning data, and return its metrics."""
        return self.updater.minimise(self.loss, minibatch)

    def _minibatches(self, data: Batch) -> Iterator[Batch]:
        """Yield shuffled minibatches of sizes that differ by one at most, as many on every rank."""
        size = nested.length(data)
        wanted = self.config.learn.batch_size or size
        number = min_over_ranks(max(1, round(size / wanted)))
        shuffled = nested.index(data, self._permutation(size))
        name = self._standardised()
        parts = list(_parts(shuffled, size, number))
        if name is not None and name in data:
            columns = self._standardise([part[name] for part in parts], [part["obs"] for part in parts])
            for part, column in zip(parts, columns, strict=True):
                part[name] = column
        for part in parts:
            yield from nested.unbind(part)  # type: ignore[misc]

    def _standardise(self, tables: list[Tensor], obs: list[Any]) -> list[Tensor]:
        """Return a column of minibatches, tables of shapes (M, B), standardised; ``obs`` has the same leading axes."""
        return standardise_over_ranks(tables)

    # ------------------------------------------------------------------ attributes

    @property
    def batch_size(self) -> int:
        """Transitions of a minibatch; all those of a rollout without ``learn.batch_size``."""
        return self.config.learn.batch_size or self.config.collect.n_sample or 1

    @property
    def update_per_collect(self) -> int:
        """Return how many updates a rollout gives; for whole episodes, whose length is unknown, one per pass."""
        if not self.on_policy:
            return int(self.config.learn.update_per_collect)
        rows = self.config.collect.n_sample or 1
        return max(1, round(rows / self.batch_size))


@explores_by_state
class ActorCriticPolicy(ScaledCriticPolicy[ConfigT], OnPolicyPolicy[ConfigT]):
    """A policy that weighs its actions by generalised advantages, of rollouts or of replayed ones.

    A sequence that a time limit or the end of the rollout cuts bootstraps from the value of its final next observation;
    a terminated one does not. Values are computed when a rollout is learned from; ``value`` is that of the weights at
    its first pass. A subclass implements ``_policy_loss`` and ``_value_loss``.

    With separate optimizers, a network passed as ``model`` also has ``actor_parameters()`` and ``critic_parameters()``.
    """

    parts_of_model: ClassVar[tuple[str, ...]] = ("compute_actor", "compute_critic", "compute_actor_critic")

    # ------------------------------------------------------------------ to implement

    def _policy_loss(self, log_prob: Tensor, batch: RolloutBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss that the log probabilities, shape (B,), of the actions have, and metrics in addition."""
        raise not_implemented(self, "_policy_loss")

    def _value_loss(self, value: Tensor, batch: RolloutBatch) -> Tensor:
        """Return the loss that the outputs of the critic, shape (B,), have."""
        raise not_implemented(self, "_value_loss")

    # ------------------------------------------------------------------ setting up

    def _initialise(self, model: nn.Module | None) -> None:
        super()._initialise(model)
        if model is None and self.needs_model and self.config.learn.ppo_param_init:
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
        advantage, target = self._advantage(rollout, value, sequences)
        kept = {name: rollout[name] for name in ("obs", "action", "log_prob")}
        return self._added_columns(rollout) | kept | {"value": value, "advantage": advantage, "return": target}

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
        return self._corrected(self._in_parts(self._critic_output, obs))

    def _critic_output(self, obs: Any) -> Tensor:
        return self.model.compute_critic(obs)["value"]  # type: ignore[operator, no-any-return]

    def _standardised(self) -> str | None:
        return "advantage" if self.config.learn.adv_norm else None

    # ------------------------------------------------------------------ learning

    def _forward_learn(self, batch: Any) -> dict[str, Any]:
        """Learn from a rollout with leading axis S in one pass; return the metrics of the last update."""
        data = self._learning_data(batch, self._sequences_of(batch))
        return self._make_pass(self._renew_scale(data))[-1]

    def _update(self, minibatch: Batch) -> dict[str, Any]:
        alpha = self.config.learn.rpo_alpha
        if alpha:
            action = minibatch["action"]
            mean = action["action_args"] if isinstance(action, Mapping) else action
            if self.noise_source is None:
                minibatch["mean_noise"] = torch.empty_like(mean).uniform_(-alpha, alpha)
            else:
                noise = self.noise_source.uniform(-alpha, alpha, tuple(mean.shape))
                minibatch["mean_noise"] = torch.from_numpy(noise).to(mean)
        if not self.config.learn.has_two_rates:
            return self.updater.minimise(self.loss, minibatch)
        actor = self.updater.minimise(self.loss_of_actor, minibatch)
        critic = self.updater.minimise(self.loss_of_critic, minibatch, 1)
        return {**critic, **actor, "total_loss": actor["total_loss"] + critic["total_loss"]}

    def loss(self, batch: RolloutBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a minibatch and the metrics to report.

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

    def loss_of_actor(self, batch: RolloutBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the part of :meth:`loss` that trains the actor, and its metrics."""
        policy_loss, entropy, report = self._actor_terms(self._logit(batch["obs"]), batch)
        loss = policy_loss - batch.get("entropy_weight", self.config.learn.entropy_weight) * entropy
        report |= {"total_loss": loss, "policy_loss": policy_loss, "entropy_loss": entropy}
        return loss, {name: value.detach() for name, value in report.items()}

    def loss_of_critic(self, batch: RolloutBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the part of :meth:`loss` that trains the critic, and its metrics."""
        output = self.model.compute_critic(batch["obs"])["value"]  # type: ignore[operator]
        value_loss = self._value_loss(self._corrected(output), batch)
        loss = self.config.learn.value_weight * value_loss
        return loss, {"total_loss": loss.detach(), "value_loss": value_loss.detach()}

    def _network_output(self, batch: RolloutBatch) -> dict[str, Any]:
        """Return ``logit`` and ``value`` of a minibatch."""
        return self.model.compute_actor_critic(batch["obs"])  # type: ignore[operator, no-any-return]

    def _actor_terms(self, logit: Any, batch: RolloutBatch) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return the policy's loss, its mean entropy, and metrics in addition."""
        if "mean_noise" in batch:
            logit = _shifted(logit, batch["mean_noise"])
        distribution = self._distribution(logit, batch["obs"])
        loss, report = self._policy_loss(distribution.log_prob(batch["action"]), batch)
        return loss, self._mean_entropy(distribution, batch), report

    def _mean_entropy(self, distribution: rl.Distribution, batch: RolloutBatch) -> Tensor:
        return distribution.entropy().mean()

    def _monitor_vars_learn(self) -> list[str]:
        return ["cur_lr", "total_loss", "policy_loss", "value_loss", "entropy_loss"]


def _shifted(logit: Any, noise: Tensor) -> Any:
    """Return the output of an actor with another mean of the continuous action."""
    if "action_args" in logit:
        return {**logit, "action_args": _shifted(logit["action_args"], noise)}
    return {**logit, "mu": logit["mu"] + noise}


def _parts(data: Batch, size: int, number: int) -> Iterator[Batch]:
    """Yield ``data`` as tables (M, B, ...) of minibatches: those with one transition more, then the others."""
    small, larger = divmod(size, number)
    cut = larger * (small + 1)
    if larger:
        yield nested.apply(lambda x: x[:cut].unflatten(0, (larger, small + 1)), data)
    yield nested.apply(lambda x: x[cut:].unflatten(0, (number - larger, small)), data)
