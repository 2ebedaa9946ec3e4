"""The base of DQN and its relatives: their config and minibatches, exploration, masks, and the target network.

Shapes: B batch, A actions, U minibatches of a round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, ClassVar, TypedDict, TypeVar

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from lightning_ding import nested, rl
from lightning_ding.config import moved, require, searched
from lightning_ding.policy.base.config import NetworkConfig
from lightning_ding.policy.base.optimizers import make_optimizer
from lightning_ding.policy.base.spaces import discrete_action, obs_shape
from lightning_ding.policy.replay_policy import ReplayCollectConfig, ReplayConfig, ReplayLearnConfig, ReplayPolicy
from lightning_ding.utils.modes import not_implemented
from lightning_ding.utils.schedules import EpsConfig
from lightning_ding.worker.config import ReplayBufferConfig


@dataclass(frozen=True, kw_only=True)
class QLearningModelConfig(NetworkConfig):
    """A Q-network: an encoder and a head."""

    MOVED: ClassVar[dict[str, str]] = NetworkConfig.MOVED | moved(
        core="this algorithm learns from single transitions; r2d2 is Q-learning with recurrent layers",
    )

    action_start: int | Sequence[int] | None = None
    """Smallest action of a Discrete space, or of each dimension; None means the env's, or 0 without an env."""
    head_hidden_size: int | None = None
    """Width of the head's hidden layers; None means the encoder's last width."""
    head_layer_num: int | None = None
    """Number of hidden layers of the head, >= 0; None means 1 in a dueling head or with head_hidden_size, else 0."""


@dataclass(frozen=True, kw_only=True)
class QLearningLearnConfig(ReplayLearnConfig):
    """Options for updates."""

    update_per_collect: int = 5
    """Updates after each collection of n_sample transitions, >= 1."""
    learning_rate: float = searched(1e-3, "log(1e-5, 1e-2)")
    """Step size, > 0."""
    double_q: bool = True
    """Choose the next action with the online network and evaluate it with the target network."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.learning_rate > 0, "learn.learning_rate", "> 0", self.learning_rate)


@dataclass(frozen=True, kw_only=True)
class QLearningCollectConfig(ReplayCollectConfig):
    """Options for collecting: the amount and the collector."""

    n_sample: int | None = 8
    """Transitions of a round on each rank, >= 1; None with n_episode."""


@dataclass(frozen=True, kw_only=True)
class QLearningOtherConfig:
    """Exploration and replay, which the sections learn and collect do not contain."""

    eps: EpsConfig = field(default_factory=EpsConfig)
    """The epsilon schedule."""
    replay_buffer: ReplayBufferConfig = field(default_factory=lambda: ReplayBufferConfig(replay_buffer_size=1_000_000))
    """The replay buffer."""


@dataclass(frozen=True, kw_only=True)
class QLearningConfig(ReplayConfig):
    """The config of DQN and its relatives."""

    random_collect_size: int = 512
    """Transitions collected before the first update on each rank, >= 0: with random actions, or with those of the
    policy if it was trained before."""
    model: QLearningModelConfig = field(default_factory=QLearningModelConfig)
    """The Q-network."""
    learn: QLearningLearnConfig = field(default_factory=QLearningLearnConfig)
    """Options for updates."""
    collect: QLearningCollectConfig = field(default_factory=QLearningCollectConfig)
    """Options for collecting: the amount and the collector."""
    other: QLearningOtherConfig = field(default_factory=QLearningOtherConfig)
    """Exploration and replay."""


LARGEST_FORWARD = 4096  # rows of a forward pass over a whole round
QConfigT = TypeVar("QConfigT", bound=QLearningConfig)
ValuesAndMask = tuple[Tensor, Tensor | None]


class QBatch(TypedDict, total=False):
    """A minibatch as ``loss`` reads it, leading axis B, and what ``_process_transition`` of a subclass adds."""

    obs: Any
    """Observations: tensors, or nested dicts of them, which may have an ``action_mask``."""
    action: Tensor
    """Actions taken, counted from 0, shape (B,), or (B, dimensions) of a multi-discrete space."""
    reward: Tensor
    """Rewards of the n steps, discounted and summed, shape (B,)."""
    next_obs: Any
    """True observations after the n steps."""
    discount_t: Tensor
    """gamma^n, or 0 after termination, shape (B,)."""
    target: dict[str, Any]
    """Result of ``target_outputs``, without gradient."""
    IS: Tensor
    """Importance-sampling weights, shape (B,); with ``priority_IS_weight``."""


class QLearningPolicy(ReplayPolicy[QConfigT]):
    """A policy that takes the action of the largest value, and learns the values with a target network.

    A subclass names its ``config_class`` and implements ``loss`` and ``default_model``, and ``target_outputs`` if the
    loss reads anything but the target network's values of the next observations. Its network maps observations to a
    dict whose ``logit`` holds the action values.
    """

    def loss(self, batch: Any) -> tuple[Tensor, dict[str, Any]]:
        """Return the loss of a minibatch that :meth:`prepare` made ready, and the metrics to report.

        Args:
            batch: A :class:`QBatch`.

        Returns:
            The loss, and the metrics to report, detached: ``total_loss``, a scalar, ``q_value`` (B,),
            ``target_q_value`` (B,), and ``priority`` (B,) with the option ``priority``.

        Raises:
            KeyError: If ``IS`` is needed and missing.
        """
        raise not_implemented(self, "loss")

    def target_outputs(self, batch: Any) -> dict[str, Any]:
        """Return what the loss reads of the target network as ``batch["target"]``, leading axis B.

        It is computed without gradient: for all minibatches of a round at once while the target network is constant.
        """
        return self._of_target(batch["next_obs"], "logit")

    _has_noise: bool = False
    """Whether the network has noisy layers, with new noise for each update and each step of the envs."""

    def _init_spaces(self) -> None:
        super()._init_spaces()
        self._has_noise = type(self)._has_noise or bool(getattr(self.config.model, "noise", False))

    def _init_learn(self) -> None:
        self._make_target()
        learn = self.config.learn
        self.updater.optimizers = [make_optimizer(learn.optimizer, self.model.parameters(), learn.learning_rate)]

    def _forward_collect(self, obs: Any, *, eps: float | None = None) -> dict[str, Tensor]:  # type: ignore[override]
        """Return epsilon-greedy actions; ``eps`` overrides the schedule."""
        if self._has_noise:
            self._reset_noise(self.model)
        epsilon = self._epsilon_at(self.progress.env_step) if eps is None else eps
        actions: list[Tensor] = []
        for q, mask in self._values(self._output(self.model, obs), obs):
            if self.tensor_envs is not None:
                actions.append(rl.epsilon_greedy_tensor(q, epsilon))
                continue
            legal = None if mask is None else mask.cpu().numpy()
            chosen = rl.epsilon_greedy(self._preference(q.cpu().numpy()), epsilon, self.rng, legal)
            actions.append(torch.from_numpy(chosen))
        action = torch.stack(actions, 1) if self._is_joint(actions) else actions[0]
        return {"action": self.action_start.to_env(action)}

    def _forward_eval(self, obs: Any) -> dict[str, Tensor]:
        actions = [q.argmax(1) for q, _ in self._values(self.model(obs), obs)]
        return {"action": self.action_start.to_env(torch.stack(actions, 1) if self._is_joint(actions) else actions[0])}

    def prepare(self, data: Mapping[str, Any]) -> Any:
        """Return a :class:`QBatch`; what a minibatch of a prepared round already has stays.

        Args:
            data: ``obs``, ``action``, ``reward`` summed over the steps, ``next_obs``, ``terminated``, ``discount``
                (B,), which is gamma^n and may be missing when nstep is 1, and ``IS`` with ``priority_IS_weight``.

        Raises:
            KeyError: If ``discount`` is needed and missing.
            ValueError: If ``reward`` and ``terminated`` have different shapes.
        """
        if self._has_noise:
            self._reset_noise(self.model, self.target_model)
        batch = self._with_discount(data)
        if "target" not in batch and not self._is_target_in_loss(data):
            with torch.no_grad(), self._target_in_eval_mode:
                batch["target"] = self.target_outputs(batch)
        return batch

    def _is_target_in_loss(self, data: Mapping[str, Any]) -> bool:
        """Return whether the current update computes the target in the same compiled code as the loss.

        It does so for minibatches that no round has prepared. Minibatches of a round always contain the target, so that
        one compiled function serves rounds in which the target network changes and all others.
        """
        kind, own = type(self), QLearningPolicy
        is_known = kind.prepare is own.prepare and kind._forward_learn is own._forward_learn
        return is_known and self.updater.compiles and ("discount_t" not in data or self._is_joint(()))

    def _loss_with_target(self, batch: QBatch) -> tuple[Tensor, dict[str, Any]]:
        with torch.no_grad():
            target = self.target_outputs(batch)
        return self.loss({**batch, "target": target})

    def _prepare_round(self, data: dict[str, Any]) -> dict[str, Any]:
        """Add what is constant in the round; :meth:`prepare` adds the rest to each minibatch when its turn comes."""
        if self._has_noise:
            return data  # the target's noise changes with every update
        data = self._with_discount(data)
        num_updates, batch_size = data["reward"].shape
        update, is_reset = self._target_update, self.updater.resets is not None  # with resets it may change at any time
        changes = is_reset or update.changes_within(self.progress.train_iter, num_updates)
        if changes or self._is_joint(()) or num_updates * batch_size > LARGEST_FORWARD:
            return data
        with torch.no_grad(), self._target_in_eval_mode:
            outputs = self.target_outputs(nested.apply(lambda x: x.flatten(0, 1), data))
        return {**data, "target": nested.apply(lambda x: x.unflatten(0, (num_updates, batch_size)), outputs)}

    def _forward_learn(self, batch: Any) -> dict[str, Any]:
        with self._target_in_eval_mode:  # outside of the loss, which may be compiled and may call the target network
            is_left = "target" not in batch and type(self).prepare is QLearningPolicy.prepare
            report = self.updater.minimise(self._loss_with_target if is_left else self.loss, batch)
        self._update_target()
        return report

    def _preference(self, q: NDArray[np.float32]) -> NDArray[Any]:
        """Return the numbers whose largest is the action to take when collecting, shape (B, A), of action values."""
        return q

    def _output(self, model: nn.Module, obs: Any) -> dict[str, Any]:
        """Return the output of the network when learning and collecting."""
        return model(obs, noisy=True) if self._has_noise else model(obs)  # type: ignore[no-any-return]

    def _reset_noise(self, *models: Any) -> None:
        for model in models:
            model.reset_noise(self.rng)

    def _of_target(self, obs: Any, *names: str) -> dict[str, Any]:
        """Return entries of the target network's output for observations; a list becomes a dict by dimension."""
        output = self._output(self.target_model, obs)
        found = {name: output[name] for name in names}
        return {name: dict(enumerate(one)) if isinstance(one, list) else one for name, one in found.items()}

    @torch.no_grad()
    def _next_action(self, batch: QBatch) -> Tensor:
        """Return the best next actions, shape (B,): the online network's with ``double_q``, else the target's."""
        next_obs = batch["next_obs"]
        with self._in_eval_mode:
            chooser = self._output(self.model, next_obs) if self.config.learn.double_q else batch["target"]
        return self._values(chooser, next_obs)[0][0].argmax(1)

    def _values(self, output: Mapping[str, Any], obs: Any) -> list[ValuesAndMask]:
        """Return the masked action values and the mask of each dimension of the action, shapes (B, A_i)."""
        values = self._logits(output)
        mask = obs.get("action_mask") if type(obs) is not Tensor and isinstance(obs, Mapping) else None
        masks = [None] * len(values) if mask is None else mask.split([q.shape[1] for q in values], dim=1)
        return [(rl.masked(q, m), m) for q, m in zip(values, masks, strict=True)]

    def _logits(self, output: Mapping[str, Any]) -> list[Tensor]:
        """Return the action values of each dimension of the action, shapes (B, A_i)."""
        logit = output["logit"]
        return list(logit.values()) if isinstance(logit, dict) else logit if isinstance(logit, list) else [logit]

    def _is_joint(self, parts: Sequence[Any]) -> bool:
        """Return whether actions have an axis of dimensions.

        Args:
            parts: The parts of a network's output; more than one means that there is such an axis.
        """
        return len(parts) > 1 or not isinstance(self.config.model.action_shape, (int, NoneType))

    def _weight(self, batch: Any) -> Tensor | None:
        """Return the importance-sampling weights, shape (B,), with the option ``priority_IS_weight``."""
        return batch["IS"] if self.config.priority_IS_weight else None

    def _monitor_vars_learn(self) -> list[str]:
        return ["cur_lr", "total_loss", "q_value", "target_q_value"]

    def _shapes_of(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> dict[str, Any]:
        if isinstance(action_space, (spaces.MultiDiscrete, spaces.MultiBinary)):
            raise TypeError(f"{type(self).__name__} needs a Discrete action space, got {action_space}; dqn takes both")
        return {"obs_shape": obs_shape(observation_space), **discrete_action(action_space, type(self).__name__)}
