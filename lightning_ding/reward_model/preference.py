"""The base of rewards learned from ranked trajectories: of two of them, the better one has the larger sum of rewards.

The loss of a pair is the cross entropy of the preference, ``-log(exp(b) / (exp(a) + exp(b)))`` with the sums of the
predicted rewards of the worse part ``a`` and of the better part ``b`` (Brown et al. 2019, eq. 3,
https://arxiv.org/abs/1904.06387). All updates are made before the policy's first one.

Shapes: P pairs, B pairs of a minibatch, L the longest part of a pair in steps that are seen, N steps of all
trajectories, K trajectories.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.datamodules.dataset_files import load_dataset
from lightning_ding.model.dict_encoders import dict_encoder
from lightning_ding.model.encoder import encoder_for
from lightning_ding.model.mlp import MLP
from lightning_ding.reward_model.base import Batch, RewardModel, widths_of
from lightning_ding.reward_model.expert import DataConfig

SNIPPET_STRIDE = 2  # of the steps of a snippet, every second one is seen
FIRST_STEPS, STRIDES = 6, (3, 7)  # whole trajectories are seen from one of their first steps, every 3rd to 6th step
Integers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class PreferenceConfig(DataConfig):
    """Keys of the models that learn from ranked trajectories."""

    num_trajs: int = 0
    """trex, drex: pairs of whole trajectories, of which every 3rd to 6th step is seen, >= 0."""
    num_snippets: int = 6000
    """trex, drex: pairs of parts of equal length, of which every second step is seen, >= 0; that of the better
    trajectory does not begin before the other."""
    min_snippet_length: int = 50
    """trex, drex: smallest length of such a part, >= 2."""
    max_snippet_length: int = 100
    """trex, drex: largest length of such a part; that of a shorter trajectory is limited by its length."""
    bounded: bool = False
    """trex, drex: give the policy the sigmoid of the learned reward, in (0, 1), as the paper does on Atari."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("num_trajs", 0), ("num_snippets", 0), ("min_snippet_length", 2)):
            require(getattr(self, name) >= least, f"reward_model.{name}", f">= {least}", getattr(self, name))
        number, rounds = self.num_trajs + self.num_snippets, self.clear_buffer_per_iters
        require(number >= 1, "reward_model.num_snippets", ">= 1 without num_trajs", self.num_snippets)
        low, high = self.min_snippet_length, self.max_snippet_length
        require(high >= low, "reward_model.max_snippet_length", f">= min_snippet_length ({low})", high)
        allowed = f"1 with {self.type}, which does not learn from collected transitions"
        require(rounds == 1, "reward_model.clear_buffer_per_iters", allowed, rounds)


PreferenceConfigT = TypeVar("PreferenceConfigT", bound=PreferenceConfig)


@dataclass(frozen=True)
class Pairs:
    """Parts of ranked trajectories, as rows of all their steps; arrays of shape (P, 2), first the worse part."""

    start: Integers
    """First row of each part."""
    count: Integers
    """Number of its steps that are seen, >= 1."""
    stride: Integers
    """Distance of these steps."""

    def __len__(self) -> int:
        return len(self.start)


class PreferenceRewardModel(RewardModel[PreferenceConfigT]):
    """A reward of observations, learned from ranked trajectories; a subclass implements ``ranks``.

    The reward of the env is not used while the policy learns. The arguments are those of RewardModel.
    """

    trains_once: ClassVar[bool] = True

    def __init__(self, config: PreferenceConfigT, section: Mapping[str, Any], discount_factor: float) -> None:
        super().__init__(config, section, discount_factor)
        self.encoder = encoder_for(section["obs_shape"], dict_encoder(section), None, "relu", keeps_vectors=True)
        self.head = MLP((int(self.encoder.output_size), *widths_of(config), 1), "relu", activate_last=False)
        self.pairs: Pairs | None = None
        """The pairs of trajectories that the model learns from; None before ``draw_lessons``."""
        self._obs: Any = None
        self._bounds = self._ranks = np.zeros(0, np.int64)

    def ranks(self, data: Any) -> Integers:
        """Return the rank of each trajectory of a data set, from 0 for the worst, shape (K,); equal ones are no pair.

        Args:
            data: A ``Dataset``.
        """
        raise NotImplementedError

    def bind(self, policy: Any) -> None:
        """Read the trajectories.

        Raises:
            ValueError: If there is no such data set, it does not fit the policy, or its trajectories are too short or
                all of one rank.
        """
        config, shape = self.config, policy.config.model.obs_shape
        path, kind = config.data_path, config.type
        require(bool(path), "reward_model.data_path", f"a data set of ranked trajectories with {kind}", path)
        normal = policy.normaliser.kinds["norm_obs"]
        allowed = f"False with reward_model.type {kind!r}, which learns before there are statistics of observations"
        require(not normal, "norm_obs", allowed, normal)
        data = load_dataset(path)
        obs = policy.normaliser.tensors({"obs": data.columns["obs"]})["obs"]
        fits = isinstance(obs, Mapping) or not isinstance(shape, int) or obs[0].numel() == shape
        require(fits, "reward_model.data_path", f"a data set with observations of {shape} numbers", path)
        self._obs, self._bounds, self._ranks = obs, data.bounds(), self.ranks(data)
        count, kinds, shortest = len(self._ranks), len(np.unique(self._ranks)), int(np.diff(self._bounds).min())
        allowed = "a data set with trajectories of at least two ranks"
        require(kinds >= 2, "reward_model.data_path", allowed, f"{kinds} of {count}")
        is_enough = not config.num_snippets or shortest >= config.min_snippet_length
        allowed = f"at most the length of the shortest trajectory ({shortest})"
        require(is_enough, "reward_model.min_snippet_length", allowed, config.min_snippet_length)

    def draw_lessons(self, draws: Any) -> int:
        """Draw the pairs, and return P."""
        self.pairs = draw_pairs(self._bounds, self._ranks, self.config, draws)
        return len(self.pairs)

    def lesson(self, rows: Tensor) -> dict[str, Any]:
        """Return ``obs`` of some pairs, leading axes (B, 2, L), and ``seen``, 1 for their steps and 0 after them."""
        pairs: Any = self.pairs
        chosen = rows.numpy()
        start, count, stride = (one[chosen][..., None] for one in (pairs.start, pairs.count, pairs.stride))
        place = np.arange(int(pairs.count.max()))
        steps = torch.from_numpy(start + stride * np.minimum(place, count - 1))
        device = next(self.parameters()).device
        seen = torch.from_numpy((place < count).astype(np.float32))
        found: dict[str, Any] = {"obs": nested.to(nested.index(self._obs, steps), device), "seen": seen.to(device)}
        return found

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the cross entropy of the preferences (eq. 3), and metrics to report."""
        seen = batch["seen"]
        obs = nested.apply(lambda x: x.flatten(0, 2), batch["obs"])
        worse, better = (self._rewards(obs).view(seen.shape) * seen).sum(2).unbind(1)
        loss = F.softplus(worse - better).mean()
        accuracy = (better > worse).float().mean()
        return loss, {"reward_model_loss": loss.detach(), "preference_accuracy": accuracy}

    @torch.no_grad()
    def score(self, batch: Batch) -> Tensor:
        """Return the rewards of the observations, shape (B,); their sigmoid with ``bounded``."""
        reward = self._rewards(batch["obs"])
        return torch.sigmoid(reward) if self.config.bounded else reward

    def _rewards(self, obs: Any) -> Tensor:
        reward: Tensor = self.head(self.encoder(obs)).squeeze(1)
        return reward


def draw_pairs(bounds: Integers, ranks: Integers, config: PreferenceConfig, draws: Any) -> Pairs:
    """Return pairs of parts of trajectories of two ranks, each pair of ranks and each trajectory of a rank as likely.

    Args:
        bounds: First row of each trajectory, and N, shape (K + 1,).
        ranks: Rank of each trajectory, from 0 for the worst, shape (K,); at least two.
        config: How many pairs, and how long their parts are.
        draws: The random number generator, of numpy.
    """
    first, lengths = bounds[:-1], np.diff(bounds)
    kinds, sizes = np.unique(ranks, return_counts=True)
    number = config.num_trajs + config.num_snippets
    one = draws.integers(len(kinds), size=number)
    other = (one + draws.integers(1, len(kinds), size=number)) % len(kinds)
    by_rank, offset = np.argsort(ranks, kind="stable"), np.cumsum(sizes) - sizes
    rank = np.sort(np.stack([one, other], 1), axis=1)  # the worse first
    chosen = by_rank[offset[rank] + draws.integers(sizes[rank])]
    start, length = first[chosen], lengths[chosen]
    whole, parts = slice(0, config.num_trajs), slice(config.num_trajs, number)
    found = [_whole(start[whole], length[whole], draws), _snippets(start[parts], length[parts], config, draws)]
    return Pairs(*(np.concatenate(columns) for columns in zip(*found, strict=True)))


def _whole(start: Integers, length: Integers, draws: Any) -> tuple[Integers, Integers, Integers]:
    """Return start, count and stride of pairs of whole trajectories, shapes (P, 2), both with one stride."""
    skipped = np.minimum(draws.integers(FIRST_STEPS, size=start.shape), length - 1)
    stride = np.repeat(draws.integers(*STRIDES, size=(len(start), 1)), 2, axis=1)
    return start + skipped, -((skipped - length) // stride), stride


def _snippets(
    start: Integers, length: Integers, config: PreferenceConfig, draws: Any
) -> tuple[Integers, Integers, Integers]:
    """Return start, count and stride of pairs of parts, shapes (P, 2); the better one does not begin earlier."""
    shorter = length.min(1)
    size = draws.integers(config.min_snippet_length, np.minimum(shorter, config.max_snippet_length) + 1)
    worse = draws.integers(shorter - size + 1)
    better = draws.integers(worse, length[:, 1] - size + 1)
    count = np.stack([-(-size // SNIPPET_STRIDE)] * 2, 1)
    return start + np.stack([worse, better], 1), count, np.full_like(start, SNIPPET_STRIDE)
