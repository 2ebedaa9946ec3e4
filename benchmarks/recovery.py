"""How long a distributed run over HTTP stands still after one of its processes is killed.

    python -m benchmarks.recovery               # 20 kills of each role; writes docs/results/recovery.json

A run of DQN on CartPole-v1 with one learner and two collectors, with the default lease. A process gets SIGKILL, and the
supervisor of the run restarts it. The time counts until the run is at least where it was before:

    coordinator   until it has accepted new env steps
    learner       until it has made more updates than before, so updates since its last checkpoint are repeated
    collector     until as many collecting tasks run as before and new env steps were accepted
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.compare import provenance
from lightning_ding.distributed.flask_fs.auth import read_token
from lightning_ding.distributed.flask_fs.channel import FlaskChannel
from lightning_ding.distributed.transport import CoordinatorGoneError

ROLES = ("coordinator", "learner", "collector")
COLLECTORS = 2
LOOK = 0.05  # seconds between two checks
SETTLED = 3.0  # seconds of an undisturbed run before the next kill
LAST_REPORT = 0.5  # seconds after which no message of a killed process can arrive
LONGEST = 180.0
COMMAND = ["-c", "from lightning_ding.entry.cli import main; main()", "parallel", "--config"]
Status = dict[str, Any]


def config_of(folder: str) -> dict[str, Any]:
    """Return the config of a run that does not end by itself."""
    policy = {
        "type": "dqn",
        "learn": {"update_per_collect": 8, "batch_size": 64},
        "collect": {"n_sample": 64},
        "eval": {"evaluator": {"eval_freq": 200, "n_episode": 2}},
    }
    env = {"env_id": "CartPole-v1", "collector_env_num": 4, "evaluator_env_num": 2, "n_evaluator_episode": 2}
    coordinator = {"commander": {"eval_interval": None}}
    system = {"restarts": 1000, "collector": {"num": COLLECTORS}, "coordinator": coordinator}
    return {"main": {"exp_name": folder, "policy": policy, "env": env}, "system": system}


class Watched:
    """A run that is watched from outside.

    Args:
        folder: Folder of the run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def status(self) -> Status:
        """Return the counters of the coordinator; empty while it does not answer."""
        with suppress(CoordinatorGoneError, OSError, ValueError):
            channel = FlaskChannel(self._folder, token=read_token(None, self._folder), reconnect_timeout=0.2)
            try:
                return channel.call("status")
            finally:
                channel.close()
        return {}

    def wait_for(self, condition: Callable[[Status], bool]) -> Status:
        """Wait until a status fulfils a condition, and return it."""
        end = time.monotonic() + LONGEST
        while not ((status := self.status()) and condition(status)):
            if time.monotonic() > end:
                raise RuntimeError(f"the run does not recover: {status}")
            time.sleep(LOOK)
        return status

    def processes(self, role: str) -> list[int]:
        """Return the ids of the processes of a role."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                arguments = (entry / "cmdline").read_bytes().decode().split("\0")
                if {"lightning_ding.entry.roles", role, str(self._folder / "config.json")} <= set(arguments):
                    found.append(int(entry.name))
        return found


def recovered(role: str, before: Status) -> Callable[[Status], bool]:
    """Return whether a run is where it was before a process of a role was killed."""
    if role == "learner":
        return lambda now: bool(now["train_iter"] > before["train_iter"])
    return lambda now: bool(
        now["env_step"] > before["env_step"]
        and now["collectors"] == COLLECTORS
        and now["collector_tasks"]["running"] == COLLECTORS
    )


def kill(run: Watched, role: str, generator: random.Random) -> float:
    """Kill a process of a role, and return the seconds until the run has recovered."""
    run.wait_for(lambda now: now["collector_tasks"]["running"] >= COLLECTORS and now["learner_tasks"]["running"] == 1)
    time.sleep(SETTLED + generator.random())
    pid = generator.choice(run.processes(role))
    before, start = run.status(), time.monotonic()
    os.kill(pid, signal.SIGKILL)
    if role == "collector":  # its lease still counts as running
        run.wait_for(lambda now: now["collectors"] != COLLECTORS)
    if role == "learner":  # its last report may still be on its way
        time.sleep(LAST_REPORT)
        before = run.wait_for(bool)
    run.wait_for(recovered(role, before))
    return time.monotonic() - start


@contextmanager
def started(config: Path) -> Iterator[None]:
    """Start the run of a config file, and end it after the block."""
    log = config.with_suffix(".log").open("w")
    with (
        log,
        subprocess.Popen(
            [sys.executable, *COMMAND, str(config)], stdout=log, stderr=log, start_new_session=True
        ) as process,
    ):
        try:
            yield
        finally:
            process.terminate()
            process.wait(60.0)


def measure(kills: int, save: Callable[[dict[str, list[float]]], None]) -> None:
    """Kill processes of all roles in turn.

    Args:
        kills: Kills of each role.
        save: Receives the seconds of all recoveries by role, after each kill.
    """
    generator = random.Random(0)
    seconds: dict[str, list[float]] = {role: [] for role in ROLES}
    with TemporaryDirectory() as parent:
        folder = Path(parent) / "run"
        file = Path(parent) / "config.json"
        file.write_text(json.dumps(config_of(str(folder))))
        run = Watched(folder)
        with started(file):
            run.wait_for(lambda now: now["train_iter"] > 200)
            for role in ROLES * kills:
                seconds[role].append(kill(run, role, generator))
                print(f"{role:>12}: {seconds[role][-1]:6.1f} s", flush=True)
                save(seconds)


def main() -> None:
    """Measure all roles, and write the medians and the longest times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="kills of each role")
    parser.add_argument("--out", type=Path, default=Path("docs/results/recovery.json"), help="JSON file")
    options = parser.parse_args()

    def save(seconds: dict[str, list[float]]) -> None:
        rows = {
            role: {"kills": len(found), "median": median(found), "worst": max(found), "seconds": found}
            for role, found in seconds.items()
            if found
        }
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({**provenance(), "flask_fs": rows}, indent=1))

    measure(options.kills, save)
    for role, row in json.loads(options.out.read_text())["flask_fs"].items():
        print(f"{role:>12}: median {row['median']:5.1f} s, worst {row['worst']:5.1f} s")
    print(f"\nwritten to {options.out}")


if __name__ == "__main__":
    main()
