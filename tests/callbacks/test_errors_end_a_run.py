"""An error in one process ends every process of a run within seconds."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.callbacks.ending import Run

SOON = 40.0  # seconds, with what two ranks need to start


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["step_raises", "env_raises", "callback_raises"])
def test_error_leaves_no_process(tmp_path: Path, fault: str) -> None:
    with Run(tmp_path, fault=fault, mode="async") as run:
        assert run.code() == 1, run.output
        assert "ArithmeticError" in run.output


def test_error_on_one_rank_ends_the_other_soon(tmp_path: Path) -> None:
    check_lone_error(tmp_path, "step_raises", only_rank=1)


@pytest.mark.slow
@pytest.mark.parametrize("only_rank", [0, 1])
@pytest.mark.parametrize("fault", ["env_raises", "callback_raises", "step_raises"])
def test_every_kind_of_error_on_either_rank_ends_the_other_soon(tmp_path: Path, fault: str, only_rank: int) -> None:
    check_lone_error(tmp_path, fault, only_rank)


def check_lone_error(folder: Path, fault: str, only_rank: int) -> None:
    with Run(folder, fault=fault, ranks=2, only_rank=only_rank, mode="async") as run:
        run.wait_for_rounds(1)
        began = time.monotonic()
        assert run.code() != 0, run.output
        assert time.monotonic() - began < SOON
        assert "ArithmeticError" in run.output


@pytest.mark.slow
def test_rank_whose_rank_zero_is_killed_leaves_even_if_it_hangs(tmp_path: Path) -> None:
    with Run(tmp_path, fault="queue", ranks=2, only_rank=1, mode="async") as run:
        run.wait_for_rounds(4, rank=1)
        os.kill(run.pid(0), signal.SIGKILL)
        began = time.monotonic()
        assert run.code() == -signal.SIGKILL
        assert time.monotonic() - began < SOON
        assert "the process that started it has exited" in run.output
