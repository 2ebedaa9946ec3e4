"""The process of a coordinator whose workers are separate processes."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.coordinator.coordinator import Coordinator, announce
from lightning_ding.distributed.stop_signals import STOP_SIGNALS, collected
from lightning_ding.distributed.transport import ADDRESS_FILE, get_transport
from lightning_ding.exit_codes import BY_SIGNAL, GIVEN_UP

LOOK = 0.5  # seconds between two checks for a signal
REPORT = 10.0  # seconds between two progress messages in the log
PROGRESS = (
    "env step %(env_step)d, update %(train_iter)d, %(episode)d episodes, %(collectors)d collectors, "
    "%(learners)d learners, policy lag %(policy_lag).1f, %(samples_per_insert).1f samples per insert"
)

logger = logging.getLogger(__name__)


class CannotStartError(ValueError):
    """The config or the folder is wrong, so that a restart would fail in the same way."""


def coordinate(cfg: ParallelConfig, resume: bool = False) -> int:
    """Run the coordinator until the run is over or a signal arrives.

    Args:
        cfg: Config of the run.
        resume: Whether to resume the run in ``main.exp_name``.

    Returns:
        The exit code: 0 when the run is over, 3 if it was given up, 143 after SIGTERM, after which the run
        can be resumed.

    Raises:
        CannotStartError: If the folder holds another run or is in use by another coordinator, or a token or a
            package of the transport is missing.
    """
    folder = Path(cfg.main.exp_name)
    wanted = [number for number in STOP_SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    with _folder_to_itself(folder), collected(wanted) as received:
        try:
            transport = get_transport(cfg.system.transport)
            store = transport.make_store(cfg)
            coordinator = Coordinator(cfg, store, resume=resume)
            server = transport.serve(cfg, coordinator.handle, store)
        except (ValueError, ImportError, OSError) as error:
            raise CannotStartError(str(error)) from error
        try:
            coordinator.start()
            server.start()
            announce(folder, server)
            _wait(coordinator, received)
        finally:
            coordinator.close()
            server.close()
    if coordinator.failure is not None:
        logger.error("the run was given up: %s", coordinator.failure)
        return GIVEN_UP
    return BY_SIGNAL + received[0] if received else 0


def _wait(coordinator: Coordinator, received: list[int]) -> None:
    reported = time.monotonic()
    while not received and not coordinator.wait(LOOK):
        if time.monotonic() - reported >= REPORT:
            reported = time.monotonic()
            logger.info(PROGRESS, coordinator.status())


def require_no_coordinator(folder: Path) -> None:
    """Check that no coordinator is using a folder.

    Raises:
        CannotStartError: If another coordinator is using the folder.
    """
    with suppress(FileNotFoundError), (folder / "coordinator.lock").open("r+") as file:
        _lock(file, folder)


@contextmanager
def _folder_to_itself(folder: Path) -> Iterator[IO[str]]:
    """Lock a folder against other coordinators; the kernel releases the lock at the end of the process."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "coordinator.lock").open("w") as file:
        _lock(file, folder)
        (folder / ADDRESS_FILE).unlink(missing_ok=True)  # another program may use the port of an earlier coordinator
        yield file


def _lock(file: IO[str], folder: Path) -> None:
    import fcntl  # not available on Windows

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise CannotStartError(f"another coordinator uses {str(folder)!r}; choose another main.exp_name") from error
