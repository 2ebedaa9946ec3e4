"""Games with known rewards, for tests of adapters, collectors and evaluators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from lightning_ding.config import require


class RelayGame:
    """A turn-based game with the API of PettingZoo's AEC envs, in which P players move in turn.

    A player observes ``[number, episode, moves so far, its seat]``. The t-th move of an episode, t from 1, earns t for
    the player and -t for all others. Episodes and seats are counted from 0. Seeds are only recorded in ``seeds``.

    Args:
        number: Number of this env, the first entry of the observations.
        num_players: Number of players P, >= 2.
        lengths: Numbers of moves of the episodes, each >= 1; episode e has ``lengths[e % len(lengths)]``.
        truncates: Whether episode e is truncated instead of terminated: ``truncates[e % len(truncates)]``.

    Example:
        >>> game = RelayGame(number=7, lengths=(2,))
        >>> game.reset()
        >>> game.step(3)
        >>> game.agent_selection, game.last()[0].tolist(), game.last()[1:4]
        ('player_1', [7.0, 0.0, 1.0, 1.0], (-1.0, False, False))
    """

    def __init__(
        self,
        number: int = 0,
        num_players: int = 2,
        lengths: Sequence[int] = (5,),
        truncates: Sequence[bool] = (False,),
    ) -> None:
        require(num_players >= 2, "num_players", ">= 2", num_players)
        require(len(lengths) >= 1 and min(lengths) >= 1, "lengths", "at least one number >= 1", lengths)
        require(len(truncates) >= 1, "truncates", "at least one bool", truncates)
        self.number = number
        self.lengths = tuple(lengths)
        self.truncates = tuple(truncates)
        self.possible_agents = [f"player_{seat}" for seat in range(num_players)]
        self.agents: list[str] = []
        self.agent_selection = self.possible_agents[0]
        self.episode = -1
        self.moves: list[int] = []
        """Actions of the episode."""
        self.seeds: list[int | None] = []
        """The seeds of all resets."""
        self.is_closed = False

    def observation_space(self, agent: str) -> spaces.Box:
        """Return the observation space of every player."""
        return spaces.Box(0.0, np.inf, (4,), np.float32)

    def action_space(self, agent: str) -> spaces.Discrete:
        """Return the action space of every player."""
        return spaces.Discrete(4)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Start the next episode."""
        self.seeds.append(seed)
        self.episode += 1
        self.moves = []
        self.agents = list(self.possible_agents)
        self.agent_selection = self.agents[0]
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._gained = dict.fromkeys(self.agents, 0.0)

    def step(self, action: Any) -> None:
        """Move; after the end of an episode, an empty action removes the player."""
        agent = self.agent_selection
        if self._has_ended():
            require(action is None, "action", "None when the episode has ended", action)
            self.agents.remove(agent)
            self.agent_selection = self.agents[0] if self.agents else agent
            return
        self.moves.append(int(action))
        self._gained[agent] = 0.0
        for other in self.agents:
            self.rewards[other] = float(len(self.moves) if other == agent else -len(self.moves))
            self._gained[other] += self.rewards[other]
        self.agent_selection = self.possible_agents[len(self.moves) % len(self.possible_agents)]

    def observe(self, agent: str) -> NDArray[np.float32]:
        """Return the observation of a player."""
        return np.array([self.number, self.episode, len(self.moves), self.possible_agents.index(agent)], np.float32)

    def last(self) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Return the observation of the player whose turn it is, and its rewards since its last move."""
        agent, ended = self.agent_selection, self._has_ended()
        is_cut = self.truncates[self.episode % len(self.truncates)]
        return self.observe(agent), self._gained[agent], ended and not is_cut, ended and is_cut, {}

    def close(self) -> None:
        """Record that the game was closed."""
        self.is_closed = True

    def _has_ended(self) -> bool:
        return len(self.moves) == self.lengths[self.episode % len(self.lengths)]
