"""How many collectors a coordinator serves: simulated collectors send real messages and real blocks, without envs.

    python -m benchmarks.capacity                          # every load; writes capacity.json and .md in docs/results
    python -m benchmarks.capacity --only soak              # 1,000 collectors for 20 minutes
    python -m benchmarks.capacity --only load --transports flask_fs --collectors 1000 --periods 10

    load     1, 10, 100 and 1,000 collectors, each with a separate connection, heartbeats and a block of 64 transitions
             every 10 s, or as fast as possible, while a learner draws rounds and publishes weights
    waiting  1,000 collectors that are held back because they are ahead of the learner
    soak     1,000 collectors for ``--minutes``; exits with 1 if memory, disk, files or threads grow, or if collectors
             were served too slowly or lost a lease

The coordinator runs in a separate process. The collectors are threads of processes with 100 each, which share the CPU
with the coordinator; the CPU time of the coordinator alone depends less on the machine's other work than times do.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import shutil
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import mkdtemp
from typing import Any

import numpy as np
import psutil

from benchmarks.compare import provenance
from benchmarks.crowd import STOP_TIMEOUT, Crowd, sizes, together
from benchmarks.measured_coordinator import Coordinating, Sample, coordinating, end_with, serve
from benchmarks.simulated import DATA, ENVS, ROWS, Record, SimulatedLearner

COUNTS = (1, 10, 100, 1000)
PERIODS = (10.0, 0.0)  # seconds between two blocks of a collector; 0: as fast as possible
TRANSPORTS = ("flask_fs", "ray")
PARTS = ("load", "waiting", "soak")
WEIGHTS = 20_000  # numbers
PUBLISH_EVERY = 10.0
ROUND_EVERY = 0.1
UNLIMITED = 1e12
WARM_UP = 5.0
"""Seconds in addition to a period after the start of the workers, all of which send their first messages at once."""
SETTLED = 0.25  # first share of a soak, which does not count
BOUND_MIB = 8.0
BOUND_DISK_MIB = 64.0
SERVED = 0.95  # least share of the blocks that collectors want to send in a soak


def config_of(transport: str, collectors: int, folder: str, tolerance: float = UNLIMITED) -> dict[str, Any]:
    """Return the config of a run without a limit."""
    policy = {
        "type": "dqn",
        "random_collect_size": 0,
        "model": {"encoder_hidden_size_list": [64, 64]},
        "learn": {"update_per_collect": 4, "batch_size": 64},
        "collect": {"n_sample": ROWS},
        "other": {"replay_buffer": {"replay_buffer_size": 100_000}},
    }
    commander = {"collector_task_space": collectors, "eval_interval": None}
    return {
        "main": {"exp_name": folder, "policy": policy, "env": {"env_id": "CartPole-v1", "collector_env_num": ENVS}},
        "system": {
            "transport": transport,
            "coordinator": {"tolerance": tolerance, "commander": commander},
            "collector": {"num": collectors},
        },
    }


class Fleet:
    """Simulated workers of a run.

    Args:
        running: The coordinator.
        collectors: Number of collectors.
        period: Seconds between two blocks of a collector.
        round_every: Seconds between two rounds of the learner.
        timeout: Seconds in which each collector must get a task.
    """

    def __init__(
        self, running: Coordinating, collectors: int, period: float, round_every: float, timeout: float = 300.0
    ) -> None:
        self._record = Record()
        self._learner = SimulatedLearner(running.connect(), self._record, WEIGHTS, PUBLISH_EVERY, round_every)
        self._crowds = [
            Crowd(running.connect, size, period, seed, timeout) for seed, size in enumerate(sizes(collectors))
        ]

    def start(self) -> None:
        """Start all workers, and wait until each has a task."""
        self._learner.start()
        for crowd in self._crowds:
            crowd.wait()

    def between(self, start: float, end: float) -> Record:
        """Return the messages of all workers in an interval, and all events."""
        return together([self._record.between(start, end), *(crowd.between(start, end) for crowd in self._crowds)])

    def stop(self) -> None:
        """Stop all workers.

        Raises:
            RuntimeError: If a worker has ended before, because the measured load was then smaller than it should be.
        """
        ended = sum(crowd.stop() for crowd in self._crowds) + (not self._learner.is_alive())
        self._learner.stop()
        self._learner.join(STOP_TIMEOUT)  # Ray ends a process whose threads call it after its end
        if ended:
            raise RuntimeError(f"{ended} simulated workers ended too early: {self._record.events}")


def measure(
    transport: str, collectors: int, period: float, seconds: float, tolerance: float, fsync_ms: float = 0.0
) -> dict[str, Any]:
    """Return what a run in full swing needs.

    Args:
        transport: Name of the transport.
        collectors: Number of collectors.
        period: Seconds between two blocks of a collector.
        seconds: Seconds to measure.
        tolerance: Rounds by which the collectors may be ahead of the learner.
        fsync_ms: Milliseconds by which each ``fsync`` of the coordinator is delayed.
    """
    folder = mkdtemp(prefix="capacity")
    config = config_of(transport, collectors, folder, tolerance)
    try:
        with coordinating(config, fsync_ms) as running:
            fleet = Fleet(running, collectors, period, ROUND_EVERY if tolerance == UNLIMITED else 1.0)
            fleet.start()
            time.sleep(period + WARM_UP)
            start, before = time.perf_counter(), cpu_of_programs()
            time.sleep(seconds)
            end, after = time.perf_counter(), cpu_of_programs()
            samples = [one for one in running.samples() if start - 1 <= one["time"] <= end + 1]
            record = fleet.between(start, end)
            fleet.stop()
            cores = {name: round(used / (end - start), 3) for name, used in (after - before).most_common(6)}
            return {**summary(record, samples, end - start), "cores_of_programs": cores}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def cpu_of_programs() -> Counter[str]:
    """Return the CPU seconds that each kind of program on this machine has used; simulated collectors are one kind."""
    found: Counter[str] = Counter()
    for process in psutil.process_iter(["cmdline", "cpu_times"]):
        command, used = process.info["cmdline"], process.info["cpu_times"]
        if command and used:
            is_crowd = "--multiprocessing-fork" in command
            program = Path(command[0]).name.split()[0].split(".")[0]  # Ray appends the method to an actor's name
            found["collectors" if is_crowd else program] += used.user + used.system
    return found


def summary(record: Record, samples: Sequence[Sample], seconds: float) -> dict[str, Any]:
    """Return the figures of an interval.

    Args:
        record: Messages of the interval, and all events.
        samples: Samples of the coordinator, the first and the last at the ends of the interval.
        seconds: Length of the interval.
    """
    first, last = samples[0], samples[-1]
    passed = last["time"] - first["time"]
    blocks = (last["env_step"] - first["env_step"]) / ROWS
    cpu, switches = last["cpu"] - first["cpu"], last["switches"] - first["switches"]
    return {
        "requests_per_second": len(record.messages) / seconds,
        "blocks_per_second": blocks / passed,
        "block_ms": quantiles([one[2] for one in record.messages if one[1] == DATA]),
        "request_ms": quantiles([one[2] for one in record.messages]),
        "cpu_cores": cpu / passed,
        "cpu_ms_per_block": 1000 * cpu / max(blocks, 1e-9),
        "switches_per_block": switches / max(blocks, 1e-9),
        "cpu_ms_per_request": 1000 * cpu / passed / max(len(record.messages) / seconds, 1e-9),
        "memory_mib": last["memory_mib"],
        **{f"{name}_max": max(one[name] for one in samples) for name in ("threads", "files", "queue", "journal_bytes")},
        "disk_bytes_max": max(one["disk_bytes"] for one in samples),
        "events": dict(record.events),
    }


def quantiles(seconds: Sequence[float]) -> dict[str, float]:
    """Return the median, the 99th percentile and the maximum in milliseconds, and the number of values."""
    if not seconds:
        return {"p50": 0.0, "p99": 0.0, "max": 0.0, "number": 0}
    half, most = np.percentile(seconds, [50, 99])
    return {"p50": 1e3 * float(half), "p99": 1e3 * float(most), "max": 1e3 * max(seconds), "number": len(seconds)}


def soak(transport: str, collectors: int, period: float, seconds: float, fsync_ms: float = 0.0) -> dict[str, Any]:
    """Return what grows in a long run, with a sample every few seconds; the start of the workers does not count."""
    folder = mkdtemp(prefix="capacity")
    try:
        with coordinating(config_of(transport, collectors, folder), fsync_ms) as running:
            fleet = Fleet(running, collectors, period, ROUND_EVERY)
            fleet.start()
            time.sleep(period + WARM_UP)
            began, start = len(running.samples()), time.perf_counter()
            time.sleep(seconds)
            end = time.perf_counter()
            samples, record = running.samples()[began:], fleet.between(start, end)
            fleet.stop()
            figures = summary(record, samples, end - start)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    grown = growth(samples)
    is_good = grown["is_flat"] and is_served(figures, collectors / period)
    return {**figures, **grown, "is_flat": is_good, "samples": samples[:: max(1, len(samples) // 120)]}


def is_served(figures: dict[str, Any], wanted: float) -> bool:
    """Return whether a coordinator has taken nearly all blocks, and no collector has lost its lease.

    Args:
        figures: Figures of :func:`summary`.
        wanted: Blocks per second that the collectors want to send.
    """
    return bool(figures["blocks_per_second"] >= SERVED * wanted and not figures["events"].get("lost leases"))


def growth(samples: Sequence[Sample]) -> dict[str, Any]:
    """Return the growth between the two halves of a soak after its first quarter: of medians, and whether it is flat.

    The disk holds a journal that grows until each snapshot, so the median of many samples counts.
    """
    settled = samples[int(len(samples) * SETTLED) :]
    halves = settled[: len(settled) // 2], settled[len(settled) // 2 :]
    grown = {
        name: median(one[name] for one in halves[1]) - median(one[name] for one in halves[0])
        for name in ("memory_mib", "disk_bytes", "threads", "files")
    }
    flat = grown["memory_mib"] <= BOUND_MIB and grown["disk_bytes"] / 2**20 <= BOUND_DISK_MIB
    return {"growth": grown, "is_flat": bool(flat and grown["threads"] <= 0 and abs(grown["files"]) <= 4)}


def show(name: str, row: dict[str, Any]) -> str:
    """Return a line of the table."""
    block = row["block_ms"]
    return (
        f"{name:>26}: {row['blocks_per_second']:8.1f} blocks/s {row['requests_per_second']:8.1f} requests/s  "
        f"p50 {block['p50']:8.1f} ms p99 {block['p99']:8.1f} ms  {row['cpu_cores']:5.2f} cores "
        f"{row['cpu_ms_per_block']:7.2f} ms CPU/block {row['switches_per_block']:6.1f} switches/block "
        f"{row['memory_mib']:6.0f} MiB  queue {row['queue_max']:.0f}  "
        f"{row['events']}"
    )


COLUMNS = (
    *("part", "transport", "collectors", "seconds between blocks", "blocks/s", "requests/s", "p50, ms", "p99, ms"),
    *("CPU cores", "CPU ms per request", "memory, MiB", "longest queue", "journal, MB", "load"),
)
HEAD = """# Capacity of a coordinator

Simulated collectors send real messages and blocks of 64 transitions of CartPole-v1, without envs. A simulated learner
draws ten rounds a second and publishes weights every 10 s. The times are those from a block's message to its answer.
CPU time is that of the coordinator's process for everything: blocks, heartbeats, rounds and weights.
[Scaling](../scaling.md) explains what limits a run. `load` is the load average of the whole machine, which has two
CPUs and other work, just before the measurement: times depend on it, CPU time per request much less.

"""


def table(rows: dict[str, Any]) -> str:
    """Return the page with all rows."""
    lines, commands = [], []
    for name, row in rows.items():
        part, transport, *load = name.split()
        count, period = load if load else ("", "")
        block = row["block_ms"]
        cells = [part, f"`{transport}`", count, period, f"{row['blocks_per_second']:.1f}"]
        cells += [f"{row['requests_per_second']:.1f}", f"{block['p50']:.0f}", f"{block['p99']:.0f}"]
        cells += [f"{row['cpu_cores']:.2f}", f"{row['cpu_ms_per_request']:.1f}", f"{row['memory_mib']:.0f}"]
        cells += [
            f"{row['queue_max']:.0f}",
            f"{row['journal_bytes_max'] / 1e6:.1f}",
            f"{row['load']:.0f}" if "load" in row else "-",
        ]
        lines.append(f"| {' | '.join(cells)} |")
        if row["command"] not in commands:
            commands.append(row["command"])
    head = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n"
    return HEAD + head + "\n".join(lines) + "\n\nMeasured with\n\n" + "\n".join(f"    {one}" for one in commands) + "\n"


def jobs(options: argparse.Namespace) -> list[tuple[str, dict[str, Any]]]:
    """Return the name and the arguments of everything to measure."""
    loads = [
        (f"load {transport} {count} {period:g}", {"transport": transport, "collectors": count, "period": period})
        for transport in options.transports
        for period in options.periods
        for count in options.collectors
    ]
    most = {"collectors": max(options.collectors), "period": 10.0}
    waits = [
        (f"waiting {one}", {"transport": one, "collectors": most["collectors"], "period": 0.0})
        for one in options.transports
    ]
    soaks = [(f"soak {one}", {"transport": one, **most}) for one in options.transports]
    chosen = [found for part, found in zip(PARTS, (loads, waits, soaks), strict=True) if part in options.only]
    slow = f"+fsync{options.fsync_ms:g}ms" if options.fsync_ms else ""
    return [(name.replace(" ", f"{slow} ", 1), arguments) for found in chosen for name, arguments in found]


def run(name: str, arguments: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Measure one job."""
    if name.startswith("soak"):
        return soak(**arguments, seconds=60 * options.minutes, fsync_ms=options.fsync_ms)
    tolerance = 4.0 if name.startswith("waiting") else UNLIMITED
    return measure(**arguments, seconds=options.seconds, tolerance=tolerance, fsync_ms=options.fsync_ms)


def main() -> None:
    """Measure everything, or be the coordinator."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=["load", "waiting"], help="parts to run")
    parser.add_argument("--transports", nargs="+", choices=TRANSPORTS, default=list(TRANSPORTS))
    parser.add_argument("--collectors", nargs="+", type=int, default=list(COUNTS), help="numbers of collectors")
    parser.add_argument("--periods", nargs="+", type=float, default=list(PERIODS), help="seconds between two blocks")
    parser.add_argument("--seconds", type=float, default=30.0, help="seconds to measure each load")
    parser.add_argument("--minutes", type=float, default=20.0, help="minutes of the soak")
    parser.add_argument(
        "--out", type=Path, default=Path("docs/results/capacity.json"), help="JSON file, which keeps other rows"
    )
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--lifeline", type=int, help=argparse.SUPPRESS)
    parser.add_argument(
        "--fsync-ms", type=float, default=0.0, help="delay of each fsync of a coordinator over HTTP, in milliseconds"
    )
    options = parser.parse_args()
    if options.serve:
        end_with(options.lifeline)
        serve(options.serve)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    logging.disable(logging.WARNING)  # workers that are stopped have no coordinator
    rows = json.loads(options.out.read_text())["rows"] if options.out.exists() else {}
    for name, arguments in jobs(options):
        found = run(name, arguments, options)
        rows[name] = {**provenance(), "load": os.getloadavg()[0], **found}
        print(show(name, rows[name]), flush=True)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({"rows": rows}, indent=1))
        options.out.with_suffix(".md").write_text(table(rows))
    print(f"\nwritten to {options.out}")
    sys.exit(0 if all(row.get("is_flat", True) for row in rows.values()) else 1)


if __name__ == "__main__":
    main()
