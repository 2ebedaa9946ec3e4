"""Collecting a number of transitions, and the queue of those that were not returned yet.

Shapes: N envs, S requested transitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.registry import SERIAL_COLLECTOR_REGISTRY
from lightning_ding.utils.attributes import policy_of
from lightning_ding.utils.foreign import foreign
from lightning_ding.utils.modes import CollectMode
from lightning_ding.worker.arguments import (
    also_named,
    check_amount,
    check_level_switch,
    check_switches,
    collect_mode_of,
)
from lightning_ding.worker.collector.base import SinglePolicyCollector


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
        kept = self._kept = queue_for(call.policy, call.stepper.env.num_envs, self._kept)
        if kept.count:
            kept.check_levels(f"the {kept.count} transitions that wait", level_seeds)
        while kept.lacks(wanted):
            self._step(call)
        amount = wanted if drop_extra else kept.count
        data = kept.take(amount)
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
        from lightning_ding.envs import from_plain

        super().load_state_dict(state, continues)
        if "kept" not in state:  # a collector of a different kind has none
            return
        kept = from_plain(state["kept"])
        if isinstance(kept, Mapping):
            self._kept = foreign("by_env").PieceQueue()
            self._kept.load(kept)
        else:
            self._kept = TransitionQueue([nested.to_array(part, keep_double=True) for part in kept])

    def _keep(self, step: dict[str, Any], valid: NDArray[np.bool_] | None) -> None:
        self._kept.append(step, valid)


class TransitionQueue:
    """Transitions that were collected and not returned yet.

    Steps are copied into columns with room for as many transitions as are wanted, as soon as they arrive. Large
    observations of several steps are thus not all in memory twice. A step that is enough by itself is not copied.

    Args:
        parts: Nested arrays with a leading axis of transitions, the oldest first.

    Example:
        >>> queue = TransitionQueue()
        >>> queue.lacks(3)
        True
        >>> queue.append({"reward": np.array([1.0, 2.0])})
        >>> queue.append({"reward": np.array([3.0, 4.0])})
        >>> queue.take(3)["reward"].tolist(), queue.count
        ([1.0, 2.0, 3.0], 1)
    """

    def __init__(self, parts: Sequence[Any] = ()) -> None:
        self._parts: list[Any] = list(parts)
        self._block: Any = None  # columns that follow the parts; their first rows hold transitions
        self._filled = self._wanted = 0
        self._are_alike = True  # false once transitions did not fit into the block, until the next take
        self.count = sum(map(nested.length, self._parts))
        """Number of transitions."""

    def append(self, part: Any, valid: NDArray[np.bool_] | None = None) -> None:
        """Add transitions; where ``valid`` is given, the rows where it is true."""
        part = part if valid is None else nested.index(part, valid)
        size = nested.length(part)
        new = [part]
        if self._block is None and self._are_alike and self.count + size < self._wanted:
            self._block, self._filled = nested.empty_arrays(part, self._wanted + size), 0
            new, self._parts = [*self._parts, part], []  # those that wait move into the block too
        for one in new:
            end = self._filled + nested.length(one)
            if self._block is not None:
                rows = slice(self._filled, end)
                if end <= nested.length(self._block) and nested.copy_into(self._block, rows, one):
                    self._filled = end
                    continue
                self._parts = self.state()
                self._block, self._filled, self._are_alike = None, 0, False
            self._parts.append(one)
        self.count += size

    def lacks(self, amount: int) -> bool:
        """Return whether there are fewer transitions; if so, the next ones get room for this amount."""
        self._wanted = amount
        return self.count < amount

    def state(self) -> list[Any]:
        """Return the transitions."""
        return [*self._parts, nested.index(self._block, slice(self._filled))] if self._filled else self._parts

    def take(self, amount: int) -> Any:
        """Remove and return the oldest transitions; there must be at least ``amount`` of them."""
        data = nested.concatenate_arrays(self.state(), keep_double=True)
        self._block, self._filled, self._are_alike = None, 0, True
        self.count -= amount
        self._parts = [nested.index(data, slice(amount, None))] if self.count else []
        return nested.index(data, slice(amount)) if self.count else data

    def check_levels(self, waiting: str, level_seeds: Sequence[int] | None) -> None:
        """Check that the next transitions have a level if and only if these have one; there must be some.

        Args:
            waiting: Description of these transitions for the message.
            level_seeds: Levels of the next transitions; None for no levels.

        Raises:
            ValueError: If only these or only the next transitions have a level.
        """
        check_level_switch(waiting, "seed" in self.state()[0], level_seeds)


def queue_for(policy: Any, num_envs: int, kept: Any) -> Any:
    """Return the queue of a policy's collected data: the kept one, or a new one if the form of the data differs."""
    if not isinstance(policy, CollectMode):
        return policy.queue(num_envs, kept)
    return kept if isinstance(kept, TransitionQueue) else TransitionQueue()
