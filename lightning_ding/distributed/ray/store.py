"""Blocks of tensors in Ray's object store.

A handle is ``{"kind", "name"}``, as plain as every other part of a message. The reference to the object behind it
travels beside the message. Ray keeps an object as long as somebody holds a reference to it and the process that put it
lives. So each process has a table of the references that it holds, and the coordinator puts weights anew, and into a
file, because they are needed longer than the learner that sent them lives.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lightning_ding.config import require
from lightning_ding.distributed.channel import KINDS, Block, Kind, Store
from lightning_ding.distributed.errors import Refusal
from lightning_ding.distributed.ray import import_ray
from lightning_ding.distributed.ray.block import check_handle, handles_in, pack, unpack
from lightning_ding.distributed.wire import flatten, read_block, write_block

logger = logging.getLogger(__name__)

FETCH_TIMEOUT = 60.0  # seconds for a block of another machine
KEPT: dict[str, int] = {"data": 1024, "batch": 64, "priority": 32, "policy": 4}
"""Blocks of a kind to which a process holds on; older ones are those that nobody came back for.

More data than there are collectors, each of which sends one block at a time.
"""

Refs = dict[str, list[Any]]
"""Names of handles, and in a list, so that Ray does not fetch it on the way, the reference to what is behind each."""


class RayStore(Store):
    """The blocks that this process can reach.

    Args:
        folder: Where weights are kept in files, beside the object store, so that they outlive every process; the
            coordinator's, which keeps them until they are deleted. None for a worker.
        max_bytes: Of a block.

    Raises:
        ImportError: If Ray is not installed.
    """

    def __init__(self, folder: Path | None = None, max_bytes: int = 2_000_000_000) -> None:
        self._ray = import_ray()
        self._folder = folder
        self._max_bytes = max_bytes
        self._refs: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
        self._deleted: list[str] = []
        self._lock = threading.Lock()

    # ------------------------------------------------------------------ the interface of a store

    def put(self, kind: Kind, tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> Any:
        """Keep a nested dict of CPU tensors or arrays, and return its handle.

        Raises:
            OSError: If the object store and the disk behind it are full.
            ValueError: If the kind is none, or a key is not what ``wire.flatten`` takes.
        """
        require(kind in KINDS, "kind", f"one of {', '.join(KINDS)}", kind)
        handle = {"kind": kind, "name": uuid.uuid4().hex}
        self._keep(handle, tensors, metadata or {})
        return handle

    def get(self, handle: Any) -> Block:
        """Return a block; its tensors are copies, which may be written to.

        Raises:
            Refusal: If the handle is not one of this store (400), there is no such block or who put it is dead (404),
                it is too large (413), or it is of another kind or form (422).
        """
        kind, name = check_handle(handle)
        ref = self._refs[kind].get(name)
        if ref is None:
            return self._read(handle)
        errors = self._ray.exceptions
        try:
            value = self._ray.get(ref, timeout=FETCH_TIMEOUT)
        except (errors.ObjectLostError, errors.GetTimeoutError, errors.RaySystemError) as error:
            self.release([name])
            raise Refusal(404, f"the {kind} block {name} is lost: {type(error).__name__}") from error
        return unpack(kind, name, value, self._max_bytes)

    def delete(self, handle: Any) -> None:
        """Forget a block, here and, with the next message, at the coordinator; nothing happens if there is none."""
        kind, name = check_handle(handle)
        self.release([name])
        if self._keeps(kind):
            self._file(name).unlink(missing_ok=True)
        if self._folder is None:
            with self._lock:
                self._deleted.append(name)

    def move(self, handle: Any, file: Path) -> None:
        """Take a block out of the object store into a safetensors file, whose name appears when it is whole.

        Raises:
            Refusal: As ``get`` does.
            OSError: If the file cannot be written; then the block stays where it is.
        """
        block = self.get(handle)
        write_block(file, *block)
        self.delete(handle)

    # ------------------------------------------------------------------ what travels beside a message

    def refs_of(self, message: Any) -> Refs:
        """Return the references behind the handles in a message or an answer that this process holds.

        Weights of which it has a file alone, because it was started anew, are put into the object store again.

        Raises:
            Refusal: If such a file was deleted meanwhile (404), is too large (413) or torn (422).
            OSError: If the object store and the disk behind it are full.
        """
        refs: Refs = {}
        for handle in handles_in(message):
            kind, name = handle["kind"], handle["name"]
            if self._keeps(kind) and name not in self._refs[kind] and self._file(name).exists():
                self._read(handle)
            ref = self._refs[kind].get(name)
            if ref is not None:
                refs[name] = [ref]
        return refs

    def adopt(self, message: Any, refs: Refs) -> list[dict[str, Any]]:
        """Hold on to what came with a message or an answer, and return the handles that were not known before.

        The coordinator puts weights anew, so that they do not die with the sender's process.

        Raises:
            Refusal: If weights are not to be had any more (404), are too large (413) or of another form (422).
        """
        new = []
        for handle in handles_in(message):
            kind, name = handle["kind"], handle["name"]
            is_known = name in self._refs[kind]
            if name not in refs or (is_known and self._keeps(kind)):
                continue
            self._hold(handle, refs[name][0])  # also of a known one: the coordinator may have put it anew
            if self._keeps(kind):
                self._keep_adopted(handle)
            if not is_known:
                new.append(handle)
        return new

    def release(self, names: Iterable[str]) -> None:
        """Let go of references that somebody else holds now, or that nobody needs."""
        with self._lock:
            for name in names:
                for table in self._refs.values():
                    table.pop(name, None)

    def take_deleted(self) -> list[str]:
        """Return the names of deleted blocks of which the coordinator has not been told yet."""
        with self._lock:
            deleted, self._deleted = self._deleted, []
        return deleted

    def held(self, kind: Kind) -> int:
        """Return how many blocks of a kind this process holds on to."""
        return len(self._refs[kind])

    # ------------------------------------------------------------------ helpers

    def _keeps(self, kind: str) -> bool:
        return kind == "policy" and self._folder is not None

    def _keep(self, handle: Mapping[str, str], tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> None:
        """Put tensors into the object store, and into a file if this process keeps such."""
        if self._keeps(handle["kind"]):
            file = self._file(handle["name"])
            file.parent.mkdir(parents=True, exist_ok=True)
            write_block(file, tensors, metadata)
        self._share(handle, tensors, metadata)

    def _share(self, handle: Mapping[str, str], tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> None:
        errors = self._ray.exceptions
        try:
            ref = self._ray.put(pack(handle["kind"], flatten(tensors), metadata))
        except (errors.ObjectStoreFullError, errors.OutOfDiskError) as error:
            raise OSError(f"Ray has no room for a {handle['kind']} block: {error}") from error
        self._hold(handle, ref)

    def _keep_adopted(self, handle: Mapping[str, str]) -> None:
        try:
            self._keep(handle, *self.get(handle))
        except (Refusal, OSError):
            self.release([handle["name"]])
            raise

    def _hold(self, handle: Mapping[str, str], ref: Any) -> None:
        kind = handle["kind"]
        with self._lock:
            table = self._refs[kind]
            table[handle["name"]] = ref
            while len(table) > KEPT[kind] and not self._keeps(kind):
                oldest = next(iter(table))
                del table[oldest]
                logger.debug("nobody came for the %s block %s", kind, oldest)

    def _file(self, name: str) -> Path:
        assert self._folder is not None
        return self._folder / "policy" / f"{name}.safetensors"

    def _read(self, handle: Mapping[str, str]) -> Block:
        """Return weights from their file, and share them again: this process was started anew since they came."""
        kind, name = handle["kind"], handle["name"]
        if not self._keeps(kind) or not self._file(name).exists():
            raise Refusal(404, f"there is no {kind} block {name}")
        block = read_block(self._file(name), self._max_bytes)
        self._share(handle, *block)
        return block
