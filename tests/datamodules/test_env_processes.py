"""Envs in separate processes, in a run."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
from lightning import Trainer
from lightning.pytorch import Callback

from lightning_ding.callbacks import RunCheckpoint
from lightning_ding.config import deep_merge
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.envs import EnvProcessError
from lightning_ding.policy import DQNPolicy
from tests.conftest import MakeTrainer
from tests.datamodules.hanging_env import Hangs


def fit(make_trainer: MakeTrainer, config: dict[str, Any], **arguments: Any) -> tuple[DQNPolicy, Any]:
    policy = DQNPolicy(config)
    datamodule = ReplayDataModule("CartPole-v1", num_envs=2, mode="async", max_env_step=64, **arguments)
    make_trainer(limit_val_batches=0).fit(policy, datamodule)
    return policy, datamodule


def children() -> set[str]:
    """Return number and command of each process that this one has started and that has not ended."""
    found = set()
    for entry in Path("/proc").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError, NotADirectoryError):
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1] if entry.name.isdecimal() else ""
            if parent == str(os.getpid()):
                found.add(f"{entry.name} {(entry / 'cmdline').read_text()}")
    return found


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """Check that a run leaves no process but Python's resource tracker, whether it returns or raises."""
    forkserver.ensure_running()  # that of all tests, which the first run would start
    before = children()
    yield
    assert [one for one in children() - before if "resource_tracker" not in one] == []


def test_env_timeout_is_refused_where_there_are_no_processes() -> None:
    for mode in ("sync", "native"):
        with pytest.raises(ValueError, match=f"env_timeout must be \"default\" with mode='{mode}', got 5"):
            ReplayDataModule("CartPole-v1", mode=mode, env_timeout=5)


def test_env_that_does_not_answer_in_time_ends_the_run(
    make_trainer: MakeTrainer, small: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(EnvProcessError):
        fit(make_trainer, small, wrappers=[partial(Hangs, mark=tmp_path / "mark")], env_timeout=(60, 3))


def test_env_that_does_not_answer_in_time_loses_its_episode_if_faults_are_dropped(
    make_trainer: MakeTrainer, small: dict[str, Any], tmp_path: Path
) -> None:
    config = deep_merge(small, {"collect": {"collector": {"env_fault": "drop"}}})
    hangs = partial(Hangs, mark=tmp_path / "mark")
    policy, datamodule = fit(make_trainer, config, wrappers=[hangs], env_timeout=(60, 3))
    assert policy.progress.env_step >= 64
    assert datamodule.collector.dropped_episode >= 1


def test_run_with_env_processes_resumes_without_new_episodes(
    make_trainer: MakeTrainer, small: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for max_env_step, file in ((64, None), (96, tmp_path / "last.ckpt")):
        datamodule = ReplayDataModule("CartPole-v1", num_envs=2, mode="async", max_env_step=max_env_step)
        trainer = make_trainer(enable_checkpointing=True, callbacks=[RunCheckpoint(tmp_path)], limit_val_batches=0)
        with caplog.at_level(logging.WARNING, logger="lightning_ding"):
            trainer.fit(DQNPolicy(small), datamodule, ckpt_path=file)
    assert "new episodes" not in caplog.text


@pytest.mark.usefixtures("own_fork_server")
def test_run_leaves_no_process_when_it_returns(make_trainer: MakeTrainer, small: dict[str, Any]) -> None:
    seen: list[set[str]] = []

    class Looks(Callback):
        def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
            seen.append(children())

    datamodule = ReplayDataModule("CartPole-v1", num_envs=2, mode="async", max_env_step=32)
    before = children()
    make_trainer(limit_val_batches=0, callbacks=[Looks()]).fit(DQNPolicy(small), datamodule)
    assert any("forkserver" in one for one in seen[0])
    assert not any("forkserver" in one for one in children())
    assert all("resource_tracker" in one for one in children() - before)
