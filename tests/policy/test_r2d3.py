"""R2D3: its loss against a loop over single steps, its demonstrations as sequences, and exact resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from lightning_ding import rl
from lightning_ding.callbacks import RunCheckpoint
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import R2D2Policy, R2D3Policy
from tests.algorithms.table import make_policy, random_episodes, state_of
from tests.conftest import MakeTrainer
from tests.policy.test_r2d2 import make as make_r2d2, sequences

ONLY_STEPS = {"lambda2": 0.0, "lambda3": 0.0, "lambda_one_step_td": 0.0}


def make(**learn: Any) -> Any:
    """Return an R2D3 with the networks of R2D2's tests."""
    r2d2: Any = make_r2d2()
    sizes = {"obs_shape": 3, "action_shape": 2, "core": {"hidden_size": 5}, "encoder_hidden_size_list": [6]}
    config = {"burnin_step": 2, "learn_unroll_len": 4, "nstep": 3, "discount_factor": 0.9, "model": sizes}
    policy: Any = R2D3Policy({**config, "learn": learn})
    policy.model.load_state_dict(r2d2.model.state_dict())
    policy.target_model.load_state_dict(r2d2.target_model.state_dict())
    return policy


def batch_of(policy: Any) -> Any:
    return {**sequences(policy), "is_expert": torch.tensor([True, False, True, False, False, True])}


def test_loss_without_those_of_dqfd_is_that_of_r2d2() -> None:
    policy, r2d2 = make(**ONLY_STEPS), make_r2d2()
    loss, report = policy.loss(batch_of(policy))
    expected, other = R2D2Policy.loss(r2d2, sequences(r2d2))
    assert_close(loss, expected)
    assert_close(report["priority"], other["priority"])


def test_each_weight_adds_its_own_loss() -> None:
    def loss_of(**learn: Any) -> Any:
        policy = make(**ONLY_STEPS | learn)
        return policy.loss(batch_of(policy))[0].detach()

    base = loss_of()
    policy = make(**ONLY_STEPS)
    batch = batch_of(policy)
    learned, (output, value) = policy._learned(batch), policy._unrolled(batch)
    margin = one_step = 0.0
    target = policy._targets(batch, value, 1)
    for step, column in learned.nonzero().tolist():
        q, action, weight = output[step, column], int(batch["action"][step, column]), float(batch["IS"][column])
        one_step += weight * float((q[action] - target[step, column]) ** 2)
        if batch["is_expert"][column]:
            margin += weight * max(float(q[a]) + (0.3 if a != action else 0) - float(q[action]) for a in range(2))
    count = 4 * learned.shape[1]
    assert float(loss_of(lambda2=2.0, margin_function=0.3) - base) == pytest.approx(2 * margin / count, rel=1e-4)
    assert float(loss_of(lambda_one_step_td=0.5) - base) == pytest.approx(0.5 * one_step / count, rel=1e-4)
    square = sum(float(one.square().sum()) for one in policy.model.parameters()) / 2
    expected = 0.1 * float(batch["IS"].mean()) * square
    assert float(loss_of(lambda3=0.1) - base) == pytest.approx(expected, rel=1e-4)
    assert float(base - loss_of(lambda1=0.0)) == pytest.approx(float(base), rel=1e-4)


def test_one_step_targets_are_those_of_nstep_1() -> None:
    policy = make()
    batch = batch_of(policy)
    value = policy._unrolled(batch)[1]
    raw = rl.value_unscale(policy._targets(batch, value, 1))
    expected = batch["reward"] + 0.9 * torch.logical_not(batch["terminated"]) * value[1:]
    assert_close(raw[batch["mask"]], expected[batch["mask"]], rtol=1e-4, atol=1e-5)


def test_illegal_actions_have_no_margin() -> None:
    policy = make(margin_function=5.0)
    batch = batch_of(policy)
    legal = torch.nn.functional.one_hot(batch["action"], 2)
    q, action = torch.randn(batch["action"].numel(), 2), batch["action"].flatten()
    assert policy._margin({"obs": {"action_mask": legal}}, q, action).abs().max() == 0
    assert policy._margin(batch, q, action).min() > 0


@pytest.fixture
def setup(make_trainer: MakeTrainer) -> Any:
    """Return a run with its demonstrations, after a few updates."""
    policy = make_policy("r2d3", learn={"per_train_iter_k": 2})
    data = {"demonstrations": random_episodes("CartPole-v1"), "num_envs": 2, "seed": 3, "max_env_step": 60}
    datamodule = ReplayDataModule("CartPole-v1", **data, demonstration_share=0.3)
    make_trainer().fit(policy, datamodule)
    return policy, datamodule


def test_minibatches_end_with_sequences_of_demonstrations_from_zeros(setup: Any) -> None:
    policy, datamodule = setup
    mixed = datamodule._demonstrations.mixed_with(datamodule.buffer)
    columns, numbers = datamodule._demonstrations.columns, []
    for _ in range(40):
        batch = mixed.sample(8, **policy.sample_options)
        numbers.append(int(batch["is_expert"].sum()))
        assert batch["is_expert"].tolist() == [False] * (8 - numbers[-1]) + [True] * numbers[-1]
        assert batch["obs"].shape[:2] == batch["mask"].shape == (policy._sequence_length(), 8)
        assert batch["recurrent_state"].shape == (8, policy.model.state_size)
        experts = batch["is_expert"]
        assert bool((batch["recurrent_state"][experts] == 0).all())
        for column in torch.nonzero(experts).flatten().tolist():
            real = batch["obs"][batch["mask"][:, column], column].numpy()
            starts = np.flatnonzero((columns["obs"] == real[0]).all(1))
            assert any(np.array_equal(columns["obs"][row : row + len(real)], real) for row in starts)
    assert set(numbers) == {2, 3}  # 0.3 of 8 is 2.4
    assert abs(np.mean(numbers) - 2.4) < 0.25


def test_priorities_reach_the_buffer_that_a_sequence_is_from(setup: Any) -> None:
    policy, datamodule = setup
    own, demonstrations = datamodule.buffer, datamodule._demonstrations.buffer
    batch = datamodule._demonstrations.mixed_with(own)
    drawn = batch.sample(8, **policy.sample_options)
    before = [one.state_dict()["tensors"]["own/weight"].clone() for one in (own, demonstrations)]
    keys = ("replay_unique_id", "replay_buffer_idx")
    batch.update({"priority": torch.full((8,), 1e3), **{key: drawn[key] for key in keys}})
    after = [one.state_dict()["tensors"]["own/weight"] for one in (own, demonstrations)]
    for place, is_expert in enumerate((False, True)):
        rows = drawn["replay_buffer_idx"][drawn["is_expert"] == is_expert].unique()
        assert int((before[place] != after[place]).sum()) == len(rows)


def test_demo_ratio_below_one_in_a_minibatch_is_kept_on_average(setup: Any) -> None:
    demonstrations = setup[1]._demonstrations
    demonstrations.share = 1 / 64
    numbers = [demonstrations.number(16) for _ in range(2000)]
    assert set(numbers) == {0, 1}
    assert abs(np.mean(numbers) - 0.25) < 0.04


def test_first_updates_are_from_demonstrations_only(make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, seen = make_policy("r2d3", learn={"per_train_iter_k": 3}), []
    learn = R2D3Policy.loss

    def noted(self: R2D3Policy, batch: Any) -> Any:
        seen.append(batch["is_expert"])
        return learn(self, batch)

    monkeypatch.setattr(R2D3Policy, "loss", noted)
    data = {"demonstrations": random_episodes("CartPole-v1"), "num_envs": 2, "seed": 3, "max_env_step": 32}
    make_trainer().fit(policy, ReplayDataModule("CartPole-v1", **data))
    assert [bool(one.all()) for one in seen[:5]] == [True, True, True, False, False]


def test_run_without_demonstrations_is_refused(make_trainer: MakeTrainer) -> None:
    with pytest.raises(ValueError, match="demonstrations must be a data set, because R2D3Policy learns from demon"):
        make_trainer().fit(make_policy("r2d3"), ReplayDataModule("CartPole-v1", num_envs=2))
    with pytest.raises(ValueError, match=r"learn\.lambda_one_step_td must be >= 0, got -1"):
        R2D3Policy({"learn": {"lambda_one_step_td": -1}})


def test_interrupted_run_continues_with_the_same_bits(tmp_path: Path, make_trainer: MakeTrainer) -> None:
    def run(epochs: int, folder: str, ckpt_path: Path | None = None) -> Any:
        torch.manual_seed(0)
        policy = make_policy("r2d3")
        data = {"demonstrations": random_episodes("CartPole-v1"), "num_envs": 2, "seed": 3, "max_env_step": 5000}
        datamodule = ReplayDataModule("CartPole-v1", **data, rounds_per_epoch=3, demonstration_share=0.1)
        trainer = make_trainer(
            max_epochs=epochs, callbacks=[RunCheckpoint(tmp_path / folder)], enable_checkpointing=True
        )
        trainer.fit(policy, datamodule, ckpt_path=ckpt_path)
        assert datamodule._demonstrations is not None
        weights = datamodule._demonstrations.buffer.state_dict()["tensors"]["own/weight"].tolist()
        return state_of(policy, datamodule), weights

    whole = run(5, "whole")
    _, weights = run(2, "half")
    continued = run(5, "half", tmp_path / "half" / "last.ckpt")
    assert continued == whole
    assert continued[1] != weights
