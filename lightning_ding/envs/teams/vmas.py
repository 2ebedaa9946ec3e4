"""Envs of VMAS (package ``vmas``) as tensor envs of a team, for ``mode="tensor"``.

Shapes: N envs, P agents, D numbers of the largest observation.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar

import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from torch import Tensor

from lightning_ding.config import closest, require
from lightning_ding.envs.state.codec import from_plain, to_plain
from lightning_ding.envs.state.objects import load_object, read_object
from lightning_ding.envs.teams.layout import TeamLayout, TeamReward, check_team_reward
from lightning_ding.utils.teams import AGENT_REWARD, AGENT_STATE

TensorObs = dict[str, Tensor]


class VmasTeam:
    """N envs of a scenario of VMAS as tensors, each the env of one team; the id ``vmas:balance`` makes them.

    Each batch of envs has a separate stream of random numbers; in VMAS all batches share one. The info of a
    step has the return of each agent so far as ``return_<agent>``, and ``final_obs``.

    Args:
        scenario: Name of the scenario.
        num_envs: Number of envs N, >= 1.
        device: Device of all tensors.
        max_steps: Steps after which an episode is truncated, >= 1; None for no limit.
        continuous_actions: Whether actions are a Box; otherwise they are MultiDiscrete.
        team_reward: ``"sum"`` or ``"mean"`` of the rewards of all agents as the reward of the team.
        individual_rewards: Whether observations have ``agent_reward``, so that each agent learns from its own reward.
        scenario_kwargs: Arguments of the scenario, such as ``n_agents``.

    Raises:
        ImportError: If the package is not installed.
        ValueError: If there is no such scenario, or an argument is out of its range.
    """

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(
        self,
        scenario: str,
        num_envs: int = 1,
        device: str | torch.device = "cpu",
        max_steps: int | None = 100,
        continuous_actions: bool = True,
        team_reward: TeamReward = "mean",
        individual_rewards: bool = True,
        **scenario_kwargs: Any,
    ) -> None:
        require(num_envs >= 1, "num_envs", ">= 1", num_envs)
        require(max_steps is None or max_steps >= 1, "max_steps", ">= 1 or None", max_steps)
        check_team_reward(team_reward)
        home = module_of(scenario)
        self.num_envs, self.device = num_envs, torch.device(device)
        self._how, self._has_rewards = team_reward, individual_rewards
        self._random: list[Any] | None = None  # of this batch of envs; None until it is made
        with _RandomNumbers(self):
            self.env = import_module("vmas").make_env(
                import_module(home).Scenario(),
                num_envs=num_envs,
                device=self.device,
                max_steps=max_steps,
                continuous_actions=continuous_actions,
                clamp_actions=True,
                terminated_truncated=True,
                **scenario_kwargs,
            )
        self.agents = [agent.name for agent in self.env.agents]
        """Names of the agents."""
        own, actions = (
            [_space_of(space) for space in given.spaces]
            for given in (self.env.observation_space, self.env.action_space)
        )
        self.env.observation_space = self.env.action_space = None  # of gym, which no state needs
        layout = TeamLayout(own, actions, has_rewards=individual_rewards)
        self._size = layout.size
        self._action_sizes = None if layout.counts else [space.shape[0] for space in actions if space.shape]
        self.single_observation_space, self.single_action_space = layout.observation_space, layout.action_space
        self._returns = torch.zeros(num_envs, len(self.agents), device=self.device)

    def reset(self, *, seed: int | None = None) -> tuple[TensorObs, dict[str, Any]]:
        """Start a new episode in every env.

        Args:
            seed: Seed of all random numbers from now on; None continues them.
        """
        with _RandomNumbers(self):
            seen = self.env.reset(seed=seed)
        self._returns = torch.zeros_like(self._returns)
        return self._obs(seen, torch.zeros_like(self._returns)), {}

    def step(self, actions: Tensor) -> tuple[TensorObs, Tensor, Tensor, Tensor, dict[str, Any]]:
        """Step all envs; those whose episode ended start another one.

        Args:
            actions: Numbers of actions, shape (N, P), or amounts, shape (N, P, dimensions).
        """
        if self._action_sizes is None:
            moves = [one[:, None] for one in actions.unbind(1)]
        else:
            moves = [one[:, :size] for one, size in zip(actions.unbind(1), self._action_sizes, strict=True)]
        with _RandomNumbers(self):
            seen, given, terminated, truncated, _ = self.env.step(moves)
            rewards = torch.stack([one.reshape(-1) for one in given], 1)
            reached = self._obs(seen, rewards)
            self._returns = self._returns + rewards
            info: dict[str, Any] = {f"return_{name}": self._returns[:, at] for at, name in enumerate(self.agents)}
            truncated = truncated & ~terminated
            ended = terminated | truncated
            info["final_obs"] = reached
            obs = self._restart(ended, reached) if bool(ended.any()) else reached
        reward = rewards.sum(1) if self._how == "sum" else rewards.mean(1)
        return obs, reward, terminated, truncated, info

    def _restart(self, ended: Tensor, reached: TensorObs) -> TensorObs:
        """Start new episodes, and return what to act on."""
        if bool(ended.all()):
            first = self.env.reset()
        else:
            for number in ended.nonzero().flatten().tolist():  # scenarios reset all envs, or one
                self.env.reset_at(number, return_observations=False)
            first = self.env.get_from_scenario(
                get_observations=True, get_rewards=False, get_infos=False, get_dones=False
            )[0]
        self._returns = self._returns.masked_fill(ended[:, None], 0.0)
        new = self._obs(first, torch.zeros_like(self._returns))
        return {
            name: torch.where(ended.view(-1, *[1] * (one.ndim - 1)), new[name], one) for name, one in reached.items()
        }

    def render(self, mode: str = "rgb_array") -> Any:
        """Return the image of the first env, or with ``"human"`` show it in a window."""
        return self.env.render(mode=mode, env_index=0)

    def _obs(self, seen: Any, rewards: Tensor) -> TensorObs:
        pad = torch.nn.functional.pad
        state = torch.stack([pad(one.flatten(1).float(), (0, self._size - one.flatten(1).shape[1])) for one in seen], 1)
        return {AGENT_STATE: state, AGENT_REWARD: rewards.float()} if self._has_rewards else {AGENT_STATE: state}

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the envs and their random numbers as tensors and builtins.

        The forces of agents are views of their actions, which are set again in each step.
        """
        random = to_plain(self._random, "random numbers")
        return {"returns": self._returns.clone(), "random": random, "env": read_object(self.env, "env", may_share=True)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned, on the device of these envs."""
        self._returns = state["returns"].to(self.device)
        self._random = from_plain(state["random"])
        load_object(self.env, state["env"], "env")


class _RandomNumbers:
    """Lets VMAS, whose envs all share one random stream, draw from that of a batch of envs."""

    def __init__(self, team: VmasTeam) -> None:
        self._team = team
        self._shared: list[Any] = import_module("vmas.simulator.environment").Environment.vmas_random_state
        self._kept: list[Any] = []

    def __enter__(self) -> None:
        self._kept = list(self._shared)
        if self._team._random is not None:
            self._shared[:] = self._team._random

    def __exit__(self, *_: object) -> None:
        self._team._random = list(self._shared)
        self._shared[:] = self._kept


def module_of(scenario: str) -> str:
    """Return the module of a scenario.

    Raises:
        ImportError: If VMAS is not installed.
        ValueError: If it has no such scenario; the message names the nearest one.
    """
    try:
        vmas = import_module("vmas")
    except ImportError as error:
        raise ImportError(f"the env 'vmas:{scenario}' needs the package 'vmas': pip install vmas ({error})") from error
    folders = {"": vmas.scenarios, "debug.": vmas.debug_scenarios, "mpe.": vmas.mpe_scenarios}
    known = {name: f"vmas.scenarios.{folder}{name}" for folder, names in folders.items() for name in names}
    hint = f"; did you mean 'vmas:{closest(scenario, known)}'?"
    require(scenario in known, "env_id", f"vmas: and a scenario of VMAS{hint}", f"vmas:{scenario}")
    return known[scenario]


def _space_of(space: Any) -> spaces.Space[Any]:
    """Return the space of gymnasium for one of gym, which VMAS has.

    Raises:
        TypeError: If it is neither Discrete nor a Box.
    """
    kind = type(space).__name__
    if kind == "Discrete":
        return spaces.Discrete(int(space.n))
    if kind != "Box":
        raise TypeError(f"spaces of VMAS must be Discrete or Box, got {kind}")
    return spaces.Box(space.low, space.high, space.shape, space.dtype.type)
