"""Fixtures that many tests share: a small policy config, and a quiet Trainer."""

from __future__ import annotations

import logging
import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Trainer

torch.set_num_threads(1)  # two cores; many small networks
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the same for every program that a test starts

MakeTrainer = Callable[..., Trainer]


@pytest.fixture(autouse=True)
def _quiet() -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


@pytest.fixture
def make_trainer(tmp_path: Path) -> MakeTrainer:
    """Return a function that makes a CPU Trainer which writes under ``tmp_path`` and shows nothing."""

    def make(**kwargs: Any) -> Trainer:
        quiet: dict[str, Any] = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False}
        quiet |= {"enable_model_summary": False, "enable_checkpointing": False, "default_root_dir": tmp_path}
        return Trainer(**{**quiet, **kwargs})

    return make


@pytest.fixture
def small() -> dict[str, Any]:
    """Return a config of a policy that trains in milliseconds."""
    return {
        "random_collect_size": 16,
        "model": {"encoder_hidden_size_list": [16], "dueling": False},
        "learn": {"update_per_collect": 2, "batch_size": 8, "learning_rate": 1e-3},
        "eval": {"evaluator": {"n_episode": 2, "eval_freq": 20}},
        "other": {"replay_buffer": {"replay_buffer_size": 500}},
    }


@pytest.fixture
def files_of_at_most() -> Callable[[int], AbstractContextManager[None]]:
    """Return a context in which no file can get more bytes than that: a disk that is full, as ``OSError`` EFBIG."""

    @contextmanager
    def limited(size: int) -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limited


@pytest.fixture
def handled_ctrl_c() -> Iterator[None]:
    """Give Ctrl-C Python's handler, which a shell takes from processes in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
