"""Observations and rewards, normalised by the running statistics of the collected data.

Data stay raw everywhere: in envs, collectors, buffers and messages. A policy normalises observations before they reach
its network, when acting and when learning, and rewards when learning, with the newest statistics. Those are buffers of
the policy, so that whatever holds its weights holds them too.

Shapes: S transitions in the order in which they were collected, T steps, N envs.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from lightning_ding import nested

if TYPE_CHECKING:
    from lightning_ding.policy.base.running_statistics import Part
    from lightning_ding.rl import RunningReturns

EPS = torch.finfo(torch.float32).eps
LARGE, FEW_STEPS = 1000.0, 16  # size from which a standard deviation should have this many steps of single precision
OBSERVATIONS, REWARDS = ("obs", "next_obs", "next_obs_1"), ("reward", "reward_1")  # entries of a transition
REWARD = "reward"  # name of the statistics of rewards


class Normaliser(nn.Module):
    """Shifts and scales observations to mean 0 and standard deviation 1, and scales rewards.

    Without statistics it changes nothing. :meth:`begin` sets what to normalise, and loading a state dict adds the
    statistics that it contains. In a Dict space, ``action_mask`` and entries that are no floats stay as they are; of a
    team's observations, only ``agent_state`` and ``global_state`` change. Each agent has statistics of the steps in
    which it is in the episode; what it sees afterwards stays 0, and so do the zeros that fill up an observation.
    Observations of double precision are shifted in it, because single precision may lose their variation, as that of
    time stamps and prices. Rewards are divided by the standard deviation of the discounted return
    ``G_t = discount_factor * G_{t-1} + r_t`` from the start of its episode, as in OpenAI Baselines' VecNormalize; no
    mean is taken off.

    Example:
        >>> normaliser = Normaliser()
        >>> normaliser.begin(spaces.Box(-1, 1, (2,)), norm_obs=True)
        >>> normaliser.update({"obs": torch.tensor([[1.0, 3.0], [3.0, 7.0]])})
        >>> normaliser.normalise_obs(torch.tensor([[3.0, 5.0]]))
        tensor([[1., 0.]])
    """

    def __init__(self) -> None:
        super().__init__()
        self.paths: dict[str, tuple[str, ...]] = {}
        """Keys that lead to the normalised entries of an observation, by name of the statistics."""
        self.keeps_double = False
        """Whether transitions are collected and stored with observations of double precision, to normalise them."""
        self.discount_factor = 1.0

    @property
    def is_on(self) -> bool:
        """Whether anything is normalised."""
        return bool(self._modules)

    @property
    def kinds(self) -> dict[str, bool]:
        """Whether observations and rewards are normalised, by the names of the datamodules' arguments."""
        return {"norm_obs": bool(self.paths), "norm_reward": self._has_reward}

    @property
    def has_seen_obs(self) -> bool:
        """Whether there are statistics of observations, of at least one."""
        return bool(self.paths) and all(bool((self._part(name).count > 0).any()) for name in self.paths)

    @property
    def has_statistics(self) -> bool:
        """Whether there are statistics of everything that is normalised."""
        return all(bool((self._part(name).count > 0).any()) for name in self._modules)

    def begin(
        self,
        observation_space: spaces.Space[Any],
        norm_obs: bool = False,
        norm_reward: bool = False,
        discount_factor: float = 1.0,
    ) -> None:
        """Set what is normalised from now on, in new episodes; existing statistics are kept.

        Args:
            observation_space: Observation space of one env.
            norm_obs: Normalise observations.
            norm_reward: Normalise rewards.
            discount_factor: gamma of the return, in [0, 1].

        Raises:
            ValueError: If there is nothing in the observations to normalise, or there are statistics of what is not to
                be normalised.
        """
        for name, is_asked, has in (("norm_obs", norm_obs, self.paths), ("norm_reward", norm_reward, self._has_reward)):
            if has and not is_asked:
                raise ValueError(f"{name} must be True for a policy that was trained with it, got False")
        self.keeps_double = False
        if norm_obs:
            from lightning_ding.policy.base.running_statistics import (
                count_shape,
                float_entries,
                space_at,
                statistics_name,
            )

            found = float_entries(observation_space)
            allowed = "a Box of floats, or a Dict with one that is not called action_mask, with norm_obs"
            if not found:
                raise ValueError(f"the observation space must be {allowed}, got {observation_space}")
            for path, shape in found.items():
                self._add(statistics_name(path), shape, count_shape(observation_space, path, shape))
                self.keeps_double = self.keeps_double or space_at(observation_space, path).dtype == np.float64
        if norm_reward:
            self._add(REWARD, ())
        self.discount_factor = discount_factor
        self.forget_episodes()

    @property
    def needs_double(self) -> bool:
        """Whether the observations seen so far vary less than single precision counts, so that they need double."""
        parts = [self._part(name) for name in self.paths]
        sizes = [(part.mean.abs(), part.std) for part in parts if bool((part.count > 0).any())]
        return any(bool(((size >= LARGE) & (std < FEW_STEPS * EPS * size)).any()) for size, std in sizes)

    # ------------------------------------------------------------------ normalising

    def tensors(self, transitions: Any) -> dict[str, Any]:
        """Return collected transitions as tensors, in the precision in which they are normalised."""
        if not self.keeps_double:
            return cast("dict[str, Any]", nested.to_tensor(transitions))
        return {name: nested.to_tensor(column, name in OBSERVATIONS) for name, column in transitions.items()}

    def normalise_obs(self, obs: Any) -> Any:
        """Return normalised observations with any leading axes; entries without statistics are unchanged.

        If there are statistics, all entries of double precision become those of single precision.
        """
        if not self.paths:
            return obs
        from lightning_ding.policy.base.running_statistics import only_alive, replaced, single

        for name, path in self.paths.items():
            obs = replaced(obs, path, self._part(name))
            if self._part(name).count.ndim:
                obs = only_alive(obs, path)
        return nested.apply(single, obs)

    def normalise_batch(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return transitions with normalised ``obs``, ``next_obs`` and ``reward``; any leading axes.

        The reward may be that of several steps, summed; then those of the first step are normalised too, if there are.
        """
        if not self.is_on:
            return cast("dict[str, Any]", batch)
        normal = {name: self.normalise_obs(batch[name]) for name in OBSERVATIONS if name in batch}
        if self._has_reward:
            normal |= {name: self._part(REWARD).scaled(batch[name]) for name in REWARDS if name in batch}
            reached = normal.get("next_obs", batch.get("next_obs"))
            if isinstance(reached, Mapping):  # of a team, it may have the reward of each agent
                scaled = {
                    name: self._part(REWARD).scaled(one) for name, one in reached.items() if name == "agent_reward"
                }
                normal["next_obs"] = {**reached, **scaled}
        return {**batch, **normal}

    def scale_return(self, value: Tensor) -> Tensor:
        """Return returns, any shape, divided by what rewards are divided by; they are not clipped."""
        return value * self._part(REWARD).scale.to(value.device) if self._has_reward else value

    # ------------------------------------------------------------------ updating the statistics

    @torch.no_grad()
    def update(self, transitions: Mapping[str, Any]) -> None:
        """Add collected transitions to the statistics; all ranks must call it, and get the same statistics.

        Args:
            transitions: Raw ``obs``, leading axis S; and with rewards to be normalised ``reward``, ``env_id`` and
                ``episode_id``, (S,), those of an env in chronological order. An episode that was unfinished in the
                last call continues.
        """
        from lightning_ding.policy.base.rank_statistics import merge_over_ranks
        from lightning_ding.policy.base.running_statistics import entry_at, finite_moments, moments_of_agents

        parts, found = [], []
        for name, path in self.paths.items():
            parts.append(self._part(name))
            seen = entry_at(transitions["obs"], path)
            counts_agents = parts[-1].count.ndim > 0
            found.append(moments_of_agents(seen, transitions["obs"]) if counts_agents else finite_moments(seen))
        if self._has_reward:
            parts.append(self._part(REWARD))
            reward, env_id, episode_id = (transitions[name] for name in ("reward", "env_id", "episode_id"))
            found.append(finite_moments(self._episodes.follow(reward, env_id, episode_id, self.discount_factor)))
        merge_over_ranks(parts, found)

    def forget_episodes(self) -> None:
        """Begin new episodes: none of the next call continues one of the last call."""
        self.__dict__.pop("_episodes", None)

    def episode_state(self) -> dict[str, Tensor]:
        """Return the discounted returns of this rank's unfinished episodes."""
        return {"value": torch.tensor(self._episodes.value), "episode": torch.tensor(self._episodes.episode)}

    def load_episode_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore the state that ``episode_state`` returned."""
        self._episodes.value, self._episodes.episode = (state[name].numpy().copy() for name in ("value", "episode"))

    # ------------------------------------------------------------------ parts

    @functools.cached_property
    def _episodes(self) -> RunningReturns:
        """The returns of unfinished episodes, which only rewards to be normalised need."""
        from lightning_ding.rl import RunningReturns

        return RunningReturns()

    @property
    def _has_reward(self) -> bool:
        return REWARD in self._modules

    def _part(self, name: str) -> Part:
        return cast("Part", self._modules[name])

    def _add(self, name: str, shape: tuple[int, ...], count_shape: tuple[int, ...] = ()) -> None:
        if name not in self._modules:
            from lightning_ding.policy.base.running_statistics import Part, path_of

            self.add_module(name, Part(shape, count_shape))
            if name != REWARD:
                self.paths[name] = path_of(name)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *arguments: Any) -> None:
        """Make what the state dict has statistics of and begin has not made, for ``nn.Module.load_state_dict``."""
        for key, value in state_dict.items():
            if key.startswith(prefix) and key.endswith(".mean"):
                name = key.removeprefix(prefix).removesuffix(".mean")
                self._add(name, tuple(value.shape), tuple(state_dict[f"{key.removesuffix('.mean')}.count"].shape))
        super()._load_from_state_dict(state_dict, prefix, *arguments)
