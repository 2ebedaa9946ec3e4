"""A worker's connection to the coordinator's actor, and joining the cluster that it runs in."""

from __future__ import annotations

import logging
import socket
import time
from typing import Any

from typing_extensions import override

from lightning_ding.config import require
from lightning_ding.distributed.ray import COORDINATOR, THREADS_OF_MESSAGES, import_ray
from lightning_ding.distributed.ray.store import RayStore
from lightning_ding.distributed.transport import Channel, CoordinatorGoneError, LeaseLostError, Message, Refusal

logger = logging.getLogger(__name__)

CALL_TIMEOUT = 30.0  # seconds for one answer; the longest wait at the coordinator is one second
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0  # seconds between two attempts
FOUND_BY_RAY = ("auto", "local")
"""Addresses of clusters that Ray finds itself."""
PROBE = 5.0  # seconds for the first connection to an address


class RayChannel(Channel):
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
        self._ray = import_ray()
        self._namespace = namespace
        self._name = name
        self._timeout = reconnect_timeout
        self._actor: Any = None
        self.store: RayStore = RayStore(max_bytes=max_block)

    @override
    def call(self, name: str, message: Message | None = None) -> Message:
        answer = self._ask(name, message or {}, self.store.take_deleted())
        if (refused := answer.get("refused")) is not None:
            status, reason = refused
            raise LeaseLostError(reason) if status == 409 else Refusal(status, reason)
        reply: Message = answer["reply"]
        return reply

    @override
    def close(self) -> None:
        self._actor = None

    def _ask(self, name: str, message: Message, deleted: list[str]) -> dict[str, Any]:
        deadline, pause = time.monotonic() + self._timeout, FIRST_PAUSE
        while True:
            answer = self._ask_once(name, message, deleted, deadline)
            if (failed := answer.get("failed")) is None:
                return answer
            if time.monotonic() + pause > deadline:
                raise CoordinatorGoneError(
                    f"no answer to {name!r} from the actor {self._name!r} of {self._namespace!r} in "
                    f"{self._timeout:.0f} s: {failed}"
                )
            logger.info("the coordinator does not answer (%s); trying again", failed)
            self._actor = None  # another actor may have its name by now
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _ask_once(self, name: str, message: Message, deleted: list[str], deadline: float) -> dict[str, Any]:
        """Return the coordinator's answer; ``{"failed": reason}`` if it may be reachable again a little later."""
        errors = self._ray.exceptions
        if self._actor is None:
            if not self._ray.is_initialized():  # otherwise Ray would start a new cluster and look there
                raise CoordinatorGoneError("this process is not connected to Ray, or no longer")
            try:
                self._actor = self._ray.get_actor(self._name, namespace=self._namespace)
            except ValueError:
                return {"failed": "there is no such actor"}
            except (errors.GetTimeoutError, errors.RpcError) as error:
                return {"failed": type(error).__name__}
        handle = self._actor.handle
        if name in THREADS_OF_MESSAGES:
            handle = handle.options(concurrency_group=name)
        timeout = max(0.1, min(CALL_TIMEOUT, deadline - time.monotonic()))
        try:
            answer: dict[str, Any] = self._ray.get(handle.remote(name, message, deleted), timeout=timeout)
        except (errors.RayActorError, errors.GetTimeoutError, errors.ObjectLostError, errors.RpcError) as error:
            return {"failed": type(error).__name__}
        return answer


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
