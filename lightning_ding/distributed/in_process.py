"""A store and a channel for workers in the process of the coordinator, for tests and notebooks."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from typing_extensions import override

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.distributed.block_files import write_block
from lightning_ding.distributed.transport import (
    KINDS,
    Block,
    Channel,
    Handler,
    Kind,
    Message,
    Refusal,
    Store,
    refusal_of,
)


class MemoryStore(Store):
    """Keeps blocks in memory; ``put`` and ``get`` copy them."""

    def __init__(self) -> None:
        self._blocks: dict[str, Block] = {}
        self._number = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._blocks)

    @override
    def put(self, kind: Kind, tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> Any:
        require(kind in KINDS, "kind", f"one of {', '.join(KINDS)}", kind)
        block = Block(_copy(dict(tensors)), dict(metadata or {}))
        with self._lock:
            self._number += 1
            name = f"{self._number:08d}"
            self._blocks[f"{kind}/{name}"] = block
        return {"kind": kind, "name": name}

    @override
    def get(self, handle: Any) -> Block:
        with self._lock:
            block = self._blocks.get(_key(handle))
        if block is None:
            raise Refusal(404, f"there is no block {_key(handle)}")
        return Block(_copy(block.tensors), dict(block.metadata))

    @override
    def delete(self, handle: Any) -> None:
        with self._lock:
            self._blocks.pop(_key(handle), None)

    @override
    def move(self, handle: Any, file: Path, block: Block | None = None) -> None:
        write_block(file, *(block or self.get(handle)))
        self.delete(handle)


class InProcessChannel(Channel):
    """Passes messages directly to the coordinator, converted to JSON and back.

    Args:
        handler: Answers the messages, ``Coordinator.handle``.
        store: Store of the coordinator.

    Example:
        >>> channel = InProcessChannel(lambda name, message: {"name": name, **message}, MemoryStore())
        >>> channel.call("connect", {"worker_id": "w"})
        {'name': 'connect', 'worker_id': 'w'}
    """

    def __init__(self, handler: Handler, store: Store) -> None:
        self._handler = handler
        self.store = store

    @override
    def call(self, name: str, message: Message | None = None) -> Message:
        try:
            answer = self._handler(name, _through_json(message or {}))
        except Refusal as refusal:
            raise refusal_of(refusal.status, refusal.reason) from refusal
        return _through_json(answer)

    @override
    def close(self) -> None:
        pass


def _key(handle: Any) -> str:
    if not isinstance(handle, Mapping) or not {"kind", "name"} <= handle.keys():
        raise Refusal(400, f"a handle must have a kind and a name, got {handle!r}")
    return f"{handle['kind']}/{handle['name']}"


def _copy(tensors: Any) -> Any:
    return nested.apply(lambda leaf: torch.as_tensor(leaf).detach().cpu().clone(), tensors)


def _through_json(message: Message) -> Message:
    plain: Message = json.loads(json.dumps(message))
    return plain
