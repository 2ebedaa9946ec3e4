"""Takes away what only POSIX systems have, then imports all of lightning_ding and trains; run by test_without_posix.py.

Windows' ``open`` of a folder and its ``fsync`` of a file that is open for reading fail, so both fail here too.
"""

from __future__ import annotations

import errno
import importlib
import os
import pkgutil
import shutil
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import gymnasium  # noqa: F401  # other packages decide for themselves what they need of the system
import jsonargparse  # noqa: F401
import lightning.pytorch
import lightning.pytorch.cli
import safetensors.torch  # noqa: F401
import torch.utils.tensorboard  # noqa: F401
from gymnasium.wrappers import TimeLimit  # noqa: F401
from lightning.pytorch.trainer.connectors import signal_connector

MODULES = ("fcntl", "resource", "termios", "pwd", "grp", "pty", "tty", "syslog")
OF_OS = (
    "fork forkpty register_at_fork killpg getpgid setpgid getsid setsid getuid geteuid getgid getegid getpgrp "
    "sync memfd_create mkfifo nice wait wait3 wait4 WNOHANG pread pwrite posix_spawn posix_fadvise posix_fallocate "
    "sched_getaffinity sched_setaffinity sched_yield getloadavg chown fchown uname sysconf pipe2 "
    "openpty O_NONBLOCK O_NOFOLLOW O_CLOEXEC O_ASYNC O_DIRECTORY O_SYNC"
)
OF_SIGNAL = (
    "SIGKILL SIGUSR1 SIGUSR2 SIGHUP SIGQUIT SIGALRM SIGCHLD SIGSTOP SIGCONT SIGTSTP SIGPIPE SIGTTIN SIGTTOU pause "
    "pthread_sigmask pthread_kill setitimer getitimer alarm sigwait sigpending siginterrupt SIG_BLOCK SIG_UNBLOCK"
)


class _Blocked:
    def find_spec(self, name: str, *args: Any) -> None:
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def take_away() -> None:
    import faulthandler
    import fcntl
    import select

    access, flags = fcntl.fcntl, (fcntl.F_GETFL, os.O_ACCMODE, os.O_RDONLY)
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, _Blocked())
    gone: list[tuple[Any, list[str]]] = [
        (os, OF_OS.split()),
        (signal, OF_SIGNAL.split()),
        (faulthandler, ["register", "unregister"]),
    ]
    gone += [(select, ["poll", "epoll"]), (socket, ["send_fds", "recv_fds"])]
    for module, names in gone:
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    real_open, real_fsync = os.open, os.fsync

    def open_no_folder(path: Any, *args: Any, **kwargs: Any) -> int:
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, "a folder cannot be opened", str(path))
        return real_open(path, *args, **kwargs)

    def fsync(fd: Any) -> None:
        get, mask, reading = flags
        if access(fd, get) & mask == reading:
            raise OSError(errno.EBADF, "a file that is open for reading cannot be synced")
        real_fsync(fd)

    os.open, os.fsync = open_no_folder, fsync
    signals = {getattr(signal, f"SIG{name}") for name in ("ABRT", "FPE", "ILL", "INT", "SEGV", "TERM")}
    signal.valid_signals = lambda: set(signals)
    vars(signal_connector)["_IS_WINDOWS"] = True
    shutil._use_fd_functions = False  # type: ignore[attr-defined]


def import_everything() -> list[str]:
    import lightning_ding

    names = [one.name for one in pkgutil.walk_packages(lightning_ding.__path__, "lightning_ding.")]
    missing: list[str] = []
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:  # an extra that is not installed
            if error.name is None or error.name in MODULES or error.name.startswith("lightning_ding"):
                raise
            missing.append(name)
    return [name for name in names if name not in missing]


def train(folder: Path) -> None:
    from lightning_ding.callbacks import RunCheckpoint
    from lightning_ding.checkpoints import last_checkpoint
    from lightning_ding.datamodules import ReplayDataModule
    from lightning_ding.policy import DQNPolicy

    config = {
        "random_collect_size": 16,
        "learn": {"update_per_collect": 2, "batch_size": 8},
        "eval": {"evaluator": {"n_episode": 2, "eval_freq": 20}},
    }
    quiet: dict[str, Any] = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False}

    def fit(max_env_step: int, ckpt_path: Any) -> int:
        policy = DQNPolicy(config)
        trainer = lightning.pytorch.Trainer(
            **quiet, default_root_dir=folder, callbacks=[RunCheckpoint(save_buffer="last")]
        )
        datamodule = ReplayDataModule("CartPole-v1", num_envs=2, max_env_step=max_env_step)
        trainer.fit(policy, datamodule, ckpt_path=ckpt_path)
        return policy.progress.env_step

    first = fit(200, None)
    saved = last_checkpoint(folder)
    assert saved is not None
    assert fit(400, saved) > first


def refusals(folder: Path) -> list[str]:
    from lightning_ding.distributed.file_store import FileStore
    from lightning_ding.entry.parallel import parallel_pipeline
    from lightning_ding.envs import make_vector_env

    found = []
    for refused in (
        lambda: make_vector_env("CartPole-v1", 2, "async"),
        lambda: parallel_pipeline({"main": {"exp_name": str(folder / "parallel")}}),
        lambda: FileStore(folder / "store"),
    ):
        try:
            refused()
        except ValueError as error:
            found.append(str(error))
    return found


if __name__ == "__main__":
    take_away()
    modules = import_everything()
    print(len(modules), "modules")
    train(Path(sys.argv[1]))
    for line in refusals(Path(sys.argv[1])):
        print(line)
