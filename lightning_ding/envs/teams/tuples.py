"""Envs of gymnasium whose observations, actions and rewards are tuples over agents, as the env of one team.

Packages with such envs are ``lbforaging`` and ``rware``.

Shapes: N agents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from lightning_ding.config import closest
from lightning_ding.envs.state.objects import load_object, read_object
from lightning_ding.envs.teams.layout import (
    TeamLayout,
    TeamObs,
    TeamReward,
    check_team_reward,
    returns_of_agents,
    team_reward,
)
from lightning_ding.utils.teams import AGENT_REWARD, AGENT_STATE

Info = dict[str, Any]
PACKAGES = ("lbforaging", "rware")
"""Packages with such envs, the first part of the ids ``lbforaging:Foraging-8x8-2p-2f-coop-v3``."""


class TupleTeam(gym.Env[TeamObs, NDArray[Any]]):
    """An env with a tuple of observations, of actions and of rewards as the env of one team.

    The ids of ``lbforaging`` and ``rware`` make it, such as ``lbforaging:Foraging-8x8-2p-2f-coop-v3``. Both packages
    report the end of their time as a termination; here it is a truncation. The info of each step has the return of
    each agent so far as ``return_0``, ``return_1`` and so on, also where a wrapper truncates the episode.

    Args:
        env: An id of gymnasium with the module that registers it, or a function that makes such an env.
        team_reward: ``"sum"`` or ``"mean"`` of the rewards of all agents as the reward of the team.
        individual_rewards: Whether observations have ``agent_reward``, so that each agent learns from its own reward.
        kwargs: Arguments of the env.

    Raises:
        TypeError: If the spaces are no tuples over the same agents, or its agents have spaces that no team has.
        gymnasium.error.Error: If there is no such env.
    """

    def __init__(
        self,
        env: str | Callable[..., Any],
        team_reward: TeamReward = "sum",
        individual_rewards: bool = True,
        **kwargs: Any,
    ) -> None:
        check_team_reward(team_reward)
        made = gym.make(env, disable_env_checker=True, **kwargs) if isinstance(env, str) else env(**kwargs)
        seen: Any = made.observation_space
        actions: Any = made.action_space
        are_tuples = isinstance(seen, spaces.Tuple) and isinstance(actions, spaces.Tuple) and len(seen) == len(actions)
        if not are_tuples:
            made.close()
            raise TypeError(f"env must have a Tuple of observations and one of actions, got {seen} and {actions}")
        self.inner: gym.Env[Any, Any] = made
        """The env."""
        self._how, self._has_rewards = team_reward, individual_rewards
        self._layout = TeamLayout(seen.spaces, actions.spaces, has_rewards=individual_rewards)
        self.observation_space: Any = self._layout.observation_space
        self.action_space: Any = self._layout.action_space
        self.render_mode = made.render_mode
        self.metadata = {**made.metadata}
        self._returns = np.zeros(self._layout.number)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[TeamObs, Info]:
        """Start an episode."""
        super().reset(seed=seed)
        obs, info = self.inner.reset(seed=seed, options=options)
        self._returns[:] = 0
        return self._obs(obs, np.zeros(self._layout.number)), dict(info)

    def step(self, action: NDArray[Any]) -> tuple[TeamObs, float, bool, bool, Info]:
        """Let all agents act."""
        moves = tuple(self._layout.action_of(action, agent) for agent in range(self._layout.number))
        obs, given, terminated, truncated, info = self.inner.step(moves)
        rewards = np.asarray(given, np.float64)
        self._returns = self._returns + rewards
        is_over = bool(np.all(np.logical_or(terminated, truncated)))
        is_cut = is_over and (not np.all(terminated) or _is_time_up(self.inner.unwrapped))
        info = {**info, **returns_of_agents([str(one) for one in range(len(rewards))], self._returns)}
        return self._obs(obs, rewards), team_reward(rewards, self._how), is_over and not is_cut, is_cut, info

    def render(self) -> Any:
        """Return the image of the env, or show it."""
        return self.inner.render()

    def close(self) -> None:
        """Close the env."""
        self.inner.close()

    def _obs(self, observations: Any, rewards: NDArray[Any]) -> TeamObs:
        obs: TeamObs = {AGENT_STATE: self._layout.agent_state(observations)}
        return {**obs, AGENT_REWARD: rewards.astype(np.float32)} if self._has_rewards else obs

    # ------------------------------------------------------------------ state

    @property
    def layers_within(self) -> tuple[Any, ...]:
        """The env inside, whose classes may share variables that are part of the state."""
        return (self.inner.unwrapped,)

    def state_dict(self) -> Info:
        """Return the state of the env and the returns of the episode."""
        rng = self.np_random.bit_generator.state
        return {"returns": self._returns.copy(), "rng": rng, "env": read_object(self.inner, "env")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        self._returns = state["returns"].copy()
        self.np_random.bit_generator.state = state["rng"]
        load_object(self.inner, state["env"], "env")


def _is_time_up(env: Any) -> bool:
    """Return whether an env that reports its end as a termination was at the end of its time."""
    package = type(env).__module__.partition(".")[0]
    if package == "lbforaging":
        return bool(env.field.sum() > 0)  # with food left, only the time can have ended the episode
    return package == "rware" and bool(env.max_steps) and env._cur_steps >= env.max_steps


def check_id(env: str) -> None:
    """Raise unless a package has an env of this id.

    Raises:
        ImportError: If the package is not installed.
        ValueError: If it has no such env; the message names the nearest one.
    """
    package, _, name = env.partition(":")
    try:
        import_module(package)
    except ImportError as error:
        raise ImportError(f"{env!r} needs the package {package!r}: pip install {package} ({error})") from error
    known = [one for one in gym.registry if one.partition("-")[0].startswith(("Foraging", "rware"))]
    if name not in gym.registry:
        near = closest(name, known)
        raise ValueError(f"env_id must be of an env of {package}, got {env!r}; did you mean {f'{package}:{near}'!r}?")
