"""DQN with double Q-learning, a dueling network, n-step returns and prioritised replay.

Papers: Mnih et al. 2015 (https://arxiv.org/abs/1312.5602); double: van Hasselt et al. 2016, eq. 4
(https://arxiv.org/abs/1509.06461); dueling: Wang et al. 2016, eq. 9 (https://arxiv.org/abs/1511.06581); n-step: Hessel
et al. 2018 (https://arxiv.org/abs/1710.02298); priorities: Schaul et al. 2016 (https://arxiv.org/abs/1511.05952).

Where this differs: Adam and the Huber loss instead of RMSProp and clipped errors; epsilon is drawn for each env on its
own; a time limit is no terminal state, so a truncated step bootstraps from its true final observation.

Shapes: B batch, A actions.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from lightning_ding import nested, rl
from lightning_ding.config import ConfigLike
from lightning_ding.policy.command import CommandModePolicy
from lightning_ding.policy.config import PolicyConfig
from lightning_ding.policy.dqn_config import DQNConfig
from lightning_ding.policy.eval_mode import InEvalMode
from lightning_ding.policy.spaces import discrete_action_shape, obs_shape
from lightning_ding.registry import POLICY_REGISTRY

LARGEST_FORWARD = 4096  # rows of a forward pass over a whole round


@POLICY_REGISTRY.register("dqn")
class DQNPolicy(CommandModePolicy[DQNConfig]):
    """DQN for discrete and multi-discrete actions; vector, image and dict observations; action masks.

    Args:
        cfg: A ``DQNConfig``, or a mapping to merge over its defaults.
        model: A network ``obs -> {"logit": action values}`` to use instead of the one that the config describes.
        enable_field: Which of learn, collect, eval and command to initialise; None means all.

    Example:
        >>> policy = DQNPolicy({"model": {"obs_shape": 4, "action_shape": 2}})
        >>> policy.eval_mode.forward({0: torch.zeros(4), 1: torch.ones(4)})[1]["action"].shape
        torch.Size([])
    """

    config_class: ClassVar[type[PolicyConfig]] = DQNConfig

    def __init__(
        self,
        cfg: ConfigLike[DQNConfig] = None,
        model: nn.Module | None = None,
        enable_field: Sequence[str] | None = None,
    ) -> None:
        super().__init__(cfg, model, enable_field)
        eps = self.config.other.eps
        self.epsilon = rl.Schedule(eps.type, eps.start, eps.end, eps.decay)

    def _init_learn(self) -> None:
        self.target_model = copy.deepcopy(self.model).requires_grad_(False)
        self._target_in_eval_mode = InEvalMode(self.target_model)
        parameters = self.model.parameters()
        self._optimizer_list = [torch.optim.Adam(parameters, lr=self.config.learn.learning_rate, fused=True)]

    def _forward_collect(self, obs: Any, *, eps: float | None = None) -> dict[str, Tensor]:  # type: ignore[override]
        """Return epsilon-greedy actions; ``eps`` overrides the schedule."""
        epsilon = self.epsilon.value(self.progress.env_step) if eps is None else eps
        actions = [
            rl.epsilon_greedy(q.cpu().numpy(), epsilon, self.rng, None if mask is None else mask.cpu().numpy())
            for q, mask in self._values(self.model, obs)
        ]
        return {"action": torch.from_numpy(np.stack(actions, axis=1) if self._is_joint(actions) else actions[0])}

    def _forward_eval(self, obs: Any) -> dict[str, Tensor]:
        actions = [q.argmax(1) for q, _ in self._values(self.model, obs)]
        return {"action": torch.stack(actions, dim=1) if self._is_joint(actions) else actions[0]}

    def _forward_learn(self, batch: dict[str, Any]) -> dict[str, Any]:
        report = self.minimise(self.loss, batch, grad_clip_norm=self.config.learn.grad_clip_norm)
        self._update_target()
        return report

    def loss(self, batch: Mapping[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the temporal-difference loss of a minibatch and what to report of it.

        Args:
            batch: ``obs``, ``action`` (B,) or (B, dimensions), ``reward`` (B,) summed over the steps, ``next_obs``,
                ``terminated`` (B,), ``discount`` (B,), which is gamma^n and may be missing when nstep is 1, and ``IS``
                (B,) with ``priority_IS_weight``.

        Returns:
            The loss, averaged over the dimensions of the action, and what to report, detached: ``total_loss``, a
            scalar, ``q_value`` (B,), ``target_q_value`` (B,), and ``priority`` (B,) if the config asks for it.

        Raises:
            KeyError: If ``discount`` or ``IS`` is needed and missing.
            ValueError: If ``reward`` is not of shape (B,).
        """
        weight = batch["IS"] if self.config.priority_IS_weight else None
        targets = self._targets(batch)
        q_tm1 = self._q(self.model, batch["obs"])
        action = batch["action"].unbind(1) if self._is_joint(q_tm1) else [batch["action"]]
        predictions = [rl.take_action_value(q, a) for q, a in zip(q_tm1, action, strict=True)]
        pairs = list(zip(predictions, targets, strict=True))
        loss = _mean([rl.td_loss(prediction, target, weight, self.config.learn.loss) for prediction, target in pairs])
        report = {"total_loss": loss.detach()}
        report |= {"q_value": _mean(predictions).detach(), "target_q_value": _mean(targets)}
        if self.config.priority:
            report["priority"] = _mean([rl.td_error(prediction, target) for prediction, target in pairs])
        return loss, report

    @torch.no_grad()
    def _targets(self, batch: Mapping[str, Any]) -> list[Tensor]:
        """Return the target of each dimension of the action, shapes (B,)."""
        reward, discount_t = batch["reward"], self._discount(batch)
        if reward.ndim != 1:
            raise ValueError(f"reward must have the shape (B,), got {tuple(reward.shape)}")
        q_t = self._target_values(batch["next_obs"]) if "target_q" not in batch else [(batch["target_q"], None)]
        if not self.config.learn.double_q:
            return [rl.q_target(reward, discount_t, q) for q, _ in q_t]
        selector = self._values(self.model, batch["next_obs"])
        return [rl.double_q_target(reward, discount_t, q, s) for (q, _), (s, _) in zip(q_t, selector, strict=True)]

    def _target_values(self, next_obs: Any) -> list[tuple[Tensor, Tensor | None]]:
        with self._target_in_eval_mode:
            return self._values(self.target_model, next_obs)

    @torch.no_grad()
    def _prepare_round(self, data: dict[str, Any]) -> dict[str, Any]:
        """Add ``target_q`` (U, B, A), in one forward pass, if the target network stays as it is during the round."""
        num_batches, batch_size = data["reward"].shape
        freq, train_iter = self.config.learn.target_update_freq, self.progress.train_iter
        if freq is None or (train_iter + num_batches - 1) // freq > train_iter // freq:
            return data  # the target network moves before the last minibatch
        if self._is_joint(()) or num_batches * batch_size > LARGEST_FORWARD:
            return data
        ((target_q, _),) = self._target_values(nested.apply(lambda x: x.flatten(0, 1), data["next_obs"]))
        return data | {"target_q": target_q.unflatten(0, (num_batches, batch_size))}

    def _state_dict_learn(self) -> dict[str, Any]:
        return super()._state_dict_learn() | {"target_model": self.target_model.state_dict()}

    def _load_state_dict_learn(self, state: dict[str, Any]) -> None:
        super()._load_state_dict_learn(state)
        self.target_model.load_state_dict(state["target_model"])

    def _monitor_vars_learn(self) -> list[str]:
        return ["cur_lr", "total_loss", "q_value", "target_q_value"]

    def _get_setting_collect(self, command_info: dict[str, Any]) -> dict[str, Any]:
        return {"eps": self.epsilon.value(command_info["envstep"])}

    def default_model(self) -> tuple[str, list[str]]:
        """Return the registered Q-network."""
        return "dqn", ["lightning_ding.model.dqn"]

    def _shapes_of(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> dict[str, Any]:
        return {"obs_shape": obs_shape(observation_space), "action_shape": discrete_action_shape(action_space, "dqn")}

    def _is_joint(self, parts: Sequence[Any]) -> bool:
        """Return whether actions have an axis of dimensions; a given network may tell it by more than one part."""
        return len(parts) > 1 or isinstance(self.config.model.action_shape, Sequence)

    def _q(self, model: nn.Module, obs: Any) -> list[Tensor]:
        """Return the action values of each dimension of the action, shapes (B, A_i)."""
        logit = model(obs)["logit"]
        return logit if isinstance(logit, list) else [logit]

    def _values(self, model: nn.Module, obs: Any) -> list[tuple[Tensor, Tensor | None]]:
        """Return the masked action values and the mask of each dimension of the action, shapes (B, A_i)."""
        values = self._q(model, obs)
        mask = obs.get("action_mask") if isinstance(obs, Mapping) else None
        masks = [None] * len(values) if mask is None else mask.split([q.shape[1] for q in values], dim=1)
        return [(rl.masked(q, m), m) for q, m in zip(values, masks, strict=True)]

    def _discount(self, batch: Mapping[str, Any]) -> Tensor:
        """Return gamma^n * (1 - terminated), shape (B,): the one place where termination enters."""
        gamma: Tensor | float = self.config.discount_factor
        if "discount" in batch:
            gamma = batch["discount"]
        elif self.config.nstep > 1:
            raise KeyError("a batch needs 'discount', gamma to the power of the steps taken, when nstep > 1")
        if self.config.learn.ignore_done:
            return torch.ones_like(batch["reward"]) * gamma
        return torch.logical_not(batch["terminated"]) * gamma

    def _update_target(self) -> None:
        learn = self.config.learn
        if learn.target_theta is not None:
            rl.polyak_update(self.model, self.target_model, learn.target_theta)
        elif (self.progress.train_iter + 1) % (learn.target_update_freq or 1) == 0:
            rl.copy_parameters(self.model, self.target_model)

    def _get_nstep(self) -> int:
        return self.config.nstep

    def _get_discount_factor(self) -> float:
        return self.config.discount_factor

    def _get_random_collect_size(self) -> int:
        return self.config.random_collect_size

    def _get_update_per_collect(self) -> int:
        return self.config.learn.update_per_collect


def _mean(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.stack(list(parts)).mean(0)
