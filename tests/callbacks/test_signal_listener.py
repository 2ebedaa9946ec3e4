from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

import pytest

from lightning_ding.callbacks.stop_on_signal import SignalListener
from tests.processes import wait_for

NUMBERS = (signal.SIGTERM, signal.SIGUSR2)


@pytest.fixture
def passed_on() -> Iterator[list[int]]:
    """Return where the handlers that are there before note their signals."""
    seen: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        seen.append(number)

    before = {number: signal.signal(number, note) for number in NUMBERS}
    yield seen
    for number, handler in before.items():
        signal.signal(number, handler)


def test_signals_are_heard_in_another_thread_while_it_listens_and_go_where_they_went_afterwards(
    passed_on: list[int],
) -> None:
    heard: list[tuple[int, str]] = []
    listener = SignalListener(NUMBERS, lambda number: heard.append((number, threading.current_thread().name)))
    listener.start()
    os.kill(os.getpid(), signal.SIGTERM)
    wait_for(lambda: len(heard) == 1)
    os.kill(os.getpid(), signal.SIGUSR2)
    wait_for(lambda: len(heard) == 2)
    listener.stop()
    os.kill(os.getpid(), signal.SIGTERM)
    assert heard == [(signal.SIGTERM, "signals"), (signal.SIGUSR2, "signals")]
    assert passed_on == [signal.SIGTERM]
    assert signal.set_wakeup_fd(-1) == -1


def test_handlers_that_others_set_meanwhile_are_taken_over(passed_on: list[int]) -> None:
    heard: list[int] = []
    listener = SignalListener((signal.SIGTERM,), heard.append)
    listener.start()
    signal.signal(signal.SIGTERM, lambda number, frame: pytest.fail("Lightning's handler ran"))
    listener.take_over()
    os.kill(os.getpid(), signal.SIGTERM)
    wait_for(lambda: heard == [signal.SIGTERM])
    listener.stop()
    assert passed_on == []


def test_handler_that_is_put_back_after_the_end_passes_signals_on(passed_on: list[int]) -> None:
    listener = SignalListener((signal.SIGTERM,), lambda number: None)
    listener.start()
    ours = signal.getsignal(signal.SIGTERM)
    listener.stop()
    signal.signal(signal.SIGTERM, ours)  # as Lightning does after an exception
    os.kill(os.getpid(), signal.SIGTERM)
    assert passed_on == [signal.SIGTERM]


def test_signal_that_is_ignored_stays_ignored(passed_on: list[int]) -> None:
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    heard: list[int] = []
    listener = SignalListener(NUMBERS, heard.append)
    listener.start()
    assert signal.getsignal(signal.SIGUSR2) == signal.SIG_IGN
    os.kill(os.getpid(), signal.SIGUSR2)
    os.kill(os.getpid(), signal.SIGTERM)
    wait_for(lambda: heard == [signal.SIGTERM])
    listener.stop()
    assert signal.getsignal(signal.SIGUSR2) == signal.SIG_IGN


def test_signal_to_a_forked_process_is_not_heard_by_its_parent() -> None:
    heard: list[int] = []
    listener = SignalListener((signal.SIGTERM,), heard.append)
    listener.start()
    try:
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(100,), daemon=True)
        child.start()
        time.sleep(0.2)
        child.terminate()
        child.join(timeout=20)
        assert child.exitcode == -signal.SIGTERM  # it has the handlers of before
        time.sleep(0.1)
        assert heard == []
    finally:
        listener.stop()
