"""A round of training: the minibatches that a policy learns from, and how it learns from them.

Shapes: B batch, U minibatches of a round.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from lightning_ding.policy.base.own_state import OwnState
from lightning_ding.policy.base.rewards import RewardLearner
from lightning_ding.policy.base.trainer import shorten_rounds
from lightning_ding.policy.base.update.rank_weights import WeightComparison
from lightning_ding.policy.base.vitals import RoundNotes, vitals
from lightning_ding.utils.foreign import foreign

logger = logging.getLogger(__name__)
Batch = dict[str, Any]


class Round(Protocol):
    """The minibatches that ``training_step`` learns from, and a way to return their priorities."""

    @property
    def drawn(self) -> Batch | None:
        """All minibatches, leading axes (U, B), if they have already been drawn."""

    def __iter__(self) -> Iterator[Batch]:
        """Yield minibatches."""

    def prepare(self, function: Callable[[Batch], Batch]) -> None:
        """Apply ``function`` to all minibatches at once, leading axes (U, B), if they have already been drawn."""

    def update_priority(self, batch: Batch, priority: Tensor) -> None:
        """Store the priorities, shape (B,), of the minibatch of the last update."""


class RoundLearner:
    """Makes the updates of a policy from rounds of minibatches, or from single minibatches.

    Args:
        policy: The policy that learns, a :class:`Policy`.
    """

    def __init__(self, policy: Any) -> None:
        self.rewards = RewardLearner(policy)
        """The rewards that the policy learns from."""
        self.own_state = OwnState(policy)
        """The state of a subclass in attributes that no class of this package makes."""
        self._policy, self._comparison, self._has_warned = policy, WeightComparison(), False
        self._position = 0  # before the round; schedules are evaluated there

    def note_start(self) -> None:
        """Take note of what the code has made, before the state of a checkpoint replaces it."""
        self.own_state.begin()
        self._policy.updater.note_settings(self._policy.trainer)

    def begin_fit(self) -> None:
        """Take over the Trainer's optimizers, and set the scheduled values.

        An invalid schedule raises here, before any data are collected.
        """
        policy, trainer = self._policy, self._policy.trainer
        policy._in_eval_mode = policy._action_selector.use(policy.model)  # layers may have been replaced
        shorten_rounds(trainer, policy)
        self._comparison.begin_fit()
        policy.updater.begin_fit(trainer)
        if trainer.ckpt_path is None:
            self.own_state.forget()  # a checkpoint that was loaded before this fit; attributes may have changed since
        self.own_state.restore()  # hooks of a subclass may have set the attributes after the checkpoint was loaded
        self._position = policy.progress.position
        policy.updater.apply_schedules(self._position)

    def observe_next_round(self) -> None:
        """Measure the next round, and add what was found to the metrics; see :func:`vitals`."""
        self._policy.updater.notes = RoundNotes()

    def learn(self, batch: Round | Batch | Sequence[Mapping[str, Any]], batch_idx: int) -> dict[str, Any]:
        """Make one update for each minibatch of a round; see :meth:`Policy.training_step`."""
        policy, guard = self._policy, self._policy.updater.guard
        skipped_before = guard.skipped_updates
        policy.updater.apply_schedules(self._position)
        if isinstance(batch, (Mapping, Sequence)):
            output = self.update(batch)
            output.pop("priority", None)
        else:
            if self.rewards.model is not None:
                self.rewards.train()
            batch.prepare(lambda data: policy._prepare_round(self._seen(data)))
            output = self._update_in_turn(batch)
        if guard.look() or guard.mode == "warn":
            policy.metrics.add(output if self.rewards.model is None else {**output, **self.rewards.pop_report()})
        if guard.mode == "skip_update":
            policy.metrics.add({"skipped_updates": torch.tensor(float(guard.skipped_updates - skipped_before))})
        if policy.updater.notes is not None:
            policy.metrics.add(self._measure(batch, output))
        self._position = policy.progress.position
        policy.updater.end_round(batch_idx)
        self._comparison.after_round(policy, batch_idx)
        return output

    @torch.no_grad()
    def _measure(self, batch: Any, report: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the measurement of the round that was just learned from, and end the observation."""
        policy, notes = self._policy, self._policy.updater.notes
        policy.updater.notes = None
        is_round = not isinstance(batch, (Mapping, Sequence))
        drawn = batch.drawn if is_round else None  # normalised already
        raw = notes.data if is_round else batch
        try:
            is_normal = drawn is not None or not isinstance(raw, dict)
            rows = drawn if is_normal else policy.normaliser.normalise_batch(raw)
            found = vitals(policy, rows, report, notes, has_env_reward=self.rewards.model is None)
        except Exception as error:  # what a policy of a user stores and reports may be anything; learning goes on
            if not self._has_warned:
                self._has_warned = True
                text = "the rounds of %s cannot be measured, so symptoms of its networks and data are not found: %s: %s"
                logger.warning(text, type(policy).__name__, type(error).__name__, error)
            return {}
        return {name: value for name, value in found.items() if name not in report}  # which is of every update

    def _update_in_turn(self, batch: Round) -> dict[str, Any]:
        is_raw = batch.drawn is None  # otherwise it was normalised when it was prepared
        notes = self._policy.updater.notes
        for minibatch in batch:
            if notes is not None and is_raw:
                notes.data = minibatch
            output = self.update(minibatch, is_raw)
            priority = output.pop("priority", None)
            if priority is not None:
                batch.update_priority(minibatch, priority)
        return output

    def update(self, data: Batch | Sequence[Mapping[str, Any]], is_raw: bool = True) -> dict[str, Any]:
        """Make one update, and return the metrics that the algorithm reports.

        A rollout is added to the statistics of observations after the update, because the policy acted without it.

        Args:
            data: A minibatch, or on-policy a whole rollout, with leading axis B, or a list of B transitions.
            is_raw: Whether the data still have to be normalised.

        Raises:
            NonFiniteError: If the loss or the gradient is not finite, and ``on_non_finite`` is "raise".
        """
        policy, guard = self._policy, self._policy.updater.guard
        policy._require_field("learn")
        batch = data if isinstance(data, dict) else foreign("policies.names").columns_of(data)
        if not policy.training:
            policy.train()
        normal = self._seen(batch) if is_raw else batch
        guard.begin(normal)
        output: dict[str, Any] = policy._forward_learn(policy.prepare(normal))
        guard.end()
        if policy.on_policy and policy.normaliser.is_on:
            policy.normaliser.update(batch)
        policy.progress.train_iter += not policy.on_policy  # on-policy algorithms count their minibatches themselves
        if "priority" in output and not guard.look():  # the buffer waits for the device anyway
            del output["priority"]  # it is not finite either; the transitions keep their priorities
        return output

    def _seen(self, batch: Batch) -> Batch:
        """Return stored transitions with normalised observations, and with the rewards to learn from."""
        policy, rewards = self._policy, self.rewards
        normal: Batch = policy.normaliser.normalise_batch(batch)
        if rewards.model is None:
            return normal
        return rewards.learn_from_rollout(batch, normal) if policy.on_policy else rewards.estimate(normal)

    def update_and_check(self, data: Batch | Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Make one update, and check at once whether it was finite, which waits for the device; see :meth:`update`."""
        self._policy.updater.apply_schedules(self._policy.progress.position)
        output = self.update(data)
        self._policy.updater.guard.look()
        return output
