"""A policy in DI-engine's form: dicts by env, transitions of one env, lists of transitions."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from easydict import EasyDict

FIELDS = ["forward", "process_transition", "get_train_sample", "reset", "get_attribute", "set_attribute"]
CollectFunctions = namedtuple("CollectFunctions", [*FIELDS, "state_dict", "load_state_dict"])  # type: ignore[misc]


class ByEnvPolicy:
    """Its action is the sum of an observation modulo 4, of shape (1,); it remembers how it was called.

    Args:
        n_sample: Default number of samples.
        n_episode: Default number of episodes.
        unroll_len: Steps of a sample.
        on_policy: Whether it learns from its newest data only.
        cfg: Further entries of its config.
    """

    def __init__(
        self,
        n_sample: int | None = None,
        n_episode: int | None = None,
        unroll_len: int = 1,
        on_policy: bool = False,
        **cfg: Any,
    ) -> None:
        collect = {"n_sample": n_sample, "n_episode": n_episode, "unroll_len": unroll_len}
        self.attributes = {"cfg": EasyDict(collect=collect, **cfg), "on_policy": on_policy, **collect}
        self.seen: list[dict[int, Any]] = []
        self.kwargs: list[dict[str, Any]] = []
        self.outputs: list[Any] = []
        self.timesteps: list[Any] = []
        self.pieces: list[list[dict[str, Any]]] = []
        self.resets: list[Sequence[int] | None] = []

    def forward(self, data: dict[int, Any], **kwargs: Any) -> dict[int, Any]:
        assert isinstance(data, dict)
        self.seen.append(data)
        self.kwargs.append(kwargs)
        action = {env_id: torch.tensor([int(obs.sum()) % 4]) for env_id, obs in data.items()}
        return {env_id: {"action": one, "prev_state": None} for env_id, one in action.items()}

    def process_transition(self, obs: Any, model_output: Any, timestep: Any) -> dict[str, Any]:
        self.outputs.append(model_output)
        self.timesteps.append(timestep)
        after, reward, done, _ = timestep
        return {"obs": obs, "next_obs": after, "action": model_output["action"], "reward": reward, "done": done}

    def get_train_sample(self, transitions: list[dict[str, Any]]) -> list[Any]:
        assert isinstance(transitions, list)
        self.pieces.append(transitions)
        return transitions

    def reset(self, data_id: Sequence[int] | None = None) -> None:
        self.resets.append(data_id)

    def get_attribute(self, name: str) -> Any:
        if name not in self.attributes:
            raise NotImplementedError(name)
        return self.attributes[name]

    @property
    def collect_mode(self) -> Any:
        def nothing(*_: Any) -> Any:
            raise AssertionError("a collector must not touch this")

        functions = (self.forward, self.process_transition, self.get_train_sample, self.reset, self.get_attribute)
        return CollectFunctions(*functions, nothing, nothing, nothing)  # type: ignore[call-arg]


class SummingPolicy(ByEnvPolicy):
    """Replaces the reward of a transition by the sum of up to n rewards of its piece, in place."""

    def get_train_sample(self, transitions: list[dict[str, Any]]) -> list[Any]:
        rewards = [float(one["reward"]) for one in transitions]
        for place, one in enumerate(transitions):
            one["reward"] = torch.tensor([sum(rewards[place : place + self.attributes["cfg"].nstep])])
        return transitions


def row_of(transition: dict[str, Any]) -> tuple[Any, ...]:
    """Return obs, action, reward, next_obs and done of a transition as builtins."""
    obs, after = (np.asarray(transition[name]).tolist() for name in ("obs", "next_obs"))
    return obs, int(transition["action"]), float(transition["reward"]), after, transition["done"]
