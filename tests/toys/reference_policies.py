# mypy: ignore-errors
"""Policies that are written as DI-engine's documentation teaches it, with nothing of this project but the imports."""

from __future__ import annotations

import copy
import random
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Adam

from lightning_ding.policy import (
    CommandModePolicy,
    Policy,
    default_collate,
    default_decollate,
    default_preprocess_learn as preprocess,
)


class PlainDQN(Policy):
    """A DQN in DI-engine's form, with a target network that is copied at intervals."""

    config: ClassVar[dict[str, Any]] = {
        "type": "plain_dqn",
        "on_policy": False,
        "cuda": False,
        "priority": False,
        "priority_IS_weight": False,
        "discount_factor": 0.9,
        "nstep": 1,
        "model": {"obs_shape": 4, "action_shape": 2, "encoder_hidden_size_list": [16]},
        "learn": {"update_per_collect": 2, "batch_size": 8, "learning_rate": 0.01, "target_update_freq": 5}
        | {"ignore_done": False},
        "collect": {"n_sample": 8, "unroll_len": 1},
        "eval": {"evaluator": {"eval_freq": 8, "n_episode": 2}},
        "other": {"eps": {"start": 0.9, "end": 0.1}, "replay_buffer": {"replay_buffer_size": 100}},
    }

    def default_model(self) -> Any:
        return "dqn", ["ding.model.template.q_learning"]

    def _init_learn(self) -> None:
        self._priority = self._cfg.priority
        self._optimizer = Adam(self._model.parameters(), lr=self._cfg.learn.learning_rate)
        self._gamma = self._cfg.discount_factor
        self._learn_model = self._model
        self._target_model = copy.deepcopy(self._model)
        self._learn_updates = 0

    def _forward_learn(self, data: Any) -> dict[str, Any]:
        assert isinstance(data, list)
        data = preprocess(
            data,
            use_priority=self._priority,
            use_priority_IS_weight=self._cfg.priority_IS_weight,
            ignore_done=self._cfg.learn.ignore_done,
        )
        self._learn_model.train()
        q_value = self._learn_model(data["obs"])["logit"].gather(1, data["action"].unsqueeze(1)).squeeze(1)
        with torch.no_grad():
            next_value = self._target_model(data["next_obs"])["logit"].max(1).values
            target = data["reward"] + self._gamma * (1 - data["done"]) * next_value
        error = (q_value - target).abs()
        weight = torch.ones_like(error) if data["weight"] is None else data["weight"]
        loss = (weight * error**2).mean()
        self._optimizer.zero_grad()
        loss.backward()
        if self._cfg.multi_gpu:
            self.sync_gradients(self._learn_model)
        self._optimizer.step()
        self._learn_updates += 1
        if self._learn_updates % self._cfg.learn.target_update_freq == 0:
            self._target_model.load_state_dict(self._learn_model.state_dict())
        return {
            "cur_lr": self._optimizer.defaults["lr"],
            "total_loss": loss.item(),
            "priority": error.detach().tolist(),
        }

    def _state_dict_learn(self) -> dict[str, Any]:
        return {
            "model": self._learn_model.state_dict(),
            "target_model": self._target_model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "updates": self._learn_updates,
        }

    def _load_state_dict_learn(self, state_dict: dict[str, Any]) -> None:
        self._learn_model.load_state_dict(state_dict["model"])
        self._target_model.load_state_dict(state_dict["target_model"])
        self._optimizer.load_state_dict(state_dict["optimizer"])
        self._learn_updates = state_dict["updates"]

    def _init_collect(self) -> None:
        self._unroll_len = self._cfg.collect.unroll_len
        self._collect_model = self._model

    def _forward_collect(self, data: Any, eps: float = 0.0) -> dict[int, Any]:
        output = self._forward_eval(data)
        for one in output.values():
            if random.random() < eps:
                one["action"] = torch.randint(self._cfg.model.action_shape, (1,))
        return output

    def _process_transition(self, obs: Any, policy_output: Any, timestep: Any) -> dict[str, Any]:
        return {
            "obs": obs,
            "next_obs": timestep.obs,
            "action": policy_output["action"],
            "reward": timestep.reward,
            "done": timestep.done,
        }

    def _get_train_sample(self, transitions: Any) -> Any:
        assert isinstance(transitions, list)
        return transitions

    def _init_eval(self) -> None:
        self._eval_model = self._model

    def _forward_eval(self, data: Any) -> dict[int, Any]:
        data_id = list(data.keys())
        batch = default_collate(list(data.values()))
        self._model.eval()
        with torch.no_grad():
            logit = self._model(batch)["logit"]
        output = default_decollate({"logit": logit, "action": logit.argmax(1)})
        return dict(zip(data_id, output, strict=True))

    def _monitor_vars_learn(self) -> list[str]:
        return ["cur_lr", "total_loss"]


class EpsCommandModePolicy(CommandModePolicy):
    """The command mode, as a class that is mixed in."""

    def _init_command(self) -> None:
        self._command_start = self._cfg.other.eps.start

    def _get_setting_learn(self, command_info: dict[str, Any]) -> dict[str, Any]:
        return {}

    def _get_setting_collect(self, command_info: dict[str, Any]) -> dict[str, Any]:
        share = min(command_info["envstep"] / 100, 1.0)
        return {"eps": self._command_start + share * (self._cfg.other.eps.end - self._command_start)}

    def _get_setting_eval(self, command_info: dict[str, Any]) -> dict[str, Any]:
        return {}


class PlainDQNCommand(PlainDQN, EpsCommandModePolicy):
    """The DQN with epsilon from the command mode."""


class PlainPG(Policy):
    """REINFORCE on whole episodes in DI-engine's form; the returns are made in ``_get_train_sample``."""

    config: ClassVar[dict[str, Any]] = {
        "type": "plain_pg",
        "on_policy": True,
        "discount_factor": 0.5,
        "model": {"obs_shape": 4, "action_shape": 2},
        "learn": {"batch_size": 4, "learning_rate": 0.01},
        "collect": {"n_episode": 2, "unroll_len": 1},
        "eval": {"evaluator": {"eval_freq": 2, "n_episode": 2}},
    }

    def _create_model(self, cfg: Any, model: Any = None) -> nn.Module:
        return nn.Linear(cfg.model.obs_shape, cfg.model.action_shape) if model is None else model

    def _init_learn(self) -> None:
        self._optimizer = Adam(self._model.parameters(), lr=self._cfg.learn.learning_rate)
        self.seen: list[int] = []

    def _forward_learn(self, data: Any) -> list[dict[str, Any]]:
        self.seen.append(len(data))
        batch = default_collate(data)
        reports = []
        for _ in range(2):  # passes over the episodes
            log_prob = self._model(batch["obs"]).log_softmax(1).gather(1, batch["action"].unsqueeze(1)).squeeze(1)
            loss = -(log_prob * batch["return"]).mean()
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()
            reports.append({"total_loss": loss.item(), "return_mean": batch["return"].mean().item()})
        return reports

    def _init_collect(self) -> None:
        self._gamma = self._cfg.discount_factor

    def _forward_collect(self, data: Any, **kwargs: Any) -> dict[int, Any]:
        logit = self._model(default_collate(list(data.values())))
        action = torch.distributions.Categorical(logits=logit).sample()
        return {i: {"action": one} for i, one in zip(data, action, strict=True)}

    def _process_transition(self, obs: Any, policy_output: Any, timestep: Any) -> dict[str, Any]:
        return {"obs": obs, "action": policy_output["action"], "reward": timestep.reward, "done": timestep.done}

    def _get_train_sample(self, transitions: Any) -> Any:
        to_go: Tensor = torch.zeros(1)
        for one in reversed(transitions):
            to_go = one["reward"] + self._gamma * to_go
            one["return"] = to_go
        return transitions

    def _init_eval(self) -> None:
        pass

    def _forward_eval(self, data: Any) -> dict[int, Any]:
        logit = self._model(default_collate(list(data.values())))
        return {i: {"action": one} for i, one in zip(data, logit.argmax(1), strict=True)}
