"""The process of a coordinator whose workers are separate processes."""

from __future__ import annotations

import logging
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import torch

from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.coordinator.coordinator import Coordinator, announce
from lightning_ding.distributed.coordinator.folder import check_start, locked
from lightning_ding.distributed.progress import REPORT, ProgressLine
from lightning_ding.distributed.stop_signals import STOP_SIGNALS, collected
from lightning_ding.distributed.transport import ADDRESS_FILE, get_transport
from lightning_ding.utils.exit_codes import BY_SIGNAL, GIVEN_UP

LOOK = 0.5  # seconds between two checks for a signal

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
        CannotStartError: If the folder holds another run, no run that ``resume`` could continue, or is in use by
            another coordinator, or a token or a package of the transport is missing.
    """
    torch.set_num_threads(1)  # each thread of the server would start others for its operations on small tensors
    folder = Path(cfg.main.exp_name)
    wanted = [number for number in STOP_SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    with ExitStack() as held:
        try:
            check_start(cfg, resume, may_have_learner=True)
            held.enter_context(locked(folder))
            # Another program may use the port of an earlier coordinator.
            (folder / ADDRESS_FILE).unlink(missing_ok=True)
            received = held.enter_context(collected(wanted))
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
    reported, line = time.monotonic(), ProgressLine()
    while not received and not coordinator.wait(LOOK):
        if time.monotonic() - reported >= REPORT:
            reported = time.monotonic()
            logger.info("%s", line.of(coordinator.status()))
