"""An on-policy run ends well although its processes are killed, and learns from whole rollouts of one version only."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.distributed.test_chaos import kill_one
from tests.distributed.witnessed_ppo import VARIABLE
from tests.entry import runs

SIZE, LIMIT = 128, 12_000
POLICY: dict[str, Any] = {
    "type": "witnessed_ppo",
    "import_names": ["tests.distributed.witnessed_ppo"],
    "learn": {"epoch_per_collect": 2, "batch_size": 32},
    "collect": {"n_sample": SIZE},
    "eval": {"evaluator": {"eval_freq": 40, "n_episode": 2}},
}


def rollouts(file: Path) -> list[dict[str, Any]]:
    """Return what the learners have written down; a line that a kill has cut off is left out."""
    lines = file.read_text().splitlines() if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def has_learned(file: Path, number: int) -> bool:
    """Return whether learners have begun to learn from so many rollouts."""
    return len(rollouts(file)) >= number


@pytest.mark.slow
def test_each_role_is_killed_and_every_rollout_is_whole_and_of_the_version_that_learns(tmp_path: Path) -> None:
    file = runs.write_config(tmp_path, policy=POLICY, max_env_step=LIMIT)
    config = yaml.safe_load(file.read_text())
    config["system"]["restarts"] = 1000
    file.write_text(yaml.safe_dump(config))
    witness = tmp_path / "rollouts"
    with runs.start(file, environment={VARIABLE: str(witness)}) as process:
        for role in ("collector", "learner", "coordinator", "collector", "learner"):
            goal = len(rollouts(witness)) + 8
            runs.wait_until(partial(has_learned, witness, goal), process)
            assert kill_one(tmp_path, role)
        output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    counters = runs.result_of(tmp_path)["counters"]
    assert counters["env_step"] == counters["sample"] >= LIMIT
    found = rollouts(witness)
    assert len({one["process"] for one in found}) == 3
    for one in found:
        assert one["versions"] == [one["train_iter"]]
        assert one["different"] == one["rows"]
        assert SIZE <= one["rows"] <= 2 * SIZE
    for process in {one["process"] for one in found}:
        versions = [one["train_iter"] for one in found if one["process"] == process]
        assert versions == sorted({*versions})  # none is learned from twice


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("transport", ["flask_fs", "ray"])
def test_ppo_reaches_its_return_after_ten_kills_with_each_step_kept_once(transport: str, tmp_path: Path) -> None:
    """Collectors, learners, coordinators and the command of the run, or Ray's driver; in a separate process."""
    if transport == "ray":
        pytest.importorskip("ray")
    command = [sys.executable, "-m", "tests.distributed.ten_kills", str(tmp_path / "run"), "--transport", transport]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    found = json.loads(done.stdout.splitlines()[-1])
    sys.stderr.write(f"{json.dumps(found)}\n")
    assert sum(found["kills"].values()) == 10
    assert found["return"] >= 475
