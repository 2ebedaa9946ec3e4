"""The columns that a learner announces: the form of the transitions that collectors collect for it.

They are those of a transition that the policy's own collector makes, in an env that has the spaces of the run and does
nothing. No real env is stepped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from lightning.pytorch import Callback, Trainer
from typing_extensions import override

from lightning_ding import nested
from lightning_ding.distributed.coordinator.schema import described
from lightning_ding.envs import make_vector_env
from lightning_ding.policy import create_policy
from lightning_ding.worker import SampleSerialCollector

logger = logging.getLogger(__name__)

Form = dict[str, Any]
"""The form of a column in a message: ``type``, ``shape``, and ``least`` and ``largest``, perhaps empty lists."""
MASK = "action_mask"


class ColumnAnnouncer(Callback):
    """Pass the columns of the run to a function, before the first weights are published.

    Args:
        policy: ``type`` and config of the policy.
        send_columns: Function that gets the message: ``columns`` and ``is_whole``.
        is_game: Whether transitions come from games of several players.
    """

    def __init__(
        self, policy: Mapping[str, Any], send_columns: Callable[[dict[str, Any]], None], is_game: bool = False
    ) -> None:
        self._policy = policy
        self._send_columns = send_columns
        self._is_game = is_game

    @override
    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Announce the columns; only rank zero does."""
        if trainer.is_global_zero:
            data: Any = trainer.datamodule  # type: ignore[attr-defined]
            known = (data.single_observation_space, data.single_action_space)
            self._send_columns(columns_of(self._policy, *known, self._is_game))


def columns_of(
    policy: Mapping[str, Any], obs_space: spaces.Space[Any], action_space: spaces.Space[Any], is_game: bool = False
) -> dict[str, Any]:
    """Return the columns of a policy's transitions as a message: ``columns``, forms by flat names, and ``is_whole``.

    If the policy cannot make a transition of this env, for example because it reads an entry of ``info``, only the
    observations are announced, and ``is_whole`` is false.

    Args:
        policy: ``type`` and config of the policy.
        obs_space: Observation space of one env.
        action_space: Action space of one env.
        is_game: Whether transitions come from games of several players, which have a column ``player``.
    """
    found = {**forms_of(obs_space, "obs"), **forms_of(obs_space, "next_obs")}
    try:
        leaves = described(_transition(policy, obs_space, action_space)).state_dict()["columns"]
    except Exception as error:
        logger.warning("only the observations are announced, as the policy needs a real env: %r", error)
        return {"columns": found, "is_whole": False}
    if is_game:
        leaves["player"] = {"type": "int64", "shape": [], "least": [], "largest": []}
    for name, form in {**found, **forms_of(action_space, "action", 0)}.items():
        if name in leaves and leaves[name]["shape"] == form["shape"]:
            leaves[name] |= {"least": form["least"], "largest": form["largest"]}
    return {"columns": leaves, "is_whole": True}


def forms_of(space: spaces.Space[Any], name: str, start: int | None = None) -> dict[str, Form]:
    """Return the forms of the leaves of a space, by flat names that begin with ``name``.

    Args:
        space: The space.
        name: Name of the entry of a transition.
        start: Smallest value of a discrete space; None means that of the space.

    Example:
        >>> forms_of(spaces.Dict({"x": spaces.Discrete(3)}), "obs")
        {'obs/x': {'type': 'int64', 'shape': [], 'least': [0], 'largest': [2]}}
    """
    if isinstance(space, spaces.Dict):
        return {
            k: form for part, below in space.items() for k, form in forms_of(below, f"{name}/{part}", start).items()
        }
    if space.dtype is None or space.shape is None:
        return {}
    return {name: {"type": str(space.dtype), "shape": list(space.shape), **_limits(space, start)}}


def _limits(space: spaces.Space[Any], start: int | None) -> dict[str, list[int]]:
    """Return the smallest and largest values of a space of integers; empty lists for other spaces."""
    if isinstance(space, spaces.Discrete):
        first = int(space.start) if start is None else start
        return {"least": [first], "largest": [first + int(space.n) - 1]}
    if isinstance(space, spaces.MultiBinary):
        return {"least": [0], "largest": [1]}
    if isinstance(space, spaces.MultiDiscrete):
        starts = np.asarray(space.start) if start is None else np.full_like(space.nvec, start)
        return {"least": starts.ravel().tolist(), "largest": (starts + space.nvec - 1).ravel().tolist()}
    return {"least": [], "largest": []}


def _transition(policy: Mapping[str, Any], obs_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> Any:
    """Return a transition of a new policy, leading axis 1; torch's random numbers are as before."""
    with torch.random.fork_rng(devices=[]):
        collecting = create_policy(policy, enable_field=["collect"])
        collecting.build(obs_space, action_space)
        collecting.rng = np.random.default_rng(0)  # seed() would seed the generators of this process too
        env = make_vector_env(lambda: _Spaces(obs_space, action_space), 1, "sync")
        try:
            found = SampleSerialCollector({}, env=env, policy=collecting.collect_mode).collect(1)
        finally:
            env.close()
    return nested.to_tensor(found)


class _Spaces(gym.Env[Any, Any]):
    """An env that has two spaces, and returns a random observation in which all actions are legal."""

    def __init__(self, obs_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = deepcopy(obs_space), deepcopy(action_space)

    @override
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self._obs(), {}

    @override
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._obs(), 0.0, False, False, {}

    def _obs(self) -> Any:
        obs = self.observation_space.sample()
        return {**obs, MASK: np.ones_like(obs[MASK])} if isinstance(obs, dict) and MASK in obs else obs
