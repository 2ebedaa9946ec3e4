"""Collecting a number of transitions.

Shapes: N envs, S transitions asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.envs import from_plain, to_plain
from lightning_ding.policy.modes import CollectMode
from lightning_ding.registry import SERIAL_COLLECTOR_REGISTRY
from lightning_ding.worker.arguments import check_amount, check_levels_go_on, check_switches
from lightning_ding.worker.collector.single import SinglePolicyCollector
from lightning_ding.worker.players import attribute


@SERIAL_COLLECTOR_REGISTRY.register("sample")
class SampleSerialCollector(SinglePolicyCollector):
    """Collects S transitions a call, episodes going on from one call to the next.

    What a vector step gives beyond S is kept for the next call; nothing is dropped. Transitions of one env are in the
    order of time, so a buffer can tell which one follows which.

    A step in which an env reports a fault is no transition; with ``env_fault="drop"`` it is left out. What the episode
    gave before is handed over; ``pop_dropped_episodes`` says of which episodes it is, for whoever keeps transitions.

    Sequences for policies with memory are drawn by a sequence buffer, so their ``unroll_len`` must be 1 here.
    """

    config_keys: ClassVar[frozenset[str]] = frozenset({"collect_print_freq", "env_fault"})

    def _clear(self) -> None:
        super()._clear()
        self._kept: list[Any] = []
        self._kept_count = 0

    def reset_policy(self, policy: CollectMode | None = None) -> None:
        """Reset the policy's collecting state, after taking ``policy`` if it is given.

        Raises:
            RuntimeError: If there is no policy.
            ValueError: If the policy's ``unroll_len`` is above 1.
        """
        if policy is not None:
            allowed = "1 with the sample collector (a sequence buffer draws sequences, type 'episode' cuts windows)"
            policy = getattr(policy, "collect_mode", policy)
            unroll_len = attribute(policy, "unroll_len", 1)
            require(unroll_len == 1, "collect.unroll_len", allowed, unroll_len)
        super().reset_policy(policy)

    def collect(
        self,
        n_sample: int | None = None,
        train_iter: int = 0,
        drop_extra: bool = True,
        random_collect: bool = False,
        record_random_collect: bool = True,
        policy_kwargs: Mapping[str, Any] | None = None,
        level_seeds: Sequence[int] | None = None,
    ) -> nested.Nested:
        """Return S transitions.

        Args:
            n_sample: S, >= 1; None asks the policy.
            train_iter: Updates done so far; each transition carries it as ``policy_version``.
            drop_extra: Return exactly S, and what is beyond with the next call; else return all there is, S or more.
            random_collect: Take uniformly random actions, legal ones where the observation has an ``action_mask``.
            record_random_collect: Report the episodes that end while actions are random.
            policy_kwargs: Arguments of the policy's forward, such as ``eps``.
            level_seeds: The level that each env plays, N of them; each transition carries its env's as ``seed``.

        Returns:
            What the policy's ``process_transition`` gives, and ``env_id``, ``episode_id`` and ``policy_version``; every
            leaf is a tensor with leading axis S.

        Raises:
            RuntimeError: If there is no env or no policy, or an env reports a fault with ``env_fault="raise"``, or one
                after the other.
            ValueError: If an argument is out of range, the policy gives no actions or of a wrong shape, or a value is
                not finite.
            TypeError: If an argument is of the wrong type.
        """
        check_switches(drop_extra=drop_extra)
        call = self._begin(train_iter, random_collect, record_random_collect, policy_kwargs, level_seeds)
        asked = attribute(call.policy, "n_sample", None) if n_sample is None else n_sample
        wanted = check_amount("n_sample", asked)
        if self._kept:
            waiting = f"the {self._kept_count} transitions that wait"
            check_levels_go_on(waiting, "seed" in self._kept[0], level_seeds)
        while self._kept_count < wanted:
            self._step(call)
        data = self._take(wanted if drop_extra else self._kept_count)
        self._finish(call)
        return call.policy.get_train_sample(data)  # type: ignore[no-any-return]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the collector, and what waits for the next call."""
        return {**super().state_dict(), "kept": to_plain(self._kept)}

    def load_state_dict(self, state: Mapping[str, Any], goes_on: bool = True) -> None:
        """Take what ``state_dict`` returned; see :class:`ISerialCollector`."""
        super().load_state_dict(state, goes_on)
        if "kept" not in state:  # of a collector of another kind
            return
        self._kept = from_plain(state["kept"])
        self._kept_count = sum(nested.length(part) for part in self._kept)

    def _take(self, amount: int) -> Any:
        """Return the oldest transitions and keep the others."""
        data = nested.concatenate(self._kept)
        extra = self._kept_count - amount
        self._kept = [nested.index(data, slice(amount, None))] if extra else []
        self._kept_count = extra
        self.sample += amount
        return nested.index(data, slice(amount)) if extra else data

    def _keep(self, step: dict[str, Any], valid: NDArray[np.bool_] | None) -> None:
        if valid is not None:
            step = nested.index(step, torch.from_numpy(valid))
        self._kept.append(step)
        self._kept_count += nested.length(step)
