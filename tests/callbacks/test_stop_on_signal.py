"""Runs in separate processes that get real signals."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from lightning import Trainer
from lightning.pytorch import Callback

from lightning_ding.callbacks import RunCheckpoint, StopOnSignal
from lightning_ding.checkpoints import last_checkpoint, sync_tree, verify
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy
from lightning_ding.utils.exit_codes import INTERRUPTED, TERMINATED
from tests.callbacks.ending import Run
from tests.callbacks.ending_run import CONFIG
from tests.conftest import MakeTrainer

Config = dict[str, Any]

ASYNC = {"mode": "async"}
TWO_RANKS = {"ranks": 2, "mode": "async"}


def saved_at(folder: Path) -> int:
    """Return the env step of the only run checkpoint in a folder."""
    (data,) = (path for path in folder.glob("last-*") if path.is_dir())
    return int(data.name.removeprefix("last-"))


def test_sigterm_ends_a_run_with_a_checkpoint_that_can_be_resumed(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    with Run(tmp_path, **ASYNC) as run:
        run.wait_for_rounds(3)
        time.sleep(random.Random(1).random())
        run.process.send_signal(signal.SIGTERM)
        assert run.code() == TERMINATED, run.output
        assert run.env_step() == saved_at(tmp_path)
        assert f"resume it with ckpt_path='{tmp_path / 'last.ckpt'}'" in run.output
    saved = saved_at(tmp_path)
    policy, datamodule = DQNPolicy(CONFIG), ReplayDataModule("CartPole-v1", num_envs=2, max_env_step=saved + 80)
    make_trainer().fit(policy, datamodule, ckpt_path=tmp_path / "last.ckpt")
    assert policy.progress.env_step == saved + 80
    assert policy.progress.train_iter == (saved + 80 - 16) // 8 * 2  # no second warm-up


def test_signals_to_one_or_both_ranks_end_both_and_the_run_can_be_resumed(tmp_path: Path) -> None:
    moments = random.Random(2)
    with Run(tmp_path, **TWO_RANKS) as run:
        run.wait_for_rounds(3)
        time.sleep(moments.random())
        os.killpg(run.process.pid, signal.SIGINT)  # as a terminal does
        assert run.code() == INTERRUPTED, run.output
        assert run.env_step(0) == run.env_step(1) == saved_at(tmp_path)
    saved = saved_at(tmp_path)
    with Run(tmp_path, resume=str(tmp_path / "last.ckpt"), **TWO_RANKS) as run:
        run.wait_for_rounds(1, rank=1)
        assert run.started_with() == saved
        time.sleep(moments.random())
        os.kill(run.pid(1), signal.SIGTERM)
        assert run.code() == TERMINATED, run.output
    assert saved_at(tmp_path) > saved


@pytest.mark.slow
def test_sigterm_to_the_whole_group_ends_the_run_as_one_to_rank_zero_does(tmp_path: Path) -> None:
    with Run(tmp_path, **ASYNC) as run:
        run.wait_for_rounds(3)
        os.killpg(run.process.pid, signal.SIGTERM)  # as systemd and SLURM do, to the env processes too
        assert run.code() == TERMINATED, run.output
        assert run.env_step() == saved_at(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("ranks", [1, 2])
def test_run_can_be_resumed_after_each_of_ten_signals_at_random_moments(tmp_path: Path, ranks: int) -> None:
    moments = random.Random(ranks)
    saved, resume = 0, None
    for number in range(10):
        with Run(tmp_path, ranks=ranks, mode="async", resume=resume) as run:
            run.wait_for_note("start")
            assert run.started_with() == saved
            time.sleep(3 * moments.random())
            to, code = moments.choice(((signal.SIGTERM, TERMINATED), (signal.SIGINT, INTERRUPTED)))
            where = moments.choice(("group", *range(ranks)))
            if where == "group":
                os.killpg(run.process.pid, to)
            else:
                os.kill(run.pid(int(where)), to)
            assert run.code() == code, (number, run.output)
            saved = run.env_step()
        resume = str(tmp_path / "last.ckpt") if (tmp_path / "last.ckpt").exists() else None
        assert saved == 0 or saved_at(tmp_path) == saved


@pytest.mark.slow
def test_checkpoint_is_written_although_it_is_not_due_and_the_evaluation_is_skipped(tmp_path: Path) -> None:
    with Run(tmp_path, every_n_epochs=1000, check_val_every_n_epoch=1000) as run:
        run.wait_for_rounds(8)
        run.process.send_signal(signal.SIGTERM)
        assert run.code() == TERMINATED, run.output
        assert saved_at(tmp_path) == run.env_step()
        assert not [note for note in run.notes() if note.startswith("validation")]


@pytest.mark.slow
def test_running_evaluation_is_cancelled_and_its_result_is_discarded(tmp_path: Path) -> None:
    with Run(tmp_path, fault="slow", rounds_per_epoch=1) as run:
        run.wait_for_note("validation")
        time.sleep(0.2)
        sent = time.monotonic()
        run.process.send_signal(signal.SIGTERM)
        assert run.code() == TERMINATED, run.output
        assert time.monotonic() - sent < 20
        assert run.env_step() == saved_at(tmp_path)
        assert list(tmp_path.rglob("best*.ckpt")) == []


@pytest.mark.slow
def test_run_whose_env_hangs_ends_at_the_deadline_with_its_stacks_and_the_last_checkpoint(tmp_path: Path) -> None:
    with Run(tmp_path, fault="env_hangs", ranks=2, only_rank=1, rounds_per_epoch=1, grace=2.0) as run:
        run.wait_for_rounds(2)
        time.sleep(3)  # one rank hangs in its env by now, the other waits for it
        run.process.send_signal(signal.SIGTERM)
        assert run.code() == TERMINATED, run.output
        assert "did not end within grace=2 s" in run.output
        assert run.output.count("Current thread") == 2  # of both ranks
        assert "in step" in run.output
        assert saved_at(tmp_path) > 0
        assert (tmp_path / "last.ckpt").exists()


@pytest.mark.slow
def test_second_signal_ends_the_run_at_once(tmp_path: Path) -> None:
    with Run(tmp_path, fault="env_hangs", grace=60.0, **ASYNC) as run:
        run.wait_for_rounds(3)
        time.sleep(2)
        run.process.send_signal(signal.SIGINT)
        run.wait_for(lambda: "a second signal ends it at once" in run.output)
        time.sleep(1.5)
        sent = time.monotonic()
        run.process.send_signal(signal.SIGINT)
        assert run.code() == INTERRUPTED, run.output
        assert time.monotonic() - sent < 20


@pytest.mark.slow
def test_run_without_checkpoints_says_that_nothing_was_saved(tmp_path: Path) -> None:
    with Run(tmp_path, checkpointing=False) as run:
        run.wait_for_rounds(2)
        run.process.send_signal(signal.SIGTERM)
        assert run.code() == TERMINATED
        assert "nothing was saved: there is no RunCheckpoint" in run.output


STDERR_THAT_NOBODY_READS = """
import logging, os, signal, sys, threading
from lightning_ding.callbacks.stop_on_signal import StopOnSignal
from lightning_ding.callbacks.stop_on_signal import SignalListener
logging.basicConfig()
stop = StopOnSignal(grace=float(sys.argv[1]))
SignalListener(stop.signals, stop._hear).start()
print("ready", flush=True)
while True:
    logging.getLogger("main").warning("y" * 1000)
"""


@pytest.mark.parametrize(("grace", "signals"), [pytest.param(1.0, 1, marks=pytest.mark.slow), (60.0, 2)])
def test_run_with_unread_stderr_ends_after_its_grace_or_a_second_signal(grace: float, signals: int) -> None:
    command = [sys.executable, "-c", STDERR_THAT_NOBODY_READS, str(grace)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            for _ in range(signals):
                time.sleep(1.5)  # by now the pipe is full
                process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=20) == TERMINATED
        finally:
            process.kill()


class SignalsItself(Callback):
    """Send a signal to this process, at the start or after the third round."""

    def __init__(self, number: int, at_start: bool = False) -> None:
        self.number, self.at_start, self.rounds = number, at_start, 0

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        if self.at_start:
            self.send()

    def on_train_batch_end(self, *_: Any) -> None:
        self.rounds += 1
        if self.rounds == 3:
            self.send()

    def send(self) -> None:
        os.kill(os.getpid(), self.number)
        time.sleep(0.2)  # until the thread has heard it


def fit(make_trainer: MakeTrainer, small: Config, *callbacks: Callback, **flags: Any) -> tuple[Trainer, DQNPolicy]:
    policy = DQNPolicy(small)
    datamodule = ReplayDataModule("CartPole-v1", num_envs=2, rounds_per_epoch=10, max_env_step=400)
    trainer = make_trainer(callbacks=list(callbacks), **flags)
    with pytest.raises(SystemExit) as ended:
        trainer.fit(policy, datamodule)
    assert ended.value.code == TERMINATED
    return trainer, policy


def test_signal_ends_the_run_after_its_round_and_restores_all_settings(
    make_trainer: MakeTrainer, small: Config
) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    trainer, policy = fit(make_trainer, small, SignalsItself(signal.SIGTERM), min_epochs=3)
    assert policy.progress.env_step == 16 + 3 * 8
    assert (trainer.limit_val_batches, trainer.fit_loop.min_epochs) == (1.0, 3)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
    assert signal.set_wakeup_fd(-1) == -1
    trainer.validate(policy, ReplayDataModule("CartPole-v1", num_envs=2), verbose=False)
    assert trainer.callback_metrics["eval/return_mean"] > 0  # evaluations work again


def test_signal_while_a_checkpoint_is_written_ends_the_run_with_a_whole_one(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Path] = []

    def interrupted(folder: Path) -> None:
        if not sent:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.2)
        sent.append(folder)
        sync_tree(folder)

    monkeypatch.setattr("lightning_ding.checkpoints.folder.sync_tree", interrupted)
    _, policy = fit(make_trainer, small, RunCheckpoint(tmp_path / "run"), enable_checkpointing=True)
    found = last_checkpoint(tmp_path / "run")
    assert found is not None
    assert verify(found.parent)["env_step"] == policy.progress.env_step
    assert len(sent) >= 2


def test_signal_before_the_first_round_ends_the_run_with_nothing_to_save(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = SignalsItself(signal.SIGTERM, at_start=True)
    _, policy = fit(make_trainer, small, first, RunCheckpoint(tmp_path), enable_checkpointing=True)
    assert policy.progress.env_step == 0
    assert "nothing was saved: no round was finished" in caplog.text
    assert list(tmp_path.rglob("*.ckpt")) == []


class SignalsDuringEvaluation(Callback):
    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()

    on_test_start = on_validation_start


class SlowSteps(gym.Wrapper[Any, Any, Any, Any]):
    def step(self, action: Any) -> Any:
        time.sleep(0.2)
        return self.env.step(action)


@pytest.mark.parametrize("function", ["validate", "test"])
def test_signal_breaks_an_evaluation_without_training_off(
    make_trainer: MakeTrainer, small: Config, function: str, caplog: pytest.LogCaptureFixture
) -> None:
    datamodule = ReplayDataModule(lambda: SlowSteps(gym.make("CartPole-v1")), num_envs=2, max_env_step=40)
    small["eval"]["evaluator"]["n_episode"] = 1000
    stop = StopOnSignal()
    trainer, begun = make_trainer(callbacks=[stop, SignalsDuringEvaluation()]), time.monotonic()
    with pytest.raises(SystemExit) as ended:
        getattr(trainer, function)(DQNPolicy(small), datamodule, verbose=False)
    assert ended.value.code == TERMINATED
    assert stop._heard == signal.SIGTERM
    assert time.monotonic() - begun < 30
    assert "SIGTERM ended the evaluation; there is nothing to save" in caplog.text


def test_signal_that_is_not_configured_keeps_its_handler(make_trainer: MakeTrainer, small: Config) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        datamodule = ReplayDataModule("CartPole-v1", num_envs=2, rounds_per_epoch=10, max_env_step=40)
        with pytest.raises(SystemExit) as ended:  # Lightning's own, in the middle of the epoch
            make_trainer(callbacks=[StopOnSignal(signals=()), SignalsItself(signal.SIGTERM)]).fit(
                DQNPolicy(small), datamodule
            )
        assert ended.value.code is None
        assert heard == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


class Fails(Callback):
    """Fail after the first round, optionally with a signal to this process just before."""

    def __init__(self, number: int | None = None) -> None:
        self.number = number

    def on_train_batch_end(self, *_: Any) -> None:
        if self.number is not None:
            os.kill(os.getpid(), self.number)
            time.sleep(0.2)
        raise ArithmeticError


def test_process_that_catches_the_exception_of_a_run_outlives_the_grace_of_its_signal(
    make_trainer: MakeTrainer, small: Config
) -> None:
    stop = StopOnSignal(grace=30.0)
    with pytest.raises(ArithmeticError):
        make_trainer(callbacks=[stop, Fails(signal.SIGTERM)]).fit(
            DQNPolicy(small), ReplayDataModule("CartPole-v1", num_envs=2)
        )
    assert stop._heard == signal.SIGTERM
    timers = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
    assert all(timer.finished.is_set() for timer in timers)


def test_run_that_fails_gives_the_signals_back(make_trainer: MakeTrainer, small: Config) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        with pytest.raises(ArithmeticError):
            make_trainer(callbacks=[Fails()]).fit(DQNPolicy(small), ReplayDataModule("CartPole-v1", num_envs=2))
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.1)
        assert heard == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"grace": 0.0}, "grace must be > 0 and finite, got 0.0"),
        ({"grace": float("inf")}, "grace must be > 0 and finite, got inf"),
        ({"signals": (1000,)}, r"signals must be .*, got \(1000,\)"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments: Config, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StopOnSignal(**arguments)
