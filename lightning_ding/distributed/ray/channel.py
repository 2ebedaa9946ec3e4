"""A worker's connection to the coordinator's actor, and joining the cluster that it runs in."""

from __future__ import annotations

import socket
from typing import Any

from typing_extensions import override

from lightning_ding.config import require
from lightning_ding.distributed.ray import COORDINATOR, THREADS_OF_MESSAGES, import_ray
from lightning_ding.distributed.ray.store import RayStore
from lightning_ding.distributed.transport import (
    CoordinatorGoneError,
    Message,
    NoAnswerError,
    RetryingChannel,
    refusal_of,
)

CALL_TIMEOUT = 30.0  # seconds for one answer; the longest wait at the coordinator is one second
FOUND_BY_RAY = ("auto", "local")
"""Addresses of clusters that Ray finds itself."""
PROBE = 5.0  # seconds for the first connection to an address


class RayChannel(RetryingChannel):
    """Calls methods of the coordinator's actor, and retries while Ray restarts it.

    Args:
        namespace: Namespace of the run, ``namespace_of(exp_name)``; Ray must be connected.
        reconnect_timeout: Seconds for which calls are retried while the coordinator does not answer.
        max_block: Maximum size of a block of tensors, in bytes.
        name: Name of the actor.

    Raises:
        ImportError: If Ray is not installed.
    """

    def __init__(
        self, namespace: str, reconnect_timeout: float, max_block: int = 2_000_000_000, name: str = COORDINATOR
    ) -> None:
        super().__init__(reconnect_timeout, f" from the actor {name!r} of {namespace!r}")
        self._ray = import_ray()
        self._namespace = namespace
        self._name = name
        self._actor: Any = None
        self.store: RayStore = RayStore(max_bytes=max_block)

    @override
    def close(self) -> None:
        self._closed.set()
        self._actor = None

    @override
    def _forget_connection(self) -> None:
        self._actor = None  # another actor may have its name by now

    @override
    def _send(self, name: str, message: Message, left: float) -> Message:
        errors = self._ray.exceptions
        if self._actor is None:
            if not self._ray.is_initialized():  # otherwise Ray would start a new cluster and look there
                raise CoordinatorGoneError("this process is not connected to Ray, or no longer")
            try:
                self._actor = self._ray.get_actor(self._name, namespace=self._namespace)
            except ValueError as error:
                raise NoAnswerError("there is no such actor") from error
            except (errors.GetTimeoutError, errors.RpcError) as error:
                raise NoAnswerError(type(error).__name__) from error
        handle = self._actor.handle
        if name in THREADS_OF_MESSAGES:
            handle = handle.options(concurrency_group=name)
        timeout = max(0.1, min(CALL_TIMEOUT, left))
        deleted = self.store.take_deleted()
        try:
            answer: dict[str, Any] = self._ray.get(handle.remote(name, message, deleted), timeout=timeout)
        except (errors.RayActorError, errors.GetTimeoutError, errors.ObjectLostError, errors.RpcError) as error:
            self.store.note_deleted(deleted)
            raise NoAnswerError(type(error).__name__) from error
        if (failed := answer.get("failed")) is not None:
            raise NoAnswerError(failed)
        self._has_answered = True
        if (refused := answer.get("refused")) is not None:
            raise refusal_of(*refused)
        return dict(answer["reply"])


def join_cluster(address: str, **options: Any) -> None:
    """Connect this process to a Ray cluster that is already running.

    If nothing answers at an address, Ray retries for minutes and logs each attempt. Therefore this function first tries
    a single connection itself.

    Args:
        address: Address as in ``system.ray_address``: "auto", ``host:port`` or ``ray://host:port``.
        options: Further arguments of ``ray.init``.

    Raises:
        ImportError: If Ray is not installed.
        ValueError: If the address is invalid.
        ConnectionError: If there is no cluster at the address.
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
        raise ConnectionError(f"system.ray_address: nothing answers at {address!r}: {error}") from error
