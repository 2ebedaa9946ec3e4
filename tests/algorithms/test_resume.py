"""What a run of every algorithm has at its end, the run that goes on from its checkpoint has at its start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Trainer
from lightning.pytorch import Callback

from lightning_ding.callbacks import RunCheckpoint
from tests.algorithms.table import ALGORITHMS, make_datamodule, make_policy, plain, state_of

MakeTrainer = Callable[..., Trainer]

EVERY = pytest.mark.parametrize("name", ALGORITHMS)
BUDGET = 208  # 16 random steps and 24 rounds of 8, or 13 rollouts of 16


class AtStart(Callback):
    """Notes what a run starts with, and the last round that it learned from."""

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        self.state = state_of(pl_module, trainer.datamodule)  # type: ignore[attr-defined]
        self.noise = pl_module.ou_noise.state.copy() if hasattr(pl_module, "ou_noise") else None

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.round = batch


@dataclass
class Runs:
    """A run, and one that went on from its checkpoint."""

    saved: dict[str, Any]
    loaded: dict[str, Any]
    noise: Any
    round: Any
    resumed: Any
    datamodule: Any


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Runs]:
    """Return a function that trains an algorithm, once, and goes on from the checkpoint to twice the budget."""
    made: dict[str, Runs] = {}

    def fit(name: str, folder: Path, budget: int, file: Path | None = None) -> tuple[Any, Any, AtStart]:
        torch.manual_seed(0 if file is None else 999)
        policy, datamodule, start = make_policy(name), make_datamodule(name, max_env_step=budget), AtStart()
        flags: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        trainer = Trainer(accelerator="cpu", callbacks=[start, RunCheckpoint(folder)], default_root_dir=folder, **flags)
        trainer.fit(policy, datamodule, ckpt_path=file, weights_only=True)
        return policy, datamodule, start

    def run(name: str) -> Runs:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            policy, datamodule, _ = fit(name, folder, BUDGET)
            saved = state_of(policy, datamodule)
            resumed, more, start = fit(name, folder, 2 * BUDGET, folder / "last.ckpt")
            made[name] = Runs(saved, start.state, start.noise, start.round, resumed, more)
        return made[name]

    return run


@EVERY
def test_a_resumed_run_starts_with_everything_that_was_saved(name: str, runs: Callable[[str], Runs]) -> None:
    saved, loaded = runs(name).saved, runs(name).loaded
    for part in saved:
        assert loaded[part] == saved[part], part


@EVERY
def test_what_is_saved_has_been_trained(name: str, runs: Callable[[str], Runs]) -> None:
    saved, is_replay = runs(name).saved, hasattr(runs(name).datamodule, "buffer")
    assert all(optimizer["state"] for optimizer in saved["optimizers"])
    assert saved["counters"]["env_step"] >= BUDGET
    assert bool(saved["buffer"]) == is_replay
    assert [schedule["last_epoch"] > 0 for schedule in saved["schedules"]] == [True] * (not is_replay)


@EVERY
def test_a_resumed_run_goes_on_to_its_new_budget(name: str, runs: Callable[[str], Runs]) -> None:
    saved, resumed = runs(name).saved, runs(name).resumed
    per_round = saved["counters"]["train_iter"] / (24 if saved["buffer"] else 13)
    extra = 26 if saved["buffer"] else 13  # there is no second warm-up: 208 / 8 rounds of replay
    if name == "pg":  # whole episodes
        assert resumed.progress.env_step >= 2 * BUDGET
        assert resumed.progress.train_iter > saved["counters"]["train_iter"]
    else:
        assert resumed.progress.env_step == 2 * BUDGET
        assert resumed.progress.train_iter == saved["counters"]["train_iter"] + extra * per_round


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("dqn", "target_model.encoder.layers.0.weight"),
        ("rainbow", "target_model.encoder.layers.0.weight"),
        ("sac", "temperature"),
        ("sac", "action_bounds.scale"),
        ("ppo", "return_statistics.m2"),
    ],
)
def test_checkpoints_hold_what_is_beside_the_network(name: str, key: str, runs: Callable[[str], Runs]) -> None:
    assert runs(name).saved["tensors"][key] not in (0.0, 1.0)


def test_envs_begin_new_episodes_in_a_resumed_run_and_so_does_the_noise_that_drifts(
    runs: Callable[[str], Runs],
) -> None:
    assert runs("ddpg").noise.size == 0


@EVERY
def test_a_learner_goes_on_from_the_state_of_another_with_equal_updates(name: str, runs: Callable[[str], Runs]) -> None:
    policy, datamodule, last = runs(name).resumed, runs(name).datamodule, runs(name).round
    other = make_policy(name).build(datamodule.single_observation_space, datamodule.single_action_space)
    other.learn_mode.load_state_dict(policy.learn_mode.state_dict())
    other.progress.train_iter = policy.progress.train_iter  # a learner keeps it
    batches = [last] if isinstance(last, dict) else list(last)
    before = plain(policy.state_dict())
    for one in (policy, other):
        one.seed(7)
        for batch in batches * 4:  # 8 updates, so that a target is copied, which is done every 7
            one.learn_mode.forward(dict(batch))
    assert plain(policy.state_dict()) == plain(other.state_dict())
    assert plain(policy.state_dict()) != before
    assert state_of(policy, None)["optimizers"] == state_of(other, None)["optimizers"]
    assert state_of(policy, None)["schedules"] == state_of(other, None)["schedules"]
