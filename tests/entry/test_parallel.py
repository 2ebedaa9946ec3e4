"""A whole distributed run with one command: real processes, a real server, and a policy with memory."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lightning_ding.checkpoints import last_checkpoint
from lightning_ding.policy import R2D2Policy
from lightning_ding.utils.modes import IS_FIRST, STATE
from lightning_ding.worker import create_buffer
from tests.entry import runs

MEMORY = {
    "type": "r2d2",
    "burnin_step": 2,
    "learn_unroll_len": 6,
    "model": {"core": {"hidden_size": 8}, "encoder_hidden_size_list": [8]},
    "learn": {"update_per_collect": 2, "batch_size": 8, "learning_rate": 1e-30},  # which changes no weight
    "collect": {"n_sample": 32},
    "random_collect_size": 64,
    "eval": {"evaluator": {"eval_freq": 20, "n_episode": 2}},
}


def check_stored_states(run: Path) -> None:
    """Check that the states in the coordinator's buffer are those that the learner's network gives, step by step."""
    checkpoint = last_checkpoint(run / "learner")
    assert checkpoint is not None
    network: Any = R2D2Policy.load_from_checkpoint(checkpoint).model
    buffer: Any = create_buffer({"type": "prioritised_sequence", "replay_buffer_size": 100_000})
    file = max(run.glob("coordinator/snapshots/*/*/buffer.safetensors"))
    buffer.load_data(file)
    storage = buffer._storage
    rows = np.arange(storage.count)
    state, is_first = (torch.as_tensor(storage.columns[name][rows]) for name in (STATE, IS_FIRST))
    following, continues = storage.follow(rows)
    assert is_first.sum() >= 4  # at least an episode of each env
    assert (state[is_first] == 0).all()
    assert not is_first[following[continues]].any()
    obs = storage.gather(rows, 1, 1.0)["obs"]
    with torch.no_grad():
        after = network.act(obs, state)["state"]
    assert continues.sum() > 64
    torch.testing.assert_close(state[following[continues]], after[continues], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_run_with_memory_is_stopped_by_a_signal_and_resumed_to_its_end(tmp_path: Path) -> None:
    file = runs.write_config(tmp_path, policy=MEMORY)
    with runs.start(file) as process:
        runs.wait_for_env_step(tmp_path, 128, process)
        assert sorted(runs.processes_of(tmp_path).values()) == ["collector", "collector", "coordinator", "learner"]
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 143, output
    assert "--resume continues it" in output
    assert runs.processes_of(tmp_path) == {}
    assert not (tmp_path / "run" / "result.json").exists()
    check_stored_states(tmp_path / "run")

    smaller = ["--set", "system.collector.num=1", "--set", "main.max_env_step=600"]
    with runs.start(file, "--resume", "--json", *smaller) as process:
        output, _ = process.communicate(timeout=150)
    assert process.returncode == 0, output
    result = runs.result_of(tmp_path)
    assert json.loads(output[output.index("{\n") :]) == result
    assert result["env_step"] >= 600
    assert result["train_iter"] > 0
    assert set(result["results"]) >= {"test/return_mean"}
    assert runs.processes_of(tmp_path) == {}


@pytest.mark.slow  # the supervisor's own tests do the same with processes that start faster
def test_no_process_outlives_a_run_that_is_killed(tmp_path: Path) -> None:
    with runs.start(runs.write_config(tmp_path)) as process:
        runs.wait_for_env_step(tmp_path, 64, process)
        process.kill()
        process.wait(10)
    runs.wait_until(lambda: runs.processes_of(tmp_path) == {}, seconds=20)
