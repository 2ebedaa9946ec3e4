"""How the observations, masks and actions of agents with different spaces become those of a team, and back.

Shapes: N agents, D numbers of the largest observation, *image the axes of an image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from lightning_ding.config import require
from lightning_ding.utils.teams import ACTION_MASK, AGENT_REWARD, AGENT_STATE, ALIVE, GLOBAL_STATE

TeamObs = dict[str, NDArray[Any]]
TeamReward = Literal["sum", "mean"]
OBSERVATION = "observation"
"""The entry of an agent's dict that is its observation where another one is its mask, in PettingZoo's convention."""


class TeamLayout:
    """The spaces of a team, and the conversion of what its agents see and do.

    Observations are flattened and filled up with zeros; images stay images if all agents see some of one shape and
    there is ``alive``. Actions are a MultiDiscrete if all agents have Discrete ones,
    or a Box that is filled up if all have a Box; the numbers of a Box that an agent does not have are ignored.

    Args:
        seen: Observation space of each agent.
        actions: Action space of each agent.
        state: The global state, whose size counts, or its shape and type if it is an image; None for none.
        has_mask: Whether there are masks of legal actions.
        has_alive: Whether agents may leave the episode before it ends.
        has_rewards: Whether observations have the reward of each agent.

    Raises:
        TypeError: If agents have actions of different kinds, or of another kind than these.

    Example:
        >>> seen = [spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2,))]
        >>> layout = TeamLayout(seen, [spaces.Discrete(2), spaces.Discrete(4)])
        >>> layout.observation_space["agent_state"].shape, layout.action_space.nvec.tolist()
        ((2, 3), [2, 4])
        >>> layout.agent_state([np.ones(3), None]).tolist()
        [[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]
    """

    def __init__(
        self,
        seen: Sequence[spaces.Space[Any]],
        actions: Sequence[spaces.Space[Any]],
        state: NDArray[Any] | None = None,
        has_mask: bool = False,
        has_alive: bool = False,
        has_rewards: bool = False,
    ) -> None:
        self._seen = [_without_mask(space) for space in seen]
        self.number, first = len(self._seen), self._seen[0]
        is_same = isinstance(first, spaces.Box) and all(space == first for space in self._seen)
        self.image: spaces.Box | None = first if has_alive and is_same and len(first.shape or ()) == 3 else None  # type: ignore[assignment]
        self.size = 0 if self.image else max(_flat_space(space).shape[0] for space in self._seen)
        entries: dict[str, spaces.Space[Any]] = {AGENT_STATE: self._seen_space()}
        if state is not None:
            entries[GLOBAL_STATE] = _state_space(state)
        self._actions = list(actions)
        self.action_space = self._action_space()
        if has_mask:
            entries[ACTION_MASK] = spaces.MultiBinary(sum(self.counts))
        if has_alive:
            entries[ALIVE] = spaces.Box(0, 1, (self.number,), np.float32)
        if has_rewards:
            entries[AGENT_REWARD] = spaces.Box(-np.inf, np.inf, (self.number,), np.float32)
        self.observation_space = spaces.Dict(entries)

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of actions of each agent; empty with a Box."""
        return tuple(int(space.n) for space in self._actions if isinstance(space, spaces.Discrete))

    def agent_state(self, observations: Sequence[Any]) -> NDArray[Any]:
        """Return what all agents see, shape (N, D) or (N, *image).

        Args:
            observations: The observation of each agent, None for one that is not in the episode.
        """
        if self.image is not None:
            nothing = np.zeros(self.image.shape, self.image.dtype)
            return np.stack([nothing if one is None else _without(one) for one in observations])
        parts = zip(self._seen, observations, strict=True)
        return self._filled([np.zeros(0) if one is None else _flat(space, one) for space, one in parts])

    def mask(self, masks: Sequence[Any], alive: NDArray[Any]) -> NDArray[np.int8]:
        """Return the legal actions of all agents side by side.

        Args:
            masks: The mask of each agent, None if all its actions are legal.
            alive: Whether each agent is in the episode; one that is not has its first action only.
        """
        parts = []
        for count, one, is_alive in zip(self.counts, masks, alive, strict=True):
            part = np.ones(count, np.int8) if one is None else np.asarray(one).astype(np.int8).reshape(-1)
            parts.append(part if is_alive else np.eye(1, count, dtype=np.int8)[0])
            require(part.shape == (count,), ACTION_MASK, f"{count} numbers, one for each action", part.shape)
        return np.concatenate(parts)

    def action_of(self, action: NDArray[Any], agent: int) -> Any:
        """Return the action of an agent, in its own space."""
        space = self._actions[agent]
        if isinstance(space, spaces.Discrete):
            return int(action[agent]) + int(space.start)
        size = int(np.prod(space.shape or ()))
        return np.asarray(action[agent, :size], space.dtype).reshape(space.shape or ())

    def _filled(self, rows: Sequence[Any]) -> NDArray[np.float32]:
        """Return rows of different lengths as an array, filled up with zeros."""
        filled = np.zeros((self.number, self.size), np.float32)
        for place, row in enumerate(rows):
            filled[place, : len(row)] = row
        return filled

    def _seen_space(self) -> spaces.Box:
        if self.image is not None:
            low, high = (np.stack([bound] * self.number) for bound in (self.image.low, self.image.high))
            return spaces.Box(low, high, dtype=self.image.dtype.type)
        flat = [_flat_space(space) for space in self._seen]
        low, high = (self._filled([getattr(one, end) for one in flat]) for end in ("low", "high"))
        return spaces.Box(low, high, dtype=np.float32)

    def _action_space(self) -> Any:
        kinds = {type(space) for space in self._actions}
        if kinds == {spaces.Discrete}:
            return spaces.MultiDiscrete(np.array(self.counts))
        if kinds != {spaces.Box}:
            raise TypeError(f"all agents of a team must have Discrete actions, or all a Box, got {self._actions}")
        size = max(int(np.prod(space.shape or ())) for space in self._actions)
        low, high = -np.ones((self.number, size), np.float32), np.ones((self.number, size), np.float32)
        for place, space in enumerate(self._actions):
            own: Any = space
            low[place, : own.low.size], high[place, : own.high.size] = own.low.ravel(), own.high.ravel()
        return spaces.Box(low, high, dtype=np.float32)


def mask_of(observation: Any, info: Mapping[str, Any]) -> Any:
    """Return the mask of an agent by either of PettingZoo's conventions, or None."""
    in_obs = observation.get(ACTION_MASK) if isinstance(observation, Mapping) else None
    return info.get(ACTION_MASK) if in_obs is None else in_obs


def as_state(state: Any) -> NDArray[Any]:
    """Return a global state as a vector of floats, or as it is if it is an image, which has three axes."""
    found: NDArray[Any] = np.asarray(state)
    if found.ndim != 3:
        return found.astype(np.float32).reshape(-1)
    return found if found.dtype == np.uint8 else found.astype(np.float32)


def team_reward(rewards: NDArray[Any], how: TeamReward) -> float:
    """Return the reward of a team from those of its agents."""
    return float(rewards.sum() if how == "sum" else rewards.mean())


def check_team_reward(how: str) -> None:
    """Raise unless ``how`` is a :data:`TeamReward`."""
    require(how in get_args(TeamReward), "team_reward", '"sum" or "mean"', how)


def returns_of_agents(names: Sequence[str], returns: NDArray[Any]) -> dict[str, float]:
    """Return the entries of the info of a step: the return of each agent so far in its episode."""
    return {f"return_{name}": float(one) for name, one in zip(names, returns, strict=True)}


def _without_mask(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """Return the space of what an agent sees, for one that may have its mask beside it."""
    if not isinstance(space, spaces.Dict) or ACTION_MASK not in space.spaces:
        return space
    rest = {name: below for name, below in space.spaces.items() if name != ACTION_MASK}
    return rest[OBSERVATION] if list(rest) == [OBSERVATION] else spaces.Dict(rest)


def _state_space(state: NDArray[Any]) -> spaces.Box:
    if state.dtype == np.uint8:
        return spaces.Box(0, 255, state.shape, np.uint8)
    return spaces.Box(-np.inf, np.inf, state.shape, np.float32)


def _without(observation: Any) -> Any:
    """Return an observation without the mask beside it."""
    return observation[OBSERVATION] if isinstance(observation, Mapping) else observation


def _flat_space(space: spaces.Space[Any]) -> spaces.Box:
    flat = spaces.flatten_space(space)
    if not isinstance(flat, spaces.Box):
        raise TypeError(f"the observations of an agent must have a fixed number of numbers, got {space}")
    return flat


def _flat(space: spaces.Space[Any], observation: Any) -> NDArray[Any]:
    """Return an observation as a vector; an entry for its mask is left out."""
    if isinstance(space, spaces.Box):
        return np.asarray(_without(observation)).reshape(-1)
    if isinstance(observation, Mapping) and not isinstance(space, spaces.Dict):
        observation = observation[OBSERVATION]
    flat: Any = spaces.flatten(space, observation)
    return np.asarray(flat)
