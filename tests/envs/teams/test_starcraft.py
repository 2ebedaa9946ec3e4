"""Copies of StarCraft's micromanagement run as parallel envs: SMAX of ``jaxmarl``, and a checkout of ``smaclite``.

Neither is an extra; the tests are skipped without them. ``smaclite`` is not on PyPI, and needs ``rtree``, ``pygame-ce``
and ``scikit-learn``.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from lightning import Trainer

from lightning_ding.datamodules import RolloutDataModule
from lightning_ding.envs.teams import ParallelTeam
from lightning_ding.policy import MAPPOPolicy

pettingzoo = pytest.importorskip("pettingzoo")
Seen = tuple[dict[str, Any], dict[str, Any]]


@cache
def smax() -> tuple[Any, ...]:
    """Return the game, and its functions, which are compiled once."""
    import jax
    import jaxmarl
    from jaxmarl.environments.smax import map_name_to_scenario

    inner = jaxmarl.make("HeuristicEnemySMAX", scenario=map_name_to_scenario("3m"))
    return inner, *(jax.jit(getattr(inner, name)) for name in ("reset", "step_env", "get_avail_actions"))


class Smax(pettingzoo.ParallelEnv):  # type: ignore[misc, name-defined]
    """The scenario 3m of SMAX against its heuristic enemy."""

    def __init__(self) -> None:
        import jax

        self.jax = jax
        self.inner, self.start, self.move, self.legal = smax()
        self.possible_agents = list(self.inner.agents)
        self.key = jax.random.key(0)

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(-np.inf, np.inf, self.inner.observation_space(agent).shape, np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(int(self.inner.action_space(agent).n))

    def reset(self, seed: int | None = None, options: Any = None) -> Seen:
        if seed is not None:
            self.key = self.jax.random.key(seed)
        self.key, key = self.jax.random.split(self.key)
        self.seen, self.inside = self.start(key)
        self.agents = list(self.possible_agents)
        return self.observe()

    def observe(self) -> Seen:
        masks = self.legal(self.inside)
        infos = {agent: {"action_mask": np.asarray(masks[agent], np.int8)} for agent in self.possible_agents}
        return {agent: np.asarray(self.seen[agent], np.float32) for agent in self.possible_agents}, infos

    def state(self) -> Any:
        return np.asarray(self.seen["world_state"], np.float32)

    def step(self, actions: dict[str, int]) -> Any:
        self.key, key = self.jax.random.split(self.key)
        stop = self.inner.num_movement_actions - 1  # the only legal action of a unit that is dead
        moves = {agent: np.int32(actions.get(agent, stop)) for agent in self.possible_agents}
        self.seen, self.inside, rewards, dones, _ = self.move(key, self.inside, moves)
        terminated = {agent: bool(dones["__all__"] or dones[agent]) for agent in self.agents}
        gains = {agent: float(rewards[agent]) for agent in self.agents}
        truncated = dict.fromkeys(self.agents, False)
        self.agents = [agent for agent in self.agents if not terminated[agent]]
        observations, infos = self.observe()
        return observations, gains, terminated, truncated, infos


class Smaclite(pettingzoo.ParallelEnv):  # type: ignore[misc, name-defined]
    """The scenario 2s3z of SMAClite, truncated after 60 steps, because it has no time limit."""

    def __init__(self) -> None:
        import smaclite  # noqa: F401 - registers the scenarios

        made: Any = gym.make("smaclite/2s3z-v0", disable_env_checker=True)
        self.inner = made.unwrapped
        self.possible_agents = [str(agent) for agent in range(self.inner.n_agents)]

    def observation_space(self, agent: str) -> Any:
        return self.inner.observation_space[0]

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(self.inner.n_actions)

    def reset(self, seed: int | None = None, options: Any = None) -> Seen:
        self.agents, self.steps = list(self.possible_agents), 0
        return self.observe(self.inner.reset(seed=seed)[0])

    def observe(self, observations: Any) -> Seen:
        masks = zip(self.possible_agents, self.inner.get_avail_actions(), strict=True)
        infos = {agent: {"action_mask": np.asarray(mask, np.int8)} for agent, mask in masks}
        return dict(zip(self.possible_agents, observations, strict=True)), infos

    def state(self) -> Any:
        return self.inner.get_state()

    def step(self, actions: dict[str, int]) -> Any:
        moves = [int(actions.get(agent, 0)) for agent in self.possible_agents]  # 0 is the action of a unit that is dead
        observations, reward, is_over, _, _ = self.inner.step(moves)
        self.steps += 1
        terminated = {agent: is_over or int(agent) not in self.inner.agents for agent in self.agents}
        truncated = {agent: self.steps == 60 and not terminated[agent] for agent in self.agents}
        gains = {agent: float(reward) / len(self.possible_agents) for agent in self.agents}
        self.agents = [agent for agent in self.agents if not (terminated[agent] or truncated[agent])]
        seen, infos = self.observe(observations)
        return seen, gains, terminated, truncated, infos


@pytest.mark.parametrize(("package", "game"), [("jaxmarl", Smax), ("smaclite", Smaclite)])
def test_copy_of_starcraft_trains(package: str, game: Any) -> None:
    pytest.importorskip(package)
    env = ParallelTeam(game)
    obs, _ = env.reset(seed=0)
    assert set(obs) == {"agent_state", "global_state", "action_mask", "alive", "agent_reward"}
    number, rng, is_over, rewards = len(env.agents), np.random.default_rng(0), False, 0.0
    while not is_over:
        masks = obs["action_mask"].reshape(number, -1)
        obs, reward, terminated, truncated, _ = env.step(np.array([rng.choice(np.flatnonzero(mask)) for mask in masks]))
        rewards, is_over = rewards + reward, terminated or truncated
    assert rewards > 0

    policy = MAPPOPolicy({"collect": {"n_sample": 128}})
    data = RolloutDataModule(game, num_envs=2, seed=0, max_env_step=256)
    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    Trainer(accelerator="cpu", max_epochs=-1, limit_val_batches=0, **quiet).fit(policy, data)
    assert policy.progress.env_step == 256
