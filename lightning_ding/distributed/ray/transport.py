"""The transport over Ray: all roles are actors, and tensors are in Ray's object store."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import override

from lightning_ding.config import require
from lightning_ding.distributed.comm_worker.collector import BaseCommCollector
from lightning_ding.distributed.comm_worker.learner import BaseCommLearner
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.ray.channel import ray_channel
from lightning_ding.distributed.ray.pipeline import run_on_ray
from lightning_ding.distributed.ray.store import RayStore
from lightning_ding.distributed.ray.workers import RayServer
from lightning_ding.distributed.transport import Channel, Handler, Server, Store, Transport
from lightning_ding.registry import COMM_COLLECTOR_REGISTRY, COMM_LEARNER_REGISTRY


class RayTransport(Transport):
    """Actors of a Ray cluster, at ``system.ray_address`` or on this machine; Ray starts and restarts all processes."""

    runs_alone: ClassVar[bool] = True

    @override
    def make_store(self, config: ParallelConfig) -> Store:
        return RayStore(Path(config.main.exp_name) / "data", config.system.coordinator.max_block)

    @override
    def serve(self, config: ParallelConfig, handler: Handler, store: Store) -> Server:
        assert isinstance(store, RayStore)
        return RayServer(handler, store)

    @override
    def connect(self, config: ParallelConfig, host: str | None = None, port: int | None = None) -> Channel:
        require(host is None, "host", "None over Ray, which finds the coordinator by its name", host)
        return ray_channel(config)

    @override
    def run(self, config: ParallelConfig, resume: bool = False) -> dict[str, Any]:
        return run_on_ray(config, resume)


@COMM_LEARNER_REGISTRY.register("ray")
class RayLearner(BaseCommLearner):
    """A comm learner over Ray. See the base class for the arguments."""

    transport: ClassVar[str | None] = "ray"


@COMM_COLLECTOR_REGISTRY.register("ray")
class RayCollector(BaseCommCollector):
    """A comm collector over Ray. See the base class for the arguments."""

    transport: ClassVar[str | None] = "ray"
