"""End a run that makes no progress, and a process that cannot end by itself, with the processes that it has started."""

from __future__ import annotations

import faulthandler
import logging
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override

from lightning_ding.config import require
from lightning_ding.utils.exit_codes import ORPHANED, STALLED
from lightning_ding.utils.protocols import run_data
from lightning_ding.utils.ranks import gather_rows

logger = logging.getLogger(__name__)

STDERR = 2  # the descriptor, because sys.stderr may not be backed by a file
BACKSTOP = 5.0  # seconds for a process to write its messages and stacks before it is killed
SHOWING = 1.0  # seconds for env processes to write their stacks
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


def show_stacks() -> None:
    """Write the stacks of all threads of this process and of its env processes to stderr.

    An env process writes its stacks on SIGUSR1. A child process that does not handle that signal is ended by it, so
    call this only in a run that is about to end.
    """
    with suppress(OSError, ValueError, AttributeError):  # stderr is closed, is a broken pipe, or is None
        sys.stderr.flush()
    _write_stacks()
    for child in multiprocessing.active_children():
        if child.pid is not None and hasattr(signal, "SIGUSR1"):
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGUSR1)
    time.sleep(SHOWING)


def show_stacks_at_signal() -> bool:
    """Make SIGUSR1, which would end this process, write the stacks of its threads to stderr instead.

    Returns:
        Whether it does so now: not on Windows, which has no such signal, nor if the program handles the signal itself.
    """
    if not hasattr(signal, "SIGUSR1") or signal.getsignal(signal.SIGUSR1) is not signal.SIG_DFL:
        return False
    faulthandler.register(signal.SIGUSR1, file=STDERR, all_threads=True)
    return True


def _write_stacks() -> None:
    """Write the stacks of all threads to stderr by way of a temporary file.

    ``faulthandler`` holds the interpreter lock while it writes. If it wrote to a full pipe that is not read, the whole
    process would block, and nothing could end it.
    """
    with suppress(OSError), tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        text = file.read()
        while text:
            text = text[os.write(STDERR, text) :]


def leave_within(seconds: float, code: int, started: Sequence[subprocess.Popen[Any]] = ()) -> None:
    """Call :func:`leave` after a delay, in another thread, which the caller cannot block.

    Call this before writing the last messages of a process: if stderr is blocked, for example by Ctrl-S, a main thread
    that writes to it holds the lock of ``logging``, and the caller's messages would wait for that lock.
    """
    timer = threading.Timer(seconds, leave, (code, started))
    timer.daemon = True
    timer.start()


def leave(code: int, started: Sequence[subprocess.Popen[Any]] = ()) -> NoReturn:
    """End this process immediately, together with its env processes and the other ranks that it has started.

    Args:
        code: Exit code.
        started: Processes of other ranks, to be killed.
    """
    try:
        processes: list[Any] = [*multiprocessing.active_children(), *started]
        for process in processes:
            with suppress(OSError, ValueError):
                process.kill()
    finally:
        os._exit(code)


def started_here(trainer: Trainer) -> list[subprocess.Popen[Any]]:
    """Return the processes of the ranks that this process has started.

    The launcher of ``strategy="ddp"`` starts one process for each further rank of the machine. Lightning 2.6 keeps them
    in its attribute ``procs`` and has no public name for them. There are none if torchrun or SLURM started the ranks.
    """
    return list(getattr(trainer.strategy.launcher, "procs", ()))


def is_started_by_a_rank(trainer: Trainer) -> bool:
    """Return whether the process of another rank started this one. All ranks must call it."""
    if trainer.world_size == 1:
        return False
    numbers = gather_rows(torch.tensor([os.getpid()])).flatten().tolist()
    first_here = trainer.global_rank - trainer.local_rank
    return trainer.local_rank > 0 and numbers[first_here] == os.getppid()
