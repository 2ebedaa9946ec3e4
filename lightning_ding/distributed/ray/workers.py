"""A learner and a collector that reach the coordinator's actor, in actors or in processes that join its cluster."""

from __future__ import annotations

from typing import Any

from lightning_ding.config import ConfigLike
from lightning_ding.distributed.channel import Channel
from lightning_ding.distributed.comm_collector import BaseCommCollector
from lightning_ding.distributed.comm_learner import BaseCommLearner
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.ray import import_ray, namespace_of
from lightning_ding.distributed.ray.channel import RayChannel
from lightning_ding.distributed.ray.cluster import join_cluster
from lightning_ding.distributed.workers import whole_config
from lightning_ding.registry import COMM_COLLECTOR_REGISTRY, COMM_LEARNER_REGISTRY


def ray_channel(cfg: ParallelConfig) -> RayChannel:
    """Return the way to the coordinator's actor of a run, and join the cluster first if this process has not.

    Raises:
        ImportError: If Ray is not installed.
        ConnectionError: If there is no cluster at ``system.ray_address``.
    """
    ray: Any = import_ray()
    namespace = namespace_of(cfg.main.exp_name)
    if not ray.is_initialized():
        join_cluster(cfg.system.ray_address or "auto", namespace=namespace, log_to_driver=False)
    return RayChannel(namespace, cfg.system.reconnect_timeout, cfg.system.coordinator.max_block)


class _OverRay:
    """What both have in common."""

    config: ParallelConfig

    def __init__(self, cfg: ConfigLike[ParallelConfig] = None, channel: Channel | None = None) -> None:
        super().__init__(whole_config(cfg), channel)  # type: ignore[call-arg]

    def _make_channel(self) -> Channel:
        return ray_channel(self.config)


@COMM_LEARNER_REGISTRY.register("ray")
class RayLearner(_OverRay, BaseCommLearner):
    """A comm learner over Ray.

    Args:
        cfg: Of the whole run.
        channel: The way to the coordinator, None for the one that the config describes.
    """


@COMM_COLLECTOR_REGISTRY.register("ray")
class RayCollector(_OverRay, BaseCommCollector):
    """A comm collector over Ray.

    Args:
        cfg: Of the whole run.
        channel: The way to the coordinator, None for the one that the config describes.
    """
