"""Faults at random in a distributed run: processes that die or stop, a slow network, and a full disk.

    python -m tests.distributed.chaos FOLDER --transport flask_fs --seed 0 --minutes 10

The env writes each step that it really takes into a file. At the end, the run must have kept each acknowledged step
exactly once, as it was taken; it is then resumed without faults, must reach its return, and leave no process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from lightning_ding.checkpoints.files import replace_text
from lightning_ding.distributed.coordinator.coordinator import Coordinator
from lightning_ding.distributed.file_store import FileStore
from lightning_ding.entry.config_file import read_config
from tests.distributed import acknowledged
from tests.distributed.process_tree import ProcessTree
from tests.distributed.recorded_cartpole import COLUMNS, ENV, recorded
from tests.entry import runs
from tests.processes import Forked

ROLES = ("coordinator", "learner", "collector")
PAUSES = (2.0, 12.0)  # seconds between two faults
STOPS = (0.5, 8.0)  # seconds for which a process is stopped; leases are shorter
FULL = (1.0, 5.0)  # seconds for which no process can write files
DELAYS = (0.01, 0.3)  # seconds by which the network delays all that is sent
SLOW = (2.0, 6.0)  # seconds for which the network is slow
START_TIMEOUT = 600.0
LINK = ("tbf", "rate", "4mbit", "burst", "128kb", "latency", "2s")
"""Limit of a slow link, which delays what is sent beyond a burst: a token bucket of ``tc``."""
OWN_NETWORK = "LIGHTNING_DING_OWN_NETWORK"
"""Environment variable of a process in a separate network, whose loopback interface it may limit."""
SETTLING = 10.0  # seconds without faults before the end, in which every role starts again
LEAVING = 30.0  # seconds for the last processes to end after the command of the run
VARIABLE = "CHAOS"  # of the environment of all processes of the run; its value is the folder
POLICY: dict[str, Any] = {
    "type": "dqn",
    "nstep": 3,
    "learn": {"update_per_collect": 16, "batch_size": 128},
    "collect": {"n_sample": 64},
    "eval": {"evaluator": {"eval_freq": 500, "n_episode": 20}},
    "other": {"replay_buffer": {"replay_buffer_size": 1_000_000}},  # keeps every step
}


def write_config(folder: Path, transport: str, seed: int, policy: Mapping[str, Any], collectors: int) -> Path:
    """Write the config of a run, and return its file."""
    imports = ["tests.distributed.recorded_cartpole"]
    env = {"env_id": ENV, "env_kwargs": {"file": str(folder / "steps")}, "import_names": imports}
    counts = {"collector_env_num": 2, "evaluator_env_num": 8, "n_evaluator_episode": 20}
    main = {"exp_name": str(folder / "run"), "seed": seed, "policy": dict(policy), "env": {**env, **counts}}
    coordinator = {"lease": 5.0, "snapshot_interval": 10.0, "max_failures": 1000, "commander": {"eval_interval": None}}
    collector = {"import_names": ["tests.distributed.acknowledged"], "num": collectors}
    system = {"transport": transport, "restarts": 10_000, "coordinator": coordinator, "collector": collector}
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump({"main": main, "system": system}))
    return file


class SlowNetwork(threading.Thread):
    """Stands between the workers and the coordinator over HTTP, and delays what they send.

    Args:
        address: File with the address of the coordinator, in which this takes its place.
    """

    def __init__(self, address: Path) -> None:
        super().__init__(daemon=True)
        self.delay = 0.0
        self._address = address
        self._target: tuple[str, int] | None = None
        self._port = 0

    def run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self._port = server.sockets[0].getsockname()[1]
        while True:
            with suppress(OSError, ValueError, KeyError):
                found = json.loads(self._address.read_text())
                if found["port"] != self._port:
                    self._target = found["host"], found["port"]
                    replace_text(self._address, json.dumps({**found, "port": self._port}), is_synced=False)
            await asyncio.sleep(0.02)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            assert self._target is not None
            theirs, ours = await asyncio.open_connection(*self._target)
            await asyncio.gather(self._pass(reader, ours), self._pass(theirs, writer), return_exceptions=True)
        writer.close()

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                await asyncio.sleep(self.delay)
                target.write(data)
                await target.drain()
        finally:
            target.close()


class Chaos:
    """A run and its faults.

    Args:
        folder: Folder of everything.
        transport: Name of the transport.
        seed: Seed of the run and of the faults.
        policy: Config of the policy.
        collectors: Number of collectors.
    """

    def __init__(
        self,
        folder: Path,
        transport: str,
        seed: int,
        policy: Mapping[str, Any] = POLICY,
        collectors: int = 2,
    ) -> None:
        self.folder = folder
        self.transport = transport
        self.done: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._file = write_config(folder, transport, seed, policy, collectors)
        self._tree = ProcessTree(folder, VARIABLE)
        self._network = SlowNetwork(folder / "run" / "coordinator.json")
        self._faults: list[Callable[[], None]] = [self._kill, self._kill, self._stop, self._fill_disk]
        if transport == "flask_fs":
            self._network.start()
        if transport == "flask_fs" or OWN_NETWORK in os.environ:
            self._faults.append(self._slow_down)

    def run(self, seconds: float) -> dict[str, Any]:
        """Run with faults for some time, check what was kept, and finish the run without faults."""
        with self.start() as process:
            self.wait_for_steps(2000, process)
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                assert process.poll() is None, process.stdout and process.stdout.read()
                self._random.choice(self._faults)()
                time.sleep(self._random.uniform(*PAUSES))
            self.stop(process)
        kept = check_rows(self.folder)
        sys.stderr.write(f"{json.dumps({**kept, 'faults': dict(self.done)})}\n")
        result = self.finish(kept["acknowledged"])
        return {**kept, "faults": dict(self.done), "return": result["results"]["test/return_mean"]}

    def stop(self, process: Forked) -> None:
        """Let every role start again, and stop the run, which leaves no process."""
        time.sleep(SETTLING)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=180)
        assert process.returncode == 143, output[-5000:]
        self.check_that_none_is_left()

    def finish(self, env_step: int) -> dict[str, Any]:
        """Resume the run, which was stopped after some env steps, without faults, and return its result."""
        goal = [f"main.max_env_step={env_step + 60_000}", "main.env.stop_value=490"]
        with self.start("--resume", "--set", goal[0], "--set", goal[1]) as process:
            output, _ = process.communicate(timeout=1200)
        assert process.returncode == 0, output[-5000:]
        result = runs.result_of(self.folder)
        assert result["env_step"] == result["counters"]["env_step"] == result["counters"]["sample"]
        assert result["results"]["test/return_mean"] >= 475, result["results"]
        self.check_that_none_is_left()
        return result

    def pids(self) -> dict[int, str]:
        """Return the processes that get faults by id, with their role; there are others, such as those of envs."""
        self._tree.find()  # which also remembers those whose parents are killed
        if self.transport == "flask_fs":
            return runs.processes_of(self.folder)
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                name = (entry / "cmdline").read_bytes().decode().strip("\0")
                if name.startswith("ray::") and f"{VARIABLE}={self.folder}" in (entry / "environ").read_text():
                    found[int(entry.name)] = "coordinator" if "CoordinatorActor" in name else "worker"
        return found

    def start(self, *options: str) -> Forked:
        """Start the run."""
        process = runs.start(self._file, *options, environment={VARIABLE: str(self.folder)})
        self._tree.add(process.pid)
        return process

    def check_that_none_is_left(self) -> None:
        """See that no process of the run is left."""
        assert (left := self.pids()) == {}, left
        assert (left := self._tree.wait_for_end(LEAVING)) == {}, left

    def _one(self) -> int | None:
        """Return a random process of a random role."""
        pids = self.pids()
        if not pids:
            return None
        role = self._random.choice(sorted(set(pids.values())))
        return self._random.choice(sorted(pid for pid, found in pids.items() if found == role))

    def _kill(self) -> None:
        if (pid := self._one()) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.done["SIGKILL"] += 1

    def _stop(self) -> None:
        if (pid := self._one()) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                self.done["SIGSTOP"] += 1
                time.sleep(self._random.uniform(*STOPS))
                os.kill(pid, signal.SIGCONT)

    def _fill_disk(self) -> None:
        """Let no process of the run write files, as on a full disk: each write fails with an ``OSError``."""
        for limit in (0, resource.RLIM_INFINITY):
            for pid in self.pids():
                with suppress(ProcessLookupError):
                    resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            if limit == 0:
                self.done["full disk"] += 1
                time.sleep(self._random.uniform(*FULL))

    def _slow_down(self) -> None:
        self.done["slow network"] += 1
        if self.transport == "ray":
            with slow_link():
                time.sleep(self._random.uniform(*SLOW))
            return
        self._network.delay = self._random.uniform(*DELAYS)
        time.sleep(self._random.uniform(*SLOW))
        self._network.delay = 0.0

    def wait_for_steps(self, steps: int, process: Forked) -> None:
        """Wait until the envs have taken so many steps."""
        runs.wait_until(lambda: len(recorded(self.folder / "steps")) >= steps, process, START_TIMEOUT)


def check_rows(folder: Path) -> dict[str, int]:
    """See that a stopped run has kept all that it acknowledged to its collectors: steps that were taken, each once."""
    run = folder / "run"
    coordinator = Coordinator(read_config(run / "config.json"), FileStore(run / "data"), resume=True)
    coordinator.run.database.close()  # for the next process
    (replay,) = coordinator.run.replays.values()
    storage = replay.buffer._storage  # type: ignore[attr-defined]
    rows = storage.gather(np.arange(storage.count), 1, 1.0)
    found = [row.tobytes() for row in acknowledged.as_rows(rows)]
    steps = {row.tobytes() for row in recorded(folder / "steps")}
    assert len(found) == replay.counts.env_step == replay.counts.sample
    assert len(set(found)) == len(found)
    assert steps.issuperset(found)
    told = acknowledged.read(folder, COLUMNS)
    assert told
    assert told.issubset(found)
    return {"acknowledged": len(told), "kept": len(found), "taken": len(steps)}


@contextmanager
def slow_link() -> Iterator[None]:
    """Limit the rate of the loopback interface."""
    subprocess.run(["tc", "qdisc", "add", "dev", "lo", "root", *LINK], check=True)
    try:
        yield
    finally:
        subprocess.run(["tc", "qdisc", "del", "dev", "lo", "root"], check=True)


def enter_own_network() -> None:
    """Start this program again in a separate network, where that is possible: by root, with util-linux and iproute2."""
    if OWN_NETWORK in os.environ or os.geteuid() or not all(map(shutil.which, ("unshare", "ip", "tc"))):
        return
    os.environ[OWN_NETWORK] = "1"
    start = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", sys.executable, "-m"]
    os.execvp("unshare", [*start, "tests.distributed.chaos", *sys.argv[1:]])


def main() -> None:
    """Run with faults, and print what happened as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="new folder")
    parser.add_argument("--transport", choices=("flask_fs", "ray"), default="flask_fs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=10.0)
    options = parser.parse_args()
    if options.transport == "ray":
        enter_own_network()
    options.folder.mkdir(parents=True)
    chaos = Chaos(options.folder, options.transport, options.seed)
    print(json.dumps({**vars(options), "folder": "", **chaos.run(60 * options.minutes)}))


if __name__ == "__main__":
    main()
