"""A worker's way to the coordinator's actor."""

from __future__ import annotations

import logging
import time
from typing import Any

from lightning_ding.distributed.channel import Channel, Message
from lightning_ding.distributed.errors import CoordinatorGoneError, LeaseLostError, Refusal
from lightning_ding.distributed.ray import COORDINATOR, import_ray
from lightning_ding.distributed.ray.store import RayStore

logger = logging.getLogger(__name__)

CALL_TIMEOUT = 30.0  # seconds for one answer; the longest wait at the coordinator is one second
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0  # seconds between two attempts


class _NoActorError(Exception):
    """No actor bears the coordinator's name."""


class RayChannel(Channel):
    """Calls of the coordinator's actor, over and over while Ray starts it anew.

    Args:
        namespace: Of the run, ``namespace_of(exp_name)``; Ray must be connected.
        reconnect_timeout: Seconds for which a coordinator that does not answer is looked for.
        max_block: Bytes of a block of tensors.
        name: Of the actor.

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

    def call(self, name: str, message: Message | None = None) -> Message:
        """Send a message, with references to the blocks whose handles are in it, and return the answer.

        Raises:
            Refusal: If the coordinator does not take it; ``LeaseLostError`` for a lease that is over.
            CoordinatorGoneError: If it could not be reached for too long, or this process has left Ray.
        """
        message = message or {}
        parcel = {"refs": self.store.refs_of(message), "deleted": self.store.take_deleted()}
        answer = self._ask(name, message, parcel)
        if (refused := answer.get("refused")) is not None:
            status, reason = refused
            raise LeaseLostError(reason) if status == 409 else Refusal(status, reason)
        reply: Message = answer["reply"]
        self.store.adopt(reply, answer["refs"])
        if reply.get("accepted", True):  # otherwise the very same is sent again
            self.store.release(parcel["refs"])
        return reply

    def close(self) -> None:
        """Let go of the actor."""
        self._actor = None

    def _ask(self, name: str, message: Message, parcel: dict[str, Any]) -> dict[str, Any]:
        deadline = time.monotonic() + self._timeout
        pause = FIRST_PAUSE
        while True:
            try:
                return self._ask_once(name, message, parcel, deadline)
            except self._gone() as error:
                if time.monotonic() + pause > deadline:
                    raise CoordinatorGoneError(
                        f"no answer to {name!r} from the actor {self._name!r} of {self._namespace!r} in "
                        f"{self._timeout:.0f} s: {type(error).__name__}"
                    ) from error
                logger.info("the coordinator does not answer (%s); trying again", type(error).__name__)
            self._actor = None  # another one may have its name by now
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _ask_once(self, name: str, message: Message, parcel: dict[str, Any], deadline: float) -> dict[str, Any]:
        if self._actor is None:
            self._actor = self._find()
        timeout = max(0.1, min(CALL_TIMEOUT, deadline - time.monotonic()))
        answer: dict[str, Any] = self._ray.get(self._actor.handle.remote(name, message, parcel), timeout=timeout)
        return answer

    def _find(self) -> Any:
        if not self._ray.is_initialized():  # or Ray would start a cluster of its own in order to look there
            raise CoordinatorGoneError("this process is not connected to Ray, or not any more")
        try:
            return self._ray.get_actor(self._name, namespace=self._namespace)
        except ValueError as error:
            raise _NoActorError(str(error)) from error

    def _gone(self) -> tuple[type[Exception], ...]:
        """Return the errors behind which the coordinator may be there again in a while."""
        errors = self._ray.exceptions
        return (_NoActorError, errors.RayActorError, errors.GetTimeoutError, errors.ObjectLostError, errors.RpcError)
