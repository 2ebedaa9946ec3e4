"""What DQN and its relatives share: exploring, discounting, masks and the target network.

Shapes: B batch, A actions, U minibatches of a round.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar, cast

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from lightning_ding import nested, rl
from lightning_ding.config import ConfigLike
from lightning_ding.policy.base import not_implemented
from lightning_ding.policy.eval_mode import InEvalMode
from lightning_ding.policy.optimisation import make_optimizer
from lightning_ding.policy.q_learning_config import ASSUMED_BUDGET, QLearningConfig
from lightning_ding.policy.replay_policy import ReplayPolicy
from lightning_ding.policy.spaces import discrete_action, obs_shape

LARGEST_FORWARD = 4096  # rows of a forward pass over a whole round

QConfigT = TypeVar("QConfigT", bound=QLearningConfig)
ValuesAndMask = tuple[Tensor, "Tensor | None"]


class QLearningPolicy(ReplayPolicy[QConfigT]):
    """A policy that takes the action of the largest value, and learns it with a target network.

    A subclass names its ``config_class`` and implements ``loss`` and ``default_model``. Its network maps observations
    to a dict whose ``logit`` holds the action values.

    Args:
        cfg: The policy's config dataclass, or a mapping to merge over its defaults.
        model: A network to use instead of the one that the config describes.
        enable_field: Which of learn, collect, eval and command to initialise; None means all.
    """

    target_keys: ClassVar[tuple[str, ...]] = ("logit",)
    """What the loss needs of the target network's output."""

    def __init__(
        self,
        cfg: ConfigLike[QConfigT] = None,
        model: nn.Module | None = None,
        enable_field: Sequence[str] | None = None,
    ) -> None:
        super().__init__(cfg, model, enable_field)
        self.epsilon = self.config.other.eps.schedule()

    def loss(self, batch: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        """Return the loss of a minibatch and what to report of it, detached."""
        raise not_implemented(self, "loss")

    def _init_learn(self) -> None:
        self.target_model = copy.deepcopy(self.model).requires_grad_(False)
        self._target_in_eval_mode = InEvalMode(self.target_model)
        learn = self.config.learn
        self._optimizer_list = [make_optimizer(learn.optimizer, self.model.parameters(), learn.learning_rate)]

    def _forward_collect(self, obs: Any, *, eps: float | None = None) -> dict[str, Tensor]:  # type: ignore[override]
        """Return epsilon-greedy actions; ``eps`` overrides the schedule."""
        epsilon = self._epsilon_at(self.progress.env_step) if eps is None else eps
        actions = [
            rl.epsilon_greedy(q.cpu().numpy(), epsilon, self.rng, None if mask is None else mask.cpu().numpy())
            for q, mask in self._values(self._output(self.model, obs), obs)
        ]
        action = torch.from_numpy(np.stack(actions, axis=1) if self._is_joint(actions) else actions[0])
        return {"action": self.action_start.to_env(action)}

    def _forward_eval(self, obs: Any) -> dict[str, Tensor]:
        actions = [q.argmax(1) for q, _ in self._values(self.model(obs), obs)]
        return {"action": self.action_start.to_env(torch.stack(actions, 1) if self._is_joint(actions) else actions[0])}

    def _forward_learn(self, batch: dict[str, Any]) -> dict[str, Any]:
        with self._target_in_eval_mode:  # not inside the loss, which may be compiled
            report = self.minimise(self.loss, batch, clip=self.config.learn.grad_clip)
        self._update_target()
        return report

    def _forward_round(self, data: dict[str, Any]) -> dict[str, Any] | None:
        if "target_q" not in data:
            return None  # the target network moves between two minibatches
        report = self.minimise_together(self.loss, data, clip=self.config.learn.grad_clip)
        if report is not None:
            self.progress.train_iter += nested.length(data) - 1
            self._update_target()
            self.progress.train_iter += 1
        return report

    def _output(self, model: nn.Module, obs: Any) -> dict[str, Any]:
        """Return what the network says when learning and collecting."""
        return cast("dict[str, Any]", model(obs))

    @torch.no_grad()
    def _target_output(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the target network says of the next observations, unless the round was prepared with it."""
        if "target_q" in batch:
            return cast("dict[str, Any]", batch["target_q"])
        return self._output(self.target_model, batch["next_obs"])

    @torch.no_grad()
    def _prepare_round(self, data: dict[str, Any]) -> dict[str, Any]:
        """Add ``target_q``, the target network's output with leading axes (U, B), if it stays as it is in the round."""
        num_batches, batch_size = data["reward"].shape
        freq, train_iter = self.config.learn.copies_target_every, self.progress.train_iter
        if freq is None or (train_iter + num_batches - 1) // freq > train_iter // freq:
            return data  # the target network moves before the last minibatch
        if self._is_joint(()) or num_batches * batch_size > LARGEST_FORWARD:
            return data
        with self._target_in_eval_mode:
            output = self._target_output({"next_obs": nested.apply(lambda x: x.flatten(0, 1), data["next_obs"])})
        return data | {
            "target_q": {name: output[name].unflatten(0, (num_batches, batch_size)) for name in self.target_keys}
        }

    @torch.no_grad()
    def _next_action(self, batch: Mapping[str, Any], target_output: Mapping[str, Any]) -> Tensor:
        """Return the best next actions, shape (B,): the online network's with ``double_q``, else the target's."""
        next_obs = batch["next_obs"]
        chooser = self._output(self.model, next_obs) if self.config.learn.double_q else target_output
        return self._values(chooser, next_obs)[0][0].argmax(1)

    def _values(self, output: Mapping[str, Any], obs: Any) -> list[ValuesAndMask]:
        """Return the masked action values and the mask of each dimension of the action, shapes (B, A_i)."""
        values = self._logits(output)
        mask = obs.get("action_mask") if isinstance(obs, Mapping) else None
        masks = [None] * len(values) if mask is None else mask.split([q.shape[1] for q in values], dim=1)
        return [(rl.masked(q, m), m) for q, m in zip(values, masks, strict=True)]

    def _logits(self, output: Mapping[str, Any]) -> list[Tensor]:
        """Return the action values of each dimension of the action, shapes (B, A_i)."""
        logit = output["logit"]
        return logit if isinstance(logit, list) else [logit]

    def _is_joint(self, parts: Sequence[Any]) -> bool:
        """Return whether actions have an axis of dimensions; a given network may tell it by more than one part."""
        return len(parts) > 1 or isinstance(self.config.model.action_shape, Sequence)

    def _reward(self, batch: Mapping[str, Any]) -> Tensor:
        """Return the rewards of the steps, summed, shape (B,)."""
        reward: Tensor = batch["reward"]
        if reward.ndim != 1:
            raise ValueError(f"reward must have the shape (B,), got {tuple(reward.shape)}")
        return reward

    def _weight(self, batch: Mapping[str, Any]) -> Tensor | None:
        """Return the importance-sampling weights, shape (B,), if the config asks for them."""
        return batch["IS"] if self.config.priority_IS_weight else None

    def _update_target(self) -> None:
        learn = self.config.learn
        freq = learn.copies_target_every
        if learn.target_theta is not None:
            rl.polyak_update(self.model, self.target_model, learn.target_theta)
        elif freq is not None and (self.progress.train_iter + 1) % freq == 0:
            rl.copy_parameters(self.model, self.target_model)

    def _monitor_vars_learn(self) -> list[str]:
        return ["cur_lr", "total_loss", "q_value", "target_q_value"]

    def _get_setting_collect(self, command_info: dict[str, Any]) -> dict[str, Any]:
        return {"eps": self._epsilon_at(command_info["envstep"])}

    def _epsilon_at(self, env_step: int) -> float:
        return self.epsilon.value(env_step, self.progress.budget or ASSUMED_BUDGET)

    def _shapes_of(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> dict[str, Any]:
        if isinstance(action_space, (spaces.MultiDiscrete, spaces.MultiBinary)):
            raise TypeError(f"{type(self).__name__} needs a Discrete action space, got {action_space}; dqn takes both")
        return {"obs_shape": obs_shape(observation_space), **discrete_action(action_space, type(self).__name__)}
