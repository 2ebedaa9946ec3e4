"""End a run in which nothing goes on."""

from __future__ import annotations

import faulthandler
import logging
import math
import os
import threading
import time
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override

from lightning_ding.callbacks.leaving import BACKSTOP, SHOWING, STDERR, leave, leave_within, show_stacks
from lightning_ding.callbacks.ranks import is_started_by_a_rank, started_here
from lightning_ding.config import require
from lightning_ding.exit_codes import ORPHANED, STALLED

logger = logging.getLogger(__name__)

POLL = 1.0  # seconds
ORPHAN_LEAVES = 5.0  # seconds that a rank has to find out by itself that rank zero is gone


class Watchdog(Callback):
    """Ends the process when there was no env step and no update for a long time.

    First the stacks of all threads of this process and of its env processes go to stderr, then it exits with
    :data:`~lightning_ding.exit_codes.STALLED`. A thread looks at the counters once a second, so a run pays nothing for
    it. If not even that thread gets to run, because something holds the interpreter, ``faulthandler`` writes the stacks
    and ends the process with 1; its ``dump_traceback_later`` is in use while this is. Under DDP each rank watches
    itself, and a rank that another one has started leaves some seconds after that one is gone.

    Time in which the process was stopped (Ctrl-Z) does not count for the thread, but it does for ``faulthandler``: a
    process that was stopped for longer than ``seconds`` may be ended, with 1, as soon as it goes on.

    Args:
        seconds: Longest time without an env step or an update, of training or of an evaluation, > 0 and finite. It has
            to be longer than a single env step, update, checkpoint, compilation or callback ever takes. None for no
            watch.
    """

    def __init__(self, seconds: float | None = 600.0) -> None:
        require(seconds is None or 0 < seconds < math.inf, "seconds", "> 0 and finite, or None", seconds)
        self.seconds = seconds
        self._thread: threading.Thread | None = None

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Begin to watch."""
        self._end()
        if self.seconds is None:
            return
        self._is_started = is_started_by_a_rank(trainer)
        self._over = threading.Event()
        poll = min(POLL, self.seconds / 4)
        _arm(self.seconds + 2 * poll)
        watched = (trainer, pl_module, self.seconds, poll)
        self._thread = threading.Thread(target=self._watch, args=watched, name="watchdog", daemon=True)
        self._thread.start()

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Watch no more."""
        self._end()

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Watch no more."""
        self._end()

    def _end(self) -> None:
        if self._thread is not None:
            self._over.set()
            self._thread.join()
            self._thread = None

    def _watch(self, trainer: Trainer, module: Any, seconds: float, poll: float) -> None:
        parent, orphaned = os.getppid(), 0.0
        last, still, before = counts(trainer, module), 0.0, time.monotonic()
        while not self._over.wait(poll):
            _arm(seconds + 2 * poll)
            now, counted = time.monotonic(), counts(trainer, module)
            passed, before = min(now - before, 2 * poll), now
            still = still + passed if counted == last else 0.0
            last = counted
            if still >= seconds:
                self._leave(trainer, seconds)
            orphaned += passed if self._is_started and os.getppid() != parent else 0.0
            if orphaned >= ORPHAN_LEAVES:
                leave_within(BACKSTOP, ORPHANED)
                logger.error("the process of rank zero is gone")
                leave(ORPHANED)
        faulthandler.cancel_dump_traceback_later()

    def _leave(self, trainer: Trainer, seconds: float) -> None:
        # the other ranks stand still as well, and write theirs; then the one that started them ends them
        waits = SHOWING + 2 * POLL + (ORPHAN_LEAVES if self._is_started else 0.0) if trainer.world_size > 1 else 0.0
        started = started_here(trainer)
        leave_within(BACKSTOP + waits, STALLED, started)
        _arm(2 * BACKSTOP + waits)
        logger.error("no env step and no update for %g s; the run stands here:", seconds)
        show_stacks()
        time.sleep(waits)
        leave(STALLED, started)


def _arm(seconds: float) -> None:
    """Let C code write the stacks and end this process, unless this is called again within that time."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=STDERR)


def counts(trainer: Trainer, module: Any) -> tuple[int, ...]:
    """Return what changes while something goes on: steps of collecting and of evaluating, and updates."""
    progress, datamodule = getattr(module, "progress", None), getattr(trainer, "datamodule", None)
    evaluating = [getattr(callback, "evaluator", None) for callback in trainer.callbacks]  # type: ignore[attr-defined]
    return (
        getattr(progress, "train_iter", 0),
        getattr(progress, "env_step", 0),
        getattr(getattr(datamodule, "collector", None), "envstep", 0),
        *(getattr(one, "steps_made", 0) for one in [getattr(datamodule, "evaluator", None), *evaluating]),
    )
