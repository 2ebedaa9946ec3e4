from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning import Trainer

from lightning_ding.policy import DQNPolicy
from tests.toys.envs import CountingEnv

SCRIPT = Path(__file__).with_name("forked_script.py")
CONFIG = {"model": {"encoder_hidden_size_list": [8]}}


def ended(monkeypatch: pytest.MonkeyPatch, strategy: str) -> DQNPolicy:
    """Return a policy as it is in a rank whose fit is over."""
    env, policy = CountingEnv(), DQNPolicy(CONFIG)
    policy.build(env.observation_space, env.action_space)
    policy.progress.env_step = 64
    trainer: Any = Trainer(accelerator="cpu", devices=2, strategy=strategy, logger=False, enable_checkpointing=False)
    monkeypatch.setattr(DQNPolicy, "trainer", SimpleNamespace(strategy=trainer.strategy))
    policy.teardown("fit")
    return policy


def test_policy_without_a_network_takes_over_that_of_a_forked_rank(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trained, here = ended(monkeypatch, "ddp_notebook"), DQNPolicy(CONFIG)
    torch.save(trained.state_dict(), tmp_path / "handed_over.pt")
    here.load_state_dict(torch.load(tmp_path / "handed_over.pt", weights_only=True), strict=False)
    assert here.progress.env_step == 64
    assert all(torch.equal(value, here.model.state_dict()[name]) for name, value in trained.model.state_dict().items())


def test_policy_of_other_ranks_hands_nothing_over(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "handed_over" not in ended(monkeypatch, "ddp").state_dict()


@pytest.mark.slow
def test_policy_of_a_notebook_has_the_trained_weights_after_a_fit_on_two_ranks(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, SCRIPT, tmp_path], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"env_step": 64, "has_trained_weights": True}
