"""The transport over HTTP and a shared folder: messages go to an HTTP server, tensors into files."""

from __future__ import annotations

import os
from pathlib import Path

from typing_extensions import override

from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.file_store import STALE, FileStore
from lightning_ding.distributed.flask_fs.auth import (
    VARIABLE,
    client_tls,
    leads_to_one_machine,
    make_token,
    read_token,
    server_tls,
)
from lightning_ding.distributed.flask_fs.channel import FlaskChannel
from lightning_ding.distributed.transport import Channel, Handler, Server, Store, Transport


class FlaskTransport(Transport):
    """HTTP and files in a folder that all machines share.

    ``system.coordinator`` configures the address, the token, TLS and the limits on sizes. The server needs the extra
    ``flask``.
    """

    @override
    def check(self, config: ParallelConfig) -> None:
        read_token(config.system.coordinator.token_file)
        client_tls(config.system.coordinator)

    @override
    def make_secret(self, config: ParallelConfig) -> None:
        server_tls(config.system.coordinator)  # the key need not be on other machines
        if config.system.coordinator.token_file is None and VARIABLE not in os.environ:
            make_token(Path(config.main.exp_name))  # otherwise every user of this machine could send messages

    @override
    def make_store(self, config: ParallelConfig) -> Store:
        """Return the store of a run, without files that an earlier coordinator of this run has left.

        Raises:
            ValueError: If its folders belong to another run.
        """
        store = FileStore.of(config)
        store.claim(Path(config.main.exp_name))
        store.sweep(STALE)
        return store

    @override
    def serve(self, config: ParallelConfig, handler: Handler, store: Store) -> Server:
        from lightning_ding.distributed.flask_fs.server import FlaskServer  # needs an extra

        section = config.system.coordinator
        token = read_token(section.token_file, Path(config.main.exp_name))
        mark = store.mark() if isinstance(store, FileStore) else None
        options = (section.host, section.port, token, section.channel, section.max_message, mark, server_tls(section))
        return FlaskServer(handler, *options)

    @override
    def connect(self, config: ParallelConfig, host: str | None = None, port: int | None = None) -> Channel:
        """Return a channel to the coordinator.

        Without ``host`` and ``port``, the address in the config is used if it has a port and other machines can call
        it; otherwise the address that the coordinator has written into the folder of the run.

        Raises:
            ValueError: If the token is too short, or the file of the trusted certificates cannot be used.
            OSError: If the file of the token cannot be read.
        """
        section, folder = config.system.coordinator, Path(config.main.exp_name)
        if host is None and port is None and section.port != 0 and leads_to_one_machine(section.host):
            host, port = section.host, section.port
        token, timeout = read_token(section.token_file, folder), config.system.reconnect_timeout
        paths = (config.system.path_data, config.system.path_policy)
        options = (section.channel, timeout, section.max_block, *paths, client_tls(section))
        return FlaskChannel(folder, host, port, token, *options)
