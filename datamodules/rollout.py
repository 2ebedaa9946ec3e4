"""On-policy training: collect with the newest weights, learn, forget."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.datamodules.base import CollectingDataModule
from lightning_ding.envs import Pausable
from lightning_ding.worker import get_serial_collector_cls

MAX_ATTEMPTS = 100  # to fill a rollout when episodes are left out of it


class RolloutDataModule(CollectingDataModule):
    """Collects in envs with the newest weights, and serves what was collected as one rollout; nothing is kept.

    A round is a rollout: ``n_sample`` transitions with the sample collector, or a few more, as many as whole steps of
    the envs give; ``n_episode`` whole episodes with the episode collector, whose envs pause when they have done their
    share. What an episode gave that a fault broke off is left out, and more collected. The policy's ``training_step``
    makes its epochs and minibatches from it. An epoch of the Trainer is a number of rounds, then an evaluation.
    Arguments are those of :class:`CollectingDataModule`.

    Example:
        >>> datamodule = RolloutDataModule("CartPole-v1", num_envs=4, max_env_step=100_000)
    """

    def _next_round(self) -> dict[str, Any]:
        """Return a rollout: nested tensors with leading axis S, the rows of each env in the order of time."""
        collect = self._policy.collect_mode
        if self._whole_episodes():
            episodes = self._collect(collect.get_attribute("n_episode"))
            return cast("dict[str, Any]", nested.concatenate(episodes))
        n_sample = collect.get_attribute("n_sample")
        rollout = self._collect(n_sample, drop_extra=False)
        if self._policy.config.collect.collector.env_fault != "drop":
            return cast("dict[str, Any]", rollout)
        return self._without_faults(rollout, n_sample)

    def _without_faults(self, rollout: dict[str, Any], n_sample: int) -> dict[str, Any]:
        """Leave out what episodes gave that a fault broke off, and collect on until there is enough on all ranks.

        Raises:
            RuntimeError: If there is not enough after many attempts.
        """
        for _ in range(MAX_ATTEMPTS):
            rollout = self._leave_out_dropped(rollout)
            missing = n_sample - len(rollout["episode_id"])
            if not self._on_any_rank(missing > 0):  # collecting takes all ranks
                return rollout
            more = self._collect(max(1, missing), drop_extra=False)
            rollout = cast("dict[str, Any]", nested.concatenate([rollout, more]))
        raise RuntimeError(
            f"after collecting {MAX_ATTEMPTS} times there are no {n_sample} transitions of episodes that no fault of "
            "an env broke off; the envs fail too often"
        )

    def _leave_out_dropped(self, rollout: dict[str, Any]) -> dict[str, Any]:
        if not self._dropped_episodes:
            return rollout
        episodes = rollout["episode_id"]
        kept = ~torch.isin(episodes, torch.tensor(self._dropped_episodes, device=episodes.device))
        return cast("dict[str, Any]", nested.index(rollout, kept))

    def _check_policy(self, policy: Any) -> None:
        """Raise if the policy learns from replay, or is not told how much to collect.

        Raises:
            ValueError: If it does, or is not.
        """
        name = type(policy).__name__
        allowed = "one that learns from rollouts (others: ReplayDataModule)"
        require(policy.get_attribute("on_policy"), "policy", allowed, name)
        wanted = "n_episode" if self._whole_episodes() else "n_sample"
        kind = policy.config.collect.collector.type
        amount = policy.get_attribute(wanted)
        require(amount is not None, f"collect.{wanted}", f"set with the collector {kind!r}", amount)

    def _collector_wrappers(self) -> tuple[Callable[[Any], Any], ...]:
        wrappers = super()._collector_wrappers()
        return (*wrappers, Pausable) if self._whole_episodes() and self.mode != "native" else wrappers

    def _whole_episodes(self) -> bool:
        collector = get_serial_collector_cls(self._policy.config.collect.collector)
        return bool(getattr(collector, "collects_whole_episodes", False))
