"""A prioritised buffer under a Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning import Trainer
from lightning.pytorch import Callback

from lightning_ding.callbacks import RunCheckpoint
from lightning_ding.config import deep_merge
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy
from lightning_ding.worker import AdvancedReplayBuffer
from tests.conftest import MakeTrainer

Config = dict[str, Any]


def prioritised(small: Config, **replay_buffer: Any) -> Config:
    config = {"type": "advanced", "anneal_step": 200, **replay_buffer}
    return deep_merge(
        small, {"priority": True, "priority_IS_weight": True, "nstep": 3, "other": {"replay_buffer": config}}
    )


def run(make_trainer: MakeTrainer, config: Config, max_env_step: int = 200) -> tuple[DQNPolicy, AdvancedReplayBuffer]:
    torch.manual_seed(0)
    policy, datamodule = DQNPolicy(config), ReplayDataModule("CartPole-v1", num_envs=2, max_env_step=max_env_step)
    make_trainer(limit_val_batches=0).fit(policy, datamodule)
    assert isinstance(datamodule.buffer, AdvancedReplayBuffer)
    return policy, datamodule.buffer


def weights(policy: DQNPolicy) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(policy.parameters())


def test_priorities_of_the_buffer_are_the_errors_of_the_policy(make_trainer: MakeTrainer, small: Config) -> None:
    policy, buffer = run(make_trainer, prioritised(small))

    batch = buffer.sample(8, policy.progress.train_iter, n_step=3, discount_factor=policy.config.discount_factor)
    _, report = policy.loss(policy.prepare(batch))
    buffer.update({**batch, "priority": report["priority"]})

    kept = buffer.state_dict()["tensors"]["own/priority"]
    assert len(kept) == 200
    assert len(kept.unique()) > 50  # at first all were equal
    # The priorities of before were those of older weights, but of the same order.
    assert kept[batch["replay_buffer_idx"]].tolist() == pytest.approx((report["priority"] + 1e-5).tolist(), rel=1e-4)
    assert 0.2 < kept.median() / report["priority"].median() < 5


def test_beta_follows_the_updates_of_the_run(make_trainer: MakeTrainer, small: Config) -> None:
    policy, buffer = run(make_trainer, prioritised(small))

    assert policy.progress.train_iter == 46
    assert buffer.beta == pytest.approx(0.4 + 0.6 * 45 / 200)  # the last sample was drawn before the last update


def test_prioritised_run_is_reproducible(make_trainer: MakeTrainer, small: Config) -> None:
    first, second = (run(make_trainer, prioritised(small))[0] for _ in range(2))

    assert weights(first).equal(weights(second))


@pytest.mark.parametrize("change", [{"alpha": 0.1}, {"beta": 1.0}, {"anneal_step": 20}, {"max_use": 3}])
def test_options_of_the_buffer_change_the_run(make_trainer: MakeTrainer, small: Config, change: Config) -> None:
    plain, _ = run(make_trainer, prioritised(small), 100)
    changed, _ = run(make_trainer, prioritised(small, **change), 100)

    assert not weights(plain).equal(weights(changed))


def test_importance_weights_change_the_run(make_trainer: MakeTrainer, small: Config) -> None:
    with_weights, _ = run(make_trainer, prioritised(small))
    without, _ = run(make_trainer, prioritised(small) | {"priority_IS_weight": False})

    assert not weights(with_weights).equal(weights(without))


def test_stale_transitions_leave_a_run(make_trainer: MakeTrainer, small: Config) -> None:
    policy, buffer = run(make_trainer, prioritised(small, max_staleness=10))

    # 8 transitions for each 2 updates; the newest sample was drawn for update 46, so those of 36 and later are there,
    # and of the 23 rounds the last five began at 36, 38, 40, 42 and 44.
    assert policy.progress.train_iter == 46
    assert buffer.count() == 5 * 8
    assert buffer.sample(8, 45)["policy_version"].min() >= 36


class AtStart(Callback):
    """Notes the state of the buffer with which a run starts."""

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        self.state = trainer.datamodule.buffer.state_dict()  # type: ignore[attr-defined]


def test_resumed_run_continues_with_the_priorities_of_the_first(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    config, start = prioritised(small, max_staleness=30, max_use=5), AtStart()

    def fit(max_env_step: int, **arguments: Any) -> tuple[DQNPolicy, AdvancedReplayBuffer]:
        policy = DQNPolicy(config)
        datamodule = ReplayDataModule("CartPole-v1", num_envs=2, seed=3, max_env_step=max_env_step)
        callbacks = [start, RunCheckpoint(tmp_path)]
        trainer = make_trainer(enable_checkpointing=True, limit_val_batches=0, callbacks=callbacks)
        trainer.fit(policy, datamodule, **arguments)
        assert isinstance(datamodule.buffer, AdvancedReplayBuffer)
        return policy, datamodule.buffer

    _, first = fit(200)
    before = first.state_dict()
    policy, buffer = fit(400, ckpt_path=tmp_path / "last.ckpt")

    torch.testing.assert_close(start.state["tensors"], before["tensors"], rtol=0, atol=0)
    assert (start.state["counters"], start.state["rng"]) == (before["counters"], before["rng"])
    assert (before["tensors"]["own/weight"] == 0).any()  # some had left
    assert policy.progress.env_step == 400
    assert buffer.beta > 0.6
    assert buffer.sample(8, policy.progress.train_iter)["policy_version"].max() > 46


def test_run_collects_again_when_the_uses_of_the_transitions_are_spent(
    make_trainer: MakeTrainer, small: Config
) -> None:
    """As DI-engine, whose qbert_offppo draws 24 x 128 of 3 x 1,024 uses; the last of them are of too few rows."""
    amounts = {"learn": {"batch_size": 8, "update_per_collect": 6}, "collect": {"n_sample": 16}}  # 48 of 48 uses
    config = deep_merge(prioritised(small, max_use=3), {"random_collect_size": 0, **amounts})
    made: list[int] = []

    class Counts(Callback):
        def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *_: Any) -> None:
            made.append(pl_module.progress.train_iter)

    policy, datamodule = DQNPolicy(config), ReplayDataModule("CartPole-v1", num_envs=2, max_env_step=320, seed=0)
    make_trainer(limit_val_batches=0, callbacks=[Counts()]).fit(policy, datamodule)
    assert policy.progress.env_step == 320
    updates = np.diff([0, *made])
    assert len(made) == 20  # a round for each collection
    assert updates.max() <= 6
    assert updates.min() >= 1
    assert updates.min() < 6
    assert made[-1] * 8 >= 0.75 * 3 * 320  # most uses are spent


def test_run_collects_again_when_what_the_buffer_holds_is_too_old(make_trainer: MakeTrainer, small: Config) -> None:
    amounts = {"learn": {"batch_size": 12, "update_per_collect": 4}, "collect": {"n_sample": 8}}
    config = deep_merge(prioritised(small, max_staleness=5), {"random_collect_size": 0, **amounts})
    policy, datamodule = DQNPolicy(config), ReplayDataModule("CartPole-v1", num_envs=2, max_env_step=80, seed=0)
    make_trainer(limit_val_batches=0).fit(policy, datamodule)
    assert policy.progress.env_step == 80
    assert policy.progress.train_iter > 10
