"""PQN's returns and loss against numbers worked out by hand.

The table has the values (1, 3) in state 0, (2, -1) in state 1 and (8, 4) in state 2, so the largest are 3, 2 and 8.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.testing import assert_close

from lightning_ding import rl
from lightning_ding.policy import PQNPolicy
from lightning_ding.policy.pqn import PQNLearnConfig

Config = dict[str, Any]


class TableNet(nn.Module):
    """The action values of three states, for observations that are their numbers, perhaps with a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Parameter(torch.tensor([[1.0, 3.0], [2.0, -1.0], [8.0, 4.0]]))

    def forward(self, obs: Any) -> dict[str, Tensor]:
        state = obs["state"] if isinstance(obs, dict) else obs
        return {"logit": self.q[state.long()]}


def make_policy(**config: Any) -> PQNPolicy:
    policy = PQNPolicy({"discount_factor": 0.5, **config}, model=TableNet())
    policy.seed(0)
    return policy


def rollout(terminated: list[bool], truncated: list[bool], episode_id: list[int]) -> Config:
    """Return three steps of one env in states 0, 1, 0 with rewards 1, 2, 4; the final next observation is state 2."""
    return {
        "obs": torch.tensor([0.0, 1.0, 0.0]),
        "next_obs": torch.tensor([1.0, 0.0, 2.0]),
        "action": torch.tensor([0, 1, 0]),
        "reward": torch.tensor([1.0, 2.0, 4.0]),
        "terminated": torch.tensor(terminated),
        "truncated": torch.tensor(truncated),
        "env_id": torch.zeros(3, dtype=torch.long),
        "episode_id": torch.tensor(episode_id),
    }


def returns_of(policy: PQNPolicy, data: Config) -> list[float]:
    found = policy._learning_data(data, rl.time_major(data["env_id"], data["episode_id"]))
    assert set(found) == {"obs", "action", "return"}
    return found["return"].tolist()  # type: ignore[no-any-return]


NEVER, LAST = [False] * 3, [False, False, True]


@pytest.mark.parametrize("truncated", [NEVER, LAST])
def test_returns_bootstrap_from_the_best_action_at_a_time_limit_and_at_the_end_of_the_rollout(
    truncated: list[bool],
) -> None:
    # G2 = 4 + 0.5 * 8 = 8; G1 = 2 + 0.5 * (0.5 * 3 + 0.5 * 8) = 4.75; G0 = 1 + 0.5 * (0.5 * 2 + 0.5 * 4.75) = 2.6875
    data = rollout(NEVER, truncated, [0, 0, 0])
    assert returns_of(make_policy(learn={"lambda_": 0.5}), data) == [2.6875, 4.75, 8.0]


def test_returns_end_at_a_termination() -> None:
    # G2 = 4; G1 = 2 + 0.5 * (0.5 * 3 + 0.5 * 4) = 3.75; G0 = 1 + 0.5 * (0.5 * 2 + 0.5 * 3.75) = 2.4375
    data = rollout(LAST, NEVER, [0, 0, 0])
    assert returns_of(make_policy(learn={"lambda_": 0.5}), data) == [2.4375, 3.75, 4.0]


@pytest.mark.parametrize(("kind", "first"), [("terminated", 1.0), ("truncated", 1 + 0.5 * 8)])
def test_returns_do_not_reach_into_the_next_episode(kind: str, first: float) -> None:
    flags = {"terminated": NEVER, "truncated": NEVER, kind: [True, False, False]}
    data = rollout(**flags, episode_id=[0, 1, 1])
    data["next_obs"] = torch.tensor([2.0, 0.0, 2.0])  # the final observation of the first episode is state 2
    assert returns_of(make_policy(learn={"lambda_": 0.5}), data) == [first, 4.75, 8.0]


@pytest.mark.parametrize(
    ("lambda_", "expected"),
    [(0.0, [1 + 0.5 * 2, 2 + 0.5 * 3, 8.0]), (1.0, [1 + 0.5 * (2 + 0.5 * 8), 2 + 0.5 * 8, 8.0])],
)
def test_lambda_mixes_one_step_and_all_steps(lambda_: float, expected: list[float]) -> None:
    data = rollout(NEVER, NEVER, [0, 0, 0])
    assert returns_of(make_policy(learn={"lambda_": lambda_}), data) == expected


def test_returns_and_actions_leave_illegal_actions_out() -> None:
    # legal: both in state 0, action 1 in state 1, action 1 in state 2, so the largest values are 3, -1 and 4:
    # G2 = 4 + 0.5 * 4 = 6; G1 = 2 + 0.5 * (0.5 * 3 + 0.5 * 6) = 4.25; G0 = 1 + 0.5 * (0.5 * -1 + 0.5 * 4.25) = 1.8125
    legal = torch.tensor([[1, 1], [0, 1], [0, 1]])
    data = rollout(NEVER, NEVER, [0, 0, 0])
    for name in ("obs", "next_obs"):
        data[name] = {"state": data[name], "action_mask": legal[data[name].long()]}
    policy = make_policy(learn={"lambda_": 0.5})
    assert returns_of(policy, data) == [1.8125, 4.25, 6.0]
    obs = {"state": torch.arange(3.0), "action_mask": legal}
    assert policy.eval_mode.forward(obs)["action"].tolist() == [1, 1, 1]
    many = {"state": torch.ones(200), "action_mask": legal[torch.ones(200).long()]}
    assert set(policy.collect_mode.forward(many, eps=1.0)["action"].tolist()) == {1}


def test_loss_is_half_the_mean_squared_error_of_the_actions_taken() -> None:
    # values 1, -1; errors 1 - 2 = -1 and -1 - 2 = -3; half of (1 + 9) / 2
    batch: Any = {
        "obs": torch.tensor([0.0, 1.0]),
        "action": torch.tensor([0, 1]),
        "return": torch.tensor([2.0, 2.0], requires_grad=True),
    }
    policy = make_policy()
    loss, report = policy.loss(batch)
    assert loss.item() == 2.5
    assert {name: value.tolist() for name, value in report.items()} == {
        "total_loss": 2.5,
        "q_value": [1.0, -1.0],
        "target_q_value": [2.0, 2.0],
    }
    assert not any(value.requires_grad for value in report.values())
    (gradient,) = torch.autograd.grad(loss, list(policy.model.parameters()))
    assert gradient.tolist() == [[-0.5, 0.0], [0.0, -1.5], [0.0, 0.0]]  # the error, divided by 2 rows


def test_an_update_is_a_step_towards_the_returns_and_all_passes_have_the_same_targets() -> None:
    learn: Config = {"lambda_": 0.5, "batch_size": None, "epoch_per_collect": 3, "lr_scheduler": {"type": "constant"}}
    learn |= {"learning_rate": 0.5, "optimizer": {"type": "sgd", "eps": 1e-8, "betas": [0.9, 0.999]}}
    policy = make_policy(learn={**learn, "grad_clip_norm": None})
    report = policy._learn(rollout(NEVER, NEVER, [0, 0, 0]))
    assert policy.progress.train_iter == 3
    assert sorted(report["target_q_value"].tolist()) == [2.6875, 4.75, 8.0]
    expected = torch.tensor([[1.0, 3.0], [2.0, -1.0], [8.0, 4.0]])
    for _ in range(3):  # the gradient of (s, a) is the sum of its errors, divided by 3 rows
        expected[0, 0] -= 0.5 * (2 * expected[0, 0] - 2.6875 - 8) / 3
        expected[1, 1] -= 0.5 * (expected[1, 1] - 4.75) / 3
    assert_close(policy.model.q.detach(), expected, rtol=1e-6, atol=1e-6)  # type: ignore[operator]


def test_epsilon_falls_over_the_budget_and_is_logged() -> None:
    policy = make_policy(other={"eps": {"start": 1.0, "end": 0.1, "decay": 0.5, "unit": "budget"}})
    policy.progress.budget = 1000
    found = [policy._get_setting_collect({"envstep": step})["eps"] for step in (0, 250, 500, 900)]
    assert found == pytest.approx([1.0, 0.55, 0.1, 0.1])


@pytest.mark.parametrize(("eps", "share"), [(0.0, 0.0), (0.4, 0.2), (1.0, 0.5)])
def test_random_actions_are_as_frequent_as_epsilon(eps: float, share: float) -> None:
    action = make_policy().collect_mode.forward(torch.zeros(4000), eps=eps)["action"]
    other = (action == 0).float().mean().item()  # the best action of state 0 is 1, a random one is 0 half the time
    assert other == pytest.approx(share, abs=0.03)  # four standard errors


def test_it_has_no_target_network_and_its_layers_are_normalised() -> None:
    policy = PQNPolicy({"model": {"obs_shape": 4, "action_shape": 2, "encoder_hidden_size_list": [8, 8]}})
    assert not [name for name in policy.state_dict() if "target" in name]
    assert sum(isinstance(one, nn.LayerNorm) for one in policy.modules()) == 2
    assert not hasattr(policy, "target_model")


def test_updates_of_a_rollout_are_counted_over_all_passes() -> None:
    policy = make_policy(learn={"epoch_per_collect": 3, "batch_size": 100}, collect={"n_sample": 400})
    assert (policy.batch_size, policy.update_per_collect) == (100, 12)


def test_actions_count_from_the_first_one_of_the_env() -> None:
    policy = PQNPolicy({"model": {"encoder_hidden_size_list": [8]}})
    policy.build(spaces.Box(-1, 1, (3,)), spaces.Discrete(2, start=5))
    obs = torch.zeros(64, 3)
    output = policy.collect_mode.forward(obs, eps=1.0)
    assert set(output["action"].tolist()) == {5, 6}


@pytest.mark.parametrize(
    ("space", "hint"),
    [(spaces.Box(-1, 1, (2,)), "needs a Discrete"), (spaces.MultiDiscrete([2, 3]), "dqn and ppo take both")],
)
def test_other_actions_are_refused(space: spaces.Space[Any], hint: str) -> None:
    with pytest.raises(TypeError, match=f"PQNPolicy .*{hint}"):
        PQNPolicy().build(spaces.Box(-1, 1, (3,), np.float32), space)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"learn": {"lambda_": 1.5}}, r"learn.lambda_ must be in \[0, 1\], got 1.5"),
        ({"learn": {"epoch_per_collect": 0}}, "learn.epoch_per_collect must be >= 1, got 0"),
        ({"learn": {"batch_size": 0}}, "learn.batch_size must be >= 1 or None, got 0"),
        ({"learn": {"learning_rate": 0.0}}, "learn.learning_rate must be > 0, got 0.0"),
        ({"learn": {"grad_clip_norm": 0.0}}, "learn.grad_clip_norm must be > 0 or None"),
        ({"learn": {"target_update_freq": 3}}, "there is no target network"),
        ({"discount_factor": 1.1}, r"discount_factor must be in \[0, 1\], got 1.1"),
        ({"nstep": 3}, "returns reach as far as the rollout, see learn.lambda_"),
        ({"priority": True}, "there is no replay"),
        ({"random_collect_size": 8}, "set other.eps.start"),
        ({"collect": {"gae_lambda": 0.5}}, "gae_lambda"),
        ({"other": {"replay_buffer": {}}}, "replay_buffer"),
        ({"model": {"core": {"type": "gru"}}}, "r2d2"),
    ],
)
def test_an_option_that_cannot_be_is_refused(config: Config, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PQNPolicy(config)


def test_the_step_size_falls_to_zero_by_default() -> None:
    assert PQNLearnConfig().lr_scheduler.type == "linear"
    assert PQNLearnConfig().grad_clip_norm == 10.0
