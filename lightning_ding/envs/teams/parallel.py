"""A parallel game of PettingZoo as the env of one team (extra ``pettingzoo``).

The spaces are those of :mod:`lightning_ding.utils.teams`.

Shapes: N agents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from lightning_ding.config import require
from lightning_ding.envs.game import function_at
from lightning_ding.envs.state import unchanged_random_numbers
from lightning_ding.envs.state.objects import load_object, read_object
from lightning_ding.envs.teams.layout import (
    TeamLayout,
    TeamObs,
    TeamReward,
    as_state,
    check_team_reward,
    mask_of,
    returns_of_agents,
    team_reward,
)
from lightning_ding.utils.teams import ACTION_MASK, AGENT_REWARD, AGENT_STATE, ALIVE, GLOBAL_STATE

Info = dict[str, Any]
GlobalState = Literal["env", "joined", "none"]
PARALLEL = "parallel_env"
"""The function in a module of PettingZoo that makes a parallel env."""
EXTRA = "PettingZoo's games need the extra 'pettingzoo': pip install 'lightning_ding[pettingzoo]'"


class ParallelTeam(gym.Env[TeamObs, NDArray[Any]]):
    """A parallel env of PettingZoo as the env of one team: one observation, one action, one reward.

    The id ``pettingzoo:mpe2.simple_spread_v3`` makes it, and so does the dotted path of a class or function of your own
    that makes a parallel env. Observations have ``agent_state``, ``alive``, ``agent_reward``, and where there is one,
    ``global_state``, and ``action_mask`` from ``info["action_mask"]`` of an agent or from its observation's entry
    ``action_mask``.

    An agent that its env terminates is not ``alive`` from that step on: it sees zeros, and its action is ignored. The
    episode ends when no agent is left. It is truncated if an agent was truncated in its last step: those agents stay
    alive in the last observation, whose values count. Otherwise it is terminated, and the agents of the last step see
    their last observations, if the env gives them. The info of each step has the return of each agent so far as
    ``return_<agent>``, also where a wrapper truncates the episode.

    Args:
        game: Module of a parallel game, such as ``"mpe2.simple_spread_v3"``, or a class or function that makes a
            parallel env, or its dotted path.
        team_reward: ``"sum"`` or ``"mean"`` of the rewards of all agents as the reward of the team.
        individual_rewards: Whether observations have ``agent_reward``, so that each agent learns from its own reward;
            otherwise all learn from that of the team.
        global_state: ``"env"`` for the env's ``state()``, ``"joined"`` for the observations of all agents side by side,
            ``"none"`` for none. None means ``"env"`` for an env that has a state, and otherwise ``"none"``.
        lone_truncation: What happens if an agent is truncated before the last step of its episode, where its value
            cannot be bootstrapped: ``"error"`` raises, ``"leave"`` treats it as terminated.
        kwargs: Arguments of the game, such as ``N`` and ``max_cycles``, and ``render_mode``.

    Raises:
        ImportError: If a package is not installed.
        ValueError: If there is no such game, or an argument is out of its range.
        TypeError: If it is no parallel env, or its agents have spaces that no team has.

    Example:
        >>> from pettingzoo.utils.env import ParallelEnv
        >>> class Guess(ParallelEnv):
        ...     possible_agents = ["left", "right"]
        ...     def observation_space(self, agent): return gym.spaces.Box(0, 1, (1,))
        ...     def action_space(self, agent): return gym.spaces.Discrete(2)
        ...     def reset(self, seed=None, options=None):
        ...         self.agents = list(self.possible_agents)
        ...         return {agent: np.ones(1) for agent in self.agents}, {agent: {} for agent in self.agents}
        ...     def step(self, actions):
        ...         ended, self.agents = {agent: True for agent in self.agents}, []
        ...         still = {agent: False for agent in actions}
        ...         return {}, {agent: float(move) for agent, move in actions.items()}, ended, still, {}
        >>> env = ParallelTeam(Guess)
        >>> obs, _ = env.reset(seed=0)
        >>> sorted(obs), env.action_space
        (['agent_reward', 'agent_state', 'alive'], MultiDiscrete([2 2]))
        >>> env.step(np.array([1, 1]))[1:3]
        (2.0, True)
    """

    def __init__(
        self,
        game: str | Callable[..., Any],
        team_reward: TeamReward = "sum",
        individual_rewards: bool = True,
        global_state: GlobalState | None = None,
        lone_truncation: Literal["error", "leave"] = "error",
        **kwargs: Any,
    ) -> None:
        require(lone_truncation in ("error", "leave"), "lone_truncation", '"error" or "leave"', lone_truncation)
        self._may_leave_alone = lone_truncation == "leave"
        known = (None, "env", "joined", "none")
        require(global_state in known, "global_state", '"env", "joined", "none" or None', global_state)
        check_team_reward(team_reward)
        self._use(find_parallel(game)(**kwargs), team_reward, individual_rewards, global_state)

    def _use(self, game: Any, team_reward: TeamReward, individual: bool, global_state: GlobalState | None) -> None:
        if not is_parallel(game):
            given = f"{type(game).__name__}; a turn-based one is GameEnv's, as pettingzoo:tictactoe_v3"
            raise TypeError(f"game must be a parallel env of PettingZoo, got {given}")
        self.game = game
        """The parallel env."""
        self.agents: list[str] = list(game.possible_agents)
        """Names of all agents, in the order of the team."""
        self._how, self._has_rewards = team_reward, individual
        with unchanged_random_numbers():
            first, infos = game.reset()
            state = _state_of(game) if global_state in (None, "env") else None
        require(
            state is not None or global_state != "env", "global_state", "another than 'env': it has no state()", "env"
        )
        seen, actions = (
            [space(agent) for agent in self.agents] for space in (game.observation_space, game.action_space)
        )
        self._joins, self._has_state = global_state == "joined", state is not None
        if self._joins:
            joined = TeamLayout(seen, actions, has_alive=True)
            allowed = "'none' for agents that see images, whose critic sees those of all agents then"
            require(joined.image is None, "global_state", allowed, global_state)
            state = np.zeros(joined.number * joined.size, np.float32)
        self._has_mask = any(mask_of(first.get(one), infos.get(one, {})) is not None for one in self.agents)
        self._layout = TeamLayout(seen, actions, state, self._has_mask, True, self._has_rewards)
        self.observation_space: Any = self._layout.observation_space
        self.action_space: Any = self._layout.action_space
        self.render_mode = getattr(game, "render_mode", None)
        self.metadata = {**getattr(game, "metadata", {})}
        self._alive = np.zeros(len(self.agents), bool)
        self._returns = np.zeros(len(self.agents))

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[TeamObs, Info]:
        """Start an episode of all agents."""
        super().reset(seed=seed)
        observations, infos = self.game.reset(seed=seed, options=options)
        self._alive = np.array([agent in self.game.agents for agent in self.agents])
        self._returns[:] = 0
        return self._obs(observations, infos, self._alive, np.zeros(len(self.agents))), _info_of(infos)

    def step(self, action: NDArray[Any]) -> tuple[TeamObs, float, bool, bool, Info]:
        """Let all agents that are in the episode act."""
        moves = {
            agent: self._layout.action_of(action, place)
            for place, agent in enumerate(self.agents)
            if self._alive[place]
        }
        observations, given, terminations, truncations, infos = self.game.step(moves)
        rewards = np.array([float(given.get(agent, 0.0)) for agent in self.agents])
        terminated, truncated = (
            np.array([bool(flags.get(agent, False)) for agent in self.agents]) for flags in (terminations, truncations)
        )
        now = set(self.game.agents)
        left = np.array([agent in now for agent in self.agents]) & ~terminated & ~truncated
        cut = self._alive & truncated & ~terminated
        is_over = not left.any()
        if cut.any() and not (is_over or self._may_leave_alone):
            raise ValueError(
                f"{self.agents[cut.argmax()]} was truncated while other agents continue, so its value cannot be "
                'bootstrapped; env_kwargs={"lone_truncation": "leave"} treats it as terminated'
            )
        shown = left
        if is_over:  # those whose last observation is that of a truncation, or of the termination of all
            shown = cut if cut.any() else self._alive & [agent in observations for agent in self.agents]
        self._alive, self._returns = left, self._returns + rewards
        info = _info_of(infos) | returns_of_agents(self.agents, self._returns)
        obs = self._obs(observations, infos, shown, rewards)
        is_cut = is_over and bool(cut.any())
        return obs, team_reward(rewards, self._how), is_over and not is_cut, is_cut, info

    def render(self) -> Any:
        """Return the image of the game, or show it."""
        return self.game.render()

    def close(self) -> None:
        """Close the game."""
        self.game.close()

    def _obs(
        self, observations: Mapping[str, Any], infos: Mapping[str, Any], alive: NDArray[Any], rewards: NDArray[Any]
    ) -> TeamObs:
        found = [observations.get(agent) if lives else None for agent, lives in zip(self.agents, alive, strict=True)]
        obs: TeamObs = {AGENT_STATE: self._layout.agent_state(found)}
        if self._joins:
            obs[GLOBAL_STATE] = obs[AGENT_STATE].reshape(-1)
        elif self._has_state:
            obs[GLOBAL_STATE] = as_state(self.game.state())
        if self._has_mask:
            pairs = zip(found, self.agents, strict=True)
            obs[ACTION_MASK] = self._layout.mask([mask_of(one, infos.get(agent, {})) for one, agent in pairs], alive)
        obs[ALIVE] = alive.astype(np.float32)
        if self._has_rewards:
            obs[AGENT_REWARD] = rewards.astype(np.float32)
        return obs

    # ------------------------------------------------------------------ state

    @property
    def layers_within(self) -> tuple[Any, ...]:
        """The game and what it wraps, whose classes may share variables that are part of the state."""
        found = [self.game]
        while (below := vars(found[-1]).get("aec_env", vars(found[-1]).get("env"))) is not None:
            found.append(below)
        return tuple(found)

    def state_dict(self) -> Info:
        """Return the state of the game and of the episode; a game with both these methods saves itself."""
        own = {"alive": self._alive.copy(), "returns": self._returns.copy()}
        return {**own, "rng": self.np_random.bit_generator.state, "game": read_object(self.game, "game")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        self._alive, self._returns = state["alive"].copy(), state["returns"].copy()
        self.np_random.bit_generator.state = state["rng"]
        load_object(self.game, state["game"], "game")


def find_parallel(game: str | Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that makes a parallel env.

    Args:
        game: A callable, the dotted path of one, or a module with a function ``parallel_env``.

    Raises:
        ValueError: If there is none.
        ImportError: If the extra ``pettingzoo`` is not installed.
    """
    if callable(game):
        return game
    found = module_of(game)
    return function_at(game, "game") if found is None else getattr(found, PARALLEL)


def module_of(name: str) -> Any:
    """Return the module of a parallel game; None if the name is none of a module with ``parallel_env``.

    Raises:
        ImportError: If the extra ``pettingzoo`` is not installed.
    """
    try:
        import_module("pettingzoo")
    except ImportError as error:
        raise ImportError(f"{EXTRA} ({error})") from error
    try:
        module = import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and not f"{name}.".startswith(f"{error.name}."):
            raise  # of a package that the game needs
        return None
    return module if hasattr(module, PARALLEL) else None


def is_parallel(env: Any) -> bool:
    """Return whether an object or a class is a parallel env of PettingZoo, without importing PettingZoo."""
    kind = env if isinstance(env, type) else type(env)
    has_agents = hasattr(env, "possible_agents") or "ParallelEnv" in {base.__name__ for base in kind.__mro__}
    has_methods = all(hasattr(kind, name) for name in ("step", "reset", "observation_space", "action_space"))
    return has_agents and has_methods and not hasattr(kind, "last") and not issubclass(kind, gym.Env)


def _state_of(game: Any) -> NDArray[Any] | None:
    """Return the state of a game; None if it has none."""
    try:
        return as_state(game.state())
    except (NotImplementedError, AttributeError):
        return None


def _info_of(infos: Mapping[str, Any]) -> Info:
    """Return what the agents' infos say, by agent; their masks are in observations."""
    found = {agent: {name: one for name, one in info.items() if name != ACTION_MASK} for agent, info in infos.items()}
    return {agent: info for agent, info in found.items() if info}
