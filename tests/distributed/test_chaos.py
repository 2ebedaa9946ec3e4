"""Processes of a distributed run are killed at random, and it comes to its end all the same."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.entry import runs

ROLES = ("collector", "collector", "learner", "coordinator")  # as many as there are of each
CARTPOLE = {
    "policy": {
        "type": "dqn",
        "nstep": 3,
        "learn": {"update_per_collect": 16, "batch_size": 128},
        "collect": {"n_sample": 64},
        "eval": {"evaluator": {"eval_freq": 500, "n_episode": 20, "stop_value": 500.0}},
    },
    "env": {"evaluator_env_num": 8, "n_evaluator_episode": 20, "stop_value": 500.0},
    "max_env_step": 100_000,
}


def kill_one(folder: Path, role: str) -> bool:
    """Kill -9 a process of a role; return whether there was one."""
    pids = [pid for pid, found in runs.processes_of(folder).items() if found == role]
    if pids:
        os.kill(random.choice(pids), signal.SIGKILL)
    return bool(pids)


def check_counters(folder: Path) -> dict[str, Any]:
    """Return the result of a run, after comparing its counters with each other."""
    result = runs.result_of(folder)
    counters = result["counters"]
    assert result["env_step"] == counters["env_step"] == counters["sample"]
    return result


def test_run_ends_well_although_each_role_is_killed_once(tmp_path: Path) -> None:
    file = runs.write_config(tmp_path, max_env_step=2000)
    with runs.start(file) as process:
        for goal, role in ((200, "learner"), (500, "coordinator"), (800, "collector")):
            runs.wait_for_env_step(tmp_path, goal, process)
            assert kill_one(tmp_path, role)
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert output.count("ended with SIGKILL") == 3
    assert check_counters(tmp_path)["env_step"] >= 2000
    assert runs.processes_of(tmp_path) == {}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_cartpole_is_learned_while_a_process_dies_every_five_seconds(tmp_path: Path) -> None:
    file = runs.write_config(tmp_path, **CARTPOLE)
    config = yaml.safe_load(file.read_text())
    config["system"]["restarts"] = 1000
    file.write_text(yaml.safe_dump(config))
    generator = random.Random(0)
    kills = 0
    with runs.start(file) as process:
        runs.wait_for_env_step(tmp_path, 64, process)
        end = time.monotonic() + 120
        while time.monotonic() < end and process.poll() is None:
            time.sleep(5)
            kills += kill_one(tmp_path, generator.choice(ROLES))
        output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    assert kills >= 10
    result = check_counters(tmp_path)
    sys.stderr.write(f"{kills} kills: {json.dumps(result)}\n")
    assert result["results"]["test/return_mean"] >= 475
    assert runs.processes_of(tmp_path) == {}
    assert subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, check=False).stdout == b""
