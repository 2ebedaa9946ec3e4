"""A player that takes random actions: an opponent to train against and to measure against.

Shapes: B batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from lightning_ding import nested
from lightning_ding.policy.base.spaces import ActionStart
from lightning_ding.rl import discrete_counts, random_legal_actions
from lightning_ding.utils.attributes import PolicyAttributes
from lightning_ding.utils.modes import CollectMode, EvalMode


def random_collect_mode(
    action_space: spaces.Space[Any], seed: int | np.random.SeedSequence | None = None
) -> CollectMode:
    """Return the collect mode of a player that takes uniformly random actions.

    Its attribute ``collect_data`` is False, so that collectors of several policies keep nothing of it; set it to have
    its transitions too.

    Args:
        action_space: Action space of one player of one env.
        seed: Seed of the actions; None draws one.

    Example:
        >>> mode = random_collect_mode(spaces.Discrete(3))
        >>> mode.forward({"action_mask": torch.tensor([[0, 1, 0], [0, 0, 1]])})
        {'action': tensor([1, 2])}
    """
    player = _RandomPlayer(action_space, seed)
    return CollectMode(*(getattr(player, method) for method in CollectMode._fields))


def random_eval_mode(action_space: spaces.Space[Any], seed: int | np.random.SeedSequence | None = None) -> EvalMode:
    """Return the eval mode of a player that takes uniformly random actions; arguments as of the collect mode."""
    player = _RandomPlayer(action_space, seed)
    return EvalMode(*(getattr(player, method) for method in EvalMode._fields))


class _RandomPlayer(PolicyAttributes):
    """Takes uniformly random actions, legal ones where the observation has an ``action_mask``.

    Its methods are those of the modes.
    """

    config = None

    def __init__(self, action_space: spaces.Space[Any], seed: int | np.random.SeedSequence | None) -> None:
        self.action_space = action_space
        choice: Any = action_space.get("action_type") if isinstance(action_space, spaces.Dict) else action_space
        is_counted = isinstance(choice, (spaces.Discrete, spaces.MultiDiscrete))
        self._start = ActionStart(np.reshape(discrete_counts(choice)[1], choice.shape).tolist() if is_counted else None)
        self._rng = np.random.default_rng(seed)
        self._spaces: dict[int, spaces.Space[Any]] = {}  # by batch size
        self._attributes: dict[str, Any] = {"collect_data": False}

    @property
    def collect_data(self) -> bool:
        """Whether a collector of several policies keeps the transitions of this player."""
        return bool(self._attributes["collect_data"])

    def forward(self, obs: Any, **_: Any) -> Any:
        """Return actions for B observations, or for ``{env_id: observation}``, whatever the other arguments."""
        if isinstance(obs, dict) and obs and isinstance(next(iter(obs)), int):
            output = self.forward(nested.stack(list(obs.values())))
            return {env_id: nested.index(output, row) for row, env_id in enumerate(obs)}
        mask = obs.get("action_mask") if isinstance(obs, dict) else None
        if mask is None:
            return {"action": self._sample(nested.length(obs))}
        legal = np.asarray(nested.to_numpy(mask))
        return {"action": torch.from_numpy(random_legal_actions(self.action_space, legal, self._rng))}

    def process_transition(self, obs: Any, output: Mapping[str, Any], timestep: Any) -> dict[str, Any]:
        """Return the columns of a transition; discrete actions count from 0."""
        names = ("reward", "next_obs", "terminated", "truncated")
        action = self._start.from_env(output["action"])
        return {"obs": obs, "action": action, **{name: getattr(timestep, name) for name in names}}

    def get_train_sample(self, transitions: Any) -> Any:
        """Return the transitions as they are."""
        return transitions

    def reset(self, data_id: Any = None) -> None:
        """Do nothing: there is no state of an env."""

    def get_attribute(self, name: str) -> Any:
        """Return an attribute.

        Raises:
            NotImplementedError: If there is none of that name.
        """
        if name not in self._attributes:
            raise NotImplementedError(f"a random player has no attribute {name!r}")
        return self._attributes[name]

    def set_attribute(self, name: str, value: Any) -> None:
        """Set an attribute."""
        self._attributes[name] = value

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: there are no weights."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Do nothing: there are no weights."""

    def _sample(self, batch_size: int) -> Any:
        if batch_size not in self._spaces:
            space = batch_space(self.action_space, batch_size)
            space.seed(int(self._rng.integers(2**31)))
            self._spaces[batch_size] = space
        return nested.from_sample(self._spaces[batch_size].sample())
