"""A learner and a collector that reach the coordinator over HTTP, and share a folder with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning_ding.config import ConfigLike, require, resolve
from lightning_ding.distributed.channel import Channel
from lightning_ding.distributed.comm_collector import BaseCommCollector
from lightning_ding.distributed.comm_learner import BaseCommLearner
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.flask_fs.address import leads_to_one_machine
from lightning_ding.distributed.flask_fs.token import read_token
from lightning_ding.registry import COMM_COLLECTOR_REGISTRY, COMM_LEARNER_REGISTRY

NOT_OURS = ("type", "import_names")  # of the section that names the class


def whole_config(cfg: Any) -> ParallelConfig:
    """Return the config of the run from what a worker is made with, with or without the ``type`` of the worker."""
    if isinstance(cfg, Mapping):
        cfg = {key: value for key, value in cfg.items() if key not in NOT_OURS}
    found: ParallelConfig = resolve(ParallelConfig, cfg)
    return found


def flask_channel(cfg: ParallelConfig, host: str | None, port: int | None) -> Channel:
    """Return the way to the coordinator.

    Args:
        cfg: Of the run.
        host: Where the coordinator listens; None takes what the config says, if that is another machine's address and
            a port, else what the coordinator has written into the folder of the run.
        port: The same.

    Raises:
        ImportError: If the packages of this transport are not there; the message says how to get them.
        ValueError: If the token is too short.
        OSError: If the token's file cannot be read.
    """
    from lightning_ding.distributed.flask_fs.channel import FlaskChannel  # it needs an extra

    at, system = cfg.system.coordinator, cfg.system
    if host is None and port is None and at.port != 0 and leads_to_one_machine(at.host):
        host, port = at.host, at.port
    folder = Path(cfg.main.exp_name)
    token = read_token(at.token_file, folder)
    return FlaskChannel(folder, host, port, token, at.channel, system.reconnect_timeout, at.max_block)


class _OverHttp:
    """What both have in common."""

    config: ParallelConfig

    def __init__(
        self,
        cfg: ConfigLike[ParallelConfig] = None,
        channel: Channel | None = None,
        *,
        host: str | None = None,
        port: int | None = None,
    ) -> None:
        require((host is None) == (port is None), "host and port", "given together or not at all", (host, port))
        self._address = (host, port)
        super().__init__(whole_config(cfg), channel)  # type: ignore[call-arg]
        read_token(self.config.system.coordinator.token_file)  # what is wrong with it is said before the start

    def _make_channel(self) -> Channel:
        return flask_channel(self.config, *self._address)


@COMM_LEARNER_REGISTRY.register("flask_fs")
class FlaskFileSystemLearner(_OverHttp, BaseCommLearner):
    """A comm learner over HTTP and a shared folder.

    Args:
        cfg: Of the whole run.
        channel: The way to the coordinator, None for the one that the config describes.
        host: Where the coordinator listens; None takes what the config says or else the folder of the run, see
            :func:`flask_channel`.
        port: The same.

    Raises:
        ValueError: If only one of ``host`` and ``port`` is given, or the token is too short.
        OSError: If the token's file cannot be read.
    """


@COMM_COLLECTOR_REGISTRY.register("flask_fs")
class FlaskFileSystemCollector(_OverHttp, BaseCommCollector):
    """A comm collector over HTTP and a shared folder.

    Args:
        cfg: Of the whole run.
        channel: The way to the coordinator, None for the one that the config describes.
        host: Where the coordinator listens; None takes what the config says or else the folder of the run, see
            :func:`flask_channel`.
        port: The same.

    Raises:
        ValueError: If only one of ``host`` and ``port`` is given, or the token is too short.
        OSError: If the token's file cannot be read.
    """
