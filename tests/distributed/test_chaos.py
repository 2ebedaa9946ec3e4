"""A distributed run finishes although its processes are killed at random."""

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

import numpy as np
import pytest
import yaml

from lightning_ding.distributed.coordinator.coordinator import Coordinator
from lightning_ding.distributed.file_store import FileStore
from lightning_ding.entry.config_file import read_config
from tests.distributed import acknowledged
from tests.distributed.chaos import Chaos
from tests.distributed.witness_env import CARTPOLE_ENV, ENV, numbers, taken
from tests.entry import runs

MINUTES = float(os.environ.get("CHAOS_MINUTES", "2"))  # of faults at random
ROLES = ("collector", "collector", "learner", "coordinator")  # as many as there are of each
CARTPOLE: dict[str, Any] = {
    "policy": {
        "type": "dqn",
        "nstep": 3,
        "learn": {"update_per_collect": 16, "batch_size": 128},
        "collect": {"n_sample": 64},
        "eval": {"evaluator": {"eval_freq": 500, "n_episode": 20}},
    },
    "env": {"evaluator_env_num": 8, "n_evaluator_episode": 20},
}


def write_config(folder: Path, env_id: str, witness: Path, main: dict[str, Any]) -> Path:
    """Write the config of a run in an env that counts its steps in a file, and return the config's file."""
    imports = ["tests.distributed.witness_env"]
    env = {**main["env"], "env_id": env_id, "env_kwargs": {"file": str(witness)}}
    file = runs.write_config(folder, env=env, policy={**main["policy"], "import_names": imports})
    config = yaml.safe_load(file.read_text())
    names = [*imports, "tests.distributed.acknowledged"]
    config["system"] |= {"restarts": 1000, "collector": {"import_names": names}}
    file.write_text(yaml.safe_dump(config))
    return file


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


def buffer_of(folder: Path) -> tuple[dict[str, Any], int]:
    """Return the transitions that a stopped run has kept, and how many its coordinator has acknowledged."""
    run = folder / "run"
    cfg = read_config(run / "config.json", ["system.collector.num=1"])  # "auto" needs a cluster
    coordinator = Coordinator(cfg, FileStore(run / "data"), resume=True)
    coordinator.run.database.close()  # for the next process
    (replay,) = coordinator.run.replays.values()
    storage = replay.buffer._storage  # type: ignore[attr-defined]
    return storage.gather(np.arange(storage.count), 1, 1.0), replay.counts.env_step


def check_rows(folder: Path, witness: Path) -> None:
    """See that a run has kept all that it acknowledged, each step once, and each as it was really taken."""
    rows, count = buffer_of(folder)
    steps = taken(witness)
    found = numbers(rows["next_obs"])
    assert len(found) == count <= len(steps)
    assert len(set(found)) == len(found)
    told = acknowledged.read(folder, columns=5)
    assert told
    assert told.issubset(row.tobytes() for row in acknowledged.as_rows(rows))
    kept = zip(numbers(rows["obs"]), rows["action"].flatten().tolist(), strict=True)
    assert list(kept) == [steps[number - 1] for number in found]


@pytest.mark.slow
def test_run_ends_well_although_each_role_is_killed_and_keeps_each_step_once(tmp_path: Path) -> None:
    """The env's own file is the witness of what was really done."""
    witness = tmp_path / "steps"
    file = write_config(tmp_path, ENV, witness, {"policy": runs.POLICY, "env": runs.ENV})
    with runs.start(file) as process:
        for goal, role in ((100, "learner"), (250, "coordinator"), (400, "collector")):
            runs.wait_for_env_step(tmp_path, goal, process)
            assert kill_one(tmp_path, role)
        runs.wait_for_env_step(tmp_path, 550, process)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 143, output
    assert output.count("ended with SIGKILL") == 3
    check_rows(tmp_path, witness)
    kept = buffer_of(tmp_path)[1]

    with runs.start(file, "--resume", "--set", f"main.max_env_step={kept + 100}") as process:
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert kept + 100 <= check_counters(tmp_path)["env_step"] <= len(taken(witness))
    assert runs.processes_of(tmp_path) == {}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_cartpole_is_learned_while_a_process_dies_every_five_seconds(tmp_path: Path) -> None:
    steps = tmp_path / "steps"
    file = write_config(tmp_path, CARTPOLE_ENV, steps, CARTPOLE)
    generator = random.Random(0)
    kills = 0
    with runs.start(file) as process:
        runs.wait_for_env_step(tmp_path, 64, process)
        end = time.monotonic() + 120
        while time.monotonic() < end:
            assert process.poll() is None  # there is no other end than that of the killing
            time.sleep(5)
            kills += kill_one(tmp_path, generator.choice(ROLES))
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 143, output
    assert kills >= 20
    kept = buffer_of(tmp_path)[1]
    assert kept <= steps.stat().st_size
    rest = [f"main.max_env_step={kept + 40_000}", "main.env.stop_value=490"]
    with runs.start(file, "--resume", "--set", rest[0], "--set", rest[1]) as process:
        output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    result = check_counters(tmp_path)
    sys.stderr.write(f"{kills} kills: {json.dumps(result)}\n")
    assert result["results"]["test/return_mean"] >= 475
    assert runs.processes_of(tmp_path) == {}
    assert subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, check=False).stdout == b""


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("seed", range(3))
def test_run_with_faults_at_random_keeps_each_step_once_and_reaches_its_return(seed: int, tmp_path: Path) -> None:
    """SIGKILL, SIGSTOP, a slow network and a full disk, for ``CHAOS_MINUTES``."""
    found = Chaos(tmp_path, "flask_fs", seed).run(60 * MINUTES)
    sys.stderr.write(f"{json.dumps(found)}\n")
    assert sum(found["faults"].values()) >= 5


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("seed", range(3))
def test_run_on_ray_with_faults_at_random_keeps_each_step_once_and_reaches_its_return(
    seed: int, tmp_path: Path
) -> None:
    """The same over Ray, in a separate network whose link is slow at times, where that is possible."""
    pytest.importorskip("ray")
    command = [sys.executable, "-m", "tests.distributed.chaos", str(tmp_path / "run"), "--transport", "ray"]
    options = ["--seed", str(seed), "--minutes", str(MINUTES)]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    found = json.loads(done.stdout.splitlines()[-1])
    sys.stderr.write(f"{json.dumps(found)}\n")
    assert sum(found["faults"].values()) >= 5
