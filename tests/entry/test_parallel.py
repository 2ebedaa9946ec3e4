"""A whole distributed run with one command: real processes, a real server."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.entry import runs


def test_run_is_stopped_by_a_signal_and_resumed_to_its_end(tmp_path: Path) -> None:
    file = runs.write_config(tmp_path)
    with runs.start(file) as process:
        runs.wait_for_env_step(tmp_path, 128, process)
        assert sorted(runs.processes_of(tmp_path).values()) == ["collector", "collector", "coordinator", "learner"]
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 143, output
    assert "--resume continues it" in output
    assert runs.processes_of(tmp_path) == {}
    assert not (tmp_path / "run" / "result.json").exists()

    with runs.start(file, "--resume", "--set", "main.max_env_step=1500") as process:
        output, _ = process.communicate(timeout=150)
    assert process.returncode == 0, output
    result = runs.result_of(tmp_path)
    assert json.loads(output[output.index("{\n") :]) == result
    assert result["env_step"] >= 1500
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
