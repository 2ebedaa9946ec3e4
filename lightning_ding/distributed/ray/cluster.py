"""Joining a Ray cluster that runs already."""

from __future__ import annotations

import socket
from typing import Any

from lightning_ding.config import require
from lightning_ding.distributed.ray import import_ray

FOUND_BY_RAY = ("auto", "local")
PROBE = 5.0  # seconds


def join_cluster(address: str, **options: Any) -> None:
    """Connect this process to a cluster.

    Ray asks at an address where nobody answers for minutes, and logs all the while; so this asks once before.

    Args:
        address: ``system.ray_address``: "auto", ``host:port`` or ``ray://host:port``.
        options: Further arguments of ``ray.init``.

    Raises:
        ImportError: If Ray is not installed.
        ValueError: If the address has another form.
        ConnectionError: If no cluster is there.
    """
    ray = import_ray()
    if address not in FOUND_BY_RAY:
        _probe(address)
    try:
        ray.init(address, **options)
    except ConnectionError as error:
        raise ConnectionError(f"system.ray_address: there is no cluster at {address!r}: {error}") from error


def _probe(address: str) -> None:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    is_valid = bool(host) and port.isdecimal() and int(port) < 2**16
    require(is_valid, "system.ray_address", '"auto", host:port or ray://host:port', address)
    try:
        socket.create_connection((host.strip("[]"), int(port)), PROBE).close()
    except OSError as error:
        raise ConnectionError(f"system.ray_address: nobody answers at {address!r}: {error}") from error
