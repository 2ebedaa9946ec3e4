"""What a checkpoint of every algorithm holds, and what a learner takes from it; see test_exact_resume.py for runs."""

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
from tests.algorithms.table import ALGORITHMS, TEAMS, make_datamodule, make_policy, plain, state_of

EVERY = pytest.mark.parametrize("name", [*ALGORITHMS, *TEAMS])
BUDGET = 208  # 16 random steps and 24 rounds of 8, or 13 rollouts of 16


class LastRound(Callback):
    """Notes the last round that a run learned from."""

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.round = batch


@dataclass
class Run:
    """A run that is over."""

    policy: Any
    datamodule: Any
    state: dict[str, Any]
    file: Path
    round: Any


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """Return a function that trains an algorithm, once."""
    made: dict[str, Run] = {}

    def fit(name: str) -> Run:
        if name not in made:
            folder, last = tmp_path_factory.mktemp(name), LastRound()
            torch.manual_seed(0)
            policy, datamodule = make_policy(name), make_datamodule(name, max_env_step=BUDGET)
            flags: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
            callbacks = [last, RunCheckpoint(folder)]
            Trainer(accelerator="cpu", callbacks=callbacks, default_root_dir=folder, **flags).fit(policy, datamodule)
            made[name] = Run(policy, datamodule, state_of(policy, datamodule), folder / "last.ckpt", last.round)
        return made[name]

    return fit


@EVERY
def test_what_is_saved_has_been_trained(name: str, run: Callable[[str], Run]) -> None:
    state, is_replay = run(name).state, hasattr(run(name).datamodule, "buffer")
    without = -1 if name == "trpo" else None  # its last optimizer adds steps as they are
    assert all(optimizer["state"] for optimizer in state["optimizers"][:without])
    assert state["counters"]["env_step"] >= BUDGET
    assert bool(state["buffer"]) == is_replay


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
def test_checkpoint_contains_state_in_addition_to_the_network(name: str, key: str, run: Callable[[str], Run]) -> None:
    saved = plain(torch.load(run(name).file, weights_only=True)["state_dict"])
    assert saved[key] == run(name).state["tensors"][key]
    assert saved[key] not in (0.0, 1.0)


@EVERY
def test_a_learner_resumes_from_the_state_of_another_with_equal_updates(name: str, run: Callable[[str], Run]) -> None:
    policy, datamodule, last = run(name).policy, run(name).datamodule, run(name).round
    other = make_policy(name).build(datamodule.single_observation_space, datamodule.single_action_space)
    other.learn_mode.load_state_dict(policy.learn_mode.state_dict())
    other.progress.load_state_dict(policy.progress.state_dict())  # a learner keeps it
    other.progress.budget = policy.progress.budget
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
