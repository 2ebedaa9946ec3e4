"""End a run well when somebody asks for it with a signal."""

from __future__ import annotations

import logging
import math
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override

from lightning_ding.callbacks.leaving import BACKSTOP, leave, leave_within, show_stacks
from lightning_ding.callbacks.ranks import any_rank, is_started_by_a_rank, started_here
from lightning_ding.callbacks.run_checkpoint import RunCheckpoint
from lightning_ding.callbacks.signals import SignalListener
from lightning_ding.callbacks.stopping import stop_run
from lightning_ding.config import require
from lightning_ding.exit_codes import BY_SIGNAL

logger = logging.getLogger(__name__)

SAME = 1.0  # seconds; Ctrl-C reaches a rank from the terminal and from rank zero
OTHERS_LEAVE = 4.0  # seconds that a rank gives the one that started it to end it

WHAT_ENDS = {  # by stage
    "fit": "the run ends behind this round",
    "validate": "the evaluation is broken off",
    "test": "the evaluation is broken off",
}

Knobs = tuple[Any, int | None, int | None]


class StopOnSignal(Callback):
    """Ends the run behind the round in which a signal comes, with a checkpoint but without an evaluation.

    The process ends with 128 + the number of the signal, see :mod:`lightning_ding.exit_codes`, by ``SystemExit`` out of
    ``fit``. All ranks end together, whichever of them got the signal; those that rank zero has started leave with 0,
    because Lightning kills everybody when one of them does not. An evaluation under way is broken off, and what it gave
    counts for nothing (NaN); ``trainer.validate`` and ``trainer.test`` end in the same way. A second signal ends the
    process at once. So does the end of ``grace``, after all stacks were written to stderr: the last checkpoint is still
    there.

    Args:
        grace: Seconds for the round and the checkpoint, > 0 and finite.
        signals: Which signals; none leaves them to Lightning, which ends a run by SIGTERM without a checkpoint.
    """

    def __init__(self, grace: float = 25.0, signals: Sequence[int] = (int(signal.SIGTERM), int(signal.SIGINT))) -> None:
        require(0 < grace < math.inf, "grace", "> 0 and finite", grace)
        known = signal.valid_signals()
        require(all(number in known for number in signals), "signals", "numbers of signals of this system", signals)
        self.grace = grace
        self.signals = tuple(int(number) for number in signals)
        self._listener: SignalListener | None = None
        self._knobs: Knobs | None = None
        self._heard = self._stops_by = 0
        self._what_ends = WHAT_ENDS["fit"]
        self._heard_at = 0.0
        self._is_started = False
        self._deadline: threading.Timer | None = None
        self._others: list[subprocess.Popen[Any]] = []
        self._may_give_up: list[Any] = []

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Listen, from before the first round on."""
        self._forget_deadline()
        if stage not in WHAT_ENDS:
            return
        self._heard, self._stops_by, self._what_ends = 0, 0, WHAT_ENDS[stage]
        self._is_started = is_started_by_a_rank(trainer)
        datamodule = getattr(trainer, "datamodule", None)
        waiting = (getattr(datamodule, "evaluator", None), datamodule)
        self._may_give_up = [one for one in waiting if hasattr(one, "gives_up")]
        if self.signals and threading.current_thread() is threading.main_thread():
            self._listener = SignalListener(self.signals, self._hear)
            self._listener.start()

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take SIGTERM from Lightning, whose handler talks to the other ranks in the middle of whatever they do."""
        self._take_over(trainer)
        self._decide(trainer)

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Stop behind this round if a signal has come to any rank."""
        self._decide(trainer)

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Break the evaluation off if a signal came just before."""
        if trainer.state.fn != "fit":
            self._take_over(trainer)
        if self._heard:
            self._break_off(True)

    @override
    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Break the evaluation off if a signal came just before."""
        self.on_validation_start(trainer, pl_module)

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop behind this evaluation if a signal has come to any rank."""
        if trainer.state.fn == "fit":
            self._decide(trainer)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Give the Trainer its settings back."""
        self._restore(trainer)

    @override
    def teardown(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Leave; everything is saved and closed.

        Raises:
            SystemExit: If a signal ended the run.
        """
        if stage not in WHAT_ENDS:
            return
        self._listen_no_more()
        self._forget_deadline()
        self._stops_by = self._stops_by or any_rank(trainer, self._heard)  # it may have come behind the last round
        if self._stops_by:
            self._tell_what_ended(trainer, pl_module, stage)
            _wait_for(self._others)
            raise SystemExit(0 if self._is_started else BY_SIGNAL + self._stops_by)

    @override
    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        """Give everything back.

        With several ranks a deadline that runs goes on: Lightning may wait for them in vain from here on, and then
        nobody could catch the exception anyway.
        """
        self._restore(trainer)
        self._listen_no_more()
        if trainer.world_size == 1:
            self._forget_deadline()

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
        self._break_off(True)
        if not self._is_started:  # in another thread: this one has to hear the next signal even if nobody reads stderr
            threading.Thread(target=self._say_what_comes, args=(number,), daemon=True).start()

    def _say_what_comes(self, number: int) -> None:
        text = "%s: %s, within %g s; the same signal once more ends it at once"
        logger.warning(text, signal.Signals(number).name, self._what_ends, self.grace)

    def _leave_late(self) -> None:
        waits = OTHERS_LEAVE if self._is_started else 0.0
        leave_within(BACKSTOP + waits, BY_SIGNAL + self._heard, self._others)
        logger.error("the run did not end within grace=%g s of the signal; it stands here:", self.grace)
        show_stacks()
        time.sleep(waits)
        leave(BY_SIGNAL + self._heard, self._others)

    # ------------------------------------------------------------------ in the main thread

    def _decide(self, trainer: Trainer) -> None:
        if self._stops_by:
            return
        self._stops_by = any_rank(trainer, self._heard)
        if self._stops_by:
            stop_run(trainer, f"{signal.Signals(self._stops_by).name} came")
            loop = trainer.fit_loop
            self._knobs = (trainer.limit_val_batches, loop.min_epochs, loop.epoch_loop.min_steps)
            trainer.limit_val_batches, loop.min_epochs, loop.epoch_loop.min_steps = 0, None, None

    def _take_over(self, trainer: Trainer) -> None:
        self._others = started_here(trainer)
        if self._listener is not None:
            self._listener.take_over()

    def _restore(self, trainer: Trainer) -> None:
        if self._knobs is not None:
            loop = trainer.fit_loop
            trainer.limit_val_batches, loop.min_epochs, loop.epoch_loop.min_steps = self._knobs
            self._knobs = None
        self._break_off(False)

    def _break_off(self, breaks_off: bool) -> None:
        """Tell the evaluator to give up its episodes, and whoever waits for data to wait no longer; or to go on."""
        for one in self._may_give_up:
            one.gives_up = breaks_off

    def _listen_no_more(self) -> None:
        if self._listener is not None:
            self._listener.stop()
            self._listener = None

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _tell_what_ended(self, trainer: Trainer, module: Any, stage: str) -> None:
        if trainer.is_global_zero:
            name = signal.Signals(self._stops_by).name
            if stage == "fit":
                self._tell_how_to_go_on(trainer, name, module.progress.env_step)
            else:
                logger.warning("%s ended the evaluation; there is nothing to save", name)

    def _tell_how_to_go_on(self, trainer: Trainer, name: str, env_step: int) -> None:
        saving = [callback for callback in trainer.checkpoint_callbacks if isinstance(callback, RunCheckpoint)]
        file = next((callback.last_model_path for callback in saving if callback.last_model_path), None)
        if file is not None and Path(file).exists():
            logger.warning("%s ended the run at env step %d; go on with ckpt_path=%r", name, env_step, file)
        else:
            why = "no round was finished" if saving else "there is no RunCheckpoint"
            logger.warning("%s ended the run at env step %d; nothing was saved: %s", name, env_step, why)


def _wait_for(others: Sequence[subprocess.Popen[Any]]) -> None:
    """Let the ranks that were started here end, so that nobody is left behind."""
    for other in others:
        try:
            other.wait(timeout=OTHERS_LEAVE)
        except subprocess.TimeoutExpired:
            other.kill()
