"""On-policy training: collect with the newest weights, learn, forget."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.datamodules.base import CollectingDataModule
from lightning_ding.envs import Pausable
from lightning_ding.worker import get_serial_collector_cls


class RolloutDataModule(CollectingDataModule):
    """Collects in envs with the newest weights, and serves what was collected as one rollout; nothing is kept.

    A round is a rollout: ``n_sample`` transitions with the sample collector, or a few more, as many as whole steps of
    the envs give; ``n_episode`` whole episodes with the episode collector, whose envs pause when they have done their
    share. The policy's ``training_step`` makes its epochs and minibatches from it. An epoch of the Trainer is a number
    of rounds, then an evaluation. Arguments are those of :class:`CollectingDataModule`.

    Example:
        >>> datamodule = RolloutDataModule("CartPole-v1", num_envs=4, max_env_step=100_000)
    """

    def _next_round(self) -> dict[str, Any]:
        """Return a rollout: nested tensors with leading axis S, the rows of each env in the order of time."""
        collect = self._policy.collect_mode
        if self._whole_episodes():
            episodes = self._collect(collect.get_attribute("n_episode"))
            return cast("dict[str, Any]", nested.concatenate(episodes))
        return cast("dict[str, Any]", self._collect(collect.get_attribute("n_sample"), drop_extra=False))

    def _check_policy(self, policy: Any) -> None:
        """Raise if the policy learns from replay, or is not told how much to collect.

        Raises:
            ValueError: If it does, or is not.
        """
        name = type(policy).__name__
        require(policy.get_attribute("on_policy"), "policy", "one that learns from rollouts", name)
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
