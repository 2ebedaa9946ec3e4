"""DI-engine's names and forms of data with the policies of this project."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from lightning_ding.policy import CommandModePolicy, DQNPolicy, Policy, PPOPolicy, create_policy
from lightning_ding.registry import POLICY_REGISTRY
from tests.algorithms.table import TEAMS

BaseEnvTimestep = namedtuple("BaseEnvTimestep", ["obs", "reward", "done", "info"])
NAMES = [name for name in POLICY_REGISTRY if POLICY_REGISTRY.get(name).__module__.startswith("lightning_ding.")]


def make(name: str) -> Any:
    model: dict[str, Any] = {"obs_shape": 3, "action_shape": 2}
    if name in TEAMS:
        model = {"agent_num": 2, "agent_obs_shape": 3, "global_obs_shape": 6, "action_shape": 2}
        if "action_space" in POLICY_REGISTRY.get(name).shape_names:
            model["action_space"] = "discrete"
    of_both_spaces = ("ppo", "ppg", "trpo", "a2c", "pg", "bc", "dt", "impala", "ppo_offpolicy", "ppg_offpolicy")
    if name in (*of_both_spaces, "recurrent_ppo"):
        model["action_space"] = "discrete"
    return create_policy({"type": name, "model": model})


@pytest.mark.parametrize("name", NAMES)
def test_documented_names_are_those_of_the_policy(name: str) -> None:
    policy = make(name)
    assert policy._cfg == policy.cfg
    assert policy._model is policy._learn_model is policy._collect_model is policy._eval_model is policy.model
    assert policy._optimizer is policy.updater.optimizers[0]
    assert (policy._cuda, policy._rank, policy._on_policy) == (False, 0, policy.on_policy)
    n_sample = getattr(policy.config.collect, "n_sample", None)  # dt does not collect
    assert policy._get_attribute("n_sample") == policy._get_n_sample() == n_sample
    assert type(policy).config["learn"]["batch_size"] == policy.config.learn.batch_size
    policy._set_attribute("mine", 3)
    assert policy._mine == policy._get_attribute("mine") == 3
    assert not any(key.startswith("_") for key in policy.state_dict())


def test_names_of_the_modes_have_the_fields_of_the_documentation() -> None:
    state = ("get_attribute", "set_attribute", "state_dict", "load_state_dict")
    learn = ("forward", "reset", "info", "monitor_vars", *state)
    assert Policy.learn_function._fields == learn
    assert Policy.collect_function._fields[1:3] == ("process_transition", "get_train_sample")
    assert Policy.eval_function._fields == ("forward", "reset", *state)
    command = ("get_setting_learn", "get_setting_collect", "get_setting_eval")
    assert CommandModePolicy.command_function._fields == command


def test_own_network_is_made_or_checked() -> None:
    policy: Any = make("dqn")
    cfg = {"model": {"obs_shape": 3, "action_shape": 5}}
    assert policy._create_model(cfg)(torch.zeros(1, 3))["logit"].shape == (1, 5)
    given = torch.nn.Linear(3, 5)
    assert policy._create_model(cfg, given) is given
    with pytest.raises(RuntimeError, match=r"model must be an nn.Module or None, got int"):
        policy._create_model(cfg, 3)


def test_policy_without_its_learn_mode_has_no_optimizer() -> None:
    policy: Any = DQNPolicy({"model": {"obs_shape": 3, "action_shape": 2}}, enable_field=["eval"])
    with pytest.raises(AttributeError):
        policy._optimizer  # noqa: B018


@pytest.mark.parametrize(
    ("done", "info", "terminated", "truncated"),
    [(False, {}, False, False), (True, {}, True, False), (True, {"TimeLimit.truncated": True}, False, True)],
)
def test_transition_of_one_env_is_made_of_a_timestep(
    done: bool, info: dict[str, Any], terminated: bool, truncated: bool
) -> None:
    policy = make("dqn")
    obs = {4: torch.zeros(3), 9: torch.ones(3)}
    output = policy.collect_mode.forward(obs)
    timestep = BaseEnvTimestep(np.full(3, 2.0), np.array([1.5]), done, info)
    made = policy.collect_mode.process_transition(obs[9], output[9], timestep)
    assert (made["reward"], made["terminated"], made["truncated"]) == (1.5, terminated, truncated)
    assert made["next_obs"] is timestep.obs
    assert made["action"] == output[9]["action"]


def test_transition_of_a_rollout_has_the_probability_of_its_action() -> None:
    policy = make("ppo")
    output = policy.collect_mode.forward({0: torch.zeros(3)})[0]
    made = policy.collect_mode.process_transition(
        torch.zeros(3), output, BaseEnvTimestep(torch.ones(3), 1.0, False, {})
    )
    assert made["log_prob"].shape == ()
    assert made["log_prob"] == output["log_prob"]


def transitions() -> list[dict[str, Any]]:
    return [
        {
            "obs": torch.full((3,), float(row)),
            "next_obs": torch.full((3,), row + 1.0),
            "action": torch.tensor([row % 2]),
            "reward": torch.tensor([float(row)]),
            "done": row == 3,
        }
        for row in range(4)
    ]


def test_list_with_done_gives_the_loss_of_columns_with_terminated() -> None:
    columns = {name: torch.stack([torch.as_tensor(one[name]) for one in transitions()]) for name in ("obs", "next_obs")}
    columns |= {"action": torch.tensor([0, 1, 0, 1]), "reward": torch.arange(4.0)}
    columns |= {"terminated": torch.tensor([False, False, False, True])}
    losses = []
    for data in (transitions(), columns):
        torch.manual_seed(0)
        losses.append(make("dqn").learn_mode.forward(data)["total_loss"])
    assert_close(losses[0], losses[1])


def test_rollout_policy_learns_from_a_list() -> None:
    policy = make("ppo")
    rollout = []
    for row, one in enumerate(transitions()):
        output = policy.collect_mode.forward({0: one["obs"]})[0]
        timestep = BaseEnvTimestep(one["next_obs"], one["reward"], one["done"], {})
        made = policy.collect_mode.process_transition(one["obs"], output, timestep)
        rollout.append({**made, "env_id": 0, "episode_id": 0, "policy_version": 0})
        assert row < 4
    assert isinstance(policy, PPOPolicy)
    assert torch.isfinite(policy.learn_mode.forward(rollout)["total_loss"])
