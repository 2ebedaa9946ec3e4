"""A round of training: the minibatches that a policy learns from, and what is done before and after its updates.

Shapes: B batch, U minibatches of a round.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from lightning_ding.policy.base.optimizers import settings_of
from lightning_ding.policy.base.own_state import OwnState
from lightning_ding.policy.base.spaces import check_network
from lightning_ding.policy.base.trainer import can_keep_batches
from lightning_ding.policy.base.vitals import RoundNotes, vitals
from lightning_ding.utils.ranks import world_size

if TYPE_CHECKING:
    from lightning_ding.policy.base.ddp import WeightComparison

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
    """Surrounds the updates of a round with rewards to learn from, metrics, schedules and comparisons.

    Args:
        policy: The policy that learns, a :class:`Policy`.
    """

    def __init__(self, policy: Any) -> None:
        self.rewards: Any = None
        """The :class:`RewardLearner` of the reward model, whose rewards the policy learns from; None without one."""
        if policy.config.reward_model.type is not None:
            from lightning_ding.policy.base.rewards import RewardLearner

            self.rewards = RewardLearner(policy)
        self.own_state = OwnState(policy)
        """The state of a subclass in attributes that no class of this package makes."""
        self.keeps_batches = False
        """Whether the hooks of the transfer of batches have no effect in the fit."""
        self.meanwhile: Any = None
        """The :class:`Overlap` that collects while the updates of this round run; None for none."""
        self._policy, self._has_warned = policy, False
        self._comparison: WeightComparison | None = None  # with several ranks
        self._position = 0  # before the round; schedules are evaluated there

    def build_rewards(self) -> None:
        """Make the reward model, if there is one, as soon as the shapes of observations and actions are known."""
        if self.rewards is not None:
            self.rewards.build()

    @property
    def replaces_env_reward(self) -> bool:
        """Whether the policy learns from rewards that do not depend on those of the env."""
        return self.rewards is not None and bool(self.rewards.replaces_env_reward)

    def network_state(self) -> dict[str, Any]:
        """Return the weights and statistics of the reward model, under ``reward_model``; nothing without one."""
        return {} if self.rewards is None else self.rewards.network_state()

    def load_network_state(self, state: Mapping[str, Any]) -> None:
        """Restore what ``network_state`` returned."""
        if self.rewards is not None:
            self.rewards.load_network_state(state)

    def note_start(self) -> None:
        """Check the network, and take note of what the code has made, before the state of a checkpoint replaces it."""
        check_network(self._policy)
        self.own_state.begin()
        self._policy.updater.settings = list(map(settings_of, self._policy.trainer.optimizers))

    def begin_fit(self) -> None:
        """Take over the Trainer's optimizers, and set the scheduled values.

        An invalid schedule raises here, before any data are collected.
        """
        policy, trainer = self._policy, self._policy.trainer
        policy._in_eval_mode = policy._action_selector.use(policy.model)  # layers may have been replaced
        self._comparison = self.meanwhile = None
        if world_size() > 1:
            from lightning_ding.policy.base.ddp import WeightComparison

            self._comparison = WeightComparison()
        self.keeps_batches = can_keep_batches(trainer, policy)
        policy.updater.begin_fit(trainer)
        if trainer.ckpt_path is None:
            self.own_state.forget()  # a checkpoint that was loaded before this fit; attributes may have changed since
        self.own_state.restore()  # hooks of a subclass may have set the attributes after the checkpoint was loaded
        self._position = policy.progress.position
        policy.updater.apply_schedules(self._position)

    def observe_next_round(self) -> None:
        """Measure the next round, and add what was found to the metrics; see :func:`vitals`."""
        self._policy.updater.notes = RoundNotes()

    def begin_round(self, batch: Any) -> tuple[Iterable[Any], bool]:
        """Set the scheduled values, train the reward model, and prepare the minibatches of a round for the updates.

        Args:
            batch: The argument of ``training_step``, a :class:`Round` or a single minibatch.

        Returns:
            The minibatches, and whether they still have to be normalised.
        """
        policy = self._policy
        self._skipped_before = policy.updater.guard.skipped_updates
        policy.updater.apply_schedules(self._position)
        if isinstance(batch, (Mapping, Sequence)):
            return [batch], True
        if self.rewards is not None:
            self.rewards.train()
        batch.prepare(lambda data: policy._prepare_round(self.seen(data)))
        return batch if self.meanwhile is None else self.meanwhile.between(batch), batch.drawn is None

    def seen(self, batch: Batch) -> Batch:
        """Return stored transitions with normalised observations, and with the rewards to learn from."""
        policy, rewards = self._policy, self.rewards
        normal: Batch = policy.normaliser.normalise_batch(batch)
        if rewards is not None:
            normal = rewards.learn_from_rollout(batch, normal) if policy.on_policy else rewards.estimate(normal)
        return normal

    def end_round(self, batch: Any, report: dict[str, Any], batch_idx: int) -> None:
        """Add the report of the last update to the metrics, and step and compare what is due after a round."""
        policy, guard = self._policy, self._policy.updater.guard
        if self.meanwhile is not None:
            self.meanwhile.finish()
        if guard.look() or guard.mode == "warn":
            policy.metrics.add(report if self.rewards is None else {**report, **self.rewards.pop_report()})
        if guard.mode == "skip_update":
            skipped = guard.skipped_updates - self._skipped_before
            policy.metrics.add({"skipped_updates": torch.tensor(float(skipped))})
        if policy.updater.notes is not None:
            policy.metrics.add(self._measure(batch, report))
        self._position = policy.progress.position
        policy.updater.end_round(batch_idx)
        if self._comparison is not None:
            self._comparison.after_round(policy, batch_idx)

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
            found = vitals(policy, rows, report, notes, has_env_reward=self.rewards is None)
        except Exception as error:  # a policy of a user may store and report anything; learning continues
            if not self._has_warned:
                self._has_warned = True
                text = "the rounds of %s cannot be measured, so symptoms of its networks and data are not found: %s: %s"
                logger.warning(text, type(policy).__name__, type(error).__name__, error)
            return {}
        for name in found.keys() & report.keys():  # which is of every update
            del found[name]
        return found

    def update_and_check(self, data: Any) -> dict[str, Any]:
        """Make one update of the policy, and check at once whether it was finite, which waits for the device."""
        policy = self._policy
        policy.updater.apply_schedules(policy.progress.position)
        report: dict[str, Any] = policy._learn(data)
        policy.updater.guard.look()
        return report
