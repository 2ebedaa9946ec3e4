"""Fixtures that many tests share: a small policy config, and a quiet Trainer."""

from __future__ import annotations

import functools
import gc
import importlib
import logging
import multiprocessing
import os
import resource
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Trainer
from lightning.fabric.utilities import registry

from lightning_ding.envs.process import processes
from tests import quick_parsing

torch.set_num_threads(1)  # two cores; many small networks
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the same for every program that a test starts

MakeTrainer = Callable[..., Trainer]
ROOT = Path(__file__).parents[1]

# Each Trainer reads the metadata of all installed packages, which takes 5 ms
registry.entry_points = functools.cache(registry.entry_points)  # type: ignore[attr-defined, assignment]
quick_parsing.install()
for _device in (torch.cuda, torch.xpu, torch.mtia):
    if not _device.is_available():  # torch.manual_seed would record the call stack for the day that there is one
        _device.manual_seed_all = lambda seed: None  # type: ignore[attr-defined]

# One fork server for the env processes of all tests, which has what the modules of envs and tests import. Otherwise
# each run starts its own, and each process of envs imports torch.
multiprocessing.set_forkserver_preload(
    [
        *("pytest", "torch", "lightning", "lightning_ding.nested", "lightning_ding.envs.vector", "tests.toys.envs"),
        *("lightning_ding.datamodules.replay", "lightning_ding.policy.dqn", "lightning_ding.callbacks.run_checkpoint"),
    ]
)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect the tests without garbage collections, and keep what they consist of out of all later ones."""
    gc.disable()
    _import_share(session.config)
    result = yield
    gc.collect()
    gc.freeze()
    gc.freeze = gc.unfreeze = lambda: None  # a run would unfreeze the million objects of 22,000 tests
    gc.enable()
    return result


def _import_share(config: pytest.Config) -> None:
    """Import a share of the test modules, so that each worker of xdist rewrites the assertions of others for all."""
    worker = getattr(config, "workerinput", None)
    if worker is None or config.args != config.getini("testpaths"):
        return
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    for file in files[int(worker["workerid"][2:]) :: worker["workercount"]]:
        try:
            importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))
        except (Exception, pytest.skip.Exception):  # the collection imports it once more, and reports it
            continue


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


@pytest.fixture
def own_fork_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let env processes come from a new fork server that imports what it imports in a program of a user."""
    monkeypatch.setattr(forkserver._forkserver, "_preload_modules", processes.PRELOADED)
    monkeypatch.setattr(processes, "_owner", [os.getpid()])
    processes.end_fork_server()
    yield
    processes.end_fork_server()
