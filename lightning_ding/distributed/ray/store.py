"""Blocks of tensors in Ray's object store.

A handle is ``{"kind", "name"}``, made of builtins like the rest of a message. The reference to its object is sent along
with the message. Ray keeps an object while a process holds a reference to it and the process that put it is alive.
Therefore each process has a table of references. The coordinator stores weights again from its process, and writes them
to a file, because they are still needed after their learner has ended.

An object costs more than a small message: it goes through the object store, and each process that holds it reports that
to its owner. Therefore a small block that has one reader is sent along itself, as the bytes of a safetensors file.
"""

from __future__ import annotations

import logging
import math
import threading
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from typing_extensions import override

from lightning_ding.config import require
from lightning_ding.distributed.block_files import (
    block_of,
    bytes_of,
    flatten,
    read_block,
    unflatten,
    write_block,
    write_bytes,
)
from lightning_ding.distributed.ray import import_ray
from lightning_ding.distributed.transport import KINDS, Block, Kind, Refusal, Store

logger = logging.getLogger(__name__)

FETCH_TIMEOUT = 60.0  # seconds for a block from another machine
SMALL = 65_536
"""Bytes of the largest block that is sent with the message; Ray puts what is over 100 kB into the object store."""
KEPT: dict[str, int] = {"data": 1024, "batch": 64, "priority": 32, "policy": 4}
"""Number of blocks of each kind that a process holds; the oldest one is released when there are more.

There are more places for data than collectors, each of which sends one block at a time.
"""


Refs = dict[str, list[Any]]
"""References, or small blocks, by the names of their handles; in lists, so that Ray replaces none by its object."""


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
        self._refs: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
        self._deleted: list[str] = []
        self._lock = threading.Lock()

    # ------------------------------------------------------------------ the interface of a store

    @override
    def put(self, kind: Kind, tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> Any:
        require(kind in KINDS, "kind", f"one of {', '.join(KINDS)}", kind)
        handle = {"kind": kind, "name": uuid.uuid4().hex}
        self._keep(handle, tensors, metadata or {})
        return handle

    @override
    def get(self, handle: Any) -> Block:
        kind, name = check_handle(handle)
        ref = self._refs[kind].get(name)
        if ref is None:
            return self._read(handle)
        if isinstance(ref, bytes):
            _require_size(kind, name, len(ref), self._max_bytes)
            return block_of(ref, f"the {kind} block {name}")
        value = self._fetch(kind, name, ref) if isinstance(ref, self._ray.ObjectRef) else ref
        return unpack(kind, name, value, self._max_bytes)

    @override
    def delete(self, handle: Any) -> None:
        """Delete a block here and, with the next message, at the coordinator; do nothing if there is none."""
        kind, name = check_handle(handle)
        self.release([name])
        if self._keeps(kind):
            self._file(name).unlink(missing_ok=True)
        if self._folder is None:
            with self._lock:
                self._deleted.append(name)

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

    @override
    def move(self, handle: Any, file: Path, block: Block | None = None) -> None:
        kind, name = check_handle(handle)
        content = self._refs[kind].get(name)
        if isinstance(content, bytes):
            write_bytes(file, content)
        else:
            write_block(file, *(block or self.get(handle)))
        self.delete(handle)

    # ------------------------------------------------------------------ references sent with a message

    def refs_of(self, message: Any) -> Refs:
        """Return the references that this process holds for the handles in a message or an answer.

        After a restart it holds weights only as files; then they are put into the object store again.

        Raises:
            Refusal: If such a file has been deleted (404), is too large (413) or truncated (422).
            OSError: If the object store and its disk are full.
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
        """Keep the references that came with a message or an answer, and return the handles that are new.

        The coordinator puts weights again, so that they do not disappear with the sender's process.

        Raises:
            Refusal: If weights are not available any more (404), too large (413) or of another form (422).
        """
        new = []
        for handle in handles_in(message):
            kind, name = handle["kind"], handle["name"]
            is_known = name in self._refs[kind]
            if name not in refs or (is_known and self._keeps(kind)):
                continue
            self._hold(handle, refs[name][0])  # also for a known handle: the coordinator may have put it again
            if self._keeps(kind):
                self._keep_adopted(handle)
            if not is_known:
                new.append(handle)
        return new

    def release(self, names: Iterable[str]) -> None:
        """Release references that another process holds now, or that are no longer needed."""
        with self._lock:
            for name in names:
                for table in self._refs.values():
                    table.pop(name, None)

    def take_deleted(self) -> list[str]:
        """Return the names of deleted blocks that the coordinator has not received yet, once."""
        with self._lock:
            deleted, self._deleted = self._deleted, []
        return deleted

    def held(self, kind: Kind) -> int:
        """Return the number of blocks of a kind that this process holds."""
        return len(self._refs[kind])

    # ------------------------------------------------------------------ helpers

    def _keeps(self, kind: str) -> bool:
        return kind == "policy" and self._folder is not None

    def _keep(self, handle: Mapping[str, str], tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> None:
        """Put tensors into the object store, and into a file if this process keeps files of this kind."""
        if self._keeps(handle["kind"]):
            file = self._file(handle["name"])
            file.parent.mkdir(parents=True, exist_ok=True)
            write_block(file, tensors, metadata)
        self._share(handle, tensors, metadata)

    def _share(self, handle: Mapping[str, str], tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> None:
        flat = flatten(tensors)
        is_small = sum(tensor.nbytes for tensor in flat.values()) <= SMALL
        if is_small and handle["kind"] != "policy":  # weights are sent to each node once, not to each collector
            self._hold(handle, bytes_of(flat, metadata))
            return
        errors = self._ray.exceptions
        try:
            ref = self._ray.put(pack(handle["kind"], flat, metadata))
        except (errors.ObjectStoreFullError, errors.OutOfDiskError) as error:
            raise OSError(f"Ray has no space for a {handle['kind']} block: {error}") from error
        self._hold(handle, ref)

    def _fetch(self, kind: str, name: str, ref: Any) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(ref, timeout=FETCH_TIMEOUT)
        except (errors.ObjectLostError, errors.GetTimeoutError, errors.RaySystemError) as error:
            self.release([name])
            raise Refusal(404, f"the {kind} block {name} is lost: {type(error).__name__}") from error

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
                logger.debug("the %s block %s was not fetched", kind, oldest)

    def _file(self, name: str) -> Path:
        assert self._folder is not None
        return self._folder / "policy" / f"{name}.safetensors"

    def _read(self, handle: Mapping[str, str]) -> Block:
        """Return weights from their file after a restart of this process, and share them again."""
        kind, name = handle["kind"], handle["name"]
        if not self._keeps(kind) or not self._file(name).exists():
            raise Refusal(404, f"there is no {kind} block {name}")
        block = read_block(self._file(name), self._max_bytes)
        self._share(handle, *block)
        return block


PARTS = {"kind", "metadata", "form", "data"}


def check_handle(handle: Any) -> tuple[Kind, str]:
    """Return the kind and the name of a handle.

    Raises:
        Refusal: If the handle is malformed (400).
    """
    if not is_handle(handle):
        raise Refusal(400, f"a handle must be {{'kind': one of {', '.join(KINDS)}, 'name': 32 hex digits}}")
    return handle["kind"], handle["name"]


def is_handle(value: Any) -> bool:
    """Return whether a value has the form of a handle."""
    if not isinstance(value, dict) or value.keys() != {"kind", "name"} or value["kind"] not in KINDS:
        return False
    name = value["name"]
    return isinstance(name, str) and len(name) == 32 and set(name) <= set("0123456789abcdef")


def handles_in(message: Any) -> list[dict[str, Any]]:
    """Return the handles among the values of a message or an answer, and of the dicts in it."""
    if not isinstance(message, Mapping):
        return []
    below = [value for part in message.values() if isinstance(part, Mapping) for value in part.values()]
    return [value for value in [*message.values(), *below] if is_handle(value)]


def pack(kind: str, flat: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return the object to store: the bytes of every tensor, which Ray shares without a copy."""
    parts = {name: tensor.detach().cpu().contiguous() for name, tensor in flat.items()}
    data = {name: part.reshape(-1).view(torch.uint8).numpy() for name, part in parts.items()}
    form = {name: (str(part.dtype).removeprefix("torch."), tuple(part.shape)) for name, part in parts.items()}
    return {"kind": kind, "metadata": dict(metadata), "form": form, "data": data}


def unpack(kind: str, name: str, value: Any, max_bytes: int) -> Block:
    """Return the block that ``pack`` has made into ``value``; its tensors are copies, which may be modified.

    Raises:
        Refusal: If ``value`` is too large (413) or not a packed block (422).
    """
    if not isinstance(value, dict) or value.keys() != PARTS or value["kind"] != kind:
        raise Refusal(422, f"the object of {name} is not a {kind} block")
    form, data = value["form"], value["data"]
    _require_size(kind, name, sum(array.nbytes for array in data.values()), max_bytes)
    if form.keys() != data.keys():
        raise Refusal(422, f"the {kind} block {name} lacks the form or the data of a tensor")
    try:
        return Block(unflatten({part: _tensor(part, form[part], data[part]) for part in form}), value["metadata"])
    except (RuntimeError, TypeError, ValueError) as error:
        raise Refusal(422, f"the {kind} block {name} is invalid: {error}") from error


def _require_size(kind: str, name: str, size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise Refusal(413, f"the {kind} block {name} has {size} bytes, more than {max_bytes}")


def _tensor(name: str, form: tuple[str, tuple[int, ...]], array: Any) -> torch.Tensor:
    dtype, shape = form
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype) or array.dtype != np.uint8 or array.ndim != 1:
        raise Refusal(422, f"{name} must be a tensor of bytes with a known dtype, got {dtype!r}")
    expected = math.prod(shape) * kind.itemsize
    if array.nbytes != expected:
        raise Refusal(422, f"{name} of {dtype} {shape} must have {expected} bytes, got {array.nbytes}")
    if not expected:
        return torch.empty(shape, dtype=kind)
    return torch.from_numpy(array.copy()).view(kind).reshape(shape)  # a copy, because shared objects are read-only
