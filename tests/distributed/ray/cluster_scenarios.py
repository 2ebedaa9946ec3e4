"""Plays a scenario in a real cluster, in a separate process: ``cluster_scenarios.py SCENARIO FOLDER``."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import ray
import torch
from ray._private.internal_api import node_stats
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from lightning_ding.distributed.ray import coordinator_class
from lightning_ding.distributed.ray.channel import RayChannel
from tests.distributed.ray.cluster import ParallelRun, actors, add_node, kill_node, running_cluster, say, wait_until
from tests.distributed.ray.stand_in import StandIn
from tests.distributed.test_chaos import buffer_of, check_rows
from tests.distributed.witness_env import ENV
from tests.entry import runs

IMPORTS = ["tests.distributed.witness_env"]
POLICY = {
    **runs.POLICY,
    "model": {"encoder_hidden_size_list": [16], "dueling": False},
    "other": {"replay_buffer": {"replay_buffer_size": 50_000}},
    "import_names": IMPORTS,
}
SIZE = 1_000_000  # weights of four bytes


def config_of(witness: Path, collectors: Any, **main: Any) -> dict[str, Any]:
    """Return the config of a run whose env writes its steps into a file."""
    env = {**runs.ENV, "env_id": ENV, "env_kwargs": {"file": str(witness)}}
    return {
        "main": {"policy": POLICY, "env": env, **main},
        "system": {
            "restarts": 1000,
            "reconnect_timeout": 600.0,  # actors start slowly on a busy machine
            "coordinator": {"lease": 5.0, "commander": {"eval_interval": None}},
            "collector": {"num": collectors, "import_names": [*IMPORTS, "tests.distributed.acknowledged"]},
        },
    }


def killed_nodes(folder: Path) -> None:
    """Collectors are spread over the nodes; the death of any node but the head costs no acknowledged transition."""
    witness = folder / "steps"
    with running_cluster(0, 3, 3, 3) as cluster:  # nothing is placed on the head
        run = ParallelRun(cluster, folder, config_of(witness, 3))
        before = run.wait_for(lambda now: now["env_step"] >= 200 and now["train_iter"] > 0 and now["collectors"] == 3)
        places = [about["node"] for about in actors("collector").values()]
        assert len(places) == len(set(places)) == 3, actors()
        for role in ("collector", "coordinator", "learner"):
            node = next(iter(actors(role).values()))["node"]
            gone = sorted(name for name, about in actors().items() if about["node"] == node)
            kill_node(cluster, node)
            say("killed a node with", gone)
            wait_until(lambda gone=node: gone not in {about["node"] for about in actors().values()})  # type: ignore[misc]
            add_node(cluster, 3)
            wait_until(lambda: len(actors("collector")) == 3)
            run.wait_beyond("env_step", before["env_step"] + 300)
            run.wait_beyond("train_iter", before["train_iter"] + 1)
            before = run.wait_for(lambda now: now["collector_tasks"]["running"] == now["collectors"] == 3)
        say(before)
        run.stop()
    check_rows(folder, witness)
    assert buffer_of(folder)[1] >= before["env_step"]


def auto(folder: Path) -> None:
    """The number of collectors follows the CPUs of the cluster."""
    witness = folder / "steps"
    with running_cluster(2, 1) as cluster:
        run = ParallelRun(cluster, folder, config_of(witness, "auto"))
        run.wait_for(lambda status: status["collector_tasks"]["running"] == 1 and status["env_step"] > 0)
        assert len(actors("collector")) == 1

        node = add_node(cluster, 2)
        run.wait_for(lambda status: status["collector_tasks"]["running"] == 3)
        on_node = [name for name, about in actors("collector").items() if about["node"] == node.node_id]
        assert len(on_node) == 2, actors()
        say("grown to", sorted(actors("collector")))

        before = run.status()
        kill_node(cluster, node.node_id)
        wanted = {"running": 1, "waiting": 0}
        run.wait_for(lambda status: status["collector_tasks"] == wanted and status["collectors"] == 1)
        assert len(actors("collector")) == 1
        say("shrunk to", sorted(actors("collector")))
        after = run.wait_beyond("env_step", before["env_step"] + 200)
        run.stop()
    check_rows(folder, witness)
    assert buffer_of(folder)[1] >= after["env_step"]


def ranks(folder: Path) -> None:
    """A learner has two ranks on two nodes, which are restarted together when one of them dies."""
    witness = folder / "steps"
    config = config_of(witness, 1)
    config["system"]["learner"] = {"multi_gpu": True, "trainer": {"accelerator": "cpu", "devices": 2}}
    with running_cluster(1, 1, 1, 1) as cluster:
        run = ParallelRun(cluster, folder, config)
        before = run.wait_beyond("train_iter", 60)
        learner = actors("learner")
        assert sorted(learner) == ["learner 0.0", "learner 0.1"]
        assert len({about["node"] for about in learner.values()}) == 2, learner

        for attempt, victim in enumerate(("learner 0.1", "learner 1.0"), start=1):
            os.kill(learner[victim]["pid"], signal.SIGKILL)
            say("killed", victim)
            before = run.wait_beyond("train_iter", before["train_iter"] + 40)
            learner = actors("learner")
            assert sorted(learner) == [f"learner {attempt}.0", f"learner {attempt}.1"]
        run.channel.call("shutdown")
        result = run.result()
    assert result["error"] is None
    assert result["train_iter"] >= before["train_iter"]


def weights(folder: Path) -> None:
    """Each node fetches published weights once, however many of its collectors read them."""

    class Reader:
        def __init__(self) -> None:
            self.channel = RayChannel("weights", 60.0)

        def read(self) -> float:
            handle = self.channel.call("newest")["handle"]
            return float(self.channel.store.get(handle).tensors["w"].sum())

    with running_cluster(2, 3, 3) as cluster:
        nodes = {node.node_id: node for node in cluster.worker_nodes}
        home = NodeAffinitySchedulingStrategy(head_of(cluster).node_id, soft=False)
        coordinator = coordinator_class(StandIn, "weights", scheduling_strategy=home).remote(folder)
        ray.get(coordinator.__ray_ready__.remote())
        readers: list[Any] = [
            ray.remote(Reader).options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote()
            for node in nodes
            for _ in range(3)
        ]
        ray.get([reader.__ray_ready__.remote() for reader in readers])
        before = {node: created(about) for node, about in nodes.items()}

        channel = RayChannel("weights", 60.0)
        channel.call("publish", {"data_id": channel.store.put("policy", {"w": torch.ones(SIZE)})})
        sums = ray.get([reader.read.remote() for reader in readers])

        after = {node: created(about) for node, about in nodes.items()}
        say(before, after)
        assert sums == [SIZE] * 6
        for node in nodes:
            assert 4 * SIZE <= after[node] - before[node] < 1.1 * 4 * SIZE  # one copy for three readers


def head_of(cluster: Any) -> Any:
    """Return the node of the head."""
    return cluster.head_node


def created(node: Any) -> int:
    """Return the bytes of all objects that were ever made in the object store of a node."""
    stats: Any = node_stats(node.node_ip_address, node.node_manager_port, include_memory_info=False)
    return int(stats.store_stats.cumulative_created_bytes)


def head_restarted(folder: Path) -> None:
    """Without an external Redis, a run ends with its head; another cluster resumes it, with all acknowledged data."""
    witness = folder / "steps"
    with running_cluster(1, 2) as cluster:
        run = ParallelRun(cluster, folder, config_of(witness, 1))
        before = run.wait_for(lambda status: status["env_step"] >= 200 and status["train_iter"] > 0)
        ray.shutdown()  # otherwise this process would end with the head, too
        head_of(cluster).kill_gcs_server(check_alive=False)
        output, _ = run.process.communicate(timeout=600)
        assert run.process.returncode == 1, output
    check_rows(folder, witness)
    assert buffer_of(folder)[1] >= before["env_step"]
    with running_cluster(1, 2) as cluster:
        limit = before["env_step"] + 400
        run = ParallelRun(cluster, folder, config_of(witness, 1, max_env_step=limit), "--resume")
        assert run.result()["env_step"] >= limit


SCENARIOS = {
    "killed_nodes": killed_nodes,
    "auto": auto,
    "ranks": ranks,
    "weights": weights,
    "head_restarted": head_restarted,
}

if __name__ == "__main__":
    SCENARIOS[sys.argv[1]](Path(sys.argv[2]))
