"""PettingZoo games, turn-based and parallel, as a vector env with an axis of players.

Shapes: N envs, P players.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, create_empty_array
from numpy.typing import NDArray

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.envs.checks import check_finite
from lightning_ding.envs.faults import is_of_env
from lightning_ding.envs.game import spaces_of_players

BoolArray = NDArray[np.bool_]
Info = dict[str, Any]


class PettingZooVectorEnv(VectorEnv[Any, Any, Any]):
    """A vector env of N games with P players each; all arrays have the leading axes (N, P).

    ``info["active"]`` (N, P) marks the players whose actions count in the next step: in a turn-based (AEC) game the
    player whose turn it is, in a parallel game all players that have not left. Other actions are ignored. Every player
    gets its current observation in each step, and its last one after it has left.

    In a turn-based game, a player gets its reward when it is its turn again or when it has left. The reward is the sum
    since its last move, as returned by PettingZoo's ``last()``.

    After all players of an env have left, a step has no effect on it until it is reset: no player is active and rewards
    are 0. ``reset`` has these options:

    * ``reset_mask`` (N,): envs to reset; all envs by default.
    * ``stop_mask`` (N,): envs whose episodes are stopped first.
    * ``episode`` (N,) ints: numbers of the new episodes, which decide the seats if ``rotate_seats`` is set.

    Illegal moves are handled by the game; PettingZoo's games end with a reward of -1.

    Args:
        make: Function that returns a new AEC or parallel env at each call; all players must have equal spaces.
        num_envs: Number of envs N, >= 1.
        rotate_seats: Give player p the seat (p + k) % P in episode k, so that all players move first equally often. Env
            i starts with episode i, so that all seats are used from the start.
        seed: Seed for the first episodes; None draws a random one.
        max_faults: Maximum number of faults of an env without a finished episode between them, >= 0. A fault is an
            exception, or an observation or reward that is not finite. It truncates the episode, with
            ``info["abnormal"]`` (N,) true and a description in ``info["fault"]`` (N,), and the env is created again at
            its next reset. The next fault is raised.

    Raises:
        TypeError: If ``make`` does not return a PettingZoo env, or a space cannot be stored in an array.
        ValueError: If the spaces of the players differ, or an argument is out of its range.

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
        self._obs = create_empty_array(batch_space(self.single_observation_space, self.num_players), num_envs)
        self._active = np.zeros(shape, dtype=bool)
        self._is_in = np.zeros(shape, dtype=bool)  # has not left yet
        self._seat = np.tile(np.arange(self.num_players), (num_envs, 1))
        self._names = [self.agents] * num_envs  # names of the players in their current seats
        self._next_episode = np.arange(num_envs)
        self._faults = np.zeros(num_envs, dtype=np.int64)
        self._is_broken = np.zeros(num_envs, dtype=bool)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, Info]:
        """Start episodes in all envs, or in those chosen by the options that the class describes.

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
        """Step the envs with the actions of the active players; all arrays have the leading axes (N, P).

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
            except BaseException as error:
                if not is_of_env(error):
                    raise
                self._handle_fault(i, error)
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
        self.single_observation_space, self.single_action_space = spaces_of_players(env)
        players_obs = batch_space(self.single_observation_space, self.num_players)
        self.observation_space = batch_space(players_obs, self.num_envs)
        self.action_space = batch_space(batch_space(self.single_action_space, self.num_players), self.num_envs)

    def _begin(self, i: int, episode: int, seed: int | None) -> None:
        """Start an episode in env i, if necessary with several attempts."""
        if self.rotate_seats:
            self._seat[i] = (np.arange(self.num_players) + episode) % self.num_players
            self._names[i] = [self.agents[seat] for seat in self._seat[i]]
        self._next_episode[i] = episode + 1
        reward, terminated, truncated = np.zeros((3, *self._active.shape))  # only the observations are used
        while True:
            try:
                if self._is_broken[i]:
                    self._renew(i)
                self._is_in[i] = False
                self._write(i, self._games[i].reset(seed), reward, terminated, truncated)
            except BaseException as error:
                if not is_of_env(error):
                    raise
                self._handle_fault(i, error)
                seed = None if seed is None else (seed + 1) % 2**32  # the same seed would probably fail again
            else:
                return

    def _write(self, i: int, moment: Moment, reward: Any, terminated: Any, truncated: Any) -> None:
        """Write the result of env i into the arrays."""
        self._active[i] = False
        for player, name in enumerate(self._names[i]):
            if name not in moment.obs:
                truncated[i, player] = self._is_in[i, player]  # it left without a final observation
                self._is_in[i, player] = False
                continue
            obs, gained = moment.obs[name], moment.reward.get(name, 0.0)
            if self.max_faults:
                check_finite("observation", obs)
                check_finite("reward", gained)
            if obs is not None:
                _put(self._obs, (i, player), obs)
            reward[i, player] = gained
            terminated[i, player] = moment.terminated.get(name, False)
            truncated[i, player] = moment.truncated.get(name, False)
            self._is_in[i, player] = not (terminated[i, player] or truncated[i, player])
            self._active[i, player] = self._is_in[i, player] and name in moment.active
        if not self._is_in[i].any():
            self._faults[i] = 0

    def _handle_fault(self, i: int, error: BaseException) -> None:
        self._is_broken[i] = True
        self._faults[i] += 1
        if self._faults[i] > self.max_faults:
            raise RuntimeError(
                f"env {i} failed {self._faults[i]} times without a finished episode in between, the last time with "
                f"{type(error).__name__}: {error}"
            ) from error

    def _renew(self, i: int) -> None:
        with contextlib.suppress(Exception):  # a broken env may fail to close
            self._games[i].env.close()
        self._games[i] = make_game(self._make())
        self._is_broken[i] = False

    def _copy_of_obs(self) -> Any:
        return nested.apply(np.copy, self._obs)

    def _info(self) -> Info:
        return {"active": self._active.copy(), "seat": self._seat.copy()}


def _put(arrays: Any, where: tuple[int, int], value: Any) -> None:
    if isinstance(arrays, dict):
        for name, below in arrays.items():
            _put(below, where, value[name])
    else:
        arrays[where] = value


class Moment(NamedTuple):
    """The state of a game after a reset or step, by the names of the players."""

    obs: dict[Any, Any]
    """Observations of the players that play or have just left; None for a player without a new observation."""
    reward: dict[Any, float]
    terminated: dict[Any, bool]
    truncated: dict[Any, bool]
    active: list[Any]
    """Names of the players that act next."""


class Game(Protocol):
    """A PettingZoo game, turn-based or parallel."""

    env: Any
    """The PettingZoo env."""

    def reset(self, seed: int | None) -> Moment:
        """Start an episode; the keys of ``obs`` are the names of the players."""
        ...

    def step(self, actions: Mapping[Any, Any]) -> Moment:
        """Step the game with the actions of the active players."""
        ...


def make_game(env: Any) -> Game:
    """Return a PettingZoo env as a game; a turn-based env has a method ``last``.

    Raises:
        TypeError: If ``env`` is not a PettingZoo env, or has no ``possible_agents``.
    """
    if not hasattr(env, "possible_agents"):
        raise TypeError(f"make must return a PettingZoo env with possible_agents, got {type(env).__name__}")
    return TurnGame(env) if hasattr(env, "last") else ParallelGame(env)


class TurnGame:
    """A turn-based (AEC) game, in which one player acts at a time.

    PettingZoo expects a last, empty action of a player that has left. This class takes that action for the player, who
    gets its final observation and reward.
    """

    def __init__(self, env: Any) -> None:
        self.env = env

    def reset(self, seed: int | None) -> Moment:
        """Start an episode."""
        self.env.reset(seed=seed)
        return self._until_a_turn()

    def step(self, actions: Mapping[Any, Any]) -> Moment:
        """Step the game with the action of the player whose turn it is."""
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
    """A parallel game, in which all players that have not left act at the same time."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def reset(self, seed: int | None) -> Moment:
        """Start an episode."""
        obs, _ = self.env.reset(seed=seed)
        return Moment(obs, {}, {}, {}, list(self.env.agents))

    def step(self, actions: Mapping[Any, Any]) -> Moment:
        """Step the game with the actions of all active players."""
        obs, reward, terminated, truncated, _ = self.env.step(dict(actions))
        active = list(self.env.agents)
        left = [name for name in actions if terminated.get(name) or truncated.get(name)]
        return Moment({name: obs.get(name) for name in [*left, *active]}, reward, terminated, truncated, active)
