"""What DDPG, TD3 and SAC share: an actor and critics that value its continuous actions, learned from replay.

Envs, collectors and buffers see actions in the env's units; networks, noise and log-probabilities are in normalised
ones, [-1, 1] in every dimension.

Shapes: B batch, U minibatches of a round, A dimensions of an action, E critics.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from lightning_ding import rl
from lightning_ding.policy.action_bounds import ActionBounds
from lightning_ding.policy.base import not_implemented
from lightning_ding.policy.eval_mode import InEvalMode
from lightning_ding.policy.optimisation import make_optimizer
from lightning_ding.policy.qac_config import QACConfig
from lightning_ding.policy.replay_policy import ReplayPolicy
from lightning_ding.policy.spaces import continuous_action, obs_shape

QACConfigT = TypeVar("QACConfigT", bound=QACConfig)
Batch = dict[str, Any]


class QACPolicy(ReplayPolicy[QACConfigT]):
    """Base of the policies with an actor and critics of continuous actions; the first optimizer is the critics'.

    A network that is given has ``compute_actor(obs)``, ``compute_critic(obs, action, members=None)``, which
    returns ``{"q_value": (E, B)}`` of the first members or all, and the modules ``actor`` and ``critic`` with the
    parameters of each.
    """

    action_bounds: ActionBounds
    model: Any

    @property
    def _learning_rates(self) -> tuple[float, float]:
        """Step sizes of the critics and of the actor."""
        raise not_implemented(self, "_learning_rates")

    def _noise(self, shape: Sequence[int]) -> dict[str, np.ndarray[Any, Any]]:
        """Return the noise of updates by name, each of the shape (..., B, A)."""
        raise not_implemented(self, "_noise")

    def _targets(self, batch: Batch) -> Tensor:
        """Return the critics' targets, shape (B,), of a prepared minibatch."""
        raise not_implemented(self, "_targets")

    def _init_spaces(self) -> None:
        super()._init_spaces()
        model = self.config.model
        size = self._action_size()
        low, high = model.action_low or [-1.0] * size, model.action_high or [1.0] * size
        self.action_bounds = ActionBounds(size).to(self.device)
        self.action_bounds.set(low, high, bool(model.action_integer))

    def _action_size(self) -> int:
        model = self.config.model
        if isinstance(model.action_shape, Mapping):
            return int(model.action_shape["action_args_shape"])
        if model.action_shape is None:  # a network is given, and the env is not known yet
            return len(model.action_low or model.action_high or [0.0])
        return int(model.action_shape)

    def _init_learn(self) -> None:
        self.target_model = copy.deepcopy(self.model).requires_grad_(False)
        self._target_in_eval_mode = InEvalMode(self.target_model)
        rates = zip((self.model.critic, self.model.actor), self._learning_rates, strict=True)
        kind = self.config.learn.optimizer
        self._optimizer_list = [make_optimizer(kind, part.parameters(), rate) for part, rate in rates]

    def _learn_critics(self, batch: Batch) -> dict[str, Any]:
        """Make one step of the critics on a prepared minibatch, the target networks in evaluation."""
        with self._target_in_eval_mode:  # out here, because a loss that is compiled cannot enter it
            return self.minimise(self.critic_loss, batch, 0, self.config.learn.grad_clip)

    def critic_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the critics' loss on a minibatch that :meth:`prepare` made ready, and what to report of it.

        Returns:
            The loss, summed over the critics, and what to report, detached: ``critic_loss``, a scalar, ``q_value`` (E,
            B), ``target_q_value`` (B,), and ``priority`` (B,) if the config asks for it.
        """
        with torch.no_grad():
            target = self._targets(batch)
        q = self.model.compute_critic(batch["obs"], batch["action"])["q_value"]
        loss = rl.critic_loss(q, target, batch["IS"] if self.config.priority_IS_weight else None)
        report = {"critic_loss": loss.detach(), "q_value": q.detach(), "target_q_value": target}
        if self.config.priority:
            report["priority"] = rl.critic_error(q, target)
        return loss, report

    def prepare(self, data: Mapping[str, Any]) -> Batch:
        """Return minibatches ready for the losses, leading axes (B,) or (U, B); what is ready is returned as it is.

        Args:
            data: ``obs``, ``action`` (..., A) in the env's units, or a dict with such ``action_args``, ``reward`` (...)
                summed over the steps, ``next_obs``, ``terminated`` (...), ``discount`` (...), which is gamma^n and may
                be missing when nstep is 1, and ``IS`` (...) with ``priority_IS_weight``.

        Returns:
            The same with ``action`` normalised, ``discount_t`` (...), gamma^n times (1 - terminated), and noise.

        Raises:
            KeyError: If ``discount`` is needed and missing.
            ValueError: If ``reward`` is not of the shape of ``terminated``.
        """
        if "discount_t" in data:
            return dict(data)
        reward = data["reward"]
        if reward.shape != data["terminated"].shape:
            raise ValueError(f"reward must have the shape {tuple(data['terminated'].shape)}, got {tuple(reward.shape)}")
        noise = self._noise([*reward.shape, self._action_size()])
        tensors = {name: torch.from_numpy(value).to(reward.device) for name, value in noise.items()}
        return {**data, **tensors, "action": self._normalised(data["action"]), "discount_t": self._discount(data)}

    def _prepare_round(self, data: Batch) -> Batch:
        return self.prepare(data)

    def _normalised(self, action: Any) -> Any:
        if isinstance(action, Mapping):
            return {**action, "action_args": self.action_bounds.from_env(action["action_args"])}
        return self.action_bounds.from_env(action)

    def _standard_normal(self, shape: Sequence[int]) -> np.ndarray[Any, Any]:
        return self.rng.standard_normal(tuple(shape), dtype=np.float32)

    def _monitor_vars_learn(self) -> list[str]:
        return ["cur_lr", "critic_loss", "actor_loss", "q_value", "target_q_value"]

    def _get_setting_collect(self, command_info: dict[str, Any]) -> dict[str, Any]:
        return {}

    def default_model(self) -> tuple[str, list[str]]:
        """Return the registered network of an actor and critics."""
        return "continuous_qac", ["lightning_ding.model.qac"]

    def _action_space_of_model(self) -> str:
        return "regression"

    def _model_cfg(self) -> dict[str, Any]:
        return super()._model_cfg() | {"action_space": self._action_space_of_model()}

    def _shapes_of(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> dict[str, Any]:
        return {"obs_shape": obs_shape(observation_space), **continuous_action(action_space, type(self).__name__)}
