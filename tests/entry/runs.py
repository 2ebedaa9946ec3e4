"""Distributed runs of the command line, watched from outside."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests import processes

PROGRAM = ["-c", "from lightning_ding.entry.cli import main; main()", "parallel"]
POLICY = {
    "type": "dqn",
    "learn": {"update_per_collect": 2, "batch_size": 32},
    "collect": {"n_sample": 32},
    "random_collect_size": 64,
    "eval": {"evaluator": {"eval_freq": 20, "n_episode": 2}},
}
ENV = {"collector_env_num": 2, "evaluator_env_num": 2, "n_evaluator_episode": 2}


def write_config(folder: Path, **main: Any) -> Path:
    """Write the config of a tiny run, and return its file."""
    section = {"exp_name": str(folder / "run"), "policy": POLICY, "env": ENV, **main}
    coordinator = {"lease": 5.0, "commander": {"eval_interval": None}}
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump({"main": section, "system": {"coordinator": coordinator}}))
    return file


def start(file: Path, *options: str, environment: Mapping[str, str] | None = None) -> processes.Forked:
    """Start ``lightning-ding parallel`` in a separate session, with further environment variables."""
    return processes.start([*PROGRAM, "--config", file, *options], environment, start_new_session=True)


def processes_of(folder: Path) -> dict[int, str]:
    """Return the processes of a run by id, with their role."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (entry / "cmdline").read_bytes().decode().split("\0")
        except OSError:  # it has ended
            continue
        if "lightning_ding.entry.roles" in arguments and str(folder / "run" / "config.json") in arguments:
            found[int(entry.name)] = arguments[arguments.index("lightning_ding.entry.roles") + 1]
    return found


def wait_until(condition: Callable[[], Any], process: processes.Forked | None = None, seconds: float = 120.0) -> Any:
    """Wait until a condition is true, and return its value; fail if the process ends first."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        if process is not None and process.poll() is not None:
            raise AssertionError(f"exit code {process.returncode}: {process.stdout and process.stdout.read()}")
        assert time.monotonic() < end
        time.sleep(0.1)
    return value


def env_step_of(folder: Path) -> int:
    """Return how far the coordinator says that the run is."""
    return int(status_of(folder).get("env_step", 0))


def wait_for_env_step(folder: Path, goal: int, process: processes.Forked) -> None:
    """Wait until a run is so far."""
    wait_until(lambda: env_step_of(folder) >= goal, process)


def status_of(folder: Path) -> dict[str, Any]:
    """Return the coordinator's counters; nothing while it does not answer."""
    from lightning_ding.distributed.flask_fs.auth import read_token
    from lightning_ding.distributed.flask_fs.channel import FlaskChannel
    from lightning_ding.distributed.transport import CoordinatorGoneError

    channel = FlaskChannel(folder / "run", token=read_token(None, folder / "run"), reconnect_timeout=1.0)
    try:
        return channel.call("status")
    except CoordinatorGoneError:
        return {}
    finally:
        channel.close()


def result_of(folder: Path) -> dict[str, Any]:
    """Return what stands in result.json."""
    result: dict[str, Any] = json.loads((folder / "run" / "result.json").read_text())
    return result
