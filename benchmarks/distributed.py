"""Distributed runs: throughput and policy lag by the number of collectors, and the cost of each transport.

    python -m benchmarks.distributed                      # everything; writes docs/results/distributed.json
    python -m benchmarks.distributed --only transports    # the cost of each transport alone

    throughput   env steps per second of 1, 2, 4 and 8 collectors with 4 envs each, over each transport, while a DQN
                 learner learns and publishes weights. A step of an env sleeps 5 ms, so a collector takes at
                 most 200 steps per second, and waits rather than computes.
    impala       the same with an IMPALA learner, which takes each sequence of 16 steps of all envs once
    transports   microseconds per transition of blocks of 64, from the collector into the coordinator's journal
    rllib        env steps a second of as many env runners of RLlib with as many of the same envs; needs "ray[rllib]"

Each contestant runs in a separate process, which ends before the next begins, or with the benchmark.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.compare import provenance
from benchmarks.transports import BLOCKS, ROWS, TRANSPORTS, cost, serve
from benchmarks.waiting import ENV_ID, ENVS, HIDDEN, MODULE, UNROLL, run_rllib
from lightning_ding.envs.process.lifeline import die_with, lifeline

COLLECTORS = (1, 2, 4, 8)
START_TIMEOUT = 240.0  # seconds until every collector has sent something
LONGEST = 600.0  # seconds of one contestant
CLI = """
import sys
from multiprocessing.connection import Connection

from lightning_ding.entry.cli import main
from lightning_ding.envs.process.lifeline import die_with

end = Connection(int(sys.argv.pop(1)), writable=False)
die_with(end)
main()
"""
PARTS = ("throughput", "impala", "transports", "rllib")
POLICIES: dict[str, dict[str, Any]] = {
    "throughput": {
        "type": "dqn",
        "random_collect_size": 0,
        "model": {"encoder_hidden_size_list": [HIDDEN], "dueling": False},
        "learn": {"update_per_collect": 4, "batch_size": 32},
        "collect": {"n_sample": ROWS},
        "other": {"replay_buffer": {"replay_buffer_size": 20_000}},
    },
    "impala": {
        "type": "impala",
        "unroll_len": UNROLL,
        "model": {"encoder_hidden_size_list": [HIDDEN]},
        "learn": {"update_per_collect": 1, "batch_size": ROWS // UNROLL},
        "collect": {"n_sample": ROWS},
        "other": {"replay_buffer": {"replay_buffer_size": 20_000}},
    },
}
"""Policy of each part; a round of IMPALA has as many steps as its only minibatch."""


def config_of(transport: str, collectors: int, folder: str, part: str = "throughput") -> dict[str, Any]:
    """Return the config of a run without a limit, which ends on request."""
    policy = {**POLICIES[part], "import_names": [MODULE], "eval": {"evaluator": {"eval_freq": 1_000_000}}}
    env = {"env_id": ENV_ID, "collector_env_num": ENVS, "evaluator_env_num": 1, "n_evaluator_episode": 1}
    return {
        "main": {"exp_name": folder, "policy": policy, "env": env},
        "system": {
            "transport": transport,
            "coordinator": {"commander": {"collector_task_space": collectors, "eval_interval": None}},
            "learner": {"validate": False},
            "collector": {"num": collectors, "import_names": [MODULE]},
        },
    }


def run_throughput(transport: str, collectors: int, seconds: float, part: str = "throughput") -> dict[str, float]:
    """Return the env steps a second of a run in full swing, and what its coordinator counts then."""
    with TemporaryDirectory() as folder:
        config = config_of(transport, collectors, folder, part)
        with start(config) as process:
            return _watch_to_its_end(config, process, seconds)


@contextmanager
def start(config: dict[str, Any]) -> Iterator[subprocess.Popen[bytes]]:
    """Start a run in its folder, with its output in ``log``; it ends with this process."""
    folder = Path(config["main"]["exp_name"])
    file = folder / "config.json"  # JSON is YAML
    file.write_text(json.dumps(config))
    end = lifeline().fileno()
    command = [sys.executable, "-c", CLI, str(end), "parallel", "--config", str(file)]
    with (folder / "log").open("w") as output:
        kwargs: dict[str, Any] = {"stdout": output, "stderr": output, "start_new_session": True, "pass_fds": (end,)}
        with subprocess.Popen(command, **kwargs) as process:
            yield process


def _watch_to_its_end(config: dict[str, Any], process: subprocess.Popen[bytes], seconds: float) -> dict[str, float]:
    """Return what happens in a run, and leave no process of it; show what it has written if something goes wrong."""
    folder = Path(config["main"]["exp_name"])
    try:
        return _watch(config, process, seconds)
    except BaseException:
        process.terminate()
        for written in [folder / "log", *sorted((folder / "logs").glob("*.log"))]:
            print(f"{written.name}:\n{written.read_text()[-1500:]}", file=sys.stderr)
        raise
    finally:
        _end(process)


def _watch(config: dict[str, Any], process: subprocess.Popen[bytes], seconds: float) -> dict[str, float]:
    """Return what happens in a run between the moment when all its collectors work and some seconds later."""
    ask = ask_of(config, lambda: process.poll() is not None)
    deadline = time.monotonic() + START_TIMEOUT
    wanted = config["system"]["collector"]["num"]
    while not _in_full_swing(status := ask("status"), wanted):
        if status["error"] or process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the run does not get going: {status}")
        time.sleep(0.25)
    time.sleep(2.0)
    first, start = ask("status"), time.perf_counter()
    time.sleep(seconds)
    last, passed = ask("status"), time.perf_counter() - start
    ask("shutdown")
    disconnect(config["system"]["transport"])
    samples = last["sample"] - first["sample"]
    lag = (last["policy_lag"] * last["sample"] - first["policy_lag"] * first["sample"]) / samples
    return {
        "seconds": passed,
        "env_steps_per_second": (last["env_step"] - first["env_step"]) / passed,
        "updates_per_second": (last["train_iter"] - first["train_iter"]) / passed,
        "policy_lag": lag,
        "policy_lag_max": last["policy_lag_max"],
    }


def ask_of(config: dict[str, Any], is_over: Callable[[], bool]) -> Callable[..., dict[str, Any]]:
    """Return a function that asks the coordinator of a run, once it is there.

    Args:
        config: Config of the run.
        is_over: Returns whether the run has ended, so that no coordinator will come.
    """
    from lightning_ding.config import resolve
    from lightning_ding.distributed.config import ParallelConfig
    from lightning_ding.distributed.transport import get_transport

    cfg = resolve(ParallelConfig, config)
    deadline = time.monotonic() + START_TIMEOUT
    transport = get_transport(cfg.system.transport)
    if not transport.runs_alone:
        address = Path(cfg.main.exp_name) / "coordinator.json"
        while not address.exists() and not is_over() and time.monotonic() < deadline:
            time.sleep(0.1)  # the token of the run is written earlier
        return transport.connect(cfg).call
    while True:
        try:
            return transport.connect(cfg).call
        except ConnectionError:
            if is_over() or time.monotonic() > deadline:
                raise
            time.sleep(1.0)


def disconnect(transport: str) -> None:
    """Leave Ray, which ends this process too when the run ends its own cluster."""
    if transport == "ray":
        import ray

        ray.shutdown()


def _in_full_swing(status: dict[str, Any], collectors: int) -> bool:
    """Return whether all collectors have a task and the learner learns."""
    is_collecting = status["collector_tasks"]["running"] == collectors and status["sample"] >= 2 * ROWS * collectors
    return bool(is_collecting and status["train_iter"] > 0)


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(60.0)
    except subprocess.TimeoutExpired:
        process.terminate()
        try:
            process.wait(30.0)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


def contestants(parts: list[str]) -> list[list[str]]:
    """Return what is to be run, as the arguments of ``--run``."""
    runs = {
        "transports": [["transports", transport] for transport in TRANSPORTS],
        **{part: [[part, transport, str(n)] for transport in TRANSPORTS for n in COLLECTORS] for part in POLICIES},
        "rllib": [["rllib", "-", str(n)] for n in COLLECTORS],
    }
    return [run for part in parts for run in runs[part]]


def run(what: list[str], seconds: float) -> dict[str, float]:
    """Run one contestant in this process."""
    if what[0] == "transports":
        return cost(what[1])
    if what[0] == "rllib":
        return run_rllib(int(what[2]), seconds)
    return run_throughput(what[1], int(what[2]), seconds, what[0])


def in_own_process(what: list[str], seconds: float) -> dict[str, Any]:
    """Run one contestant in a separate process; if RLlib is missing, print the reason."""
    end = lifeline().fileno()
    command = [sys.executable, "-m", "benchmarks.distributed", "--lifeline", str(end)]
    command += ["--seconds", str(seconds), "--run", *what]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, env=env, pass_fds=(end,))
    if done.returncode == 0:
        result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return result
    if what[0] != "rllib":
        raise RuntimeError(f"{' '.join(what)} failed:\n{done.stderr[-5000:]}")
    return {"skipped": done.stderr.strip().splitlines()[-1]}


def show(what: list[str], result: dict[str, Any]) -> str:
    """Return a line of the table."""
    if what[0] == "transports":
        costs = "  ".join(f"{size} {result[f'{size}_us']:8.1f} us" for size in BLOCKS)
        return f"{what[1]:>20}  {costs}  per transition"
    if "skipped" in result:
        return f"{what[0]:>20}  skipped: {result['skipped']}"
    name = f"{what[0]} {what[1]}" if what[0] in POLICIES else what[0]
    lag = f"  policy lag {result['policy_lag']:6.1f} updates" if "policy_lag" in result else ""
    return f"{name:>20}  {what[2]} collectors  {result['env_steps_per_second']:8.1f} env steps/s{lag}"


def ratios(results: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Return how many times the env steps a second of one collector each number of collectors takes."""
    speeds = {key: row["env_steps_per_second"] for key, row in results.items() if "env_steps_per_second" in row}
    ones = {key: f"{key.rsplit(' ', 1)[0]} 1" for key in speeds}
    return {key: speed / speeds[ones[key]] for key, speed in speeds.items() if ones[key] in speeds}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS))
    parser.add_argument("--seconds", type=float, default=10.0, help="duration of each throughput measurement")
    parser.add_argument("--output", type=Path, default=Path("docs/results/distributed.json"))
    parser.add_argument("--run", nargs="+", help="run one contestant and print its result")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--lifeline", type=int, help=argparse.SUPPRESS)  # descriptor, of the benchmark itself
    arguments = parser.parse_args()
    if arguments.lifeline is not None:
        # the variable keeps a reference; without one, the descriptor would be closed
        end = Connection(arguments.lifeline, writable=False)
        die_with(end)
    if arguments.serve is not None:
        serve(arguments.serve)
        return
    if arguments.run is not None:
        signal.signal(
            signal.SIGTERM, lambda number, frame: sys.exit(128 + number)
        )  # exit normally, so that child processes end too
        print(json.dumps(run(arguments.run, arguments.seconds)))
        return
    results = {}
    for what in contestants(arguments.only):
        results[" ".join(what)] = result = in_own_process(what, arguments.seconds)
        print(show(what, result), flush=True)
    record = {**provenance(), "cores": os.cpu_count(), "results": results, "ratios_to_one": ratios(results)}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(record, indent=2))
    print(f"\nwritten to {arguments.output}")


if __name__ == "__main__":
    main()
