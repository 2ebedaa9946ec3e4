"""DI-engine's ``ding.reward_model``: the base of a reward model that a script trains and asks itself.

The reward models of this package are in :mod:`lightning_ding.reward_model`; a Trainer trains them with the policy.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_ding.config import require
from lightning_ding.registry import REWARD_MODEL_REGISTRY

__all__ = ["REWARD_MODEL_REGISTRY", "BaseRewardModel", "HerRewardModel"]
Transition = dict[str, Any]
Split = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]


class BaseRewardModel(ABC):
    """A model that replaces the rewards of transitions."""

    @abstractmethod
    def estimate(self, data: list[Any]) -> Any:
        """Return the transitions with the rewards of the model."""

    @abstractmethod
    def train(self) -> None:
        """Train the model with the collected data."""

    @abstractmethod
    def collect_data(self, data: Any) -> None:
        """Take data to train with."""

    @abstractmethod
    def clear_data(self) -> None:
        """Forget the collected data."""


class HerRewardModel:
    """Hindsight replay for lists of transitions (Andrychowicz et al. 2017, section 3.2).

    See https://arxiv.org/abs/1707.01495. A Trainer uses a buffer, :class:`~lightning_ding.worker.HERReplayBuffer`.

    Args:
        cfg: Mapping of these entries: ``her_strategy``, ``"final"``, ``"future"`` or ``"episode"``; ``her_replay_k``,
            the number of new episodes for each one, >= 1; ``episode_size``, episodes of a minibatch, or None;
            ``sample_per_episode``, transitions of each new episode, drawn with replacement, or None for all.
        cuda: Move the transitions to the GPU.
    """

    def __init__(self, cfg: Mapping[str, Any], cuda: bool = False) -> None:
        strategies = ("final", "future", "episode")
        strategy = cfg.get("her_strategy", "future")
        require(strategy in strategies, "her_strategy", f"one of {strategies}", strategy)
        self._strategy, self._replays = strategy, int(cfg.get("her_replay_k", 1))
        require(self._replays >= 1, "her_replay_k", ">= 1", self._replays)
        require(strategy != "final" or self._replays == 1, "her_replay_k", "1 with 'final'", self._replays)
        self._episode_size, self._per_episode = cfg.get("episode_size"), cfg.get("sample_per_episode")
        self._cuda = cuda and torch.cuda.is_available()

    @property
    def episode_size(self) -> int | None:
        """Episodes of a minibatch."""
        return self._episode_size

    @property
    def sample_per_episode(self) -> int | None:
        """Transitions of each new episode; None for all."""
        return self._per_episode

    def estimate(
        self,
        episode: Sequence[Transition],
        merge_func: Callable[[Tensor, Tensor], Tensor] | None = None,
        split_func: Split | None = None,
        goal_reward_func: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> list[list[Transition]]:
        """Return new episodes: the transitions with another goal each, which a step of the episode achieved.

        Args:
            episode: The transitions of an episode in chronological order.
            merge_func: Function that makes an observation of the part without a goal and the goal; None joins both.
            split_func: Function that returns of an observation the part without a goal, the goal, and the achieved
                goal; None takes two halves, of which the first is the achieved goal as well.
            goal_reward_func: Function of the achieved and the desired goal that returns the reward, shape (1,); None
                returns 1 where both are equal, and 0 elsewhere.
        """
        merge, split, reward = merge_func or _join, split_func or _halves, goal_reward_func or _is_equal
        made: list[list[Transition]] = [[] for _ in range(self._replays)]
        last, places = len(episode) - 1, range(len(episode))
        for place in places if self._per_episode is None else random.choices(places, k=self._per_episode):
            step, earliest = episode[place], {"final": last, "episode": 0, "future": place}[self._strategy]
            for new in made:
                source = random.randint(earliest, last)
                goal = split(torch.as_tensor(episode[source]["next_obs"]))[2]
                obs, next_obs = (split(torch.as_tensor(step[name])) for name in ("obs", "next_obs"))
                parts = {"obs": merge(obs[0], goal), "next_obs": merge(next_obs[0], goal)}
                changed = {**step, **parts, "reward": reward(next_obs[2], goal)}
                new.append(self._placed(changed))
        return made

    def _placed(self, step: Transition) -> Transition:
        return {name: one.cuda() if self._cuda and isinstance(one, Tensor) else one for name, one in step.items()}


def _join(obs: Tensor, goal: Tensor) -> Tensor:
    return torch.cat([obs, goal])


def _halves(obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    half = len(obs) // 2
    return obs[:half], obs[half:], obs[:half]


def _is_equal(achieved: Tensor, desired: Tensor) -> Tensor:
    return torch.tensor([float(torch.equal(achieved, desired))])
