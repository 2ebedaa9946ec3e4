"""Blocks of tensors that travel through Ray: small ones with a message, others through Ray's object store.

A handle holds its block: the bytes of a safetensors file, or a reference to an object with these bytes. Ray serialises
it with the message, and keeps the object as long as a process holds the reference and the process that has put it is
alive. The coordinator stores weights again from its process, and writes them to a file, because they are still needed
after their learner has ended.

An object costs more than a small message: it goes through the object store, and each process that holds it reports that
to its owner. Weights are objects of any size, because each node then fetches them once for all of its collectors.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from typing_extensions import override

from lightning_ding.config import require
from lightning_ding.distributed.block_files import block_of, bytes_of, flatten, read_block, write_bytes
from lightning_ding.distributed.ray import import_ray
from lightning_ding.distributed.transport import KINDS, Block, Kind, Refusal, Store, check_handle

FETCH_TIMEOUT = 60.0  # seconds for a block from another machine
SMALL = 65_536
"""Bytes of the largest block that is sent with the message; Ray puts what is over 100 kB into the object store."""


class Handle(dict[str, str]):
    """The handle of a block, ``kind`` and ``name``, which takes its block along when Ray serialises it."""

    content: Any = None
    """Bytes, or a reference to an object; None after ``delete``."""

    @override
    def __reduce__(self) -> Any:
        return _handle, (dict(self), self.content)


def _handle(about: Mapping[str, str], content: Any) -> Handle:
    found = Handle(about)
    found.content = content
    return found


class RayStore(Store):
    """The blocks that this process can reach.

    Args:
        folder: Folder in which the coordinator also keeps weights as files, until they are deleted, so that they
            survive every process. None for a worker.
        max_bytes: Maximum size of a block, in bytes.

    Raises:
        ImportError: If Ray is not installed.
    """

    def __init__(self, folder: Path | None = None, max_bytes: int = 2_000_000_000) -> None:
        self._ray = import_ray()
        self._folder = folder
        self._max_bytes = max_bytes
        self._weights: dict[str, Handle] = {}  # those that the coordinator keeps, by name
        self._rounds: WeakValueDictionary[str, Handle] = WeakValueDictionary()  # put here and not deleted, by name
        self._deleted: list[str] = []
        self._lock = threading.Lock()

    @override
    def put(self, kind: Kind, tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> Any:
        require(kind in KINDS, "kind", f"one of {', '.join(KINDS)}", kind)
        about = {"kind": kind, "name": uuid.uuid4().hex}
        handle = self._new(about, bytes_of(flatten(tensors), metadata or {}))
        if kind == "batch":
            self._rounds[about["name"]] = handle
        return handle

    @override
    def get(self, handle: Any) -> Block:
        """Return a block; the coordinator keeps weights that it reads.

        Raises:
            Refusal: See the base class.
            OSError: If the coordinator has no space for new weights.
        """
        kind, name = check_handle(handle)
        content = self._bytes_of(handle)
        block = block_of(bytes(content), f"the {kind} block {name}")
        if self._keeps(kind):
            if name not in self._weights:
                self._new(handle, bytes(content))
            if isinstance(handle, Handle):
                handle.content = None  # the learner's object, in whose place the coordinator has one
        return block

    @override
    def delete(self, handle: Any) -> None:
        """Delete a block here and, if it is a round, with the next message at the coordinator."""
        kind, name = check_handle(handle)
        if isinstance(handle, Handle):
            handle.content = None
        if self._keeps(kind):
            self._file(name).unlink(missing_ok=True)  # first, so that no other thread shares them again
            self._weights.pop(name, None)
        elif kind == "batch" and self._folder is None:  # the coordinator itself tells no one
            self.note_deleted([name])

    @override
    def move(self, handle: Any, file: Path, block: Block | None = None) -> None:
        write_bytes(file, self._bytes_of(handle))
        self.delete(handle)

    def take_deleted(self) -> list[str]:
        """Return the names of the rounds that were deleted since the last call."""
        with self._lock:
            deleted, self._deleted = self._deleted, []
        return deleted

    def note_deleted(self, names: Iterable[str]) -> None:
        """Tell the coordinator with the next message that these rounds are deleted, again if a message was lost."""
        with self._lock:
            self._deleted.extend(names)

    def release(self, names: Iterable[str]) -> None:
        """Release rounds that their learner has deleted."""
        for name in names:
            if (handle := self._rounds.pop(name, None)) is not None:
                handle.content = None

    def with_weights(self, answer: Any) -> Any:
        """Return an answer of the coordinator in which the handles of weights hold the weights.

        Raises:
            Refusal: If a file of weights is too large (413) or truncated (422).
            OSError: If the object store and its disk are full.
        """
        if not isinstance(answer, dict):
            return answer
        if answer.keys() == {"kind", "name"}:  # a handle
            return self._kept(answer["name"]) if answer["kind"] == "policy" else answer
        return {name: self.with_weights(value) for name, value in answer.items()}

    def delete_other_weights(self, handles: Iterable[Mapping[str, str]]) -> None:
        """Delete the files of all weights but some, because an earlier process was killed before it published them.

        Args:
            handles: Handles of the weights to keep.
        """
        assert self._folder is not None
        kept = {self._file(handle["name"]).name for handle in handles}
        for file in (self._folder / "policy").glob("*"):
            if file.name not in kept:
                file.unlink(missing_ok=True)

    def _keeps(self, kind: str) -> bool:
        return kind == "policy" and self._folder is not None

    def _new(self, about: Mapping[str, str], content: bytes) -> Handle:
        """Return the handle of a new block; the coordinator also keeps it, if it holds weights."""
        kind, name = about["kind"], about["name"]
        if self._keeps(kind):
            self._file(name).parent.mkdir(parents=True, exist_ok=True)
            write_bytes(self._file(name), content)
        is_small = len(content) <= SMALL and kind != "policy"
        found = _handle(about, content if is_small else self._shared(content))
        if self._keeps(kind):
            self._weights[name] = found
        return found

    def _shared(self, content: bytes) -> Any:
        """Return a reference to an object with these bytes, which all processes of a node share."""
        errors = self._ray.exceptions
        try:
            return self._ray.put(np.frombuffer(content, np.uint8))
        except (errors.ObjectStoreFullError, errors.OutOfDiskError) as error:
            raise OSError(f"Ray has no space for a block of {len(content)} bytes: {error}") from error

    def _kept(self, name: str) -> Handle:
        """Return the handle of weights; after a restart of the coordinator they are shared again from their file."""
        if name not in self._weights and self._file(name).exists():
            tensors, metadata = read_block(self._file(name), self._max_bytes)
            content = bytes_of(flatten(tensors), metadata)
            self._weights[name] = _handle({"kind": "policy", "name": name}, self._shared(content))
            if not self._file(name).exists():  # another thread has deleted them since
                self._weights.pop(name, None)
        return self._weights.get(name) or Handle(kind="policy", name=name)

    def _bytes_of(self, handle: Any) -> Any:
        """Return the bytes of a block, as ``bytes`` or as an array that cannot be modified."""
        kind, name = check_handle(handle)
        content = getattr(handle, "content", None)
        if self._keeps(kind):
            content = self._kept(name).content or content
        if isinstance(content, self._ray.ObjectRef):
            errors = self._ray.exceptions
            try:
                content = self._ray.get(content, timeout=FETCH_TIMEOUT)
            except (errors.ObjectLostError, errors.GetTimeoutError, errors.RaySystemError) as error:
                raise Refusal(404, f"the {kind} block {name} is lost: {type(error).__name__}") from error
        if content is None:
            raise Refusal(404, f"there is no {kind} block {name}")
        if not isinstance(content, (bytes, np.ndarray)):
            raise Refusal(422, f"the object of {name} is not a {kind} block")
        if len(content) > self._max_bytes:
            raise Refusal(413, f"the {kind} block {name} has {len(content)} bytes, more than {self._max_bytes}")
        return content

    def _file(self, name: str) -> Path:
        assert self._folder is not None
        return self._folder / "policy" / f"{name}.safetensors"
