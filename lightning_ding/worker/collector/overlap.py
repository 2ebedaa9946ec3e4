"""Collecting the transitions of the next round while a policy learns from those of this one.

Shapes: N envs, T vector steps of a round, U updates of a round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lightning_ding.utils.modes import CollectMode
from lightning_ding.utils.private_api import copy_tensors
from lightning_ding.worker.actions import actions_of
from lightning_ding.worker.collector.base import Call, ISerialCollector
from lightning_ding.worker.collector.sample import SampleSerialCollector, queue_for


class Overlap:
    """Collects with the weights that a round began with, while the updates of that round run.

    The envs get their actions before the updates, and step in their processes during the updates. Where a round has
    several vector steps, the results of step t are read after update t * U / T, and the envs get the next actions; what
    is left is collected after the last update. So the order of all computations and random numbers is fixed, and equal
    runs stay equal. After the updates nothing is under way: the transitions wait in the collector for the next round.

    Args:
        collector: Collects for ``policy`` in a ``ProcessVectorEnv``.
        policy: The policy that learns.
        count: Called once in each round, after its updates, with the collector's counters at the end of a round.

    Raises:
        ValueError: If the collector is of another kind than ``"sample"``, or the policy acts env by env.
    """

    def __init__(self, collector: ISerialCollector, policy: Any, count: Callable[[], object]) -> None:
        if not isinstance(collector, SampleSerialCollector) or not isinstance(collector._policy, CollectMode):
            raise ValueError(
                "overlap must be False unless a collector of the type 'sample' collects for a policy that acts on "
                f"batches, got True with a {type(collector).__name__}"
            )
        self._collector, self._policy, self._count = collector, policy, count
        self._weights = KeptWeights(policy)
        own = type(policy)._process_transition
        is_own = own.__module__.partition(".")[0] != __name__.partition(".")[0]  # then it may read them
        self._reads_weights = is_own or policy.reads_weights_after_step
        self._is_open = False  # whether the round has not been counted
        self._call: Call | None = None  # of the collection that is under way
        self._output: Any = None  # of the policy, for the step that is under way

    def __reduce__(self) -> Any:
        """Leave this object out of a copy of the policy, which does not collect."""
        return type(None), ()

    def begin(self, n_sample: int, policy_kwargs: Mapping[str, Any]) -> None:
        """Begin to collect the transitions of the next round; the arguments are those of ``collect``."""
        collector = self._collector
        call = collector._begin(self._policy.progress.train_iter, False, True, policy_kwargs, None)
        kept = collector._kept = queue_for(call.policy, call.stepper.env.num_envs, collector._kept)
        self._is_open, self._wanted, self._policy.learner.meanwhile = True, n_sample, self
        if kept.lacks(n_sample):
            self._steps = -(-(n_sample - kept.count) // call.stepper.env.num_envs)
            self._total, self._updates, self._made = self._policy.update_per_collect, 0, 0
            self._is_kept = self._steps > 1 or self._reads_weights or collector.config.env_fault == "drop"
            if self._is_kept:
                self._weights.keep()
            self._call = call
            self._act(call)

    def between(self, minibatches: Iterable[Any]) -> Iterator[Any]:
        """Yield minibatches, and collect between the updates that are made of them."""
        for minibatch in minibatches:
            yield minibatch
            self._updates += 1
            if self._call is not None:
                self._collect(min(self._updates * self._steps // self._total, self._steps))

    def finish(self) -> None:
        """Collect what is still to be collected, and count it; called after the updates of a round."""
        if self._is_open:
            if self._call is not None:
                self._collect(None)
            self._is_open, self._policy.learner.meanwhile = False, None
            self._count()

    def _collect(self, until: int | None) -> None:
        """Collect until a number of vector steps have been made in all; until there are enough transitions for None."""
        while (call := self._call) is not None and (until is None or self._made < until):
            if not self._is_kept:
                self._receive(call)
                continue
            with self._weights:
                self._receive(call)

    def _receive(self, call: Call) -> None:
        """Keep the results of the step that is under way, and begin the next one if more transitions are needed."""
        acted = call.policy._replace(forward=lambda obs, **kwargs: self._output)
        self._collector._step(call._replace(policy=acted))
        self._made += 1
        if self._collector._kept.lacks(self._wanted):
            self._act(call)
            return
        self._call = self._output = None
        self._collector._report.finish(self._collector, int(call.policy_version[0]))

    def _act(self, call: Call) -> None:
        envs: Any = call.stepper.env
        self._output = call.policy.forward(call.stepper.obs, **call.policy_kwargs)
        envs.unwrapped.send(actions_of(self._output, envs))


class KeptWeights:
    """A copy of all weights of a policy; in the context of this object the policy has them.

    Args:
        policy: The policy, whose parameters and buffers are copied.
    """

    def __init__(self, policy: nn.Module) -> None:
        self._policy = policy
        self._kept: list[Tensor] = []

    @torch.no_grad()
    def keep(self) -> None:
        """Copy the weights."""
        now = self._now()
        if [(one.shape, one.dtype, one.device) for one in now] != [(k.shape, k.dtype, k.device) for k in self._kept]:
            self._kept = [one.detach().clone() for one in now]
        else:
            copy_tensors(self._kept, now)

    def __enter__(self) -> None:
        self._swap()

    def __exit__(self, *error: object) -> None:
        self._swap()

    def _swap(self) -> None:
        """Exchange the memory of the copy and of the policy, which is faster than copying, and keeps all references."""
        for one, kept in zip(self._now(), self._kept, strict=True):
            one.data, kept.data = kept.data, one.data
        torch.clear_autocast_cache()  # it has the weights from before

    def _now(self) -> list[Tensor]:
        return [*self._policy.parameters(), *self._policy.buffers()]
