"""End a run that makes no progress."""

from __future__ import annotations

import faulthandler
import logging
import math
import os
import signal
import threading
import time
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override

from lightning_ding.callbacks.process_exit import (
    BACKSTOP,
    SHOWING,
    STDERR,
    is_started_by_a_rank,
    leave,
    leave_within,
    show_stacks,
    show_stacks_at_signal,
    started_here,
)
from lightning_ding.config import require
from lightning_ding.utils.exit_codes import ORPHANED, STALLED
from lightning_ding.utils.protocols import run_data

logger = logging.getLogger(__name__)

POLL = 1.0  # seconds
ORPHAN_LEAVES = 5.0  # seconds from the exit of the rank that started this rank until this rank exits


class Watchdog(Callback):
    """End the process if there was no env step and no update for a long time.

    The last message names the env that was in a step or reset, if there is one. The stacks of all threads of this
    process and of its env processes are written to stderr; the exit code is
    :data:`~lightning_ding.utils.exit_codes.STALLED`. A thread reads the counters once a second, so the run is not
    slowed down. If that thread cannot run, because other code holds the interpreter lock, ``faulthandler`` writes the
    stacks and ends the process with exit code 1. Other code must therefore not call
    ``faulthandler.dump_traceback_later`` during a run. Under DDP each rank watches itself, and a rank that another rank
    has started exits some seconds after that rank has exited.

    During a run, SIGUSR1 makes the process write the stacks of its threads, unless the program handles that signal.

    Time in which the process was stopped (Ctrl-Z) does not count for the thread, but it does for ``faulthandler``: a
    process that was stopped for longer than ``seconds`` may be ended with exit code 1 as soon as it continues.

    Args:
        seconds: Longest time without an env step or an update, in training or in an evaluation, > 0 and finite. It must
            be longer than any single env step, update, checkpoint, compilation or callback. None disables the watchdog.
    """

    def __init__(self, seconds: float | None = 600.0) -> None:
        require(seconds is None or 0 < seconds < math.inf, "seconds", "> 0 and finite, or None", seconds)
        self.seconds = seconds
        self._shows_stacks = False
        self._thread: threading.Thread | None = None

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Start watching the run."""
        self.teardown(trainer, pl_module, stage)
        self._shows_stacks = show_stacks_at_signal()
        if self.seconds is None:
            return
        self._is_started = is_started_by_a_rank(trainer)
        self._stopped = threading.Event()
        poll = min(POLL, self.seconds / 4)
        _arm(self.seconds + 2 * poll)
        watched = (trainer, pl_module, self.seconds, poll)
        self._thread = threading.Thread(target=self._watch, args=watched, name="watchdog", daemon=True)
        self._thread.start()

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Stop watching the run."""
        if self._shows_stacks:
            faulthandler.unregister(signal.SIGUSR1)
            self._shows_stacks = False
        if self._thread is not None:
            self._stopped.set()
            self._thread.join()
            self._thread = None

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Stop watching the run."""
        self.teardown(trainer, pl_module, "fit")

    def _watch(self, trainer: Trainer, module: Any, seconds: float, poll: float) -> None:
        parent, orphaned = os.getppid(), 0.0
        last, idle, before = counts(trainer, module), 0.0, time.monotonic()
        while not self._stopped.wait(poll):
            _arm(seconds + 2 * poll)
            now, counted = time.monotonic(), counts(trainer, module)
            passed, before = min(now - before, 2 * poll), now
            idle = idle + passed if counted == last else 0.0
            last = counted
            if idle >= seconds:
                self._leave(trainer, seconds)
            orphaned += passed if self._is_started and os.getppid() != parent else 0.0
            if orphaned >= ORPHAN_LEAVES:
                leave_within(BACKSTOP, ORPHANED)
                logger.error("this rank exits, because the process that started it has exited")
                leave(ORPHANED)
        faulthandler.cancel_dump_traceback_later()

    def _leave(self, trainer: Trainer, seconds: float) -> None:
        # the other ranks are idle as well and write their stacks; then the rank that started them ends them
        waits = SHOWING + 2 * POLL + (ORPHAN_LEAVES if self._is_started else 0.0) if trainer.world_size > 1 else 0.0
        started = started_here(trainer)
        leave_within(BACKSTOP + waits, STALLED, started)
        _arm(2 * BACKSTOP + waits)
        busy = run_data(trainer).env_in_progress()
        logger.error(
            "no env step and no update for %g s%s, so the process ends. If a step, an update, a checkpoint or a "
            "callback takes longer, pass Watchdog(seconds=...). Stacks of all threads:",
            seconds,
            f" while waiting for {busy}" if busy else "",
        )
        show_stacks()
        time.sleep(waits)
        leave(STALLED, started)


def _arm(seconds: float) -> None:
    """Make C code write the stacks and end this process, unless this is called again within ``seconds``."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=STDERR)


def counts(trainer: Trainer, module: Any) -> tuple[int, ...]:
    """Return counters of which at least one grows while the run makes progress: updates and env steps."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    evaluators: list[Any] = [getattr(callback, "evaluator", None) for callback in callbacks]  # of RunEvaluator
    progress, steps = module.progress, run_data(trainer).steps_made()
    return (
        progress.train_iter,
        progress.env_step,
        steps,
        *(one.steps_made for one in evaluators if hasattr(one, "steps_made")),
    )
