"""Recurrent PPO: sequences of a rollout against loops over single steps, with episodes that end inside them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lightning_ding import nested, rl
from lightning_ding.envs import make_vector_env
from lightning_ding.policy import RecurrentPPOPolicy
from lightning_ding.worker import SampleSerialCollector
from tests.algorithms.table import make_policy

MODEL = {"obs_shape": 4, "action_shape": 2, "action_space": "discrete", "core": {"hidden_size": 6}}
Rollout = dict[str, Any]
Config = dict[str, Any]


def make(**changes: Any) -> Any:
    torch.manual_seed(0)
    policy = make_policy("recurrent_ppo", **{"model": MODEL, "learn_unroll_len": 7, **changes})
    for parameter in policy.model.parameters():
        parameter.data.normal_(0, 0.5)
    policy.seed(0)
    return policy


def collect(policy: Any, amount: int = 120) -> Rollout:
    """Return a rollout of three envs with many episodes; the first one was begun before it."""
    env = make_vector_env("CartPole-v1", 3, autoreset="same_step")
    env.reset(seed=0)
    collector = SampleSerialCollector({}, env=env, policy=policy.collect_mode)
    collector.collect(15, drop_extra=False)
    data: Any = nested.to_tensor(collector.collect(amount, drop_extra=False))
    assert len(data["episode_id"].unique()) > 6
    return data  # type: ignore[no-any-return]


def rows_of(data: Rollout, env_id: int) -> list[int]:
    return np.flatnonzero(data["env_id"].numpy() == env_id).tolist()


def by_loop(policy: Any, data: Rollout) -> tuple[Tensor, Tensor]:
    """Return log probabilities and values of all rows, from one step of one env at a time."""
    log_prob, value = torch.zeros(len(data["reward"])), torch.zeros(len(data["reward"]))
    for env_id in range(3):
        state = data["recurrent_state"][rows_of(data, env_id)[:1]]
        for row in rows_of(data, env_id):
            state = torch.zeros_like(state) if data["is_first"][row] else state
            with torch.no_grad():
                output = policy.model.act(data["obs"][row : row + 1], state)
            log_prob[row] = output["logit"][0].log_softmax(0)[data["action"][row]]
            value[row], state = output["value"][0], output["state"]
    return log_prob, value


def minibatches(policy: Any, data: Rollout) -> list[Rollout]:
    sequences = rl.time_major(data["env_id"], data["episode_id"])
    return list(policy._minibatches(policy._learning_data(dict(data), sequences)))


@pytest.mark.parametrize("share_encoder", [True, False])
@pytest.mark.parametrize("kind", ["lstm", "gru", "gtrxl"])
def test_sequences_give_the_probabilities_and_values_of_single_steps(kind: str, share_encoder: bool) -> None:
    policy = make(
        model={
            **MODEL,
            "core": {"hidden_size": 6, "type": kind} | ({"num_heads": 2} if kind == "gtrxl" else {}),
            "share_encoder": share_encoder,
        }
    )
    data = collect(policy)
    log_prob, value = by_loop(policy, data)
    assert_close(log_prob, data["log_prob"])  # those of acting
    learned = policy._learning_data(dict(data), rl.time_major(data["env_id"], data["episode_id"]))
    assert_close(learned["value"], value)
    seen = 0
    for batch in policy._minibatches(learned):
        output = policy.model(batch["sequences"], batch["recurrent_state"], batch["is_first"])
        found = rl.distribution_of(output["logit"][batch["rows"]]).log_prob(batch["action"])
        assert_close(found, batch["log_prob"])
        assert_close(output["value"][batch["rows"]], batch["value"])
        seen += len(found)
    assert seen == len(log_prob)


def test_advantages_are_those_of_a_loop() -> None:
    policy = make(learn={"adv_norm": False, "value_norm": False})
    data = collect(policy)
    _, value = by_loop(policy, data)
    sequences = rl.time_major(data["env_id"], data["episode_id"])
    found = policy._learning_data(dict(data), sequences)["advantage"]
    config = policy.config
    for env_id in range(3):
        following, rows = 0.0, rows_of(data, env_id)
        for place in reversed(range(len(rows))):
            row = rows[place]
            is_cut = place == len(rows) - 1 or data["is_first"][rows[place + 1]]
            next_value = 0.0
            if not data["terminated"][row]:
                next_value = value_after(policy, data, row) if is_cut else float(value[rows[place + 1]])
            delta = float(data["reward"][row]) + config.discount_factor * next_value - float(value[row])
            following = 0.0 if is_cut else following
            following = delta + config.discount_factor * config.collect.gae_lambda * following
            assert abs(following - float(found[row])) < 1e-4


def value_after(policy: Any, data: Rollout, row: int) -> float:
    with torch.no_grad():
        output = policy.model.act(data["obs"][row : row + 1], data["recurrent_state"][row : row + 1])
        return float(policy.model.act(data["next_obs"][row : row + 1], output["state"])["value"])


@pytest.mark.parametrize("length", [1, 4, 7, 40, 64])
def test_minibatches_have_each_row_once_in_whole_sequences(length: int) -> None:
    policy = make(learn_unroll_len=length, learn={"batch_size": 30})
    data = collect(policy)
    data["obs"][:, 0] = torch.arange(len(data["reward"])).float()
    parts = minibatches(policy, data)
    rows = torch.cat([part["obs"][:, 0] for part in parts])
    assert sorted(rows.tolist()) == list(range(120))
    assert len(parts) == (4 if length < 40 else 3)
    for part in parts:
        steps = part["sequences"][..., 0]
        assert steps.shape[0] == length
        assert bool(((steps[1:] - steps[:-1] == 3) | (steps[1:] == steps[:-1])).all())  # an env has every third row


def test_sequences_of_another_length_give_another_update() -> None:
    weights = []
    for length in (3, 20):
        policy = make(learn_unroll_len=length, learn={"batch_size": 120, "epoch_per_collect": 1})
        policy.learn_mode.forward(collect(policy))
        weights.append(torch.cat([parameter.detach().flatten() for parameter in policy.model.parameters()]))
    assert bool((weights[0] != weights[1]).any())


def test_padding_is_not_in_the_loss() -> None:
    policy = make(learn_unroll_len=32, learn={"batch_size": 120})  # 40 steps of each env are 32 and 8
    data = collect(policy)
    (batch,) = minibatches(policy, data)
    assert batch["sequences"].shape[:2] == (32, 6)
    assert len(batch["rows"]) == 120
    loss, _ = policy.loss(batch)
    padded = torch.ones(32 * 6, dtype=torch.bool)
    padded[batch["rows"]] = False
    assert int(padded.sum()) == 72
    batch["sequences"].flatten(0, 1)[padded] = 9.0
    assert_close(policy.loss(batch)[0], loss)


def test_advantages_are_standardised_over_the_real_steps() -> None:
    policy = make(learn_unroll_len=32, learn={"batch_size": 120})
    (batch,) = minibatches(policy, collect(policy))
    assert_close(float(batch["advantage"].mean()), 0.0, atol=1e-5, rtol=0)
    assert_close(float(batch["advantage"].std()), 1.0, atol=1e-4, rtol=0)


def test_columns_of_different_lengths_are_cut_and_padded() -> None:
    env_id = torch.tensor([0, 0, 0, 1, 0])
    sequences = rl.time_major(env_id, torch.zeros(5, dtype=torch.long))
    index, valid = sequences.cut(3)
    assert index.T.tolist() == [[0, 1, 2], [3, 3, 3], [4, 4, 4]]
    assert valid.T.tolist() == [[True, True, True], [True, False, False], [True, False, False]]


def test_it_takes_whole_episodes() -> None:
    policy = make(collect={"n_sample": None, "n_episode": 3, "collector": {"type": "episode"}})
    assert isinstance(policy, RecurrentPPOPolicy)
    data = collect(make())
    keep = data["env_id"] == 0
    keep |= data["env_id"] * 1000 + torch.arange(120) < 1040  # fewer rows of env 1, none of env 2
    before = [parameter.clone() for parameter in policy.model.parameters()]
    policy.learn_mode.forward(nested.index(data, keep))
    assert any(bool((a != b).any()) for a, b in zip(before, policy.model.parameters(), strict=True))


def test_separate_optimizers_are_refused() -> None:
    rates = dict.fromkeys(("learning_rate_actor", "learning_rate_critic"), 1e-3)
    with pytest.raises(ValueError, match=r"learn.learning_rate_actor must be None with recurrent_ppo"):
        make(model={**MODEL, "share_encoder": False}, learn=rates)
