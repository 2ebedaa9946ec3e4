"""A run on one rank is resumed on two, and then on one again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Trainer

from lightning_ding.callbacks import RunCheckpoint
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy
from tests.datamodules.test_two_ranks import checkpoint_of, train_on_two_ranks
from tests.datamodules.two_ranks_script import CONFIG, SEED

MakeTrainer = Callable[..., Trainer]


def fit(make_trainer: MakeTrainer, folder: Path, budget: int, file: str | None = None) -> tuple[DQNPolicy, Any]:
    policy = DQNPolicy(CONFIG)
    datamodule = ReplayDataModule("CartPole-v1", num_envs=2, seed=SEED, max_env_step=budget)
    trainer = make_trainer(enable_checkpointing=True, callbacks=[RunCheckpoint(folder)])
    trainer.fit(policy, datamodule, ckpt_path=file)
    assert datamodule.buffer is not None
    return policy, datamodule.buffer.state_dict()["tensors"]


def test_data_are_shared_out_to_more_ranks_and_merged_on_fewer(
    make_trainer: MakeTrainer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    policy, first = fit(make_trainer, tmp_path / "one", 200)
    on_two = train_on_two_ranks(tmp_path, 360, str(tmp_path / "one" / "last.ckpt"))
    obs = [report["buffer"]["frames/obs:row"] for report in on_two]
    for report, rows in zip(on_two, obs, strict=True):
        assert len(rows) == 200 + 80  # 160 steps by two ranks
        assert torch.equal(rows[:200], first["frames/obs:row"])
        assert report["progress"]["env_step"] == 360
        assert report["progress"]["train_iter"] == policy.progress.train_iter + 20  # 10 rounds of 2
    own = [{tuple(row) for row in rows[200:].tolist()} for rows in obs]
    assert not own[0] & own[1]
    for name, tensor in on_two[0]["weights"].items():
        assert torch.equal(tensor, on_two[1]["weights"][name]), name

    with caplog.at_level(logging.WARNING, logger="lightning_ding"):
        last, merged = fit(make_trainer, tmp_path / "again", 440, checkpoint_of(on_two))
    assert "was written by 2 ranks and is resumed by 1" in caplog.text
    assert last.progress.env_step == 440
    assert last.progress.train_iter == policy.progress.train_iter + 20 + 20
    rows = {tuple(row) for row in merged["frames/obs:row"].tolist()}
    assert len(merged["frames/obs:row"]) == 500  # of 2 * 280 + 80 the newest
    assert own[0] | own[1] <= rows
