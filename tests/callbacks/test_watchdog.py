"""Runs in separate processes that stop making progress."""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from lightning import Callback, LightningModule, Trainer

from lightning_ding.callbacks import RunEvaluator, Watchdog
from lightning_ding.callbacks.watchdog import counts, show_stacks_at_signal
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy
from lightning_ding.utils.exit_codes import STALLED
from lightning_ding.utils.protocols import RunData, run_data
from tests.callbacks.ending import Run
from tests.conftest import MakeTrainer


def test_blocked_queue_ends_the_run_with_all_stacks(tmp_path: Path) -> None:
    with Run(tmp_path, fault="queue", mode="async", seconds=4.0) as run:
        assert run.code() == STALLED, run.output
        assert "no env step and no update for 4 s" in run.output
        assert "queue.py" in run.output
        assert "in make_trouble" in run.output


@pytest.mark.slow
def test_main_thread_that_holds_the_interpreter_is_ended_by_faulthandler(tmp_path: Path) -> None:
    with Run(tmp_path, fault="holds_the_interpreter", seconds=4.0) as run:
        assert run.code() == 1, run.output
        assert "Timeout (0:00:06)!" in run.output
        assert "in make_trouble" in run.output


@pytest.mark.slow
def test_rank_that_waits_for_another_in_a_collective_shows_its_stacks_too(tmp_path: Path) -> None:
    with Run(tmp_path, fault="queue", ranks=2, only_rank=1, mode="async", seconds=6.0) as run:
        assert run.code() == STALLED, run.output
        assert "in make_trouble" in run.output  # of rank one
        assert run.output.count("in _watch") >= 2  # the watchdog's thread of each rank
        assert "process/worker.py" in run.output  # the env processes too


@pytest.mark.slow
def test_env_that_hangs_while_it_is_collected_from_ends_the_run(tmp_path: Path) -> None:
    with Run(tmp_path, fault="env_hangs", seconds=4.0) as run:
        assert run.code() == STALLED, run.output
        said = r"while waiting for env \d, CartPoleEnv \(CartPole-v1\), in step \d+ of its episode"
        assert re.search(said, run.output)
        assert "in step" in run.output


@pytest.mark.slow
def test_slow_evaluation_is_no_standstill(tmp_path: Path) -> None:
    with Run(tmp_path, fault="slow", seconds=5.0, rounds_per_epoch=1) as run:
        run.wait_for(lambda: sum(note.startswith("validation") for note in run.notes()) >= 2)
        assert run.process.poll() is None


def test_counts_see_collecting_updates_and_every_evaluator() -> None:
    class Data(RunData):
        def steps_made(self) -> int:
            return 3

    module = SimpleNamespace(progress=SimpleNamespace(train_iter=1, env_step=2))
    evaluator: Any = SimpleNamespace(steps_made=4)
    trainer: Any = SimpleNamespace(datamodule=Data(), callbacks=[RunEvaluator(evaluator), Watchdog()])
    assert counts(trainer, module) == (1, 2, 3, 4)


def test_counts_of_a_real_run_and_its_evaluations_go_up(make_trainer: MakeTrainer, small: dict[str, Any]) -> None:
    policy, datamodule = DQNPolicy(small), ReplayDataModule("CartPole-v1", num_envs=2, max_env_step=40)
    trainer = make_trainer()
    trainer.fit(policy, datamodule)
    train_iter, env_step, steps, *_ = counts(trainer, policy)
    assert (train_iter, env_step) == (6, 40)
    assert steps >= 40 + 8  # of training and of an evaluation; no episode of CartPole is shorter
    assert "watchdog" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("place", ["__init__", "reset", "step"])
def test_env_that_hangs_before_the_first_round_is_named(
    place: str, make_trainer: MakeTrainer, small: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hangs(CartPoleEnv):
        def __init__(self) -> None:
            super().__init__()
            self.wait("__init__")

        def wait(self, here: str) -> None:
            if here == place and not said:
                assert is_over.wait(30)

        def reset(self, **kwargs: Any) -> Any:
            self.wait("reset")
            return super().reset(**kwargs)

        def step(self, action: Any) -> Any:
            self.wait("step")
            return super().step(action)  # type: ignore[no-untyped-call]

    said: list[str] = []
    is_over = threading.Event()

    def leave(self: Watchdog, trainer: Trainer, seconds: float) -> None:
        said.append(str(run_data(trainer).env_in_progress()))
        is_over.set()

    monkeypatch.setattr(Watchdog, "_leave", leave)
    datamodule = ReplayDataModule(Hangs, num_envs=1, max_env_step=10)
    make_trainer(callbacks=[Watchdog(0.5)]).fit(DQNPolicy(small), datamodule)
    assert re.fullmatch(r"an env of .*Hangs, which is made, reset or stepped for the first time", said[0])


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf")])
def test_time_out_of_range_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="seconds must be > 0 and finite, or None, got"):
        Watchdog(seconds)


def test_no_time_means_no_watch(make_trainer: MakeTrainer, small: dict[str, Any]) -> None:
    watchdog = Watchdog(None)
    datamodule = ReplayDataModule("CartPole-v1", num_envs=2, max_env_step=40)
    make_trainer(callbacks=[watchdog]).fit(DQNPolicy(small), datamodule)
    assert watchdog._thread is None


def test_last_message_names_the_env_and_its_step(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Data(RunData):
        def env_in_progress(self) -> str | None:
            return "env 1, SlowEnv, in step 3 of its episode"

    for name in ("leave", "leave_within", "show_stacks", "_arm"):
        monkeypatch.setattr(f"lightning_ding.callbacks.watchdog.{name}", lambda *_: None)
    trainer: Any = SimpleNamespace(datamodule=Data(), world_size=1, strategy=SimpleNamespace(launcher=None))
    watchdog = Watchdog()
    watchdog._is_started = False
    with caplog.at_level(logging.ERROR):
        watchdog._leave(trainer, 4.0)
    said = "no env step and no update for 4 s while waiting for env 1, SlowEnv, in step 3 of its episode, so the "
    assert caplog.messages[0].startswith(said)


def test_signal_shows_the_stacks_of_a_run_that_goes_on(
    make_trainer: MakeTrainer, capfd: pytest.CaptureFixture[str]
) -> None:
    class Asks(Callback):
        def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
            os.kill(os.getpid(), signal.SIGUSR1)

    policy = DQNPolicy({"eval": {"evaluator": {"n_episode": 1}}})
    make_trainer(callbacks=[Asks(), Watchdog()]).fit(policy, ReplayDataModule("CartPole-v1", max_env_step=96))
    assert policy.progress.env_step >= 96
    assert "in on_train_start" in capfd.readouterr().err


def test_signal_that_the_program_handles_is_left_to_it() -> None:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        assert not show_stacks_at_signal()
    finally:
        signal.signal(signal.SIGUSR1, before)
