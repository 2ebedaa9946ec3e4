"""PettingZoo's two kinds of games, driven the same way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol


class Moment(NamedTuple):
    """What a game says of its players, by name."""

    obs: dict[Any, Any]
    """Of those that play or have just left, and of no others; None for a player that sees nothing new."""
    reward: dict[Any, float]
    terminated: dict[Any, bool]
    truncated: dict[Any, bool]
    active: list[Any]
    """Who acts next."""


class Game(Protocol):
    """A game of named players."""

    env: Any
    """The PettingZoo env."""

    def reset(self, seed: int | None) -> Moment:
        """Begin an episode; ``obs`` names who plays."""
        ...

    def step(self, actions: Mapping[Any, Any]) -> Moment:
        """Let the active players act."""
        ...


def make_game(env: Any) -> Game:
    """Return a PettingZoo env as a game; whether it is turn-based shows by its method ``last``.

    Raises:
        TypeError: If it is no PettingZoo env, or does not name its possible agents.
    """
    if not hasattr(env, "possible_agents"):
        raise TypeError(f"make must return a PettingZoo env that names its possible_agents, got {type(env).__name__}")
    return TurnGame(env) if hasattr(env, "last") else ParallelGame(env)


class TurnGame:
    """One player acts at a time.

    PettingZoo asks a player that has left for one last, empty action; here that is done for it, and what it learns
    then is its final observation and reward.
    """

    def __init__(self, env: Any) -> None:
        self.env = env

    def reset(self, seed: int | None) -> Moment:
        """Begin an episode."""
        self.env.reset(seed=seed)
        return self._until_a_turn()

    def step(self, actions: Mapping[Any, Any]) -> Moment:
        """Let the player in turn act."""
        self.env.step(actions[self.env.agent_selection])
        return self._until_a_turn()

    def _until_a_turn(self) -> Moment:
        moment = Moment({}, {}, {}, {}, [])
        env = self.env
        while not moment.active and env.agents:
            name = env.agent_selection
            moment.obs[name], moment.reward[name], terminated, truncated, _ = env.last()
            moment.terminated[name], moment.truncated[name] = terminated, truncated
            if terminated or truncated:
                env.step(None)
            else:
                moment.active.append(name)
        moment.obs.update({name: env.observe(name) for name in env.agents if name not in moment.obs})
        return moment


class ParallelGame:
    """All players that have not left act at once."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def reset(self, seed: int | None) -> Moment:
        """Begin an episode."""
        obs, _ = self.env.reset(seed=seed)
        return Moment(obs, {}, {}, {}, list(self.env.agents))

    def step(self, actions: Mapping[Any, Any]) -> Moment:
        """Let all active players act."""
        obs, reward, terminated, truncated, _ = self.env.step(dict(actions))
        active = list(self.env.agents)
        left = [name for name in actions if terminated.get(name) or truncated.get(name)]
        return Moment({name: obs.get(name) for name in [*left, *active]}, reward, terminated, truncated, active)
