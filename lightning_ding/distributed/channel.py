"""One interface for all transports: control messages to the coordinator, and tensors beside them.

A message is a dict of builtins. Tensors never travel in one: they are put into a store, and the message holds the
handle that the store gave for them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

Message = dict[str, Any]
Kind = Literal["data", "batch", "priority", "policy"]
KINDS: tuple[Kind, ...] = ("data", "batch", "priority", "policy")
"""What a block of tensors is: collected transitions, a round of minibatches, priorities, weights."""

DISK_WAIT = 1.0
"""Seconds between two attempts to write to a disk that is full."""


class Block(NamedTuple):
    """Tensors and what is said of them."""

    tensors: dict[str, Any]
    """A nested dict of CPU tensors."""
    metadata: dict[str, str]


class Store(ABC):
    """Where blocks of tensors lie between two processes."""

    @abstractmethod
    def put(self, kind: Kind, tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> Any:
        """Keep a nested dict of CPU tensors or arrays, and return its handle; a reader sees all of it or nothing.

        Raises:
            OSError: If there is no room for it.
        """

    @abstractmethod
    def get(self, handle: Any) -> Block:
        """Return a block.

        Raises:
            Refusal: If the handle is not one of this store (403 for a path outside, 400), there is no such block
                (404), it is too large (413), or it is torn or of another form (422).
        """

    @abstractmethod
    def delete(self, handle: Any) -> None:
        """Forget a block; nothing happens if there is none."""

    @abstractmethod
    def move(self, handle: Any, file: Path) -> None:
        """Take a block out of the store into a safetensors file, whose name appears when it is whole."""


class Channel(ABC):
    """A worker's way to the coordinator."""

    store: Store

    @abstractmethod
    def call(self, name: str, message: Message | None = None) -> Message:
        """Send a message and return the answer; while the coordinator cannot be reached, try again, ever more slowly.

        Args:
            name: Of the message, such as ``"collector_data_task"``.
            message: What it says.

        Raises:
            Refusal: If the coordinator does not take it; ``LeaseLostError`` for a lease that is over.
            CoordinatorGoneError: If it could not be reached for too long.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of connections."""


Handler = Callable[[str, Message], Message]
"""What a server hands messages to, ``Coordinator.handle``; it raises ``Refusal`` for those it does not take."""
