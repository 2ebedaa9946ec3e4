"""What the algorithms that learn from rollouts have in common: acting, minibatches.

Shapes: S transitions of a rollout, B of a minibatch, A actions or dimensions of an action.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from gymnasium import spaces
from torch import Tensor

from lightning_ding import nested, rl
from lightning_ding.config import require
from lightning_ding.policy.action_bounds import ActionBounds
from lightning_ding.policy.base import ConfigT, Policy, not_implemented
from lightning_ding.policy.optimisation import make_optimizer
from lightning_ding.policy.rank_statistics import mean_over_ranks, smallest_over_ranks, standardise_over_ranks
from lightning_ding.policy.round import Batch
from lightning_ding.policy.spaces import actor_shapes, obs_shape


class OnPolicyPolicy(Policy[ConfigT]):
    """A policy that learns from a rollout of its own, once, in passes over shuffled minibatches.

    A subclass implements ``_learning_data``, which gives the columns that its ``loss`` reads, and ``loss``. An update
    is a minibatch, so ``train_iter`` counts minibatches. Under DDP all ranks make equally many of them, however many
    transitions each has.

    Actions are discrete, multi-discrete, continuous or hybrid, as the config's ``model.action_space`` or the env says.
    Networks give continuous actions in units of half the env's range; what leaves the range is clipped for the env
    only, so that probabilities stay those of the action drawn.
    """

    on_policy: ClassVar[bool] = True
    shape_names: ClassVar[tuple[str, ...]] = ("obs_shape", "action_shape", "action_space")
    config: Any

    # ------------------------------------------------------------------ to implement

    def loss(self, batch: Mapping[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a minibatch of what ``_learning_data`` gave, and what to report of it, detached."""
        raise not_implemented(self, "loss")

    def _learning_data(self, rollout: Batch, sequences: rl.Sequences) -> Batch:
        """Return the columns that ``loss`` reads, leading axis S; ``advantage`` among them is perhaps standardised."""
        raise not_implemented(self, "_learning_data")

    def _epochs(self) -> int:
        """Return how many passes are made over a rollout."""
        return 1

    def _standardised(self) -> str | None:
        """Return the column that is standardised in each minibatch, if any."""
        return None

    # ------------------------------------------------------------------ acting

    def _forward_collect(self, obs: Any) -> dict[str, Any]:  # type: ignore[override]
        distribution = self._distribution(self._logit(obs), obs)
        drawn = distribution.sample(self.rng)
        return {"action": self._to_env(drawn), "drawn": drawn, "log_prob": distribution.log_prob(drawn)}

    def _forward_eval(self, obs: Any) -> dict[str, Any]:
        return {"action": self._to_env(self._distribution(self._logit(obs), obs).mode())}

    def _process_transition(self, obs: Any, output: Mapping[str, Any], timestep: Any) -> dict[str, Any]:
        """Return the columns of a transition; ``action`` is what was drawn, in the network's units."""
        transition = super()._process_transition(obs, output, timestep)
        return transition | {"action": output["drawn"], "log_prob": output["log_prob"]}

    def _logit(self, obs: Any) -> Any:
        """Return what describes the distribution over actions, see :func:`rl.distribution_of`."""
        return self.model(obs)["logit"]

    def _distribution(self, logit: Any, obs: Any) -> rl.Distribution:
        return rl.distribution_of(logit, obs.get("action_mask") if isinstance(obs, Mapping) else None)

    def _to_env(self, action: Any) -> Any:
        if isinstance(action, Mapping):
            return self.action_start.to_env({**action, "action_args": self._to_env(action["action_args"])})
        if not action.is_floating_point():
            return self.action_start.to_env(action)
        section, names = self.config.model, "model.action_space and model.action_shape"
        needed = "set for a network of one's own with continuous actions without an env"
        require(hasattr(self, "bounds"), names, needed, (section.action_space, section.action_shape))
        return self.bounds.to_env(action)

    # ------------------------------------------------------------------ learning

    def _init_learn(self) -> None:
        learn = self.config.learn
        self._optimizer_list = [make_optimizer(learn.optimizer, self.model.parameters(), learn.learning_rate)]

    def _forward_learn(self, batch: Batch) -> dict[str, Any]:
        """Learn from a rollout with leading axis S; return what the last update reports."""
        sequences = rl.time_major(batch["env_id"], batch["episode_id"])
        scheduled = self._schedules.tensors
        for epoch in range(self._epochs()):
            if epoch == 0 or self._recomputes():
                data = self._learning_data(batch, sequences)
            divergences = []
            for minibatch in self._minibatches(data):
                report = self.minimise(self.loss, minibatch | scheduled, clip=self.config.learn.grad_clip)
                self.progress.train_iter += 1
                divergences.append(report.get("approx_kl"))
            if self._has_moved_far(divergences):
                break
        self._end_round(data)
        return report

    def _recomputes(self) -> bool:
        """Return whether the learning data is computed anew before each pass."""
        return False

    def _end_round(self, data: Batch) -> None:
        """Take note of the data of a round that was learned from."""

    def _has_moved_far(self, divergences: list[Tensor | None]) -> bool:
        """Return whether the policy has moved so far that the passes over a rollout should end, on all ranks alike."""
        limit: float | None = getattr(self.config.learn, "target_kl", None)
        if limit is None:
            return False
        moved = torch.stack([one for one in divergences if one is not None]).nanmean()  # one left out moved nothing
        return mean_over_ranks(float(moved), self.device) > limit

    def _minibatches(self, data: Batch) -> Iterator[Batch]:
        """Yield shuffled minibatches of sizes that differ by one at most, as many on every rank."""
        size = nested.length(data)
        wanted = self.config.learn.batch_size or size
        number = smallest_over_ranks(max(1, round(size / wanted)), self.device)
        shuffled = nested.index(data, torch.from_numpy(self.rng.permutation(size)).to(self.device))
        name = self._standardised()
        parts = list(_parts(shuffled, size, number))
        if name is not None:
            for part, column in zip(parts, standardise_over_ranks([part[name] for part in parts]), strict=True):
                part[name] = column
        for part in parts:
            yield from nested.unbind(part)  # type: ignore[misc]

    # ------------------------------------------------------------------ spaces and attributes

    def _init_spaces(self) -> None:
        super()._init_spaces()
        section = self.config.model
        shape, low, high = section.action_shape, section.action_low, section.action_high
        if section.action_space in ("discrete", None) or shape is None:  # of a network of one's own, the env says it
            return
        size = shape["action_args_shape"] if isinstance(shape, Mapping) else shape
        self.bounds = ActionBounds(size, allow_unbounded=True).to(self.device)
        self.bounds.set(low or [-1.0] * size, high or [1.0] * size, bool(section.action_integer))

    def _shapes_of(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> dict[str, Any]:
        return {"obs_shape": obs_shape(observation_space), **actor_shapes(action_space, type(self).__name__)}

    def _get_batch_size(self) -> int:
        return self.config.learn.batch_size or self.config.collect.n_sample or 1

    def _get_discount_factor(self) -> float:
        return float(self.config.discount_factor)

    def _get_update_per_collect(self) -> int:
        """Return how many updates a rollout gives; for whole episodes, whose length nobody knows, one a pass."""
        rows = self.config.collect.n_sample or 1
        return self._epochs() * max(1, round(rows / self._get_batch_size()))


def _parts(data: Batch, size: int, number: int) -> Iterator[Batch]:
    """Yield ``data`` as tables (M, B, ...) of minibatches: those with one transition more, then the others."""
    small, larger = divmod(size, number)
    cut = larger * (small + 1)
    if larger:
        yield nested.apply(lambda x: x[:cut].unflatten(0, (larger, small + 1)), data)
    yield nested.apply(lambda x: x[cut:].unflatten(0, (number - larger, small)), data)
