"""The transport over Ray: all roles are actors, and tensors are in Ray's object store."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import override

from lightning_ding.config import require
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.ray import import_ray, namespace_of
from lightning_ding.distributed.ray.channel import RayChannel, join_cluster
from lightning_ding.distributed.ray.pipeline import run_on_ray
from lightning_ding.distributed.ray.store import RayStore
from lightning_ding.distributed.ray.workers import RayServer
from lightning_ding.distributed.transport import Channel, Handler, Server, Store, Transport


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
        """Return a channel to the coordinator's actor; join the cluster first if this process has not.

        Raises:
            ImportError: If Ray is not installed.
            ConnectionError: If there is no cluster at ``system.ray_address``.
        """
        require(host is None, "host", "None over Ray, which finds the coordinator by its name", host)
        namespace = namespace_of(config.main.exp_name)
        if not import_ray().is_initialized():
            join_cluster(config.system.ray_address or "auto", namespace=namespace, log_to_driver=False)
        return RayChannel(namespace, config.system.reconnect_timeout, config.system.coordinator.max_block)

    @override
    def run(self, config: ParallelConfig, resume: bool = False) -> dict[str, Any]:
        return run_on_ray(config, resume)
