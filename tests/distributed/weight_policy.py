"""A policy whose action is its weight, and an env whose reward is the action: data show which weights acted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from lightning_ding.policy import CommandModePolicy
from lightning_ding.policy.replay_policy import ReplayCollectConfig, ReplayConfig
from lightning_ding.registry import MODEL_REGISTRY, POLICY_REGISTRY
from lightning_ding.worker.config import ReplayBufferConfig

POLICY = {"type": "weight", "import_names": ["tests.distributed.weight_policy"]}
ENV = "Weight-v0"


@dataclass(frozen=True)
class Shapes:
    obs_shape: Any = None
    action_shape: Any = None


@dataclass(frozen=True)
class Other:
    replay_buffer: ReplayBufferConfig = field(default_factory=lambda: ReplayBufferConfig(replay_buffer_size=100_000))


@dataclass(frozen=True)
class WeightConfig(ReplayConfig):
    model: Shapes = field(default_factory=Shapes)
    collect: ReplayCollectConfig = field(default_factory=lambda: ReplayCollectConfig(n_sample=6))
    other: Other = field(default_factory=Other)


class WeightModel(nn.Module):
    """Two numbers; they are equal unless weights are torn."""

    def __init__(self, obs_shape: Any, action_shape: Any) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(1))
        self.second = nn.Parameter(torch.zeros(1))


class WeightPolicy(CommandModePolicy[WeightConfig]):
    config_class = WeightConfig
    _random_collect_size = 0
    _update_per_collect = 1
    forwards: ClassVar[list[dict[str, Any]]] = []  # keyword arguments of collecting

    def _init_learn(self) -> None: ...

    def _forward_learn(self, batch: Any) -> dict[str, Any]:
        return {}

    def _forward_collect(self, obs: Any, **kwargs: Any) -> dict[str, Tensor]:
        self.forwards.append(kwargs)
        first, second = cast(Tensor, self.model.first), cast(Tensor, self.model.second)
        self.collect_metrics.add({"envs": torch.tensor(float(len(obs)))})
        return {"action": first.repeat(len(obs), 1), "second": second.repeat(len(obs), 1)}

    def _forward_eval(self, obs: Any) -> dict[str, Tensor]:
        return {"action": cast(Tensor, self.model.first).repeat(len(obs), 1)}

    def _process_transition(self, obs: Any, output: Any, timestep: Any) -> dict[str, Any]:
        second = output.get("second", output["action"])
        return {**super()._process_transition(obs, output, timestep), "second": second}

    def _get_setting_collect(self, command_info: dict[str, Any]) -> dict[str, Any]:
        return {"told": command_info["envstep"] + command_info["learner_step"]}

    def _shapes_of(self, observation_space: Any, action_space: Any) -> dict[str, Any]:
        return {"obs_shape": 2, "action_shape": 1}

    def default_model(self) -> tuple[str, list[str]]:
        return "weight", []


class WeightEnv(gym.Env[Any, Any]):
    """Shows a random number that stays, and the steps so far; the reward is the action."""

    def __init__(self, length: int = 4, fault_at: int = 0) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.length, self.fault_at = length, fault_at
        self.steps = self.all_steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        self.number = float(self.np_random.random())
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.all_steps += 1
        if self.all_steps == self.fault_at:
            raise ArithmeticError("it broke")
        return self._observe(), float(action[0]), self.steps >= self.length, False, {}

    def _observe(self) -> Any:
        return np.array([self.number, self.steps], np.float32)


class DuelGame:
    """A turn-based game of one move each; the larger number wins."""

    def __init__(self) -> None:
        self.possible_agents = ["left", "right"]
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> gym.spaces.Box:
        return gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def action_space(self, agent: str) -> gym.spaces.Box:
        return gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents = list(self.possible_agents)
        self.agent_selection = "left"
        self.moves: list[float] = []
        self.rewards = dict.fromkeys(self.agents, 0.0)

    def observe(self, agent: str) -> Any:
        return np.array([self.possible_agents.index(agent), len(self.moves)], np.float32)

    def last(self) -> Any:
        name, over = self.agent_selection, len(self.moves) == 2
        return self.observe(name), self.rewards[name], over, False, {}

    def step(self, action: Any) -> None:
        mover = self.agent_selection
        if len(self.moves) == 2:
            self.agents.remove(mover)
        else:
            self.moves.append(float(action[0]))
        if len(self.moves) == 2:
            left = float(np.sign(self.moves[0] - self.moves[1]))
            self.rewards = {"left": left, "right": -left}
        others = [name for name in self.agents if name != mover]
        self.agent_selection = others[0] if others else mover

    def close(self) -> None: ...


def make_duel() -> DuelGame:
    return DuelGame()


if "weight" not in MODEL_REGISTRY:
    MODEL_REGISTRY.register("weight")(WeightModel)
    POLICY_REGISTRY.register("weight")(WeightPolicy)
    gym.register("Weight-v0", entry_point=cast(Any, WeightEnv))
