"""Ten SIGKILLs at random moments in a distributed run of PPO: of collectors, learner, coordinator, and the command.

    python -m tests.distributed.ten_kills FOLDER --transport flask_fs --seed 0

The command is that which has started the run, and over Ray the driver, too; all processes of the run end with it, and
it is started again with ``--resume``. The env writes each step that it really takes into a file, the coordinator those
that it keeps, and the learner those that it learns from. At the end, the run must have kept each acknowledged step
exactly once, as it was taken, and have learned from whole rollouts of one version only. It is then resumed without
kills, must reach its return, and leave no process.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from lightning_ding.distributed.coordinator.coordinator import Coordinator
from lightning_ding.distributed.file_store import FileStore
from lightning_ding.entry.config_file import read_config
from tests.distributed import acknowledged
from tests.distributed.chaos import LEAVING, START_TIMEOUT, Chaos
from tests.distributed.recorded_cartpole import COLUMNS, recorded
from tests.distributed.recorded_ppo import KEPT, LEARNED, records
from tests.entry import runs
from tests.processes import Forked

COMMAND = "command"
ROLES = (*["collector"] * 4, *["learner"] * 3, *["coordinator"] * 2, COMMAND)
"""Roles of the processes that are killed, in a random order."""
COLLECTORS, SIZE = 3, 600
PAUSES = (0.5, 8.0)  # seconds before a kill
POLICY: dict[str, Any] = {
    "type": "recorded_ppo",
    "import_names": ["tests.distributed.recorded_ppo"],
    "discount_factor": 0.98,
    "model": {"encoder_hidden_size_list": [64, 64], "share_encoder": False, "activation": "tanh"},
    "learn": {"epoch_per_collect": 5, "batch_size": 100, "learning_rate": 0.001},
    "collect": {"n_sample": SIZE},
    "eval": {"evaluator": {"eval_freq": 150, "n_episode": 20}},
}


class TenKills:
    """A run and the kills of its processes.

    Args:
        folder: Folder of everything.
        transport: Name of the transport.
        seed: Seed of the run and of the kills.
    """

    def __init__(self, folder: Path, transport: str, seed: int) -> None:
        self.folder = folder
        self.done: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._chaos = Chaos(folder, transport, seed, POLICY, COLLECTORS)

    def run(self) -> dict[str, Any]:
        """Kill ten processes, check what was kept and learned from, and finish the run without kills."""
        options: tuple[str, ...] = ()
        left = self._random.sample(ROLES, len(ROLES))
        while True:
            with self._chaos.start(*options) as process:
                self._wait_for_rollouts(process)
                while left:
                    self._pause(process)
                    role = left.pop()
                    self._kill(role, process)
                    self.done[role] += 1
                    if role == COMMAND:
                        break
                else:
                    self._wait_for_rollouts(process)
                    self._chaos.stop(process)
                    break
                process.communicate(timeout=LEAVING)
            assert process.returncode == -signal.SIGKILL
            # Ray's agents, too, end by themselves, but only after up to a minute
            runs.wait_until(lambda: not self._chaos.pids(), seconds=LEAVING)
            options = ("--resume",)
        stopped = check_records(self.folder, self._counted())
        sys.stderr.write(f"{json.dumps({**stopped, 'kills': dict(self.done)})}\n")
        result = self._chaos.finish(stopped["kept"])
        found = check_records(self.folder, result["counters"]["sample"])
        return {**found, "kills": dict(self.done), "return": result["results"]["test/return_mean"]}

    def _pause(self, process: Forked) -> None:
        """Wait until a random moment, of the recovery from the kill before or of learning after it."""
        if self._random.random() < 0.5:
            self._wait_for_rollouts(process)
        time.sleep(self._random.uniform(*PAUSES))

    def _kill(self, role: str, process: Forked) -> None:
        """Kill a process of a role, as soon as there is one."""
        while True:
            assert process.poll() is None, process.stdout and process.stdout.read()
            pids = [process.pid] if role == COMMAND else self._pids(role)
            with suppress(ProcessLookupError):
                if pids:
                    os.kill(self._random.choice(sorted(pids)), signal.SIGKILL)
                    return
            time.sleep(0.1)

    def _pids(self, role: str) -> list[int]:
        """Return the processes of a role. Over Ray, a learner looks like a collector until it has learned."""
        found = self._chaos.pids()
        if self._chaos.transport == "ray":
            learners = {pid for pid, _ in records(self.folder, LEARNED)}
            workers = {pid for pid, kind in found.items() if kind == "worker" and is_worker(pid)}
            found = {pid: "learner" if pid in learners else "collector" for pid in workers} | {
                pid: kind for pid, kind in found.items() if kind == "coordinator"
            }
        return [pid for pid, kind in found.items() if kind == role]

    def _wait_for_rollouts(self, process: Forked, number: int = 2) -> None:
        """Wait until some more rollouts have been learned from."""
        goal = number + self._rollouts()
        runs.wait_until(lambda: self._rollouts() >= goal, process, START_TIMEOUT)

    def _rollouts(self) -> int:
        return sum(len(found) for _, found in records(self.folder, LEARNED))

    def _counted(self) -> int:
        """Return the transitions that the coordinator of the stopped run has counted."""
        run = self.folder / "run"
        coordinator = Coordinator(read_config(run / "config.json"), FileStore(run / "data"), resume=True)
        coordinator.run.database.close()  # for the next process
        (replay,) = coordinator.run.replays.values()
        assert replay.counts.env_step == replay.counts.sample
        return replay.counts.sample


def is_worker(pid: int) -> bool:
    """Return whether a process is an actor of Ray that does tasks, and not one of its idle workers."""
    with suppress(OSError):
        return b"WorkerActor" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def check_records(folder: Path, counted: int) -> dict[str, int]:
    """See that a run has kept each acknowledged step once, as it was taken, and learned from whole rollouts only.

    Args:
        folder: Folder of everything.
        counted: Transitions that the coordinator has counted.
    """
    entries: dict[int, bytes] = {}
    for _, found in records(folder, KEPT):
        for one in found:  # a coordinator that was killed has read the entry from the journal again
            assert entries.setdefault(one["number"], one["rows"].tobytes()) == one["rows"].tobytes()
    kept = [row for entry in entries.values() for row in _rows(entry)]
    steps = {row.tobytes() for row in recorded(folder / "steps")}
    assert len(set(kept)) == len(kept) == counted
    assert steps.issuperset(kept)
    told = acknowledged.read(folder, COLUMNS)
    assert told
    assert told.issubset(kept)
    learned, rollouts = _check_rollouts(folder), sum(len(found) for _, found in records(folder, LEARNED))
    assert learned.keys() <= set(kept)
    about = {"acknowledged": len(told), "kept": len(kept), "taken": len(steps), "learned": len(learned)}
    return {**about, "rollouts": rollouts}


def _check_rollouts(folder: Path) -> dict[bytes, int]:
    """Return the version of each step that was learned from, after checking the rollouts of each learner."""
    version_of: dict[bytes, int] = {}
    for _, found in records(folder, LEARNED):
        versions = [one["train_iter"] for one in found]
        assert versions == sorted({*versions})  # no learner learns from the same rollout again
        for one in found:
            assert one["policy_version"] == [one["train_iter"]]
            assert SIZE <= len(one["rows"]) <= 2 * SIZE
            rows = _rows(one["rows"].tobytes())
            assert len(set(rows)) == len(rows)
            assert {version_of.setdefault(row, one["train_iter"]) for row in rows} == {one["train_iter"]}
            last: dict[int, Any] = {}  # next observation of the newest step of each episode
            for episode, row in zip(one["episodes"], one["rows"], strict=True):
                assert episode not in last or (row[:4] == last[episode]).all()  # there is no gap
                last[episode] = row[5:]
    return version_of


def _rows(content: bytes) -> list[bytes]:
    size = 4 * COLUMNS
    return [content[start : start + size] for start in range(0, len(content), size)]


def main() -> None:
    """Run with kills, and print what happened as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="new folder")
    parser.add_argument("--transport", choices=("flask_fs", "ray"), default="flask_fs")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.folder.mkdir(parents=True)
    began = time.monotonic()
    found = TenKills(options.folder, options.transport, options.seed).run()
    print(json.dumps({**vars(options), "folder": "", **found, "seconds": round(time.monotonic() - began)}))


if __name__ == "__main__":
    main()
