"""Stop a run cleanly when a signal such as SIGTERM or Ctrl-C arrives."""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override

from lightning_ding.callbacks.stop import stop_run
from lightning_ding.callbacks.watchdog import (
    BACKSTOP,
    is_started_by_a_rank,
    leave,
    leave_within,
    show_stacks,
    started_here,
)
from lightning_ding.config import require
from lightning_ding.utils.exit_codes import BY_SIGNAL
from lightning_ding.utils.progress import Progress
from lightning_ding.utils.protocols import RunData, run_data
from lightning_ding.utils.ranks import max_over_ranks

logger = logging.getLogger(__name__)

WAKE = b"\0"  # no signal has this number
SAME = 1.0  # seconds; one Ctrl-C reaches a rank twice, from the terminal and from rank zero
OTHERS_LEAVE = 4.0  # seconds that a rank waits to be ended by the rank that started it

WHAT_ENDS = {
    "fit": "the run ends after this round",
    "validate": "the evaluation is cancelled",
    "test": "the evaluation is cancelled",
}
"""The part of a log message that names what a signal ends, by stage."""

Settings = tuple[Any, int | None, int | None]
"""Settings of a Trainer that are changed while it stops: ``limit_val_batches``, ``min_epochs``, ``min_steps``."""

_listening: SignalListener | None = None


class SignalListener:
    """Call a function, in a separate thread, with the number of each signal that arrives.

    Python runs a signal's handler in the main thread, between two of its instructions. A main thread that waits for
    another rank in a collective operation never runs the handler. Python also writes the number of the signal to a
    socket at once (``signal.set_wakeup_fd``), and the thread of this class reads it there.

    After a failed fit, ``signal.getsignal`` still returns the handler of this class, because Lightning, after its last
    hook, restores the handlers that it found. The next signal then restores the old handler and is passed to it.

    Args:
        signals: Numbers of the signals; their handlers are replaced while this listens. A signal that is ignored stays
            ignored, like SIGINT in a process that a shell runs in the background.
        hear: Function that gets the number of the signal.
    """

    def __init__(self, signals: Iterable[int], hear: Callable[[int], None]) -> None:
        self._hear = hear
        self._old: dict[int, Any] = {}
        for number in signals:
            if signal.getsignal(number) != signal.SIG_IGN:
                self._old[number] = signal.getsignal(number)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start listening for signals. Only the main thread may call this."""
        global _listening  # a process has only one such socket
        self._ours, theirs = socket.socketpair()
        self._theirs = theirs
        theirs.setblocking(False)
        self._old_fd = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._listen, name="signals", daemon=True)
        self._thread.start()
        _listening = self
        self.take_over()

    def take_over(self) -> None:
        """Install the handlers again, after other code has replaced them. Only the main thread may call this."""
        for number in self._old:
            signal.signal(number, self._handle)

    def stop(self) -> None:
        """Stop listening and restore the old handlers.

        Only the main thread may call this. Calling it again does nothing.
        """
        global _listening
        if self._thread is None:
            return
        _listening = None
        self._restore_handlers()
        self._theirs.send(WAKE)
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._thread = None
        self._ours.close()
        self._theirs.close()

    def detach(self) -> None:
        """Stop listening in a forked process, which does not have the thread."""
        self._thread = None
        self._restore_handlers()

    def _restore_handlers(self) -> None:
        signal.set_wakeup_fd(self._old_fd)
        for number, old in self._old.items():
            signal.signal(number, signal.SIG_DFL if old is None else old)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._thread is None:  # Lightning restored this handler after an exception
            self._pass_on(number)

    def _pass_on(self, number: int) -> None:
        signal.signal(number, self._old[number] or signal.SIG_DFL)
        signal.raise_signal(number)

    def _listen(self) -> None:
        while True:
            for number in self._ours.recv(64):
                if number == WAKE[0]:
                    return
                if number in self._old:
                    self._hear(number)


def _detach_in_child() -> None:
    global _listening
    if _listening is not None:
        _listening.detach()
        _listening = None


# without this, a signal to a forked env process would be written to the socket of its parent
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_detach_in_child)


class StopOnSignal(Callback):
    """End the run after the round in which a signal arrives, with a checkpoint but without an evaluation.

    The process exits with 128 + the number of the signal, see :mod:`lightning_ding.utils.exit_codes`, by raising
    ``SystemExit`` from ``fit``. All ranks end together, whichever rank got the signal. Ranks that rank zero has started
    exit with 0, because Lightning kills all ranks when one of them exits with another code. An evaluation in progress
    is cancelled and its result is NaN; ``trainer.validate`` and ``trainer.test`` end in the same way. A second signal
    ends the process at once. If the run has not ended after ``grace`` seconds, all stacks are written to stderr and the
    process ends; the previous checkpoint is still there.

    Args:
        grace: Seconds for the round and the checkpoint, > 0 and finite.
        signals: Numbers of the signals to react to. An empty sequence leaves them to Lightning, which ends a run on
            SIGTERM without a checkpoint.
    """

    def __init__(self, grace: float = 25.0, signals: Sequence[int] = (int(signal.SIGTERM), int(signal.SIGINT))) -> None:
        require(0 < grace < math.inf, "grace", "> 0 and finite", grace)
        is_known = signal.valid_signals().issuperset(signals)
        require(is_known, "signals", "numbers of signals of this system", signals)
        self.grace = grace
        self.signals = tuple(map(int, signals))
        self._listener: SignalListener | None = None
        self._settings: Settings | None = None
        self._heard = self._stops_by = 0
        self._what_ends = WHAT_ENDS["fit"]
        self._heard_at = 0.0
        self._is_started = False
        self._deadline: threading.Timer | None = None
        self._others: list[subprocess.Popen[Any]] = []
        self._data = RunData()

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Start listening for signals before the first round."""
        self._stop_listening()
        if stage not in WHAT_ENDS:
            return
        self._heard, self._stops_by, self._what_ends = 0, 0, WHAT_ENDS[stage]
        self._is_started = is_started_by_a_rank(trainer)
        self._data = run_data(trainer)
        if self.signals and threading.current_thread() is threading.main_thread():
            self._listener = SignalListener(self.signals, self._hear)
            self._listener.start()

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Replace Lightning's handler of SIGTERM, which communicates with the other ranks even while they are busy."""
        self._take_over(trainer)
        self.on_train_batch_end(trainer, pl_module, None, None, 0)

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Stop after this round if any rank got a signal."""
        if self._stops_by:
            return
        self._stops_by = max_over_ranks(self._heard)
        if self._stops_by:
            stop_run(trainer, f"{signal.Signals(self._stops_by).name} was received")
            loop = trainer.fit_loop
            self._settings = (trainer.limit_val_batches, loop.min_epochs, loop.epoch_loop.min_steps)
            trainer.limit_val_batches, loop.min_epochs, loop.epoch_loop.min_steps = 0, None, None

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Cancel the evaluation if a signal arrived just before."""
        if trainer.state.fn != "fit":
            self._take_over(trainer)
        if self._heard:
            self._data.request_cancel(True)

    @override
    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Cancel the evaluation if a signal arrived just before."""
        self.on_validation_start(trainer, pl_module)

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop after this evaluation if any rank got a signal."""
        if trainer.state.fn == "fit":
            self.on_train_batch_end(trainer, pl_module, None, None, 0)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore the Trainer's settings."""
        if self._settings is not None:
            loop = trainer.fit_loop
            trainer.limit_val_batches, loop.min_epochs, loop.epoch_loop.min_steps = self._settings
            self._settings = None
        self._data.request_cancel(False)

    @override
    def teardown(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """End the process; everything is saved and closed.

        Raises:
            SystemExit: If a signal ended the run.
        """
        if stage not in WHAT_ENDS:
            return
        self._stop_listening()
        self._stops_by = self._stops_by or max_over_ranks(self._heard)  # it may have arrived after the last round
        if self._stops_by:
            self._log_end(trainer, pl_module, stage)
            _wait_for(self._others)
            raise SystemExit(0 if self._is_started else BY_SIGNAL + self._stops_by)

    @override
    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        """Restore the Trainer's settings and the signal handlers.

        With several ranks, a running deadline stays in force: Lightning may now wait indefinitely for the other ranks,
        and the exception would never reach the caller.
        """
        self.on_train_end(trainer, pl_module)
        self._stop_listening(cancels=trainer.world_size == 1)

    # ------------------------------------------------------------------ in the listener's thread

    def _hear(self, number: int) -> None:
        now = time.monotonic()
        if self._heard:
            if now - self._heard_at >= SAME:
                leave(BY_SIGNAL + number, self._others)
            return
        self._heard, self._heard_at = number, now
        self._deadline = threading.Timer(self.grace, self._leave_late)
        self._deadline.daemon = True
        self._deadline.start()
        for other in self._others:
            with suppress(OSError, ValueError):
                other.send_signal(number)
        self._data.request_cancel(True)
        if not self._is_started:  # in another thread: a blocked stderr must not keep this one from the next signal
            threading.Thread(target=self._log_what_ends, args=(number,), daemon=True).start()

    def _log_what_ends(self, number: int) -> None:
        text = "%s: %s, within %g s; a second signal ends it at once"
        logger.warning(text, signal.Signals(number).name, self._what_ends, self.grace)

    def _leave_late(self) -> None:
        waits = OTHERS_LEAVE if self._is_started else 0.0
        leave_within(BACKSTOP + waits, BY_SIGNAL + self._heard, self._others)
        logger.error("the run did not end within grace=%g s of the signal; the stacks of all threads:", self.grace)
        show_stacks()
        time.sleep(waits)
        leave(BY_SIGNAL + self._heard, self._others)

    # ------------------------------------------------------------------ in the main thread

    def _take_over(self, trainer: Trainer) -> None:
        self._others = started_here(trainer)
        if self._listener is not None:
            self._listener.take_over()

    def _stop_listening(self, cancels: bool = True) -> None:
        """Stop listening for signals, and cancel the deadline unless it stays in force."""
        if self._listener is not None:
            self._listener.stop()
            self._listener = None
        if self._deadline is not None and cancels:
            self._deadline.cancel()
            self._deadline = None

    def _log_end(self, trainer: Trainer, module: Any, stage: str) -> None:
        """Log how to resume the run."""
        if not trainer.is_global_zero:
            return
        name = signal.Signals(self._stops_by).name
        if stage != "fit":
            logger.warning("%s ended the evaluation; there is nothing to save", name)
            return
        from lightning_ding.callbacks.run_checkpoint import RunCheckpoint

        progress: Progress = module.progress
        place = f"{progress.axis.replace('_', ' ')} {progress.position}"
        saving = [callback for callback in trainer.checkpoint_callbacks if isinstance(callback, RunCheckpoint)]
        file = next((callback.last_model_path for callback in saving if callback.last_model_path), None)
        if file is not None and Path(file).exists():
            logger.warning("%s ended the run at %s; resume it with ckpt_path=%r", name, place, file)
        else:
            why = "no round was finished" if saving else "there is no RunCheckpoint"
            logger.warning("%s ended the run at %s; nothing was saved: %s", name, place, why)


def _wait_for(others: Sequence[subprocess.Popen[Any]]) -> None:
    """Wait until the ranks that were started here have ended, and kill those that do not."""
    for other in others:
        try:
            other.wait(timeout=OTHERS_LEAVE)
        except subprocess.TimeoutExpired:
            other.kill()
