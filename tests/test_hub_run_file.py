"""The ``run.yaml`` of a pushed policy: ``lightning-ding fit`` accepts it, and makes the run of the policy again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lightning
import pytest
import yaml

from lightning_ding.datamodules import OfflineDataModule, ReplayDataModule, RunDataModule
from lightning_ding.entry.collect import collect
from lightning_ding.entry.lightning_cli import make_run
from lightning_ding.hub import run_file
from lightning_ding.policy import Policy, load_policy
from lightning_ding.policy.base.weights_file import description_of
from tests.algorithms.table import make_policy
from tests.conftest import MakeTrainer

Write = Callable[[str, RunDataModule], dict[str, Any]]


@pytest.fixture
def written(make_trainer: MakeTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Return a function that trains a policy, and returns the file of the run, of which fit has made a run."""
    monkeypatch.setenv("PL_GLOBAL_SEED", "")

    def write(name: str, datamodule: RunDataModule) -> dict[str, Any]:
        lightning.seed_everything(7, verbose=False)
        policy = make_policy(name)
        make_trainer(enable_checkpointing=True, limit_val_batches=0).fit(policy, datamodule)
        loaded = load_policy(tmp_path / "checkpoints" / "last.ckpt")
        text = run_file(description_of(loaded))
        assert run_file(description_of(policy)) == text
        assert _equal(datamodule, policy, make_run(["--config", text]))
        found: dict[str, Any] = yaml.safe_load(text)
        return found

    return write


def _equal(datamodule: RunDataModule, policy: Policy[Any], run: Any) -> bool:
    assert dict(run.datamodule.hparams) == dict(datamodule.hparams)
    assert run.model.config == policy.config
    return type(run.datamodule) is type(datamodule) and type(run.model) is type(policy)


def test_run_file_of_an_online_run_is_accepted(written: Write) -> None:
    options: dict[str, Any] = {"num_envs": 2, "max_env_step": 16, "seed": 3}
    found = written("dqn", ReplayDataModule("CartPole-v1", train_wrappers=["clip_reward"], **options))
    assert found["seed_everything"] == 7
    assert found["data"]["train_wrappers"] == ["clip_reward"]
    assert {name: found["data"][name] for name in options} == options


def test_run_file_of_a_native_run_keeps_the_mode(written: Write) -> None:
    assert written("dqn", ReplayDataModule("CartPole-v1", 2, "native", max_env_step=16))["data"]["mode"] == "native"


def test_run_file_of_an_offline_run_names_the_data_set_and_the_updates(written: Write, tmp_path: Path) -> None:
    file = str(tmp_path / "random.npz")
    collect(out=file, n_episode=2, random=True, env_id="CartPole-v1")
    found = written("bc", OfflineDataModule(file, max_train_iter=2))
    assert (found["data"]["dataset"], found["data"]["max_train_iter"]) == (file, 2)
    assert "num_envs" not in found["data"]


def test_run_file_of_demonstrations_names_them(written: Write, tmp_path: Path) -> None:
    file = str(tmp_path / "random.npz")
    collect(out=file, n_episode=4, random=True, env_id="CartPole-v1")
    shared: Mapping[str, Any] = {"demonstrations": file, "demonstration_share": 0.25}
    found = written("dqn", ReplayDataModule("CartPole-v1", 2, max_env_step=16, **shared))
    assert {name: found["data"][name] for name in shared} == shared


def test_run_file_says_that_a_data_set_was_in_memory() -> None:
    run = {"dataset": "12 transitions", "max_train_iter": 2}
    text = run_file({"policy": "bc", "cfg": {}, "run": run})
    assert "# data.dataset was an object in memory (12 transitions): add the path of a file with the data.\n" in text
    assert yaml.safe_load(text)["data"] == {"max_train_iter": 2}
