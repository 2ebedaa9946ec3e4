"""DreamerV3: an actor and a critic that learn from trajectories which a learned world model imagines.

Paper: Hafner et al. 2023 (https://arxiv.org/abs/2301.04104v2), whose equations are meant below. The architecture, the
sizes and the optimizer are those of version 2 and of the authors' code of 2025.

Sequences begin at any step, with the recurrent state that was stored when the step was collected, and they continue
with the next episode. The last observation of an episode has a row, from which rewards and terminations are predicted
and, at a time limit, the return is bootstrapped.

Where this differs: stored states are not renewed after updates; minibatches are drawn uniformly, without the newest
sequences first; the discount factor is not part of the predicted continuation; the range of returns that scales
advantages is that before the update; the first weight of an imagined trajectory is whether its episode continued, not
the prediction; images are predicted without a sigmoid, and discrete observations as one-hot vectors with squared
errors; each image has its own convolutions; evaluations take the most probable classes of latent variables, and the
most probable action. As in the paper, but not in the authors' code, 1 % of a discrete policy is uniform. Sums of losses
are divided by all rows of a minibatch, padding included.

Shapes: T steps of a sequence, L = T + 1 rows, B sequences or envs, H steps of imagination, N imagined trajectories, A
size of an action, G latent variables, S size of a recurrent state, Z size of a latent state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypedDict

import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor

from lightning_ding import nested, rl
from lightning_ding.config import require
from lightning_ding.model.layers import InEvalMode
from lightning_ding.model.world.observations import reconstruction_error
from lightning_ding.policy.base.action_bounds import ActionBounds, actor_shapes
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.base.optimizers import make_optimizer
from lightning_ding.policy.base.recurrent import EnvStates, act, with_memory
from lightning_ding.policy.base.spaces import obs_shape
from lightning_ding.policy.dreamerv3_options import DreamerV3Config
from lightning_ding.policy.replay_policy import ReplayPolicy, make_target
from lightning_ding.registry import POLICY_REGISTRY
from lightning_ding.rl.world_models import without_cache
from lightning_ding.utils.modes import IS_FIRST, STATE
from lightning_ding.utils.ranks import gather_rows


class DreamerV3Batch(TypedDict):
    """A minibatch of B sequences of L rows, as the loss reads it."""

    obs: Any
    """Observations, leading axes (L, B)."""
    action: Tensor
    """Actions before the observations, one-hot or in [-1, 1], shape (L, B, A); not read in the first row."""
    reward: Tensor
    """Rewards that came with the observations, 0 at the start of an episode, shape (L, B)."""
    alive: Tensor
    """0 where the env terminated the episode with the observation, else 1, shape (L, B)."""
    starts: Tensor
    """Whether an observation is the first of its episode, shape (L, B)."""
    ends: Tensor
    """Whether an observation is the last of its episode or sequence, shape (L, B)."""
    mask: Tensor
    """Whether a row is not padding, shape (L, B)."""
    recurrent_state: Tensor
    """State before the first row, shape (B, S)."""
    posterior_noise: Tensor
    """Uniform numbers, shape (L, B, G)."""
    prior_noise: Tensor
    """Uniform numbers, shape (H, B, K, G), of trajectories from K rows."""
    action_noise: Tensor
    """Uniform numbers, shape (H, B, K), or standard normal ones, shape (H, B, K, A)."""


@POLICY_REGISTRY.register("dreamerv3")
@with_memory
class DreamerV3Policy(ReplayPolicy[DreamerV3Config]):
    """DreamerV3 for discrete or continuous actions; vector, image and dict observations.

    The arguments are those of :class:`Policy`; a ``model`` has the parts of :class:`~lightning_ding.model.DreamerV3`.
    The policy keeps the state of each env between the calls of its modes, until ``reset`` with the env's number.

    Example:
        >>> policy = DreamerV3Policy({"model": {"obs_shape": 4, "action_shape": 2}})
        >>> policy.eval_mode.forward({0: torch.zeros(4), 1: torch.ones(4)})[1]["action"].shape
        torch.Size([])
    """

    config_class: ClassVar[type[PolicyConfig]] = DreamerV3Config
    learns_from_sequences: ClassVar[bool] = True
    compiles_losses: ClassVar[bool] = False  # but parts of them; a whole one is a graph of 80 steps
    parts_of_model: ClassVar[tuple[str, ...]] = (
        *("inputs", "encoder", "rssm", "decoder", "reward", "alive", "actor", "critic", "bins"),
    )
    action_bounds: ActionBounds | None
    model: Any
    _collecting: EnvStates
    _evaluating: EnvStates

    def _init_spaces(self) -> None:
        super()._init_spaces()
        model, self.action_bounds = self.config.model, None
        if model.action_space == "continuous" and model.action_shape is not None:
            size = model.action_shape
            self.action_bounds = ActionBounds(size).to(self.device)
            low, high = model.action_low or [-1.0] * size, model.action_high or [1.0] * size
            self.action_bounds.set(low, high, bool(model.action_integer))

    def _init_learn(self) -> None:
        learn = self.config.learn
        self.target_model = make_target(self.model.critic)
        self._target_in_eval_mode = InEvalMode(self.target_model, where_it_matters=True)
        self._target_update = learn.target_update()
        self.return_statistics = rl.ReturnRange()
        optimizer = make_optimizer(learn.optimizer, self.model.parameters(), learn.learning_rate)
        if learn.optimizer.type == "laprop":
            optimizer.param_groups[0].update({"agc": learn.agc, "warmup": learn.warmup})
        self.updater.optimizers = [optimizer]

    # ------------------------------------------------------------------ acting

    def _forward_collect(self, obs: Any) -> dict[str, Tensor]:  # type: ignore[override]
        """Return sampled actions and the states before the observations."""
        first = self.model.first_state(nested.leaves(obs)[0].shape[0])
        env_ids: Any = self._action_selector.env_ids  # type: ignore[attr-defined]
        state, is_first = self._collecting.read(env_ids, first)
        size, groups = len(first), self.model.rssm.groups
        latent, known = self.model.latent(obs, state, self._uniform((size, groups)).to(first))
        action = self.model.sampled(latent, self._action_noise((size,)).to(first))
        self._collecting.write(env_ids, torch.cat([known, self.model.encoded(action).to(known)], -1))
        return {"action": self._to_env(action), STATE: state, IS_FIRST: is_first}

    def _forward_eval(self, obs: Any) -> dict[str, Tensor]:
        return {"action": self._to_env(act(self, self._evaluating, obs)["action"])}

    def _to_env(self, action: Tensor) -> Tensor:
        return self.action_start.to_env(action) if self.action_bounds is None else self.action_bounds.to_env(action)

    def _uniform(self, shape: Sequence[int]) -> Tensor:
        return torch.from_numpy(self.rng.random(tuple(shape), dtype=np.float32))

    def _action_noise(self, shape: Sequence[int]) -> Tensor:
        if self.action_bounds is None:
            return self._uniform(shape)
        size = (*shape, self.model.action_size)
        return torch.from_numpy(self.rng.standard_normal(size, dtype=np.float32))

    # ------------------------------------------------------------------ learning

    def prepare(self, data: Mapping[str, Any]) -> Any:
        """Return a :class:`DreamerV3Batch` of a minibatch of T steps, which a sequence buffer gives.

        Minibatches that are already prepared are returned unchanged.
        """
        if "starts" in data:
            return dict(data)
        found = self._rows(data)
        noise = {name: value.to(found["reward"]) for name, value in self._noise_of(*found["reward"].shape).items()}
        return {**found, **noise}

    def _rows(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return the entries of a :class:`DreamerV3Batch` but for the noise."""
        reward, terminated = data["reward"], data["terminated"].bool()
        ended = terminated | data["truncated"].bool() if "truncated" in data else terminated
        rows = rl.episode_rows(ended, data["mask"])
        column = torch.arange(reward.shape[1], device=reward.device)
        starts = torch.cat([data[IS_FIRST].bool()[None], rows.is_next[:-1]]) & rows.is_real
        before = torch.where(rows.is_next, rows.step, rows.step - 1)  # the step that led to the observation
        is_known = (before >= 0) & ~starts
        before = before.clamp(min=0)
        alive = torch.ones_like(reward)
        if not self.config.learn.ignore_done:
            alive = 1 - (rows.is_next & terminated[rows.step, column]).to(reward)
        action = data["action"] if self.action_bounds is None else self.action_bounds.from_env(data["action"])

        def observations(now: Any, following: Any) -> Any:
            if isinstance(now, Mapping):
                return {key: observations(now[key], following[key]) for key in now}
            is_next = rows.is_next.reshape(*rows.is_next.shape, *[1] * (now.ndim - 2))
            return torch.where(is_next, following[rows.step, column], now[rows.step, column])

        return {
            "obs": observations(data["obs"], data["next_obs"]),
            "action": self.model.encoded(action[before, column]).to(reward),
            "reward": torch.where(is_known, reward[before, column], 0.0),
            "alive": alive,
            "starts": starts,
            "ends": rows.is_next,
            "mask": rows.is_real,
            STATE: data[STATE].to(reward),
        }

    def _noise_of(self, rows: int, size: int) -> dict[str, Tensor]:
        groups, horizon = self.model.rssm.groups, self.config.horizon
        shape = (horizon, size, self.config.imagine_last or rows)
        return {
            "posterior_noise": self._uniform((rows, size, groups)),
            "prior_noise": self._uniform((*shape, groups)),
            "action_noise": self._action_noise(shape),
        }

    def _prepare_round(self, data: dict[str, Any]) -> dict[str, Any]:
        return data

    def _forward_learn(self, batch: Any) -> dict[str, Any]:
        with self._target_in_eval_mode:  # outside of the loss, which may be compiled
            report = self.updater.minimise(self.loss, batch)
        self.return_statistics.update(gather_rows(report.pop("returns")))
        self._target_update.apply(self.model.critic, self.target_model, self.progress.train_iter)
        return report

    def loss(self, batch: DreamerV3Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of the world model, the actor and the critic, and the metrics to report, detached.

        It reports ``returns``, those of imagined trajectories, shape (H, N), and scalars: ``total_loss`` and its parts,
        the mean predicted value of imagined states, ``q_value``, and the entropy of the actor.
        """
        with without_cache(batch["reward"].device.type):
            return self._losses(batch)

    def _losses(self, batch: DreamerV3Batch) -> tuple[Tensor, dict[str, Tensor]]:
        latent, losses = self.world_losses(batch)
        rows = slice(-self.config.imagine_last if self.config.imagine_last else None, None)
        behaviour, returns, report = self.behaviour_losses(batch, latent[rows], rows)
        losses |= behaviour
        learn = self.config.learn
        weights = {
            "dynamics_loss": learn.dynamics_weight,
            "representation_loss": learn.representation_weight,
            "replay_value_loss": learn.replay_value_weight,
        }
        loss = torch.stack([weights.get(name, 1.0) * one for name, one in losses.items()]).sum()
        report |= {name: one.detach() for name, one in losses.items()}
        return loss, {"total_loss": loss.detach(), "returns": returns, **report}

    def world_losses(self, batch: DreamerV3Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the latent states of the rows, shape (L, B, Z), and the losses of the world model (eq. 2 to 5)."""
        model, shape = self.model, batch["reward"].shape
        deter, stoch, action = model.unpack(batch["recurrent_state"])
        target = model.inputs(nested.apply(lambda x: x.flatten(0, 1), batch["obs"]))
        tokens = model.encoder(target).unflatten(0, shape)
        actions = torch.cat([action[None], batch["action"][1:]])
        deters, stochs, posterior = model.rssm.observe(
            deter,
            stoch,
            actions,
            tokens,
            batch["starts"],
            batch["posterior_noise"],
            self._part(model.rssm.observe_step),
        )
        latent = torch.cat([deters, stochs], -1)
        dynamics, representation = rl.balanced_kl(posterior, model.rssm.prior(deters), self.config.learn.free_nats)
        decoded = model.decoder(latent.flatten(0, 1))
        is_known = batch["mask"].clone()
        is_known[0] &= batch["starts"][0]  # no reward came before the sequence
        rewards = rl.two_hot_loss(model.reward(latent), model.bins, batch["reward"])
        alive = F.binary_cross_entropy_with_logits(model.continues(latent), batch["alive"], reduction="none")
        return latent, {
            "dynamics_loss": self._mean(dynamics, batch["mask"]),
            "representation_loss": self._mean(representation, batch["mask"]),
            "reconstruction_loss": self._mean(reconstruction_error(decoded, target).view(shape), batch["mask"]),
            "reward_loss": self._mean(rewards, is_known),
            "continue_loss": self._mean(alive, batch["mask"]),
        }

    def behaviour_losses(
        self, batch: DreamerV3Batch, latent: Tensor, rows: slice
    ) -> tuple[dict[str, Tensor], Tensor, dict[str, Tensor]]:
        """Return the losses of the actor and the critic (eq. 7 to 11), imagined returns, and metrics to report.

        Returns from padding are NaN, so that they do not count in the range of returns.

        Args:
            batch: The minibatch.
            latent: Latent states to imagine from, shape (K, B, Z).
            rows: Their rows in the minibatch.
        """
        model, config = self.model, self.config
        real, alive = batch["mask"][rows], batch["alive"][rows]
        states, actions, reward, lives = self._imagine(batch, latent.detach().flatten(0, 1), alive.flatten())
        value_logit, value = self._part(self._values)(states)
        factors = config.discount_factor, config.learn.lambda_
        returns = rl.bootstrapped_returns(reward, value, lives, None, *factors)
        ones = torch.ones_like(lives[:1])
        weight = torch.cat([ones, (config.discount_factor * lives[1:-1]).cumprod(0)]) * lives[0] * real.flatten()
        advantage = (returns - value[:-1]) / self.return_statistics.scale
        actor, entropy = self._part(self._actor_loss)(states[:-1], actions, advantage)
        learned = self._part(self._value_loss)(value_logit[:-1], states[:-1], returns)
        bootstrap, last = returns[0].view_as(real), batch["ends"][rows]
        replayed = rl.bootstrapped_returns(batch["reward"][rows], bootstrap, alive, last, *factors)
        is_inner = real[:-1] & ~last[:-1]
        replay = self._value_loss(model.critic(latent[:-1]), latent[:-1].detach(), replayed)
        losses = {
            "actor_loss": self._mean(actor, weight),
            "value_loss": self._mean(learned, weight),
            "replay_value_loss": self._mean(replay, is_inner),
        }
        report = {
            "q_value": value.mean(),
            "entropy": entropy.mean(),
            "return_scale": self.return_statistics.scale,
        }
        return losses, torch.where(real.flatten(), returns, torch.nan), report

    def _imagine(self, batch: DreamerV3Batch, start: Tensor, alive: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return imagined latent states (H + 1, N, Z), actions (H, N), and rewards and continuations (H + 1, N).

        Args:
            batch: The minibatch, with noise.
            start: Latent states to start from, shape (N, Z).
            alive: Whether the episode continues there, shape (N,).
        """
        with torch.no_grad(), self._in_eval_mode.context:
            return self._imagine_on(batch, start, alive)

    def _imagine_on(self, batch: DreamerV3Batch, start: Tensor, alive: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        model = self.model
        taken, sampled = list[Tensor](), self._part(model.sampled)
        prior_noise, action_noise = (
            batch[name].transpose(1, 2).flatten(1, 2) for name in ("prior_noise", "action_noise")
        )

        def choose(state: Tensor, step: int) -> Tensor:
            taken.append(sampled(state, action_noise[step]))
            return model.encoded(taken[-1])  # type: ignore[no-any-return]

        deter, stoch = start.split([model.rssm.deter, model.rssm.stoch], -1)
        states, _ = model.rssm.imagine(deter, stoch, choose, prior_noise, self._part(model.rssm.imagine_step))
        reward, lives = self._part(self._outcomes)(states, alive)
        return states, torch.stack(taken), reward, lives

    def _outcomes(self, states: Tensor, alive: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rewards and the continuations that the world model predicts, shapes (H + 1, N)."""
        reward = rl.two_hot_mean(self.model.reward(states), self.model.bins)
        return reward, torch.cat([alive[None], torch.sigmoid(self.model.continues(states[1:]))])

    def _values(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the critic predicts: logits, shape (..., N), and values without gradient, shape (...)."""
        logit = self.model.critic(state)
        return logit, rl.two_hot_mean(logit.detach(), self.model.bins)

    def _actor_loss(self, state: Tensor, action: Tensor, advantage: Tensor) -> tuple[Tensor, Tensor]:
        """Return the actor's losses and its entropy, without gradient, shapes (...) (eq. 11)."""
        policy = self.model.policy(state)
        entropy = policy.entropy()
        loss = -(policy.log_prob(action) * advantage + self.config.learn.entropy_weight * entropy)
        return loss, entropy.detach()

    def _value_loss(self, logit: Tensor, state: Tensor, target: Tensor) -> Tensor:
        """Return the critic's loss on returns and on the values of the slow critic (section "Critic learning")."""
        with torch.no_grad():
            slow = rl.two_hot_mean(self.target_model(state), self.model.bins)
        return rl.two_hot_loss(logit, self.model.bins, target, slow)

    def _part(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that takes much of an update's time, compiled if updates are."""
        return function if self.updater.compiler is None else self.updater.compiler.part(function)

    def _mean(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return the sum over weighted rows, divided by the number of all rows."""
        return (x * weight.to(x)).sum() / x.numel()

    @torch.no_grad()
    def predict_open_loop(self, data: Mapping[str, Any], context: int, seed: int = 0) -> tuple[list[Tensor], ...]:
        """Return the observations of sequences, and what the model predicts of them after some rows of context.

        No random numbers of the run are drawn, so this has no effect on later updates.

        Args:
            data: The argument of ``prepare``.
            context: Rows whose observations the model gets, in [1, T]. It predicts the later ones from the actions, as
                if no episode ended.
            seed: Seed of the latent classes, >= 0.

        Returns:
            Two lists in the order of :class:`~lightning_ding.model.world.observations.ObservationInput`, shapes
            (L, B, ...).

        Raises:
            ValueError: If the context is out of range.
        """
        model, rows = self.model, self._rows(data)
        shape: Any = rows["reward"].shape
        require(1 <= context < shape[0], "context", f"in [1, {shape[0] - 1}]", context)
        noise = torch.rand(*shape, model.rssm.groups, generator=torch.Generator().manual_seed(seed)).to(rows["reward"])
        with self._in_eval_mode.context:
            deter, stoch, action = model.unpack(rows[STATE])
            actions = torch.cat([action[None], rows["action"][1:]])
            real = model.inputs(nested.apply(lambda x: x.flatten(0, 1), rows["obs"]))
            tokens, seen = model.encoder(real).unflatten(0, shape), slice(context)
            given = actions[seen], tokens[seen], rows["starts"][seen], noise[seen]
            deters, stochs, _ = model.rssm.observe(deter, stoch, *given)

            def act(_: Tensor, step: int) -> Tensor:
                return actions[context + step]

            imagined, _ = model.rssm.imagine(deters[-1], stochs[-1], act, noise[context:])
            latent = torch.cat([torch.cat([deters, stochs], -1), imagined[1:]])
            predicted = model.decoder(latent.flatten(0, 1))
        return tuple([one.unflatten(0, shape) for one in some] for some in (real, predicted))

    # ------------------------------------------------------------------ attributes

    def default_model(self) -> tuple[str, list[str]]:
        """Return the registered networks."""
        return "dreamerv3", ["lightning_ding.model.dreamerv3"]

    def _shapes_of(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> dict[str, Any]:
        name = type(self).__name__
        if isinstance(observation_space, spaces.Dict) and "action_mask" in observation_space.spaces:
            raise TypeError(f"{name} takes no action mask, got {observation_space}")
        shapes = actor_shapes(action_space, name)
        if shapes["action_space"] == "hybrid" or not isinstance(shapes["action_shape"], int):
            raise TypeError(f"{name} needs a Discrete or Box action space, got {action_space}")
        return {"obs_shape": obs_shape(observation_space), **shapes}

    @property
    def update_per_collect(self) -> int:
        """Updates of a round."""
        ratio = self.config.learn.train_ratio
        if ratio is None:
            return super().update_per_collect
        return round(
            ratio * self.config.collect.n_sample / (self.config.learn.batch_size * self.config.learn_unroll_len)
        )

    @property
    def sample_options(self) -> dict[str, Any]:
        """Return the arguments of the buffer's ``sample``."""
        window = {"sequence": self.config.learn_unroll_len, "across_episodes": True, "across_time_limits": True}
        return {"n_step": 1, "discount_factor": self.config.discount_factor, **window}

    def _monitor_vars_learn(self) -> list[str]:
        losses = ("reconstruction_loss", "reward_loss", "continue_loss", "actor_loss", "value_loss")
        return [*super()._monitor_vars_learn(), *losses, "q_value", "entropy"]

    def _state_dict_learn(self) -> dict[str, Any]:
        return super()._state_dict_learn() | {"return_statistics": self.return_statistics.state_dict()}

    def _load_state_dict_learn(self, state: dict[str, Any]) -> None:
        super()._load_state_dict_learn(state)
        self.return_statistics.load_state_dict(state["return_statistics"])
