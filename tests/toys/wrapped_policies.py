# mypy: ignore-errors
"""Policies with the wrappers and the functions that DI-engine's own policies use, and nothing else of this project."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import torch
from torch.distributions import Independent, Normal
from torch.optim import Adam

from lightning_ding.di_engine.rl_utils import (
    get_nstep_return_data,
    get_train_sample,
    q_nstep_td_data,
    q_nstep_td_error,
    v_1step_td_data,
    v_1step_td_error,
)
from lightning_ding.model import model_wrap
from lightning_ding.policy import Policy, default_collate, default_decollate, default_preprocess_learn


class Base(Policy):
    """What both policies have."""

    def _process_transition(self, obs: Any, policy_output: Any, timestep: Any) -> dict[str, Any]:
        made = {"obs": obs, "next_obs": timestep.obs, "action": policy_output["action"]}
        return {**made, "reward": timestep.reward, "done": timestep.done}

    def _get_train_sample(self, transitions: Any) -> Any:
        transitions = get_nstep_return_data(transitions, self._cfg.nstep, gamma=self._cfg.discount_factor)
        return get_train_sample(transitions, self._cfg.collect.unroll_len)

    def _target(self, **kwargs: Any) -> Any:
        return model_wrap(copy.deepcopy(self._model), wrapper_name="target", **kwargs)

    @staticmethod
    def _by_env(data: Any, act: Any) -> dict[int, Any]:
        with torch.no_grad():
            output = act(default_collate(list(data.values())))
        return dict(zip(data, default_decollate(output), strict=True))


class WrappedDQN(Base):
    """DQN with returns of several steps."""

    config: ClassVar[dict[str, Any]] = {
        "type": "wrapped_dqn",
        "discount_factor": 0.97,
        "nstep": 3,
        "model": {"obs_shape": 4, "action_shape": 2, "encoder_hidden_size_list": [16]},
        "learn": {"update_per_collect": 2, "batch_size": 8, "learning_rate": 0.01, "target_update_freq": 5},
        "collect": {"n_sample": 16, "unroll_len": 1},
        "eval": {"evaluator": {"eval_freq": 8}},
        "other": {"eps": {"start": 0.9}, "replay_buffer": {"replay_buffer_size": 100}},
    }

    def default_model(self) -> Any:
        return "dqn", ["ding.model.template.q_learning"]

    def _init_learn(self) -> None:
        self._optimizer = Adam(self._model.parameters(), lr=self._cfg.learn.learning_rate)
        freq = {"freq": self._cfg.learn.target_update_freq}
        self._target_model = self._target(update_type="assign", update_kwargs=freq)
        self._learn_model = model_wrap(self._model, wrapper_name="argmax_sample")
        self._learn_model.reset()
        self._target_model.reset()

    def _forward_learn(self, data: Any) -> dict[str, Any]:
        data = default_preprocess_learn(data, use_nstep=self._cfg.nstep > 1)
        assert data["reward"].shape == (3, 8)
        self._learn_model.train()
        self._target_model.train()
        q_value = self._learn_model.forward(data["obs"])["logit"]
        with torch.no_grad():
            next_value = self._target_model.forward(data["next_obs"])["logit"]
            next_action = self._learn_model.forward(data["next_obs"])["action"]
        values = (q_value, next_value, data["action"], next_action, data["reward"], data["done"], data["weight"])
        options = {"nstep": self._cfg.nstep, "value_gamma": data.get("value_gamma")}
        loss, _ = q_nstep_td_error(q_nstep_td_data(*values), self._cfg.discount_factor, **options)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        self._target_model.update(self._learn_model.state_dict())
        return {"total_loss": loss.item(), "cur_lr": self._optimizer.defaults["lr"]}

    def _init_collect(self) -> None:
        self._collect_model = model_wrap(self._model, wrapper_name="eps_greedy_sample")

    def _forward_collect(self, data: Any, eps: float) -> dict[int, Any]:
        return self._by_env(data, lambda obs: self._collect_model.forward(obs, eps=eps))

    def _get_setting_collect(self, command_info: dict[str, Any]) -> dict[str, Any]:
        return {"eps": self._cfg.other.eps.start}

    def _init_command(self) -> None:
        pass

    def _init_eval(self) -> None:
        self._eval_model = model_wrap(self._model, wrapper_name="argmax_sample")

    def _forward_eval(self, data: Any) -> dict[int, Any]:
        return self._by_env(data, self._eval_model.forward)


class WrappedSAC(Base):
    """SAC with a fixed temperature and two critics."""

    config: ClassVar[dict[str, Any]] = {
        "type": "wrapped_sac",
        "discount_factor": 0.99,
        "nstep": 1,
        "random_collect_size": 16,
        "model": {"obs_shape": 3, "action_shape": 1, "twin_critic": True, "action_space": "reparameterization"},
        "learn": {"update_per_collect": 2, "batch_size": 8, "learning_rate": 0.001, "alpha": 0.2, "target_theta": 0.1},
        "collect": {"n_sample": 8, "unroll_len": 1},
        "eval": {"evaluator": {"eval_freq": 8}},
        "other": {"replay_buffer": {"replay_buffer_size": 100}},
    }

    def default_model(self) -> Any:
        return "continuous_qac", ["ding.model.template.qac"]

    def _init_learn(self) -> None:
        lr = self._cfg.learn.learning_rate
        self._optimizer_q = Adam(self._model.critic.parameters(), lr=lr)
        self._optimizer_policy = Adam(self._model.actor.parameters(), lr=lr)
        theta = {"theta": self._cfg.learn.target_theta}
        self._target_model = self._target(update_type="momentum", update_kwargs=theta)
        self._learn_model = model_wrap(self._model, wrapper_name="base")

    def _drawn(self, obs: Any) -> tuple[Any, Any]:
        mu, sigma = self._learn_model.forward(obs, mode="compute_actor")["logit"]
        distribution = Independent(Normal(mu, sigma), 1)
        before = distribution.rsample()
        action = torch.tanh(before)
        return action, distribution.log_prob(before) - (1 - action**2 + 1e-6).log().sum(-1)

    def _forward_learn(self, data: Any) -> dict[str, Any]:
        data = default_preprocess_learn(data)
        alpha, done = self._cfg.learn.alpha, data["done"]
        values = self._learn_model.forward(data, mode="compute_critic")["q_value"]
        with torch.no_grad():
            action, log_prob = self._drawn(data["next_obs"])
            inputs = {"obs": data["next_obs"], "action": action}
            target = torch.min(*self._target_model.forward(inputs, mode="compute_critic")["q_value"])
            target = target - alpha * log_prob
        errors = [v_1step_td_data(one, target, data["reward"], done, data["weight"]) for one in values]
        critic_loss = sum(v_1step_td_error(one, self._cfg.discount_factor)[0] for one in errors)
        self._optimizer_q.zero_grad()
        critic_loss.backward()
        self._optimizer_q.step()
        action, log_prob = self._drawn(data["obs"])
        inputs = {"obs": data["obs"], "action": action}
        value = torch.min(*self._learn_model.forward(inputs, mode="compute_critic")["q_value"])
        policy_loss = (alpha * log_prob - value).mean()
        self._optimizer_policy.zero_grad()
        policy_loss.backward()
        self._optimizer_policy.step()
        self._target_model.update(self._learn_model.state_dict())
        return {"total_loss": (critic_loss + policy_loss).item(), "critic_loss": critic_loss.item()}

    def _state_dict_learn(self) -> dict[str, Any]:
        return {
            "model": self._learn_model.state_dict(),
            "target_model": self._target_model.state_dict(),
            "optimizer_q": self._optimizer_q.state_dict(),
            "optimizer_policy": self._optimizer_policy.state_dict(),
        }

    def _load_state_dict_learn(self, state_dict: dict[str, Any]) -> None:
        self._learn_model.load_state_dict(state_dict["model"])
        self._target_model.load_state_dict(state_dict["target_model"])
        self._optimizer_q.load_state_dict(state_dict["optimizer_q"])
        self._optimizer_policy.load_state_dict(state_dict["optimizer_policy"])

    def _init_collect(self) -> None:
        self._collect_model = model_wrap(self._model, wrapper_name="base")

    def _forward_collect(self, data: Any, **kwargs: Any) -> dict[int, Any]:
        def act(obs: Any) -> dict[str, Any]:
            mu, sigma = self._collect_model.forward(obs, mode="compute_actor")["logit"]
            return {"logit": (mu, sigma), "action": torch.tanh(torch.normal(mu, sigma))}

        return self._by_env(data, act)

    def _init_eval(self) -> None:
        self._eval_model = model_wrap(self._model, wrapper_name="base")

    def _forward_eval(self, data: Any) -> dict[int, Any]:
        return self._by_env(
            data, lambda obs: {"action": self._eval_model.forward(obs, mode="compute_actor")["logit"][0].tanh()}
        )
