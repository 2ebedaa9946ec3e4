"""PettingZoo's games as a vector env with an axis of players.

Shapes: N envs, P players.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.envs.fault import fits_float32, what_is_wrong
from lightning_ding.envs.games import Game, Moment, make_game

BoolArray = NDArray[np.bool_]
Info = dict[str, Any]


class PettingZooVectorEnv(VectorEnv[Any, Any, Any]):
    """N games of P players side by side; every array has the leading axes (N, P).

    ``info["active"]`` (N, P) says whose action counts in the next step: in a turn-based (AEC) game the player in turn,
    in a parallel game all that are still in it. The other actions are ignored. Every player sees its own current
    observation, in turn or not, and its last one when it has left.

    The reward of a turn-based game comes when a player is in turn again or has left: it is the sum since its last move,
    as PettingZoo's ``last()`` says.

    An env whose players have all left stays as it is: a step does nothing in it, nobody is active and rewards are 0,
    until it is reset. ``reset`` knows these options:

    * ``reset_mask`` (N,): which envs to reset; all if it is missing.
    * ``stop_mask`` (N,): which envs to end where they are, beforehand.
    * ``episode`` (N,) ints: numbers of the episodes that begin, which decide the seats when ``rotate_seats`` is set.

    An illegal move is the game's own affair; PettingZoo's games end with a reward of -1.

    Args:
        make: Returns a new AEC or parallel env at each call; all players must have equal spaces.
        num_envs: N, >= 1.
        rotate_seats: Let player p take the seat (p + k) % P in episode k, so that everybody moves first in turn. An env
            counts its episodes on from its own number, so that all seats are taken from the start.
        seed: Of the first episode of each env; None draws one.
        max_faults: Faults of an env, without a finished episode between them, that are borne; >= 0. A fault is an
            exception, or an observation or a reward that is not finite. It ends the episode as a truncation with
            ``info["abnormal"]`` (N,) true and ``info["fault"]`` (N,) saying why, and the env is made anew at its next
            reset. The next fault is raised.

    Raises:
        TypeError: If ``make`` returns something else, or a space has no array form.
        ValueError: If players differ in their spaces, or an argument is out of its range.

    Example:
        >>> from pettingzoo.classic import tictactoe_v3
        >>> env = PettingZooVectorEnv(tictactoe_v3.env, num_envs=2, rotate_seats=True)
        >>> obs, info = env.reset()
        >>> obs["observation"].shape, info["active"].tolist(), info["seat"].tolist()
        ((2, 2, 3, 3, 2), [[True, False], [False, True]], [[0, 1], [1, 0]])
        >>> env.close()
    """

    metadata: dict[str, Any]

    def __init__(
        self,
        make: Callable[[], Any],
        num_envs: int = 1,
        rotate_seats: bool = False,
        seed: int | np.random.SeedSequence | None = None,
        max_faults: int = 0,
    ) -> None:
        require(num_envs >= 1, "num_envs", ">= 1", num_envs)
        require(max_faults >= 0, "max_faults", ">= 0", max_faults)
        self.num_envs = num_envs
        self.rotate_seats = rotate_seats
        self.max_faults = max_faults
        self.metadata = {"autoreset_mode": AutoresetMode.DISABLED}
        self._make = make
        self._games: list[Game] = []
        try:
            for _ in range(num_envs):
                self._games.append(make_game(make()))
            distinct = len({id(game.env) for game in self._games})
            require(distinct == num_envs, "make", "a function that returns a new env at each call", "the same env")
            self._read_spaces()
        except Exception:
            self.close_extras()
            raise
        sequence = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
        self._first_seeds: list[int | None] = sequence.generate_state(num_envs).tolist()
        shape = (num_envs, self.num_players)
        self._obs = _zeros(self.single_observation_space, shape)
        self._active = np.zeros(shape, dtype=bool)
        self._is_in = np.zeros(shape, dtype=bool)  # has not left yet
        self._seat = np.tile(np.arange(self.num_players), (num_envs, 1))
        self._names = [self.agents] * num_envs  # of the players, by the seats that they have taken
        self._next_episode = np.arange(num_envs)
        self._faults = np.zeros(num_envs, dtype=np.int64)
        self._is_broken = np.zeros(num_envs, dtype=bool)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> tuple[Any, Info]:
        """Begin episodes, in all envs unless the options say which.

        Args:
            seed: One for each env, None where it goes on with its stream; a number s gives env i the seed s + i.
            options: See the class.

        Returns:
            Observations, leading axes (N, P), and ``active`` and ``seat``, both (N, P).

        Raises:
            RuntimeError: If an env failed more than ``max_faults`` times; its error is the cause.
        """
        everywhere = np.ones(self.num_envs, dtype=bool)
        options = options or {}
        seeds = seed if seed is None or isinstance(seed, Sequence) else [seed + i for i in range(self.num_envs)]
        episode = options.get("episode", self._next_episode)
        self._active[options.get("stop_mask", ~everywhere)] = False
        for i in np.flatnonzero(options.get("reset_mask", everywhere)).tolist():
            first, self._first_seeds[i] = self._first_seeds[i], None
            given = None if seeds is None else seeds[i]
            self._begin(i, int(episode[i]), first if given is None else given)
        return self._copy_of_obs(), self._info()

    def step(self, actions: Any) -> tuple[Any, NDArray[np.float64], BoolArray, BoolArray, Info]:
        """Let the active players act.

        Args:
            actions: Leading axes (N, P).

        Returns:
            Observations, rewards (N, P), whether a player reached a terminal state (N, P), whether its episode was cut
            (N, P), and ``active`` and ``seat``, both (N, P).

        Raises:
            ValueError: If ``actions`` has a wrong shape.
            RuntimeError: If an env failed more than ``max_faults`` times; its error is the cause.
        """
        actions = np.asarray(actions)
        require(actions.shape == self.action_space.shape, "actions", f"of {self.action_space.shape}", actions.shape)
        reward = np.zeros(self._active.shape)
        terminated, truncated = np.zeros((2, *self._active.shape), dtype=bool)
        info: Info = {}
        for i in np.flatnonzero(self._active.any(1)).tolist():
            acting = np.flatnonzero(self._active[i]).tolist()
            try:
                moment = self._games[i].step({self._names[i][player]: actions[i, player] for player in acting})
                self._write(i, moment, reward, terminated, truncated)
            except Exception as error:
                self._bear(i, error)
                reward[i], terminated[i], truncated[i] = 0, False, self._is_in[i] | terminated[i] | truncated[i]
                self._active[i] = self._is_in[i] = False
                info.setdefault("abnormal", np.zeros(self.num_envs, dtype=bool))[i] = True
                info.setdefault("fault", np.full(self.num_envs, None))[i] = f"{type(error).__name__}: {error}"
        return self._copy_of_obs(), reward, terminated, truncated, self._info() | info

    def close_extras(self, **kwargs: Any) -> None:
        """Close the games."""
        games, self._games = self._games, []
        for game in games:
            game.env.close()

    def _read_spaces(self) -> None:
        env = self._games[0].env
        self.agents: list[Any] = list(env.possible_agents)
        """Names of the seats."""
        self.num_players = len(self.agents)
        """P."""
        for kind, space_of in (("observation", env.observation_space), ("action", env.action_space)):
            first = space_of(self.agents[0])
            _check_space(kind, first, may_be_dict=kind == "observation")
            for agent in self.agents[1:]:
                if space_of(agent) != first:
                    raise ValueError(
                        f"all players must have equal {kind} spaces, got {self.agents[0]}: {first} and {agent}: "
                        f"{space_of(agent)}; supersuit's wrappers can pad them"
                    )
        self.single_observation_space = env.observation_space(self.agents[0])
        self.single_action_space = env.action_space(self.agents[0])
        players_obs = batch_space(self.single_observation_space, self.num_players)
        self.observation_space = batch_space(players_obs, self.num_envs)
        self.action_space = batch_space(batch_space(self.single_action_space, self.num_players), self.num_envs)

    def _begin(self, i: int, episode: int, seed: int | None) -> None:
        """Begin an episode in env i, if need be at the second or a later attempt."""
        if self.rotate_seats:
            self._seat[i] = (np.arange(self.num_players) + episode) % self.num_players
            self._names[i] = [self.agents[seat] for seat in self._seat[i]]
        self._next_episode[i] = episode + 1
        reward, terminated, truncated = np.zeros((3, *self._active.shape))  # of a first moment the observations count
        while True:
            try:
                if self._is_broken[i]:
                    self._renew(i)
                self._is_in[i] = False
                self._write(i, self._games[i].reset(seed), reward, terminated, truncated)
            except Exception as error:
                self._bear(i, error)
                seed = None if seed is None else (seed + 1) % 2**32  # the same seed would do the same again
            else:
                return

    def _write(self, i: int, moment: Moment, reward: Any, terminated: Any, truncated: Any) -> None:
        """Put what happened in env i into the arrays."""
        self._active[i] = False
        for player, name in enumerate(self._names[i]):
            if name not in moment.obs:
                truncated[i, player] = self._is_in[i, player]  # it left without a word
                self._is_in[i, player] = False
                continue
            obs, gained = moment.obs[name], moment.reward.get(name, 0.0)
            if self.max_faults:
                _check_finite("observation", obs)
                _check_finite("reward", gained)
            if obs is not None:
                _put(self._obs, (i, player), obs)
            reward[i, player] = gained
            terminated[i, player] = moment.terminated.get(name, False)
            truncated[i, player] = moment.truncated.get(name, False)
            self._is_in[i, player] = not (terminated[i, player] or truncated[i, player])
            self._active[i, player] = self._is_in[i, player] and name in moment.active
        if not self._is_in[i].any():
            self._faults[i] = 0

    def _bear(self, i: int, error: Exception) -> None:
        self._is_broken[i] = True
        self._faults[i] += 1
        if self._faults[i] > self.max_faults:
            raise RuntimeError(
                f"env {i} failed, time {self._faults[i]} without a finished episode between: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _renew(self, i: int) -> None:
        with contextlib.suppress(Exception):  # what is broken may be unable to close
            self._games[i].env.close()
        self._games[i] = make_game(self._make())
        self._is_broken[i] = False

    def _copy_of_obs(self) -> Any:
        return nested.apply(np.copy, self._obs)

    def _info(self) -> Info:
        return {"active": self._active.copy(), "seat": self._seat.copy()}


def _check_space(kind: str, space: spaces.Space[Any], may_be_dict: bool) -> None:
    if may_be_dict and isinstance(space, spaces.Dict):
        for below in space.spaces.values():
            _check_space(kind, below, may_be_dict)
    elif not isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        raise TypeError(f"the {kind} space must have the form of an array, got {space}")


def _zeros(space: spaces.Space[Any], lead: tuple[int, int]) -> Any:
    if isinstance(space, spaces.Dict):
        return {name: _zeros(below, lead) for name, below in space.spaces.items()}
    return np.zeros(lead + (space.shape or ()), space.dtype)


def _put(arrays: Any, where: tuple[int, int], value: Any) -> None:
    if isinstance(arrays, dict):
        for name, below in arrays.items():
            _put(below, where, value[name])
    else:
        arrays[where] = value


def _check_finite(what: str, value: Any) -> None:
    for leaf in nested.leaves(value):
        if leaf is not None and not fits_float32(np.asarray(leaf)).all():
            raise FloatingPointError(f"the {what} is {what_is_wrong(np.asarray(leaf))}: {leaf}")
