"""The base of every reward model: a network with a loss and a score, and the encoding of actions for it.

A reward model is a submodule of its policy. ``RewardLearner`` in ``policy/base/rewards.py`` passes it data, draws its
minibatches and makes its updates with the policy's ``updater``, so all that holds for an update of a policy holds for
those of a reward model: gradients are averaged over ranks, non-finite updates are found, and the optimizer is part of
checkpoints.

Shapes: B batch, S collected transitions, A width of an encoded action.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_ding.config import require
from lightning_ding.reward_model.config import RewardModelConfig
from lightning_ding.utils.modes import not_implemented

Batch = Mapping[str, Any]
RewardConfigT = TypeVar("RewardConfigT", bound=RewardModelConfig)


class ActionEncoding:
    """Actions as vectors: one-hot vectors of discrete actions, and continuous actions as they are.

    Args:
        section: The ``model`` section of the policy's config, with ``action_shape``.

    Raises:
        ValueError: If actions are hybrid.

    Example:
        >>> encoding = ActionEncoding({"action_shape": (2, 3)})
        >>> encoding(torch.tensor([[1, 0]]))
        tensor([[0., 1., 1., 0., 0.]])
    """

    def __init__(self, section: Mapping[str, Any]) -> None:
        shape = section["action_shape"]
        allowed = "discrete or continuous with a reward model"
        require(not isinstance(shape, Mapping), "model.action_shape", allowed, shape)
        kind = section.get("action_space") or ("continuous" if "action_low" in section else "discrete")
        sizes = [shape] if isinstance(shape, int) else list(shape)
        self.choices: tuple[int, ...] | None = tuple(sizes) if kind == "discrete" else None
        """Number of choices in each dimension of a discrete action; None for continuous actions."""
        self.size = sum(sizes)
        """A."""

    def __call__(self, action: Tensor) -> Tensor:
        """Return vectors, shape (B, A), of actions counted from 0, shape (B,) or (B, D), or in [-1, 1], (B, A)."""
        if self.choices is None:
            return action.reshape(len(action), -1).float()
        columns = action.long().reshape(len(action), len(self.choices))
        parts = [F.one_hot(columns[:, place], size) for place, size in enumerate(self.choices)]
        return torch.cat(parts, 1).float()


class RewardModel(nn.Module, Generic[RewardConfigT]):
    """A network whose reward a policy learns from.

    A subclass sets ``config_class`` and implements ``loss`` and ``score``. It sees observations as the policy's network
    sees them, discrete actions counted from 0, and continuous actions in units of half the env's range.

    Args:
        config: An instance of ``config_class``.
        section: The ``model`` section of the policy's config, with the shapes of observations and actions.
        discount_factor: gamma of the policy, in [0, 1].
    """

    config_class: ClassVar[type[RewardModelConfig]]
    trains_first: ClassVar[bool] = True
    """Whether a rollout gets the rewards of the model that has learned from it; a minibatch of replayed transitions
    always gets those of the newest model."""
    trains_once: ClassVar[bool] = False
    """Whether all updates of the model are made before the first one of the policy, with data that it read; a subclass
    implements ``draw_lessons`` and ``lesson`` in place of ``prepare``."""
    rewards_once: ClassVar[bool] = False
    """Whether a transition gets its reward when it is collected, and keeps it; a subclass without parameters then
    implements ``rewards_of`` in place of ``loss``."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Further entries of a collected transition that the loss needs."""

    def __init__(self, config: RewardConfigT, section: Mapping[str, Any], discount_factor: float) -> None:
        super().__init__()
        self.config = config
        self.encode_action = ActionEncoding(section)
        self.discount_factor = discount_factor
        self.is_loaded = False
        """Whether the weights are from a state dict."""
        if self.trains_once:
            self.register_buffer("is_trained", torch.tensor(False))

    @property
    def uses_env_reward(self) -> bool:
        """Whether ``reward`` depends on the rewards of the env; here whether a subclass implements it."""
        return type(self).reward is not RewardModel.reward

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        """Note that there are weights (hook of PyTorch, also if the policy is loaded)."""
        super()._load_from_state_dict(state_dict, prefix, *args)
        self.is_loaded |= any(name.startswith(prefix) for name in state_dict)

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a minibatch of collected transitions, a scalar, and metrics to report, detached.

        The function must be one of tensors, so that it can be compiled.
        """
        raise not_implemented(self, "loss")

    def score(self, batch: Batch) -> Tensor:
        """Return what the model says of transitions, shape (B,), detached: the reward before it is scaled."""
        raise not_implemented(self, "score")

    def reward(self, score: Tensor, reward: Tensor) -> Tensor:
        """Return the rewards to learn from, shape (..., B); here the scores.

        Args:
            score: Scores of the transitions, shape (..., B).
            reward: Rewards of the env, of the same shape.
        """
        return score

    def add(self, transitions: Batch) -> None:
        """Add S collected transitions to the statistics of the model; all ranks call it together.

        Args:
            transitions: ``obs``, ``action``, ``next_obs``, ``reward``, and ``env_id``, shape (S,); those of an env in
                chronological order.
        """

    def rewards_of(self, transitions: Batch) -> Tensor:
        """Return the rewards of S collected transitions of a model with ``rewards_once``, shape (S,).

        Args:
            transitions: The entries that :meth:`add` gets, and those that the model ``needs``.
        """
        raise not_implemented(self, "rewards_of")

    def prepare(self, batch: Mapping[str, Any], draws: Any) -> dict[str, Any]:
        """Return minibatches, leading axes (U, B), with what the loss needs in addition.

        Args:
            batch: Drawn transitions.
            draws: The random number generator, of numpy.
        """
        return dict(batch)

    def draw_lessons(self, draws: Any) -> int:
        """Draw what a model that ``trains_once`` learns from, and return the number P of its rows.

        Args:
            draws: The random number generator, of numpy.
        """
        raise not_implemented(self, "draw_lessons")

    def lesson(self, rows: Tensor) -> dict[str, Any]:
        """Return the minibatch of some of the P rows, shape (B,), on the device of the model."""
        raise not_implemented(self, "lesson")

    def bind(self, policy: Any) -> None:
        """Take what the model needs of its policy, or read it from files, once before the first update."""

    def rank_state(self) -> dict[str, Any]:
        """Return the state of this rank that is not in ``state_dict``, as tensors and builtins."""
        return {}

    def load_rank_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state that ``rank_state`` returned."""


def widths_of(config: RewardModelConfig) -> Sequence[int]:
    """Return the widths of the layers that a config describes; 128, 128, 64 by default."""
    return (128, 128, 64) if config.hidden_size_list is None else config.hidden_size_list
