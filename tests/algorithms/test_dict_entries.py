"""Every algorithm can combine the entries of a dict observation: no network is a sum of functions of one entry."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_ding import nested
from lightning_ding.policy import SACPolicy, create_policy
from lightning_ding.policy.weighted_actor import WeightedActorPolicy
from lightning_ding.registry import POLICY_REGISTRY
from tests.algorithms.table import ALGORITHMS, CONTINUOUS_ONLY, WITHOUT_COLLECTING, with_actor
from tests.algorithms.test_learns import train
from tests.conftest import MakeTrainer
from tests.learning_seeds import assert_reached
from tests.toys.bandits import XorEnv

Config = dict[str, Any]

VECTORS_ONLY = ("mbpo", "tdmpc2")
KINDS = [(name, True) for name in (*CONTINUOUS_ONLY, *with_actor()) if name not in VECTORS_ONLY]
KINDS += [("dt", continuous) for continuous in (True, False)]
KINDS += [(name, False) for name in ALGORITHMS if name not in CONTINUOUS_ONLY]

SIGNS = torch.tensor([[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0]])
"""Both signs of both entries; a sum of functions of one entry each has equal sums over the first and the last two."""


def outputs(policy: Any) -> list[Tensor]:
    """Return all that the network says of the four observations, each of shape (4, ...)."""
    obs = {"left": SIGNS[:, :1], "right": SIGNS[:, 1:]}
    model = policy.model
    if hasattr(policy, "critic_loss"):
        is_chosen = not hasattr(policy.config.model, "action_low")
        action = torch.zeros(4, dtype=torch.long) if is_chosen else torch.zeros(4, policy._action_size())
        q_value = model.compute_critic(obs, action)["q_value"]
        return [*nested.leaves(model.compute_actor(obs)), q_value.T]
    if hasattr(policy, "_state_value"):
        return [model.compute_actor(obs)["logit"], policy._q(obs)]
    if getattr(policy, "acts_on_reward", False):
        return [policy._logits(**policy._contexts.observe(obs, None, first_action(policy)))[:, 0]]
    if hasattr(model, "act"):
        said = model.act(obs, model.first_state(4))
    else:
        said = model.compute_actor_critic(obs) if hasattr(model, "compute_actor_critic") else model(obs)
    is_said = {name: said[name] for name in ("logit", "value") if name in said}
    return [leaf for leaf in nested.leaves(is_said) if bool((leaf != leaf[:1]).any())]  # not a constant sigma


def first_action(policy: Any) -> Tensor:
    """Return a placeholder for four actions of a policy with contexts."""
    return torch.zeros(4, dtype=torch.long) if policy.config.model.action_space == "discrete" else torch.zeros(4, 1)


def test_the_lists_below_name_every_algorithm() -> None:
    assert {name for name, _ in KINDS} | {*VECTORS_ONLY} == {*ALGORITHMS, *WITHOUT_COLLECTING}


@pytest.mark.parametrize("hidden", [{}, {"hidden": 0}], ids=["default", "smallest heads"])
@pytest.mark.parametrize(("name", "continuous"), KINDS)
def test_no_output_of_a_network_is_a_sum_over_the_entries(name: str, continuous: bool, hidden: dict[str, int]) -> None:
    torch.manual_seed(0)
    known = vars(POLICY_REGISTRY.get(name).config_class().model)
    heads = {f"{head}_layer_num": 0 for head in ("head", "actor_head", "critic_head") if f"{head}_layer_num" in known}
    policy: Any = create_policy({"type": name, "model": heads if hidden else {}})
    env = XorEnv(continuous)
    found = outputs(policy.build(env.observation_space, env.action_space))
    has_actor = continuous or hasattr(policy.model, "compute_actor") or name in ("pg", "recurrent_ppo")
    has_sigma = continuous and isinstance(policy, (SACPolicy, WeightedActorPolicy))  # as a separate output
    assert len(found) == (1 if name in ("pg", "bc", "dt") or not has_actor else 2 + has_sigma)
    for output in found:
        mixed = output[0] + output[1] - output[2] - output[3]
        assert mixed.abs().max() > 1e-3 * output.abs().max()  # of a sum it is about 1e-7


EPSILON: Config = {"other": {"eps": {"start": 1.0, "end": 0.2}}}
RELU: Config = {"model": {"activation": "relu"}}
MANY_UPDATES: Config = {
    "random_collect_size": 512,
    "model": {"encoder_hidden_size_list": [32], "activation": "relu"},
    "learn": {"update_per_collect": 32, "learning_rate_actor": 1e-3},
}


@pytest.mark.learns
@pytest.mark.parametrize(
    ("name", "env_step", "changes"),
    [
        ("dqn", 1000, EPSILON),
        ("c51", 1000, EPSILON),
        ("qrdqn", 1000, EPSILON),
        ("rainbow", 1000, EPSILON),
        ("ppo", 2176, RELU),
        ("trpo", 2816, RELU),
        ("a2c", 2816, RELU),
        ("pg", 2816, RELU),
        ("ddpg", 1280, MANY_UPDATES),
        ("td3", 1280, MANY_UPDATES),
        ("sac", 1024, {}),
    ],
)
def test_it_learns_what_two_entries_say_together(
    name: str, env_step: int, changes: Config, make_trainer: MakeTrainer, request: pytest.FixtureRequest
) -> None:
    env = XorEnv(continuous=name in CONTINUOUS_ONLY)
    after, _ = train(make_trainer, name, XorEnv, env_step, changes, continuous=env.continuous)
    assert env.separable_return < 0.8
    assert_reached(request, after, 0.9 * env.best_return)
