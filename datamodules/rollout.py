"""On-policy training: collect with the newest weights, learn from the data once, and discard them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.datamodules.collecting import CollectingDataModule
from lightning_ding.utils.ranks import on_any_rank
from lightning_ding.worker import get_serial_collector_cls

MAX_ATTEMPTS = 100  # to fill a rollout from which dropped episodes were removed


class RolloutDataModule(CollectingDataModule):
    """Collect in envs with the newest weights, and serve the data as one rollout. Nothing is stored.

    A round is a rollout. With the sample collector it has ``n_sample`` transitions, rounded up to whole steps of all
    envs. With the episode collector it has ``n_episode`` whole episodes, and an env pauses once it has run its share.
    Transitions of an episode that was dropped after an env fault are replaced by newly collected ones. The policy's
    ``training_step`` splits the rollout into passes and minibatches. An epoch of the Trainer is a number of rounds,
    followed by an evaluation. The arguments are those of :class:`CollectingDataModule`.

    Example:
        >>> datamodule = RolloutDataModule("CartPole-v1", num_envs=4, max_env_step=100_000)
    """

    def _next_round(self) -> dict[str, Any]:
        """Return a rollout: nested tensors with leading axis S (transitions), in chronological order for each env."""
        policy, tensors = self._policy, self._policy.normaliser.tensors
        if self._whole_episodes():
            episodes = self._collect_and_count(policy.n_episode)
            if isinstance(episodes, Mapping):  # with get_train_sample
                return cast("dict[str, Any]", tensors(episodes))
            return cast("dict[str, Any]", nested.concatenate([tensors(episode) for episode in episodes]))
        n_sample = policy.n_sample
        rollout = self._collect_and_count(n_sample, drop_extra=False)
        if self._policy.config.collect.collector.env_fault == "drop":
            rollout = self._without_faults(rollout, n_sample)
        if self._overlap is not None:
            self._collect_meanwhile(self._overlap)
        return cast("dict[str, Any]", tensors(rollout))

    def _collect_and_count(self, amount: int, **kwargs: Any) -> Any:
        data = self._collect(amount, **kwargs)
        self._count()
        return data

    def _without_faults(self, rollout: dict[str, Any], n_sample: int) -> dict[str, Any]:
        """Replace the transitions of dropped episodes, until every rank has ``n_sample`` of them.

        Raises:
            RuntimeError: If a rank still has fewer transitions after ``MAX_ATTEMPTS`` attempts.
        """
        for _ in range(MAX_ATTEMPTS):
            rollout = self._remove_dropped(rollout)
            missing = n_sample - len(rollout["episode_id"])
            if not on_any_rank(missing > 0):  # all ranks must collect together
                return rollout
            more = self._collect_and_count(max(1, missing), drop_extra=False)
            rollout = nested.concatenate_arrays([rollout, more], keep_double=True)
        raise RuntimeError(
            f"after collecting {MAX_ATTEMPTS} times there are still fewer than {n_sample} transitions of episodes "
            "without a fault; the envs fail too often"
        )

    def _remove_dropped(self, rollout: dict[str, Any]) -> dict[str, Any]:
        if not self._dropped_episodes:
            return rollout
        kept = ~np.isin(rollout["episode_id"], self._dropped_episodes)
        return cast("dict[str, Any]", nested.index(rollout, kept))

    def _check_policy(self, policy: Any) -> None:
        """Check that the policy learns from rollouts, and that its config has the amount to collect."""
        name = type(policy).__name__
        allowed = "one that learns from rollouts (use ReplayDataModule for off-policy algorithms)"
        require(policy.on_policy, "policy", allowed, name)
        wanted = "n_episode" if self._whole_episodes() else "n_sample"
        kind = policy.config.collect.collector.type
        amount = policy.n_episode if self._whole_episodes() else policy.n_sample
        require(amount is not None, f"collect.{wanted}", f"set with the collector {kind!r}", amount)

    def _whole_episodes(self) -> bool:
        return get_serial_collector_cls(self._policy.config.collect.collector).collects_whole_episodes
