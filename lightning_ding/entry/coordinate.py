"""The coordinator's process, when workers reach it over HTTP."""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO, Any

from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.coordinator import Coordinator
from lightning_ding.distributed.flask_fs.address import callable_name
from lightning_ding.exit_codes import BY_SIGNAL, GIVEN_UP

LOOK = 0.5  # seconds between two looks for a signal
STALE = 600.0  # seconds after which half-written files and unread rounds of an earlier coordinator are deleted
REPORT = 10.0  # seconds between two lines about how far the run is
PROGRESS = (
    "env step %(env_step)d, update %(train_iter)d, %(episode)d episodes, %(collectors)d collectors, "
    "%(learners)d learners, policy lag %(policy_lag).1f, %(samples_per_insert).1f samples per insert"
)

logger = logging.getLogger(__name__)


class CannotStartError(ValueError):
    """Something is wrong with the config or the folder, and another attempt would find the same."""


def coordinate(cfg: ParallelConfig, resume: bool = False) -> int:
    """Be the coordinator until the run is over, or a SIGTERM comes.

    Args:
        cfg: Of the run.
        resume: Go on with the run in ``main.exp_name``.

    Returns:
        The exit code: 0 when the run is over, 3 if it was given up, 143 after SIGTERM; then ``resume`` goes on.

    Raises:
        CannotStartError: If the folder holds another run, or another coordinator works in it, a token is missing, or
            the packages of this transport are.
    """
    folder = Path(cfg.main.exp_name)
    with _folder_to_itself(folder), _signals() as heard:
        try:
            coordinator, server = _make(cfg, folder, resume)
        except (ValueError, ImportError, OSError) as error:
            raise CannotStartError(str(error)) from error
        try:
            coordinator.start()
            server.start()
            _write_address(folder / "coordinator.json", cfg.system.coordinator.host, server.port)
            _wait(coordinator, heard)
        finally:
            coordinator.close()
            server.close()
    if coordinator.error is not None:
        logger.error("the run was given up: %s", coordinator.error)
        return GIVEN_UP
    return BY_SIGNAL + heard[0] if heard else 0


def _make(cfg: ParallelConfig, folder: Path, resume: bool) -> tuple[Coordinator, Any]:
    from lightning_ding.distributed.flask_fs.server import FlaskServer  # it needs an extra
    from lightning_ding.distributed.flask_fs.store import FileStore
    from lightning_ding.distributed.flask_fs.token import read_token

    at = cfg.system.coordinator
    store = FileStore(folder / "data", at.max_block)
    store.sweep(STALE)
    coordinator = Coordinator(cfg, store, resume=resume)
    token, mark = read_token(at.token_file, folder), store.mark()
    server = FlaskServer(coordinator.handle, at.host, at.port, token, at.channel, at.max_message, mark)
    return coordinator, server


def _wait(coordinator: Coordinator, heard: list[int]) -> None:
    reported = time.monotonic()
    while not heard and not coordinator.wait(LOOK):
        if time.monotonic() - reported >= REPORT:
            reported = time.monotonic()
            logger.info(PROGRESS, coordinator.status())


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect the signals that ask for the end."""
    heard: list[int] = []

    def hear(number: int, frame: FrameType | None) -> None:
        heard.append(number)

    wanted = [number for number in (signal.SIGTERM, signal.SIGINT) if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, hear) for number in wanted}
    try:
        yield heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def require_no_coordinator(folder: Path) -> None:
    """See that no coordinator works in a folder now.

    Raises:
        CannotStartError: If one does.
    """
    with suppress(FileNotFoundError), (folder / "coordinator.lock").open("r+") as file:
        _lock(file, folder)


@contextmanager
def _folder_to_itself(folder: Path) -> Iterator[IO[str]]:
    """Keep a second coordinator out of a folder; the kernel forgets it with the process."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "coordinator.lock").open("w") as file:
        _lock(file, folder)
        (folder / "coordinator.json").unlink(missing_ok=True)  # of one that is gone, whose port may be another's now
        yield file


def _lock(file: IO[str], folder: Path) -> None:
    import fcntl  # Windows has none

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise CannotStartError(f"another coordinator works in {str(folder)!r}; choose another main.exp_name") from error


def _write_address(file: Path, host: str, port: int) -> None:
    temporary = file.with_suffix(".tmp")
    temporary.write_text(json.dumps({"host": callable_name(host), "port": port, "pid": os.getpid()}))
    temporary.replace(file)
