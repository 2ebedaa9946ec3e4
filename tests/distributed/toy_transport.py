"""A transport in one file: messages as JSON over a Unix socket, blocks of tensors in files."""

from __future__ import annotations

import json
import secrets
import threading
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from typing_extensions import override

from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.file_store import FileStore
from lightning_ding.distributed.transport import (
    Channel,
    CoordinatorGoneError,
    Handler,
    LeaseLostError,
    Message,
    Refusal,
    Server,
    Store,
    Transport,
)


class SocketServer(Server):
    def __init__(self, folder: Path, handler: Handler) -> None:
        self._handler = handler
        self._file = folder / "socket"
        self._file.unlink(missing_ok=True)
        self._listener = Listener(str(self._file), "AF_UNIX", authkey=(folder / "secret").read_bytes())
        self._is_closed = False
        self.address = {"socket": str(self._file)}

    @override
    def start(self) -> None:
        threading.Thread(target=self._accept, daemon=True).start()

    @override
    def close(self) -> None:
        self._is_closed = True
        self._listener.close()

    def _accept(self) -> None:
        while not self._is_closed:
            with suppress(OSError):
                threading.Thread(target=self._answer, args=(self._listener.accept(),), daemon=True).start()

    def _answer(self, connection: Connection) -> None:
        with connection, suppress(EOFError, OSError):
            name, message = json.loads(connection.recv_bytes())
            try:
                answer: Any = {"answer": self._handler(name, message)}
            except Refusal as refusal:
                answer = {"refused": [refusal.status, refusal.reason]}
            connection.send_bytes(json.dumps(answer).encode())


class SocketChannel(Channel):
    def __init__(self, folder: Path, max_block: int) -> None:
        self._folder = folder
        self.store: Store = FileStore(folder / "data", max_block)

    @override
    def call(self, name: str, message: Message | None = None) -> Message:
        try:
            key = (self._folder / "secret").read_bytes()
            with Client(str(self._folder / "socket"), "AF_UNIX", authkey=key) as connection:
                connection.send_bytes(json.dumps([name, message or {}]).encode())
                answer = json.loads(connection.recv_bytes())
        except (OSError, EOFError) as error:
            raise CoordinatorGoneError(f"no answer to {name!r}: {error}") from error
        if "refused" in answer:
            status, reason = answer["refused"]
            raise LeaseLostError(reason) if status == 409 else Refusal(status, reason)
        return dict(answer["answer"])

    @override
    def close(self) -> None:
        pass


class SocketTransport(Transport):
    @override
    def make_secret(self, config: ParallelConfig) -> None:
        (Path(config.main.exp_name) / "secret").write_bytes(secrets.token_bytes(16))

    @override
    def make_store(self, config: ParallelConfig) -> Store:
        return FileStore(Path(config.main.exp_name) / "data", config.system.coordinator.max_block)

    @override
    def serve(self, config: ParallelConfig, handler: Handler, store: Store) -> Server:
        return SocketServer(Path(config.main.exp_name), handler)

    @override
    def connect(self, config: ParallelConfig, host: str | None = None, port: int | None = None) -> Channel:
        return SocketChannel(Path(config.main.exp_name), config.system.coordinator.max_block)
