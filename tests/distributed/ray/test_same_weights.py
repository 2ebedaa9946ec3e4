"""Four collectors over Ray give the same weights as in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning_ding.config import resolve
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.ray import coordinator_class, namespace_of
from lightning_ding.distributed.ray.channel import RayChannel
from lightning_ding.distributed.ray.workers import CoordinatorActor
from lightning_ding.distributed.transport import Channel
from tests.distributed.test_same_weights import check_same, in_this_process, learned, small


def test_four_collectors_over_ray_and_in_one_process_give_the_same_weights_to_the_last_bit(
    ray: Any, tmp_path: Path
) -> None:
    @contextmanager
    def over_ray(cfg: dict[str, Any]) -> Iterator[Callable[[], Channel]]:
        """Run the coordinator as an actor; its workers are threads of this process."""
        cfg["system"]["transport"] = "ray"
        config, namespace = resolve(ParallelConfig, cfg), namespace_of(cfg["main"]["exp_name"])
        actor = coordinator_class(CoordinatorActor, namespace, num_cpus=1, max_restarts=0).remote(config)
        try:
            assert ray.get(actor.mistake.remote(), timeout=250) is None  # a busy machine needs long
            yield lambda: RayChannel(namespace, reconnect_timeout=60.0)
        finally:
            ray.kill(actor)

    first = learned(small(tmp_path / "memory"), in_this_process)
    check_same(first, learned(small(tmp_path / "ray"), over_ray))
