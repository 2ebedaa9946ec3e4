"""Networks that are initialised again during a run."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from lightning_ding import nested
from lightning_ding.envs import make_vector_env
from lightning_ding.policy import DQNPolicy, SACPolicy
from lightning_ding.policy.base.reset import reset_networks
from lightning_ding.policy.replay_policy import ReplayPolicy
from lightning_ding.registry import POLICY_REGISTRY
from tests.algorithms.table import ALGORITHMS, TEAMS, make_policy

REPLAY = [
    name
    for name in (*ALGORITHMS, *TEAMS)
    if issubclass(POLICY_REGISTRY.get(name), ReplayPolicy) and name != "dreamerv3"  # which refuses resets
]
SIZES = {"obs_shape": 3, "action_shape": 1, "actor_head_hidden_size": 4, "critic_head_hidden_size": 4}


def soft(**learn: Any) -> Any:
    torch.manual_seed(0)
    policy = SACPolicy({"model": SIZES, "learn": learn})
    policy.seed(0)
    return policy


def update(policy: Any, times: int = 1) -> None:
    obs = torch.linspace(-1, 1, 12).view(4, 3)
    ends = torch.zeros(4, dtype=torch.bool)
    for _ in range(times):
        batch = {"obs": obs, "next_obs": -obs, "action": obs[:, :1], "reward": obs[:, 1], "terminated": ends}
        policy.learn_mode.forward(batch)


def weights(policy: Any) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in policy.named_parameters()}


@cache
def spaces_of(env_id: str) -> tuple[Any, Any]:
    env = make_vector_env(env_id, 1)
    env.close()
    return env.single_observation_space, env.single_action_space


@pytest.mark.parametrize("name", REPLAY)
def test_everything_that_an_algorithm_learns_is_reset(name: str) -> None:
    """Weights that were changed become first weights; targets are those of the network; no step is remembered."""
    policy = make_policy(name, learn={"reset_freq": 1000})
    policy.build(*spaces_of((ALGORITHMS | TEAMS)[name].env_id))
    first = {key: value.detach().clone() for key, value in policy.named_parameters()}
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.fill_(7.0)
    for optimizer in policy.updater.optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                optimizer.state[parameter] = {"step": torch.ones(())}
    before = torch.get_rng_state()
    torch.manual_seed(1)
    reset_networks(policy)
    torch.set_rng_state(before)
    for key, value in policy.named_parameters():
        assert value.shape == first[key].shape
        assert not (value == 7.0).any(), key
    assert not any(optimizer.state for optimizer in policy.updater.optimizers)
    target: Any = policy.target_model if policy.has_target else torch.nn.Module()
    for key, value in target.state_dict().items():
        assert torch.equal(value, policy.model.state_dict()[key]), key


def test_a_reset_comes_after_each_multiple_and_after_the_listed_updates() -> None:
    policy, seen = soft(reset_freq=3, reset_at=[4]), []
    for _ in range(6):
        before = weights(policy)["model.critic.head.weights.1"]
        update(policy)
        change = (weights(policy)["model.critic.head.weights.1"] - before).abs().max()
        seen.append(float(change) > 0.01)  # a step of Adam is at most 3e-4
    assert seen == [False, False, True, True, False, True]
    assert policy.progress.train_iter == 6


def test_parts_that_are_not_named_go_on() -> None:
    policy, same = soft(reset_freq=2, reset_parts=["critic"]), soft()
    update(policy, 2)
    update(same, 2)
    ours, others = weights(policy), weights(same)
    changed = {name for name in ours if not torch.equal(ours[name], others[name])}
    assert changed
    assert all("critic." in name for name in changed)
    assert all(torch.equal(ours[name], ours[f"target_{name}"]) for name in ours if name.startswith("model.critic."))
    critic, actor, temperature = policy.updater.optimizers
    assert (len(critic.state), len(actor.state), len(temperature.state)) == (0, 6, 1)
    update(policy)
    assert {int(state["step"]) for state in critic.state.values()} == {1}
    assert {int(state["step"]) for state in actor.state.values()} == {3}


def test_a_reset_leaves_the_random_numbers_of_the_run_alone_but_for_one_seed() -> None:
    policy, other = soft(reset_freq=1), soft(reset_freq=1)
    torch.manual_seed(3)
    update(policy)
    after = torch.rand(1)
    torch.manual_seed(3)
    torch.randint(2**31, ())
    assert torch.equal(after, torch.rand(1))
    torch.manual_seed(3)
    update(other)
    assert all(torch.equal(value, weights(other)[name]) for name, value in weights(policy).items())


def test_targets_after_a_reset_within_a_round_are_those_of_the_new_network() -> None:
    torch.manual_seed(0)
    policy: Any = DQNPolicy({"model": {"obs_shape": 3, "action_shape": 2}, "learn": {"reset_at": [1]}, "nstep": 1})
    obs, ends = torch.randn(2, 4, 3), torch.zeros(2, 4, dtype=torch.bool)
    data = {"obs": obs, "next_obs": -obs, "action": torch.zeros(2, 4, dtype=torch.long), "reward": obs[..., 0]}
    prepared = policy._prepare_round({**data, "terminated": ends})
    for number in range(2):
        batch = policy.prepare(nested.index(prepared, number))
        with torch.no_grad():
            expected = policy.target_model(-obs[number])["logit"]
        assert torch.allclose(batch["target"]["logit"], expected, atol=1e-6)
        policy.learn_mode.forward(nested.index({**data, "terminated": ends}, number))


@pytest.mark.parametrize(
    ("learn", "message"),
    [
        ({"reset_freq": 0}, "learn.reset_freq and learn.reset_at must be >= 1, got 0"),
        ({"reset_at": [3, 0]}, "learn.reset_freq and learn.reset_at must be >= 1, got 0"),
        (
            {"reset_parts": ["actor"]},
            r"learn.reset_parts must be empty without reset_freq and reset_at, got \('actor',\)",
        ),
        (
            {"reset_freq": 5, "reset_parts": ["head"]},
            "learn.reset_parts must be modules of the network, such as .*'head'",
        ),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(learn: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        soft(**learn)


def test_a_network_that_was_passed_cannot_be_made_again() -> None:
    class Own(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 2)

    for shapes in ({}, {"obs_shape": 4, "action_shape": 2}):
        with pytest.raises(ValueError, match=r"reset_freq and learn\.reset_at must be None and \[\] with a network"):
            DQNPolicy({"learn": {"reset_freq": 5}, "model": shapes}, model=Own())
