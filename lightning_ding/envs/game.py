"""A turn-based game of PettingZoo, seen by one of its players, as an env of gymnasium (extra ``pettingzoo``).

Datamodules, collectors, buffers and evaluators treat it like any other env. Who makes the moves of the other players is
an argument; the callback :class:`~lightning_ding.callbacks.SelfPlay` lets the learner and its past versions make them.

Shapes: P players.
"""

from __future__ import annotations

import pkgutil
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Protocol, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from lightning_ding.config import closest, require
from lightning_ding.utils.moves import legal_moves, random_move

GAMES = "pettingzoo.classic"
"""The package with PettingZoo's turn-based games."""
RANDOM = "random"
TEAM_GAMES = 3
"""Games in a row that all players win or lose together before the game counts as one for a team."""
Info = dict[str, Any]
Opponent = Callable[[Any, np.random.Generator], int]
"""A function that returns the move of a player, given its observation and a random number generator."""


class Opponents(Protocol):
    """Opponents, one of which is drawn for each game."""

    def draw(self, rng: np.random.Generator) -> int | None:
        """Return the number of the opponent of a new game; None for the ``opponent`` of the env."""
        ...

    def move(self, number: int, obs: Any, rng: np.random.Generator) -> int:
        """Return the move of an opponent.

        Args:
            number: Number of the opponent, which :meth:`draw` returned.
            obs: Observation of the player that it plays.
            rng: Random number generator of the env.
        """
        ...


class GameEnv(gym.Env[Any, np.int64]):
    """A turn-based (AEC) game of PettingZoo in which the agent is one of the players.

    In an episode, a step is a move of the agent and all moves of the others until the agent moves again. Its reward is
    the sum of what the agent got in between. When the game is over for the agent, the step of its last move ends the
    episode, whoever made the last move: if the agent loses by a move of its opponent, that step has the reward of -1.

    The seat of the agent and the seed of the game are drawn from the env's random numbers at each reset. The seat is in
    the info of the reset. All players have the same space of observations. An ``action_mask`` in it, as PettingZoo's
    games have one, marks the legal moves, and all other moves raise an error.

    A saved state holds the moves of the game, which are made again to restore it. A game may therefore only draw from
    random numbers that the seed of its reset determines.

    Args:
        game: Name of a game in ``pettingzoo.classic``, such as ``"tictactoe_v3"``, or the dotted path of a function
            that returns a turn-based PettingZoo env, or such a function.
        opponent: Player of all other seats: ``"random"`` for random legal moves, a function ``(obs, rng) -> move``, or
            its dotted path. ``rng`` is a numpy generator of the env.
        seat: Seat of the agent, in [0, P); 0 moves first. None draws one for each episode.
        kwargs: Arguments of the game, such as ``render_mode``.

    Raises:
        ImportError: If the extra ``pettingzoo`` is not installed.
        ValueError: If there is no such game or function, the spaces of the players differ, or ``seat`` is out of range.
        TypeError: If the game is not turn-based, or its actions are not Discrete.

    Example:
        >>> env = GameEnv("tictactoe_v3", opponent=lambda obs, rng: int(obs["action_mask"].argmax()), seat=1)
        >>> obs, info = env.reset(seed=0)
        >>> obs["action_mask"].tolist(), info  # the opponent has taken the first square
        ([0, 1, 1, 1, 1, 1, 1, 1, 1], {'seat': 1})
        >>> env.step(8)[1:3], env.step(7)[1:3]  # the opponent takes squares 1 and 2, and wins
        ((0.0, False), (-1.0, True))
    """

    action_space: spaces.Discrete

    def __init__(
        self, game: str | Callable[..., Any], opponent: str | Opponent = RANDOM, seat: int | None = None, **kwargs: Any
    ) -> None:
        self._game = (game if callable(game) else find_game(game))(**kwargs)
        if not (hasattr(self._game, "last") and hasattr(self._game, "possible_agents")):
            given = f"{type(self._game).__name__}; ParallelTeam takes parallel games"
            raise TypeError(f"game must be a turn-based (AEC) env of PettingZoo, got {given}")
        self._players = list(self._game.possible_agents)
        self.observation_space, action_space = spaces_of_players(self._game)
        if not isinstance(action_space, spaces.Discrete):
            raise TypeError(f"game must have Discrete actions, got {action_space}")
        self.action_space = action_space
        seats = f"None, or in [0, {len(self._players)})"
        require(seat is None or 0 <= seat < len(self._players), "seat", seats, seat)
        self._own_opponent = _find_opponent(opponent)
        self.opponents: Opponents | None = None
        """Opponents, one of which is drawn for each game; None for the argument ``opponent`` in all games."""
        self.render_mode = kwargs.get("render_mode")
        self.metadata = {**self._game.metadata} if hasattr(self._game, "metadata") else {}
        self._seat = self._seed = 0
        self._fixed_seat = seat
        self._number: int | None = None  # of the opponent
        self._moves: list[int | None] = []  # of all players since the reset; None removes one that has left
        self._obs: Any = None  # of the agent
        self._team: Team | None = Team() if opponent == RANDOM else None  # None: there is nothing to find out

    @property
    def seat(self) -> int:
        """Seat of the agent in this game, in [0, P)."""
        return self._seat

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Start a game, and let the others move until it is the agent's turn.

        Raises:
            RuntimeError: If the game ends before.
        """
        super().reset(seed=seed)
        rng = self.np_random
        drawn = int(rng.integers(len(self._players)))
        self._seat = drawn if self._fixed_seat is None else self._fixed_seat
        self._seed = int(rng.integers(2**31))
        self._number = None if self.opponents is None else self.opponents.draw(rng)
        self._moves = []
        if self._team is not None:
            self._team.begin()
        self._game.reset(seed=self._seed)
        _, terminated, truncated = self._until_turn()
        if terminated or truncated:
            raise RuntimeError(f"the game ended before the first move of {self._players[self._seat]}")
        return self._obs, {"seat": self._seat}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        """Make a move, and let the others move until it is the agent's turn again or the game is over for it.

        Raises:
            ValueError: If the agent or an opponent makes an illegal move.
        """
        self._move(self._checked("action", action, legal_moves(self._obs, self.action_space)))
        reward, terminated, truncated = self._until_turn()
        if self._team is not None and (terminated or truncated):
            self._end_of_game(self._team)
        return self._obs, reward, terminated, truncated, {}

    def render(self) -> Any:
        """Return the picture of the game, or show it, as ``render_mode`` says."""
        return self._game.render()

    def close(self) -> None:
        """Close the game."""
        self._game.close()

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the random numbers, and the moves of this game."""
        game = {"seat": self._seat, "seed": self._seed, "number": self._number, "moves": list(self._moves)}
        return {"rng": self.np_random.bit_generator.state, **game}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that ``state_dict`` returned, by making the moves again."""
        self.np_random.bit_generator.state = state["rng"]
        self._seat, self._seed, self._number = state["seat"], state["seed"], state["number"]
        self._moves = []
        if self._team is not None:
            self._team.begin()
        self._game.reset(seed=self._seed)
        for move in state["moves"]:
            self._move(move)
        self._obs = self._game.last()[0] if self._game.agents else None

    # ------------------------------------------------------------------ the game

    def _until_turn(self) -> tuple[float, bool, bool]:
        """Let the others move until the agent is selected; return its reward, and how the game has ended for it."""
        game, own = self._game, self._players[self._seat]
        while game.agents:
            name = game.agent_selection
            obs, reward, terminated, truncated, _ = game.last()
            if name == own:
                self._obs = obs
                return float(reward), bool(terminated), bool(truncated)
            self._move(None if terminated or truncated else self._move_of_opponent(obs))
        raise RuntimeError(f"the game ended without a last observation and reward of {own}")

    def _move_of_opponent(self, obs: Any) -> int:
        legal = legal_moves(obs, self.action_space)
        if self._number is not None and self.opponents is not None:
            move = self.opponents.move(self._number, obs, self.np_random)
        elif self._own_opponent is not None:
            move = self._own_opponent(obs, self.np_random)
        else:
            return random_move(legal, self.np_random)
        return self._checked("the opponent's move", move, legal)

    def _checked(self, name: str, move: Any, legal: NDArray[np.int64]) -> int:
        require(move in legal, name, f"one of the legal moves {legal.tolist()}", move)
        return int(move)

    def _move(self, move: int | None) -> None:
        self._moves.append(move)
        self._game.step(move)
        if self._team is not None and move is not None:
            self._team.add(self._game.rewards)

    def _end_of_game(self, team: Team) -> None:
        """Warn if the game seems to be one for a team while the others move at random; stop asking once it is known."""
        is_team = team.end_of_game()
        if is_team and self.opponents is None:
            warnings.warn(
                f"all players of {self._game} have won or lost together in {TEAM_GAMES} games, so it seems to be "
                "a game for a team, but the other players move at random: pass opponent, a function that plays for "
                "them, or let the policy play for them with the callback SelfPlay",
                stacklevel=3,
            )
        if is_team is not None:
            self._team = None


class Team:
    """Finds out from the rewards of a game whether its players win and lose together."""

    def __init__(self) -> None:
        self._returns: dict[str, float] = {}
        self._games = 0

    def begin(self) -> None:
        """Begin a game."""
        self._returns = {}

    def add(self, rewards: Mapping[str, float]) -> None:
        """Add the rewards of a move, by player."""
        for player, reward in rewards.items():
            if reward:
                self._returns[player] = self._returns.get(player, 0.0) + reward

    def end_of_game(self) -> bool | None:
        """Return whether the players are a team; None as long as the games so far do not tell.

        A game in which at most one player got a reward does not tell it.
        """
        returns = list(self._returns.values())
        if len(returns) < 2:
            return None
        if min(returns) < 0 < max(returns):
            return False
        self._games += 1
        return True if self._games >= TEAM_GAMES else None


def spaces_of_players(env: Any) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    """Return the observation and the action space of every player of a PettingZoo env.

    Raises:
        TypeError: If a space cannot be stored in an array.
        ValueError: If the spaces of the players differ.
    """
    agents = list(env.possible_agents)
    for kind, space_of in (("observation", env.observation_space), ("action", env.action_space)):
        first = space_of(agents[0])
        _check_space(kind, first, may_be_dict=kind == "observation")
        for agent in agents[1:]:
            if space_of(agent) != first:
                raise ValueError(
                    f"all players must have equal {kind} spaces, got {agents[0]}: {first} and {agent}: "
                    f"{space_of(agent)}; supersuit's wrappers can pad them"
                )
    return env.observation_space(agents[0]), env.action_space(agents[0])


def _check_space(kind: str, space: spaces.Space[Any], may_be_dict: bool) -> None:
    if may_be_dict and isinstance(space, spaces.Dict):
        for below in space.spaces.values():
            _check_space(kind, below, may_be_dict)
    elif not isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        raise TypeError(f"the {kind} space must be Box, Discrete, MultiDiscrete or MultiBinary, got {space}")


def find_game(name: str) -> Callable[..., Any]:
    """Return the function that creates a game.

    Args:
        name: Name of a game in ``pettingzoo.classic``, or the dotted path of a function.

    Raises:
        ImportError: If the extra ``pettingzoo`` is not installed, or a game needs another package.
        ValueError: If there is no such game or function; the message names the nearest game.

    Example:
        >>> find_game("connect_four_v3").__name__
        'raw_env'
    """
    try:
        home = import_module(GAMES)
    except ImportError as error:
        needed = "PettingZoo's games need the extra 'pettingzoo': pip install 'lightning_ding[pettingzoo]'"
        raise ImportError(f"{needed} ({error})") from error
    if "." in name or ":" in name:
        return function_at(name, "game")
    known = [module.name for module in pkgutil.iter_modules(home.__path__) if "_v" in module.name]
    if name not in known:
        near = closest(name, known)
        hint = f"; did you mean {near!r}?" if near else ""
        allowed = f"one of {', '.join(known)}, or the dotted path of a function"
        raise ValueError(f"the name of a game must be {allowed}, got {name!r}{hint}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # PettingZoo 1.27 prefers its registry
        module = import_module(f"{GAMES}.{name}")
    return cast(Callable[..., Any], module.raw_env)  # env checks moves too, which takes three times as long


def _find_opponent(opponent: str | Opponent) -> Opponent | None:
    """Return the function of an opponent; None for random moves."""
    if callable(opponent):
        return opponent
    if opponent == RANDOM:
        return None
    is_path = "." in opponent or ":" in opponent
    require(is_path, "opponent", f"{RANDOM!r}, a function (obs, rng) -> move, or its dotted path", opponent)
    return function_at(opponent, "opponent")


def function_at(path: str, name: str) -> Callable[..., Any]:
    """Return the function at a dotted path."""
    module, _, attribute = path.replace(":", ".").rpartition(".")
    try:
        found = getattr(import_module(module), attribute, None)
    except ImportError as error:
        raise ValueError(f"{name} must be the dotted path of a function, got {path!r}: {error}") from error
    if not callable(found):
        raise ValueError(f"{name} must be the dotted path of a function, got {path!r}: there is no such function")
    return cast(Callable[..., Any], found)
