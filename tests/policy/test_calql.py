"""Cal-QL against numbers worked out by hand and a slow oracle."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.testing import assert_close

from lightning_ding.datamodules import OfflineDataModule, ReplayDataModule
from lightning_ding.datamodules.dataset import Dataset
from lightning_ding.policy import CalQLPolicy, CQLPolicy
from tests.conftest import MakeTrainer
from tests.policy.test_offline_policies import B, batch_of, made, q_of

RETURN = torch.tensor([-5.0, 5.0, 0.1, -float("inf"), 0.0, 3.0])


def policy_and_batch() -> tuple[Any, Any]:
    policy = made(CalQLPolicy, num_actions=3, min_q_weight=2.0)
    return policy, {**batch_of(policy), "data_return": RETURN}


def test_critic_loss_equals_a_loop_written_from_the_paper() -> None:
    policy, batch = policy_and_batch()
    with torch.no_grad():
        drawn, density = policy._sampled_actions(batch)
        expected = float(super(CQLPolicy, policy).critic_loss(batch)[0])
    q_data, bounded = q_of(policy.model, batch["obs"], batch["action"]), 0
    for critic in range(2):
        for row in range(B):
            total = 0.0
            for n in range(9):
                q = q_of(policy.model, batch["obs"][row : row + 1], drawn[row, n : n + 1])[critic][0]
                if n >= 3:  # an action of the actor, eq. 5.1
                    bounded += q < float(RETURN[row])
                    q = max(q, float(RETURN[row]))
                total += math.exp(q - float(density[row, n]))
            expected += 2.0 * (math.log(total) - q_data[critic][row]) / B
    loss, report = policy.critic_loss(batch)
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    assert float(report["bound_rate"].mean()) == pytest.approx(bounded / (2 * B * 6))
    assert 0 < bounded < 2 * B * 6


def test_values_above_the_return_are_pushed_down_and_others_are_not() -> None:
    """Three values of one critic: 4 of a random action, 1 and 3 of the actor's; the return of the data is 2."""
    policy = made(CalQLPolicy, num_actions=1)
    q = torch.tensor([[[4.0, 1.0, 3.0]]], requires_grad=True)
    penalised, report = policy._in_penalty({"data_return": torch.tensor([2.0])}, q)
    assert penalised.tolist() == [[[4.0, 2.0, 3.0]]]
    assert report["bound_rate"].tolist() == [0.5]
    penalised.sum().backward()
    assert q.grad is not None
    assert q.grad.tolist() == [[[1.0, 0.0, 1.0]]]


def test_without_a_return_it_is_cql() -> None:
    policy, batch = policy_and_batch()
    batch["data_return"] = torch.full((B,), -float("inf"))
    assert_close(policy.critic_loss(batch)[0], CQLPolicy.critic_loss(made_cql(policy), batch)[0])


def made_cql(policy: CalQLPolicy) -> Any:
    twin = made(CQLPolicy, num_actions=3, min_q_weight=2.0)
    twin.load_state_dict(policy.state_dict())
    twin.target_model.load_state_dict(policy.target_model.state_dict())
    return twin


def test_returns_are_divided_by_what_rewards_are_divided_by() -> None:
    policy = made(CalQLPolicy, num_actions=1)
    policy.normaliser.begin(spaces.Box(-1, 1, (3,)), norm_reward=True)
    rewards = {"reward": torch.tensor([0.0, 4.0]), "env_id": torch.arange(2), "episode_id": torch.arange(2)}
    policy.normaliser.update(rewards)  # two returns of 0 and 4, with standard deviation 2
    penalised, _ = policy._in_penalty({"data_return": torch.tensor([100.0])}, torch.zeros(1, 1, 3))
    assert_close(penalised, torch.tensor([[[0.0, 50.0, 50.0]]]))


def test_minibatch_without_returns_is_refused() -> None:
    policy, batch = policy_and_batch()
    del batch["data_return"]
    with pytest.raises(KeyError, match="a batch needs 'data_return'"):
        policy.critic_loss(batch)


# ---------------------------------------------------------------------- returns of a data set


def steps() -> dict[str, Any]:
    """Return an episode of rewards 1, 2, 4 that terminates, and one of -1, -3 that is cut off."""
    size = 5
    columns: dict[str, Any] = {name: np.zeros((size, 3), np.float32) for name in ("obs", "next_obs")}
    columns["action"] = np.linspace(-1, 1, 2 * size, dtype=np.float32).reshape(size, 2)
    columns["reward"] = np.array([1.0, 2.0, 4.0, -1.0, -3.0])
    return {**columns, "terminated": np.arange(5) == 2, "truncated": np.arange(5) == 4}


def test_discounted_returns_are_those_worked_out_by_hand() -> None:
    """With gamma 0.5: 4, 2 + 2, 1 + 2; the mean -2 of the other goes on forever, -4: -3 - 2 and -1 - 2.5."""
    found = Dataset(steps()).discounted_returns(0.5)
    assert_close(torch.from_numpy(found), torch.tensor([3.0, 4.0, 4.0, -3.5, -5.0]))
    assert Dataset(steps()).discounted_returns(1.0).tolist() == [7.0, 6.0, 4.0, -4.0, -3.0]
    assert Dataset(steps()).discounted_returns(0.5, np.ones(5)).tolist() == [1.75, 1.5, 1.0, 2.0, 2.0]


CONFIG: dict[str, Any] = {
    "discount_factor": 0.5,
    "random_collect_size": 8,
    "model": {"actor_head_hidden_size": 8, "critic_head_hidden_size": 8},
    "learn": {"batch_size": 4, "update_per_collect": 1, "num_actions": 2},
    "collect": {"n_sample": 8},
    "eval": {"evaluator": {"n_episode": 1}},
}


class Noting(CalQLPolicy):
    """Keeps the returns and flags of the minibatches."""

    def _forward_learn(self, batch: dict[str, Any]) -> dict[str, Any]:
        self.seen = getattr(self, "seen", [])
        self.seen.append((batch["data_return"], batch.get("is_expert"), batch["reward"]))
        return super()._forward_learn(batch)


def test_minibatches_of_a_data_set_have_its_returns(make_trainer: MakeTrainer) -> None:
    policy = Noting(CONFIG)
    make_trainer(limit_val_batches=0).fit(policy, OfflineDataModule(steps(), max_train_iter=20))
    pairs = {
        (reward, value)
        for values, _, rewards in policy.seen
        for reward, value in zip(rewards.tolist(), values.tolist(), strict=True)
    }
    assert pairs == {(1.0, 3.0), (2.0, 4.0), (4.0, 4.0), (-1.0, -3.5), (-3.0, -5.0)}


def test_online_the_data_have_returns_and_own_steps_have_none(make_trainer: MakeTrainer) -> None:
    data = {**steps(), "action": np.linspace(-1, 1, 5, dtype=np.float32)[:, None]}
    policy = Noting(CONFIG)
    datamodule = ReplayDataModule("Pendulum-v1", num_envs=2, max_env_step=24, demonstrations=data)
    make_trainer(limit_val_batches=0).fit(policy, datamodule)
    assert policy.seen
    for values, is_expert, _ in policy.seen:
        assert is_expert.sum() == 2
        assert set(values[is_expert].tolist()) <= {3.0, 4.0, -3.5, -5.0}
        assert set(values[~is_expert].tolist()) == {-float("inf")}
        assert all(parameter.isfinite().all() for parameter in policy.parameters())


def test_reward_model_is_refused() -> None:
    with pytest.raises(ValueError, match=r"reward_model\.type must be None, because the returns are those of the data"):
        CalQLPolicy({"reward_model": {"type": "rnd"}})
