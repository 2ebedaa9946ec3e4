"""Time to recover from the death of each role in a real Ray cluster: a head and three nodes on this machine.

    python -m benchmarks.ray_recovery                  # 20 kills of each role; writes docs/results/ray_recovery.json
    python -m benchmarks.ray_recovery --roles learner  # of one role

A run of DQN on CartPole-v1 with one collector continues while the processes of its actors are killed with SIGKILL, one
at a time. The time counts from the kill:

    collector    until the coordinator has accepted a transition again
    learner      until the learner has reported an update beyond the last one that was reported before
    coordinator  until the restarted coordinator has accepted a transition
    node         as for the collector; its whole node is killed, and another one is there

The next kill follows when all three roles have made progress again.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from benchmarks.compare import provenance
from lightning_ding.distributed.ray import namespace_of
from lightning_ding.distributed.ray.channel import RayChannel
from lightning_ding.distributed.ray.pipeline import run_on_ray

ROLES = ("collector", "learner", "coordinator", "node")
MEMORY = 80 * 1024**2  # bytes of each object store
LONGEST = 600.0  # seconds to wait for progress
LOOK = 0.05  # seconds between two looks at the run
REST = (2.0, 6.0)  # seconds between two kills
FILE = Path(__file__).parents[1] / "docs" / "results" / "ray_recovery.json"

Status = dict[str, Any]


def config_of(folder: str) -> dict[str, Any]:
    """Return the config of a run without an end."""
    policy = {
        "type": "dqn",
        "random_collect_size": 64,
        "model": {"encoder_hidden_size_list": [16], "dueling": False},
        "learn": {"update_per_collect": 2, "batch_size": 32},
        "collect": {"n_sample": 64},
        "other": {"replay_buffer": {"replay_buffer_size": 20_000}},
    }
    return {
        "main": {"exp_name": folder, "policy": policy},
        "system": {
            "transport": "ray",
            "restarts": 1000,
            "reconnect_timeout": 600.0,  # actors start slowly on a busy machine
            "coordinator": {"commander": {"eval_interval": None}},
            "learner": {"validate": False, "rounds_per_epoch": 20},
            "collector": {"num": 1},
        },
    }


@contextmanager
def running_cluster() -> Iterator[Any]:
    """Yield a cluster with two CPUs on each of three nodes and none on the head, to which this process is connected."""
    import ray
    from ray.cluster_utils import Cluster

    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    usual = {"worker_niceness": 0, "enable_worker_prestart": False, "prestart_worker_first_driver": False}
    head = {"num_cpus": 0, "object_store_memory": MEMORY, "include_dashboard": False, "_system_config": usual}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(3):
            cluster.add_node(num_cpus=2, object_store_memory=MEMORY)
        ray.init(cluster.address, log_to_driver=False, logging_level=logging.ERROR)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def is_running(pid: int) -> bool:
    """Return whether a process has not ended."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


class ObservedRun:
    """A run in a cluster, whose actors are killed.

    Args:
        cluster: The cluster.
        folder: Folder of the run.
        run: The call of ``run_on_ray``.
    """

    def __init__(self, cluster: Any, folder: str, run: Future[dict[str, Any]]) -> None:
        self._cluster = cluster
        self._run = run
        self._channel = RayChannel(namespace_of(folder), reconnect_timeout=LONGEST)

    def status(self) -> Status:
        """Return the counters of the coordinator."""
        return self._channel.call("status")

    def wait_for(self, condition: Callable[[Status], bool]) -> float:
        """Return the time at which the counters meet a condition."""
        end = time.monotonic() + LONGEST
        while not condition(status := self.status()):
            if self._run.done():
                self._run.result()
            if time.monotonic() > end:
                raise RuntimeError(f"no progress: {status}")
            time.sleep(LOOK)
        return time.monotonic()

    def wait_for_progress(self) -> None:
        """Wait until data and updates arrive."""
        before = self.status()
        steps, updates = before["env_step"], before["train_iter"]
        self.wait_for(lambda now: bool(now["env_step"] > steps + 128 and now["train_iter"] > updates + 4))

    def kill(self, role: str) -> float:
        """Kill a role, and return the seconds until it is back."""
        about = self._actor("collector" if role == "node" else role)
        before = self.status()
        start = time.monotonic()
        if role == "node":
            (node,) = [one for one in self._cluster.worker_nodes if one.node_id == about["Address"]["NodeID"]]
            self._cluster.remove_node(node, allow_graceful=False)
            while is_running(about["Pid"]):  # an actor notices the end of its node a moment later
                time.sleep(LOOK)
        else:
            os.kill(about["Pid"], signal.SIGKILL)
        counter = "train_iter" if role == "learner" else "env_step"
        known = max(before[counter], self.status()[counter])  # what was on its way
        end = self.wait_for(lambda now: bool(now[counter] > known))
        if role == "node":
            self._cluster.add_node(num_cpus=2, object_store_memory=MEMORY)
        return end - start

    def end(self) -> None:
        """End the run."""
        self._channel.call("shutdown")
        self._run.result(timeout=LONGEST)

    def _actor(self, role: str) -> dict[str, Any]:
        import ray

        known = ray._private.state.actors().values()
        (found,) = [one for one in known if one["State"] == "ALIVE" and one["Name"].startswith(role)]
        return dict(found)


def measure(roles: list[str], kills: int) -> dict[str, list[float]]:
    """Return the seconds to recover from each kill of each role, and write them after each kill."""
    found: dict[str, list[float]] = {role: [] for role in roles}
    generator = random.Random(0)
    with TemporaryDirectory() as folder, ThreadPoolExecutor() as pool, running_cluster() as cluster:
        observed = ObservedRun(cluster, folder, pool.submit(run_on_ray, config_of(folder)))
        for _ in range(kills):
            for role in roles:
                observed.wait_for_progress()
                time.sleep(generator.uniform(*REST))
                found[role].append(observed.kill(role))
                print(f"{role}: {found[role][-1]:.1f} s", flush=True)
                FILE.write_text(json.dumps({"provenance": provenance(), "seconds": found}, indent=1) + "\n")
        observed.wait_for_progress()  # the learner must be there to report its results
        observed.end()
    return found


def main() -> None:
    """Measure, and print the median and the worst time of each role."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--roles", choices=ROLES, nargs="+", default=ROLES)
    parser.add_argument("--kills", type=int, default=20)
    options = parser.parse_args()
    for role, times in measure(list(options.roles), options.kills).items():
        print(f"{role}: median {statistics.median(times):.1f} s, worst {max(times):.1f} s of {len(times)} kills")


if __name__ == "__main__":
    main()
