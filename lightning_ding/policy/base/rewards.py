"""The reward model of a policy: the data that it sees, its updates, and the rewards that the policy learns from.

Stored transitions keep the rewards of the env. A replayed minibatch gets those of the newest reward model when it is
learned from, a rollout before its advantages are computed.

Shapes: B batch, U minibatches of a round, S collected transitions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.policy.base.config import NO_CLIP
from lightning_ding.policy.base.optimizers import OptimizerConfig, make_optimizer
from lightning_ding.registry import REWARD_MODEL_REGISTRY
from lightning_ding.utils.ranks import mean_over_ranks

Batch = dict[str, Any]
KEPT = ("obs", "action", "next_obs", "reward")  # entries of a transition that a reward model learns from
LARGEST_FORWARD = 4096  # rows of a forward pass without gradient


class RewardLearner:
    """Trains the reward model of a policy, and replaces the rewards of batches.

    The model is the policy's submodule ``reward_model``, and its optimizer the last one of the policy's. Without a
    datamodule, a policy that learns from replay needs two calls before it learns: :meth:`collect_data` with the
    transitions of each collection, and :meth:`train` once for each of them.

    Args:
        policy: The policy, a :class:`Policy`.
    """

    def __init__(self, policy: Any) -> None:
        self.model: Any = None
        """The reward model, a ``RewardModel``; None without one, or before its shapes are known."""
        self._policy = policy
        self._index = -1  # of the optimizer
        self._window: Any = None  # collected transitions, as they are stored
        self._new = 0  # transitions collected since the last updates
        self._rounds = 0
        self._has_begun = False
        self._report: dict[str, Tensor] = {}

    @property
    def is_on(self) -> bool:
        """Whether the policy has a reward model."""
        return self.model is not None

    @property
    def replaces_env_reward(self) -> bool:
        """Whether the policy learns from rewards that do not depend on those of the env."""
        return self.is_on and not self.model.uses_env_reward

    def build(self) -> None:
        """Make the model that the config names, once, as soon as the shapes of observations and actions are known.

        Raises:
            ValueError: If the model does not fit the policy.
        """
        policy, config = self._policy, self._policy.config.reward_model
        section = policy._model_section() if config.type is not None else {}
        is_known = bool(section) and all(section[name] is not None for name in policy.shape_names)
        if self.is_on or not is_known or "learn" not in policy.enable_field:
            return
        name, options = type(policy).__name__, {} if policy.on_policy else policy.sample_options
        is_single = not policy.learns_from_sequences and not options.get("first_step", False)
        allowed = f"None with {name}, which does not learn from single rewarded steps"
        require(is_single, "reward_model.type", allowed, config.type)
        gamma = policy.discount_factor
        self.model = REWARD_MODEL_REGISTRY.build(config.type, config, section, gamma).to(policy.device)
        policy.reward_model = self.model
        policy.reward_model_loss = self.reward_model_loss  # so that a non-finite update can be made again
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        if not trained:
            return
        policy.updater.optimizers.append(make_optimizer(OptimizerConfig(), trained, config.learning_rate))
        self._index = len(policy.updater.optimizers) - 1
        policy.updater.unscheduled.add(self._index)  # learn.lr_scheduler belongs to the policy's network

    def begin(self) -> None:
        """Let the model read what it learns from, such as an expert's data, once; a policy that only acts needs none.

        Raises:
            ValueError: If there is no such data set, or it does not fit the policy.
        """
        if self.is_on and not self._has_begun:
            self.model.bind(self._policy)
            self._has_begun = True

    # ------------------------------------------------------------------ learning

    def collect_data(self, transitions: Mapping[str, Any]) -> NDArray[Any] | None:
        """Keep S collected transitions to learn from, and add them to the model's statistics; all ranks call it.

        Args:
            transitions: Tensors with leading axis S, as they are stored, those of an env in chronological order:
                ``obs``, ``action``, ``next_obs``, ``reward``, ``env_id``.

        Returns:
            The rewards to store, shape (S,), of a model that gives them once; None for those of the env.
        """
        if self.model.trains_once:
            return None
        names, kind = (*KEPT, *self.model.needs), self.model.config.type
        missing = [name for name in names if name not in transitions]
        allowed = f"None with {type(self._policy).__name__}, whose transitions have no {' and no '.join(missing)}"
        require(not missing, "reward_model.type", allowed, kind)
        new: Any = nested.to({name: transitions[name] for name in (*names, "env_id")}, self._policy.device)
        if self.model.rewards_once:
            self.begin()
            rewards: Tensor = self.model.rewards_of(self._seen(new))
            return rewards.to(transitions["reward"].dtype).numpy()
        self.model.add(self._seen(new))
        kept = {name: new[name] for name in names}
        self._window = kept if self._window is None else nested.concatenate([self._window, kept])
        self._new += nested.length(kept)
        return None

    def train(self) -> None:
        """Make the updates of the model that ``update_per_collect`` asks for; all ranks call it.

        Minibatches go through the collected transitions in random order, and start again after the last one.

        Raises:
            NonFiniteError: If a loss or a gradient is not finite, and ``on_non_finite`` is "raise".
        """
        if self.model.trains_once:
            self._train_once()
            return
        if self._window is None:
            return
        self.begin()
        policy, config = self._policy, self.model.config
        updates = self._due_updates()
        if not updates:
            return
        self._new = 0
        if not policy.training:
            policy.train()
        rows = _passes(nested.length(self._window), (updates, config.batch_size), policy.rng).to(policy.device)
        data = self.model.prepare(self._seen(nested.index(self._window, rows)), policy.rng)
        policy.updater.guard.begin(data)
        for minibatch in nested.unbind(data):
            report = policy.updater.minimise(self.reward_model_loss, minibatch, self._index, NO_CLIP)
        policy.updater.guard.end()
        if policy.updater.guard.is_clean:
            self._report |= report
        self._rounds += 1
        if self._rounds % config.clear_buffer_per_iters == 0:
            self.clear_data()

    def _train_once(self) -> None:
        """Make all updates of a model that learns before the policy does; afterwards, and with a loaded one, none."""
        policy, model = self._policy, self.model
        if self._rounds or bool(model.is_trained):
            self._rounds = 1
            return
        self.begin()
        if not policy.training:
            policy.train()
        count, size = model.draw_lessons(policy.rng), model.config.batch_size
        updates = model.config.update_per_collect or math.ceil(count / size)
        policy.updater.guard.begin(None)
        for rows in _passes(count, (updates, size), policy.rng):
            report = policy.updater.minimise(self.reward_model_loss, model.lesson(rows), self._index, NO_CLIP)
        policy.updater.guard.end()
        self._report |= report
        model.is_trained.fill_(True)
        self._rounds = 1

    def _due_updates(self) -> int:
        """Return the number of updates to make now, the same on every rank."""
        config = self.model.config
        if config.update_per_collect is not None:
            return int(config.update_per_collect)
        collected = mean_over_ranks(self._new)
        return math.ceil(collected / config.batch_size) if collected >= config.batch_size else 0

    def reward_model_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of the model on a minibatch, and the metrics to report."""
        loss, report = self.model.loss(batch)
        return loss, report

    def clear_data(self) -> None:
        """Discard the collected transitions."""
        self._window = None

    # ------------------------------------------------------------------ rewards

    def estimate(self, batch: Batch) -> Batch:
        """Return transitions with the rewards to learn from.

        Args:
            batch: Transitions with normalised observations and rewards, leading axes (B,) or (U, B).

        Raises:
            RuntimeError: If nothing has trained the model of a policy that learns from replay.
        """
        if not (self._policy.on_policy or self._has_begun or self.model.is_loaded):
            raise RuntimeError(
                f"reward_model.type {self.model.config.type!r} gives rewards of an untrained model: without a Trainer, "
                "call learner.rewards.collect_data(transitions) and learner.rewards.train() of the policy after each "
                "collection, or load a trained model"
            )
        reward = batch["reward"]
        entries = {name: batch[name] for name in KEPT}
        if reward.ndim > 1:
            entries = nested.apply(lambda x: x.flatten(0, 1), entries)
        seen = {**entries, "action": self.in_network_units(entries["action"], self._policy.on_policy)}
        score = torch.cat([self.model.score(part) for part in nested.split(seen, LARGEST_FORWARD)]).view(reward.shape)
        self._report["reward_model_score"] = score.mean()
        return {**batch, "reward": self.model.reward(score.to(reward.dtype), reward)}

    def learn_from_rollout(self, rollout: Batch, normal: Batch) -> Batch:
        """Let the model learn from a rollout, and return the rollout with the rewards to learn from.

        Args:
            rollout: The rollout as it was collected, leading axis S.
            normal: The same with normalised observations and rewards.
        """
        own = self.collect_data(rollout)
        if own is not None:
            return self.estimate({**normal, "reward": torch.from_numpy(own).to(normal["reward"])})
        if self.model.trains_first:
            self.train()
            return self.estimate(normal)
        rewarded = self.estimate(normal)
        self.train()
        return rewarded

    def pop_report(self) -> dict[str, Tensor]:
        """Return the metrics of the last updates and rewards, detached, and forget them."""
        report, self._report = self._report, {}
        return report

    def in_network_units(self, action: Any, is_rollout: bool) -> Any:
        """Return actions in the units of a network: discrete ones unchanged, continuous ones within [-1, 1].

        Args:
            action: Actions in the env's units, or of a rollout, which are those that the network drew.
            is_rollout: Whether they are of a rollout; they are clipped then, as the env's action was.
        """
        bounds = getattr(self._policy, "action_bounds", None) or getattr(self._policy, "bounds", None)
        if bounds is None or not action.is_floating_point():
            return action
        return bounds.from_env(bounds.to_env(action) if is_rollout else action)

    def _seen(self, transitions: Batch) -> Batch:
        """Return stored transitions as the model sees them."""
        normal = self._policy.normaliser.normalise_batch(transitions)
        return {**normal, "action": self.in_network_units(normal["action"], self._policy.on_policy)}

    # ------------------------------------------------------------------ state

    def network_state(self) -> dict[str, Any]:
        """Return the weights and statistics of the model, under ``reward_model``; nothing without one."""
        return {"reward_model": self.model.state_dict()} if self.is_on else {}

    def load_network_state(self, state: Mapping[str, Any]) -> None:
        """Restore what ``network_state`` returned, if there is a model."""
        if self.is_on:
            self.model.load_state_dict(state["reward_model"])

    def state(self) -> dict[str, Any]:
        """Return the state of this rank that the policy's ``state_dict`` does not have, as tensors and builtins."""
        window = None if self._window is None else nested.to(self._window, "cpu")
        return {"window": window, "new": self._new, "rounds": self._rounds, "model": self.model.rank_state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state`` returned."""
        window = state["window"]
        self._window = None if window is None else nested.to(window, self._policy.device)
        self._rounds, self._new = state["rounds"], state.get("new", 0)  # versions with one update each lack it
        self.model.load_rank_state(state["model"])


def _passes(length: int, size: tuple[int, int], rng: np.random.Generator) -> Tensor:
    """Return indices in [0, length) of a given shape, in which each index occurs equally often, but for the last pass.

    Args:
        length: Number of rows to draw from, >= 1.
        size: Number of minibatches U and of their rows B.
        rng: Random numbers.
    """
    number = math.prod(size)
    order = np.tile(np.arange(length), (math.ceil(number / length), 1))
    return torch.from_numpy(rng.permuted(order, axis=1).reshape(-1)[:number].reshape(size))
