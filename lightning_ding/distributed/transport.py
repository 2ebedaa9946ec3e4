"""The interface of every transport: control messages to the coordinator, and blocks of tensors.

A message is a dict of builtins. Tensors never travel in a message: they are put into a store, and the message holds the
handle that the store returned.

A transport implements :class:`Channel`, :class:`Store` and :class:`Server`, and a :class:`Transport` that makes them.
It is registered by one line in ``TRANSPORTS``; a config may also give its dotted path.
"""

from __future__ import annotations

import logging
import random
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from typing_extensions import override

from lightning_ding.config import nearest, require
from lightning_ding.distributed.config import ParallelConfig

logger = logging.getLogger(__name__)

Message = dict[str, Any]
Role = Literal["collector", "learner"]
ROLES: tuple[Role, ...] = ("collector", "learner")
"""Roles of the workers, which connect to the coordinator."""
Kind = Literal["data", "batch", "priority", "policy"]
KINDS: tuple[Kind, ...] = ("data", "batch", "priority", "policy")
"""Contents of a block of tensors: collected transitions, a round of minibatches, priorities, weights."""

SCHEMA: int = 4
"""Version of the entries of messages and answers; raise it when one of them changes, see ``messages.version``."""
MESSAGES = (
    *("connect", "heartbeat", "task", "fail", "disconnect", "get_policy"),
    *("collector_data_task", "collector_settings", "collector_close_task"),
    *("learner_get_data_task", "learner_learn_task", "learner_send_columns", "learner_send_policy"),
    *("learner_close_task", "status", "increase_collector", "decrease_collector", "set_collectors", "shutdown"),
)
"""Names of the messages; the coordinator's method ``answer_<name>`` answers each."""

HEARTBEAT, DATA = "heartbeat", "collector_data_task"
"""Names of the messages that a coordinator answers first, and of those that wait while a snapshot is written."""
ANSWERED_AT_ONCE = 40
"""Messages that are answered at a time over Ray; a request for a task can occupy one thread for up to a second."""

DISK_WAIT = 1.0
"""Seconds between two attempts to write to a full disk."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0  # seconds between two attempts to send a message
NAME = re.compile(r"[0-9a-f]{32}")  # of a block
PATH = re.compile(r"[./\\\0]")  # characters of paths, which handles do not have

ADDRESS_FILE = "coordinator.json"
"""File in the folder of the run that holds the address of the coordinator, see :attr:`Server.address`."""

TRANSPORTS = {
    "flask_fs": "lightning_ding.distributed.flask_fs.transport.FlaskTransport",
    "ray": "lightning_ding.distributed.ray.pipeline.RayTransport",
}
"""Dotted path of each transport by its name in ``system.transport``."""


class Refusal(Exception):  # noqa: N818 - an answer, not a defect
    """The coordinator refuses a message; the run continues.

    Args:
        status: HTTP status: 400 malformed, 401 missing or wrong token, 403 wrong channel or a path outside of the
            store, 404 unknown task or policy, 409 expired lease, 413 too large, 422 data of a wrong form, 426 other
            version.
        reason: Explanation in one line.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{status}: {reason}")
        self.status = status
        self.reason = reason


class LeaseLostError(Refusal):
    """The task of a worker was given to another worker; further results for it are refused."""

    def __init__(self, reason: str) -> None:
        super().__init__(409, reason)


def refusal_of(status: int, reason: str) -> Refusal:
    """Return the error for an answer that refuses a message."""
    return LeaseLostError(reason) if status == 409 else Refusal(status, reason)


class CoordinatorGoneError(Exception):
    """The coordinator could not be reached for as long as the config allows."""


class NoAnswerError(Exception):
    """There was no answer from a coordinator; a later attempt may succeed."""


class Block(NamedTuple):
    """Tensors and their metadata."""

    tensors: dict[str, Any]
    """A nested dict of CPU tensors."""
    metadata: dict[str, str]


def check_handle(handle: Any) -> tuple[Kind, str]:
    """Return the kind and the name of a block from its handle.

    Raises:
        Refusal: If the handle is malformed (400), or contains a path (403).
    """
    if not isinstance(handle, Mapping) or handle.keys() != {"kind", "name"}:
        raise Refusal(400, f"a handle must have a kind and a name, got {repr(handle)[:100]}")
    kind, name = handle["kind"], handle["name"]
    for part in (kind, name):
        if isinstance(part, str) and PATH.search(part):
            raise Refusal(403, f"a handle must not contain a path, got {repr(part)[:100]}")
    if kind not in KINDS:
        raise Refusal(400, f"kind must be one of {KINDS}, got {repr(kind)[:100]}")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise Refusal(400, f"name must be 32 hexadecimal digits, got {repr(name)[:100]}")
    return kind, name


class Store(ABC):
    """Keeps blocks of tensors that one process writes and another one reads."""

    @abstractmethod
    def put(self, kind: Kind, tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> Any:
        """Store a nested dict of CPU tensors or arrays, and return its handle; readers never see a part of a block.

        Raises:
            OSError: If there is no space for the block.
        """

    @abstractmethod
    def get(self, handle: Any) -> Block:
        """Return a block.

        Raises:
            Refusal: If the handle does not belong to this store (400, or 403 for a path outside of it), there is no
                such block (404), it is too large (413), or it is truncated or invalid (422).
        """

    def form(self, handle: Any) -> dict[str, tuple[str, tuple[int, ...]]] | None:
        """Return the types and shapes of a large block's tensors by their flat names, without reading the data.

        Returns:
            For example ``{"obs": ("float32", (64, 4))}``; None for a small block, or if the store cannot know it.

        Raises:
            Refusal: As :meth:`get`.
        """
        return None

    @abstractmethod
    def delete(self, handle: Any) -> None:
        """Delete a block; do nothing if there is none."""

    @abstractmethod
    def move(self, handle: Any, file: Path, block: Block | None = None) -> None:
        """Move a block from the store into a safetensors file, which appears under its name when it is complete.

        Args:
            handle: Handle of the block.
            file: New file.
            block: The block as :meth:`get` returned it, so that a store that has to write it need not read it again.
        """


class Channel(ABC):
    """A worker's connection to the coordinator."""

    store: Store

    @abstractmethod
    def call(self, name: str, message: Message | None = None) -> Message:
        """Send a message and return the answer; retry with growing pauses while the coordinator cannot be reached.

        Args:
            name: Name of the message, such as ``"collector_data_task"``.
            message: Content of the message.

        Raises:
            Refusal: If the coordinator refuses the message; ``LeaseLostError`` for an expired lease.
            CoordinatorGoneError: If the coordinator could not be reached for too long.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the connections."""


class RetryingChannel(Channel):
    """A channel that sends a message again, with growing pauses, while there is no answer.

    A message without an answer may have arrived, so the coordinator may receive it twice; ids and numbers in the
    message show that it is the same.

    Args:
        reconnect_timeout: Seconds for which calls are retried while the coordinator does not answer, > 0.
        coordinator: Description of the coordinator for the error, such as ``" from 10.0.0.1"``.
    """

    failures: ClassVar[tuple[type[Exception], ...]] = (NoAnswerError,)
    """Errors after which a message is sent again."""

    def __init__(self, reconnect_timeout: float, coordinator: str = "") -> None:
        require(reconnect_timeout > 0, "reconnect_timeout", "> 0 seconds", reconnect_timeout)
        self.reconnect_timeout = reconnect_timeout
        self._coordinator = coordinator
        self._has_answered = False
        self._closed = threading.Event()

    @override
    def call(self, name: str, message: Message | None = None) -> Message:
        end, pause = time.monotonic() + self.reconnect_timeout, FIRST_PAUSE
        while not self._closed.is_set():
            try:
                return self._send(name, message or {}, end - time.monotonic())
            except self.failures as error:
                self._forget_connection()
                left = end - time.monotonic()
                if left <= 0:
                    reason = f"no answer to {name!r}{self._coordinator} in {self.reconnect_timeout:g} s: {error}"
                    raise CoordinatorGoneError(reason) from error
                if pause == FIRST_PAUSE:
                    # a coordinator may start later than its workers
                    level = logging.WARNING if self._has_answered else logging.INFO
                    logger.log(level, "no answer to %r yet, trying for %.0f s more: %s", name, left, error)
            self._closed.wait(min(left, pause * random.uniform(0.5, 1.0)))
            pause = min(2 * pause, LONGEST_PAUSE)
        raise CoordinatorGoneError(f"the channel was closed, so {name!r} got no answer")

    @abstractmethod
    def _send(self, name: str, message: Message, left: float) -> Message:
        """Send a message once, with ``left`` seconds for the answer."""

    @abstractmethod
    def _forget_connection(self) -> None:
        """Make the next message of this thread use a new connection."""


Handler = Callable[[str, Message], Message]
"""The function that answers messages, ``Coordinator.handle``; it raises ``Refusal`` for those that it refuses."""


class Server(ABC):
    """Receives the messages of all workers in the coordinator's process, and passes them to a handler."""

    address: Mapping[str, Any]
    """Address of this server as builtins, which is also written to ``coordinator.json`` in the folder of the run."""

    @abstractmethod
    def start(self) -> None:
        """Answer messages from now on, in other threads."""

    @abstractmethod
    def close(self) -> None:
        """Finish the messages that are being answered, and stop; a second call does nothing."""


class Transport(ABC):
    """A way for workers and a coordinator to communicate: makes the store, the server and the channels of a run."""

    runs_alone: ClassVar[bool] = False
    """Whether :meth:`run` starts all processes of a run; if not, each role is a process that a supervisor starts."""

    def check(self, config: ParallelConfig) -> None:  # noqa: B027 - optional
        """Raise if the settings of this transport are wrong, before a worker starts.

        Raises:
            ValueError: If a setting or a secret is wrong.
            OSError: If a file with a secret cannot be read.
        """

    def make_secret(self, config: ParallelConfig) -> None:  # noqa: B027 - optional
        """Make the secret that a run on this machine needs, in the folder of the run, unless one is configured."""

    @abstractmethod
    def make_store(self, config: ParallelConfig) -> Store:
        """Return the coordinator's store."""

    @abstractmethod
    def serve(self, config: ParallelConfig, handler: Handler, store: Store) -> Server:
        """Return a server for a coordinator; it reserves its address now and answers from ``start`` on.

        Args:
            config: Config of the run.
            handler: Answers the messages.
            store: Store from :meth:`make_store`.

        Raises:
            ValueError: If the config does not fit this transport.
            ImportError: If a package is missing.
            OSError: If the address is in use.
        """

    @abstractmethod
    def connect(self, config: ParallelConfig, host: str | None = None, port: int | None = None) -> Channel:
        """Return a channel to the coordinator of a run, which need not be there yet.

        Args:
            config: Config of the run.
            host: Address of the coordinator; None means that it is taken from the config or the folder of the run.
            port: Port of the coordinator; None as for ``host``.

        Raises:
            ValueError: If the config does not fit this transport.
            ImportError: If a package is missing.
            OSError: If a file with a secret cannot be read.
        """

    def run(self, config: ParallelConfig, resume: bool = False) -> dict[str, Any]:
        """Run all processes until the run is over, and return the content of ``result.json``; see ``runs_alone``."""
        raise NotImplementedError(f"{type(self).__name__} starts no processes")


def get_transport(name: str) -> Transport:
    """Return a transport by its name in ``TRANSPORTS``, or by the dotted path of its class.

    Raises:
        ValueError: If the name is unknown, or the path does not lead to a ``Transport``.
        ImportError: If the module of the path cannot be imported.
    """
    module, _, attribute = TRANSPORTS.get(name, name).rpartition(".")
    if not module:
        near = nearest(name, TRANSPORTS)
        hint = f"; {near}" if near.startswith("did") else ""
        known = ", ".join(map(repr, TRANSPORTS))
        raise ValueError(f"system.transport must be one of {known}, or a dotted path, got {name!r}{hint}")
    found = getattr(import_module(module), attribute, None)
    if not (isinstance(found, type) and issubclass(found, Transport)):
        raise ValueError(f"system.transport must lead to a Transport, got {name!r}, which is {found!r}")
    return found()
