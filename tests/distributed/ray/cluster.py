"""A real Ray cluster on this machine: a head and nodes, each with its raylet and its object store."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
import yaml
from ray.cluster_utils import Cluster

from lightning_ding.distributed.ray import namespace_of
from lightning_ding.distributed.ray.channel import RayChannel
from tests.processes import ROOT

MEMORY = 80 * 1024**2  # bytes of each object store
SETTINGS = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,  # the death of a node is noticed after 5 s instead of 15 s
    "health_check_failure_threshold": 10,
    "gcs_rpc_server_reconnect_timeout_s": 10,  # the death of the head, instead of 60 s
    "enable_worker_prestart": False,
    "prestart_worker_first_driver": False,
    "worker_niceness": 0,  # by default actors have a lower priority than everything else on the machine
}
MARK = "LIGHTNING_DING_TEST_CLUSTER"
PROGRAM = ["-c", "from lightning_ding.entry.cli import main; main()", "parallel"]


@contextmanager
def running_cluster(head: int, *nodes: int) -> Iterator[Cluster]:
    """Yield a cluster, and leave no process of it.

    Args:
        head: CPUs of the head.
        nodes: CPUs of each other node.
    """
    os.environ.update({MARK: uuid.uuid4().hex, "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"})
    about_head = {
        "num_cpus": head,
        "object_store_memory": MEMORY,
        "include_dashboard": False,
        "_system_config": SETTINGS,
    }
    cluster = Cluster(initialize_head=True, head_node_args=about_head)
    try:
        for cpus in nodes:
            add_node(cluster, cpus)
        ray.init(cluster.address, log_to_driver=False, logging_level=logging.ERROR)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
    wait_until(lambda: not marked_processes(), 180.0, marked_processes)  # Ray's agents look a minute for a dead head


def add_node(cluster: Cluster, cpus: int) -> Any:
    """Add a node and return it."""
    return cluster.add_node(num_cpus=cpus, object_store_memory=MEMORY)


def kill_node(cluster: Cluster, node_id: str) -> None:
    """Kill -9 the raylet of a node, and everything else that runs there."""
    (node,) = [one for one in cluster.worker_nodes if one.node_id == node_id]
    cluster.remove_node(node, allow_graceful=False)


def marked_processes() -> list[str]:
    """Return the processes that have inherited the mark of this cluster, except this one."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            is_ours = os.environ[MARK].encode() in (entry / "environ").read_bytes()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            command = (entry / "cmdline").read_text().replace("\0", " ")
        except OSError:  # it has ended, or is another user's
            continue
        if is_ours and state != "Z" and int(entry.name) != os.getpid():
            found.append(f"{entry.name} {command[:200]}")
    return found


def actors(role: str = "") -> dict[str, dict[str, Any]]:
    """Return the living actors by name, each with ``node`` and ``pid``.

    Args:
        role: Beginning of the names.
    """
    found = {}
    for about in ray._private.state.actors().values():
        if about["State"] == "ALIVE" and about["Name"].startswith(role) and about["Name"]:
            found[about["Name"]] = {"node": about["Address"]["NodeID"], "pid": about["Pid"]}
    return found


class ParallelRun:
    """A run of ``lightning-ding parallel`` in a cluster.

    Args:
        cluster: The cluster.
        folder: Folder for the config and the run.
        config: The config without ``exp_name`` and what belongs to Ray.
        options: Further options of the command line.
    """

    def __init__(self, cluster: Cluster, folder: Path, config: dict[str, Any], *options: str) -> None:
        self.folder = folder / "run"
        config["main"]["exp_name"] = str(self.folder)
        config["system"] |= {"transport": "ray", "ray_address": cluster.address}
        file = folder / "run.yaml"
        file.write_text(yaml.safe_dump(config))
        self.process = subprocess.Popen(
            [sys.executable, *PROGRAM, "--config", str(file), *options],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.channel = RayChannel(namespace_of(str(self.folder)), reconnect_timeout=300.0)

    def status(self) -> dict[str, Any]:
        """Return the counters of the coordinator."""
        return self.channel.call("status")

    def wait_for(self, condition: Callable[[dict[str, Any]], Any], seconds: float = 600.0) -> dict[str, Any]:
        """Wait until the counters meet a condition, and return them."""
        end = time.monotonic() + seconds
        while True:
            if self.process.poll() is not None:
                raise AssertionError(f"exit code {self.process.returncode}: {self.process.communicate()[0]}")
            status = self.status()
            if condition(status):
                return status
            assert time.monotonic() < end, status
            time.sleep(0.2)

    def wait_beyond(self, name: str, value: int) -> dict[str, Any]:
        """Wait until a counter is at least ``value``, and return all of them."""
        return self.wait_for(lambda status: status[name] >= value)

    def stop(self) -> None:
        """Stop the run by SIGTERM, after which it could be resumed."""
        self.process.send_signal(signal.SIGTERM)
        output, _ = self.process.communicate(timeout=180)
        assert self.process.returncode == 143, f"{self.process.returncode}: {output}"

    def result(self, seconds: float = 180.0) -> dict[str, Any]:
        """Wait for the end of the run, and return its result."""
        output, _ = self.process.communicate(timeout=seconds)
        assert self.process.returncode == 0, output
        result: dict[str, Any] = json.loads((self.folder / "result.json").read_text())
        return result


def wait_until(condition: Callable[[], Any], seconds: float = 600.0, state: Callable[[], Any] = str) -> Any:
    """Wait until a condition is true, and return its value.

    Args:
        condition: What is asked, five times a second.
        seconds: Longest wait.
        state: What the error shows after that.
    """
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"not true within {seconds:g} s: {state()}"
        time.sleep(0.2)
    return value


def say(*texts: Any) -> None:
    """Print with the time since the start of this process; pytest shows it if a scenario fails."""
    sys.stderr.write(f"{time.process_time():.1f} s CPU, {time.strftime('%H:%M:%S')}: {' '.join(map(str, texts))}\n")
