"""Collecting a number of transitions.

Shapes: N envs, S requested transitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from lightning_ding.config import require
from lightning_ding.registry import SERIAL_COLLECTOR_REGISTRY
from lightning_ding.utils.attributes import policy_of
from lightning_ding.utils.modes import CollectMode
from lightning_ding.worker.arguments import also_named, check_amount, check_switches
from lightning_ding.worker.collector.base import SinglePolicyCollector
from lightning_ding.worker.collector.steps import TransitionQueue, queue_for, restored_queue
from lightning_ding.worker.players import collect_mode_of


@SERIAL_COLLECTOR_REGISTRY.register("sample")
class SampleSerialCollector(SinglePolicyCollector):
    """Collects S transitions a call; episodes continue from one call to the next.

    If the last vector step gives more than S transitions, the surplus is kept for the next call. The transitions of an
    env are in chronological order, so a buffer can find the next transition of each one.

    A step in which an env reports a fault is not a transition; with ``env_fault="drop"`` it is left out. The earlier
    transitions of that episode are returned, and ``pop_dropped_episodes`` names the episode, so that a caller who
    stores transitions can remove them.

    A sequence buffer draws the sequences for policies with memory, so their ``unroll_len`` must be 1 here.
    """

    config_keys: ClassVar[frozenset[str]] = frozenset(
        {"collect_print_freq", "env_fault", "deepcopy_obs", "transform_obs"}
    )

    def _clear(self) -> None:
        super()._clear()
        self._kept: Any = TransitionQueue()

    @also_named(_policy="policy")
    @override
    def reset_policy(self, policy: Any = None) -> None:
        if policy is not None and isinstance(collect_mode_of(policy), CollectMode):
            allowed = "1 with the sample collector (a sequence buffer draws sequences, type 'episode' cuts windows)"
            unroll_len = policy_of(collect_mode_of(policy)).unroll_len
            require(unroll_len == 1, "collect.unroll_len", allowed, unroll_len)
        super().reset_policy(policy)

    @override
    def collect(
        self,
        n_sample: int | None = None,
        train_iter: int = 0,
        drop_extra: bool = True,
        random_collect: bool = False,
        record_random_collect: bool = True,
        policy_kwargs: Mapping[str, Any] | None = None,
        level_seeds: Sequence[int] | None = None,
    ) -> Any:
        """Return S transitions; see also :class:`ISerialCollector`.

        Args:
            n_sample: Number of transitions S, >= 1; None means the policy's ``n_sample``.
            train_iter: Updates so far; each transition carries it as ``policy_version``.
            drop_extra: Return exactly S transitions and keep the others for the next call; otherwise return all, S or
                more.
            random_collect: Take uniformly random actions, legal ones where the observation has an ``action_mask``.
            record_random_collect: Report the episodes that end while actions are random.
            policy_kwargs: Arguments of the policy's ``forward``, such as ``eps``.
            level_seeds: Level of each of the N envs; each transition carries its env's as ``seed``.

        Returns:
            The columns that the policy's ``process_transition`` gives, and ``env_id``, ``episode_id`` and
            ``policy_version``: nested numpy arrays with leading axis S. For a policy that acts by env, a list of the
            samples that it made of pieces of episodes.
        """
        check_switches(drop_extra=drop_extra)
        call = self._begin(train_iter, random_collect, record_random_collect, policy_kwargs, level_seeds)
        asked = policy_of(call.policy).n_sample if n_sample is None else n_sample
        wanted = check_amount("n_sample", asked)
        self._kept = queue_for(call.policy, call.stepper.env.num_envs, self._kept)
        self._kept.check_levels(f"the {self._kept.count} transitions that wait", level_seeds)
        while self._kept.lacks(wanted):
            self._step(call)
        amount = wanted if drop_extra else self._kept.count
        data = self._kept.take(amount)
        self.sample += amount
        self._report.finish(self, train_iter)
        return call.policy.get_train_sample(data) if isinstance(call.policy, CollectMode) else data

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the state of the collector and the transitions that wait for the next call."""
        from lightning_ding.envs import to_plain

        return {**super().state_dict(), "kept": to_plain(self._kept.state())}

    @override
    def load_state_dict(self, state: Mapping[str, Any], continues: bool = True) -> None:
        """Restore what ``state_dict`` returned; see :class:`ISerialCollector`."""
        from lightning_ding.envs import from_plain

        super().load_state_dict(state, continues)
        if "kept" in state:  # a collector of a different kind has none
            self._kept = restored_queue(from_plain(state["kept"]))

    def _keep(self, step: dict[str, Any], valid: NDArray[np.bool_] | None) -> None:
        self._kept.append(step, valid)
