"""One Ray for the tests of this folder that follow each other, and an actor in the coordinator's place.

Ray uses a tenth of a core while it is idle, so it is stopped after these tests.
"""

from __future__ import annotations

import logging
import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightning_ding.distributed.ray import coordinator_class
from tests.distributed.ray.stand_in import StandIn


@pytest.fixture(scope="package")
def ray() -> Iterator[Any]:
    """Return the module, connected to a small Ray on this machine."""
    module = pytest.importorskip("ray")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # as in a run, or a busy machine takes minutes for an actor
    small = {"num_cpus": 5, "object_store_memory": 100_000_000, "include_dashboard": False}
    on_sigterm = signal.getsignal(signal.SIGTERM)
    module.init("local", **small, log_to_driver=False, logging_level=logging.ERROR)
    signal.signal(signal.SIGTERM, on_sigterm)  # otherwise Ray's handler would stay installed in all later tests
    yield module
    module.shutdown()


@pytest.fixture(scope="package")
def namespace() -> str:
    """Return a namespace for the actors of these tests."""
    return f"tests-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the actor in the coordinator's place."""
    return tmp_path_factory.mktemp("coordinator")


@pytest.fixture(scope="package")
def stand_in(ray: Any, namespace: str, folder: Path) -> Iterator[Any]:
    """Return an actor called "coordinator", which Ray restarts when it dies."""
    actor = coordinator_class(StandIn, namespace, num_cpus=1, max_restarts=-1).remote(folder)
    ray.get(actor.__ray_ready__.remote(), timeout=250)  # a busy machine needs long to start its process
    yield actor
    ray.kill(actor)
