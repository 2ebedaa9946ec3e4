"""Kills a run after some of its rows, again and again, and compares its loggers with those of a whole run.

Started by test_continued_loggers.py: python killed_loggers_script.py FOLDER KIND, where KIND is "files" (TensorBoard
and CSV, each with a version that Lightning chooses and one that the user has chosen), "mlflow" or "wandb". The numbers
of each logger are printed as JSON: those of the killed run and those of the whole one.
"""

from __future__ import annotations

import csv
import json
import logging
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger

from lightning_ding.callbacks.written_rows import X, records_of
from lightning_ding.checkpoints import last_checkpoint
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy

CONFIG: dict[str, Any] = {
    "random_collect_size": 16,
    "model": {"encoder_hidden_size_list": [16], "dueling": False},
    "learn": {"update_per_collect": 2, "batch_size": 8},
    "eval": {"evaluator": {"n_episode": 1, "eval_freq": 4}},
    "other": {"replay_buffer": {"replay_buffer_size": 500}},
}
KILLS = (5, 4, 3, 7, 3, 6, 4, 5, 3, 4)
"""Rows after which the runs are killed; an epoch has three, and a checkpoint."""
END = 256  # env steps

Numbers = list[tuple[str, int, float]]
"""Name, step and value, in the order of a logger."""


class Killer(Logger):
    """Kills the process when it gets a row."""

    name, version = "killer", 0

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows -= 1
        if self.rows == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None: ...


def files(folder: Path) -> list[Logger]:
    return [
        CSVLogger(folder, "csv"),
        CSVLogger(folder, "csv_of_user", "mine"),
        TensorBoardLogger(folder, "tensorboard"),
        TensorBoardLogger(folder, "tensorboard_of_user", 7),
    ]


def mlflow(folder: Path) -> list[Logger]:
    uri, artifacts = f"sqlite:///{folder / 'mlflow.db'}", (folder / "artifacts").as_uri()
    return [CSVLogger(folder, "csv"), MLFlowLogger("study", tracking_uri=uri, artifact_location=artifacts)]


def wandb(folder: Path) -> list[Logger]:
    import wandb

    number = len(list(folder.glob("wandb/offline-run-*")))
    interval = 0.02 if number % 2 else 15.0  # seconds after which rows are in its file, if the process lives so long
    settings = wandb.Settings(x_transaction_log_flush_interval=interval)
    offline: dict[str, Any] = {"mode": "offline", "settings": settings}
    return [CSVLogger(folder, "csv"), WandbLogger(project="study", save_dir=folder, **offline)]


def train(folder: Path, make: Callable[[Path], list[Logger]], rows: int = 0, place: int = 0) -> None:
    """Train, from the last checkpoint if there is one, and be killed after ``rows`` rows if they are not 0."""
    seed_everything(0, verbose=False)
    loggers = make(folder)
    if rows:
        loggers.insert(place, Killer(rows))
    flags: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "log_every_n_steps": 1}
    trainer = Trainer(accelerator="cpu", logger=loggers, **flags)
    data = ReplayDataModule("CartPole-v1", num_envs=2, max_env_step=END)
    found = last_checkpoint(folder / "csv")
    trainer.fit(DQNPolicy(CONFIG), data, ckpt_path=None if found is None else "last")


def in_process(*args: Any) -> int:
    """Train in a forked process, and return its exit code."""
    process = os.fork()
    if process == 0:
        train(*args)
        if "wandb" in sys.modules:
            sys.modules["wandb"].finish()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def one_folder(folder: Path) -> Path:
    """Return the only version of a logger."""
    (version,) = folder.iterdir()
    return version


def of_csv(folder: Path) -> Numbers:
    with (one_folder(folder) / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    return [(name, int(row["step"]), float(row[name])) for row in rows for name in sorted(row) if row[name]]


def of_tensorboard(folder: Path) -> Numbers:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(one_folder(folder)), {"scalars": 0})
    events.Reload()
    return [(tag, one.step, one.value) for tag in sorted(events.Tags()["scalars"]) for one in events.Scalars(tag)]


def of_mlflow(folder: Path) -> Numbers:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    (run,) = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    names = sorted(run.data.metrics)
    return [(name, one.step, one.value) for name in names for one in client.get_metric_history(run.info.run_id, name)]


def of_wandb(folder: Path) -> Numbers:
    numbers: Numbers = []
    found = sorted((folder / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len({file.name for file in found}) == 1  # one id
    for file in found:
        for record in records_of(file):
            items = record.history.item if record.HasField("history") else ()
            row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
            numbers += [(name, row[X], row[name]) for name in sorted(row) if X in row and name != X and name[0] != "_"]
            numbers += [("rows", 0, row["_step"])] if X in row else []
    return numbers


def read(folder: Path, kind: str) -> dict[str, Numbers]:
    """Return the numbers of each logger, without those that depend on the time."""
    found = {name: of_csv(folder / name) for name in ("csv", "csv_of_user") if (folder / name).exists()}
    if kind == "files":
        found |= {name: of_tensorboard(folder / name) for name in ("tensorboard", "tensorboard_of_user")}
    else:
        found[kind] = of_mlflow(folder) if kind == "mlflow" else of_wandb(folder)
    return {name: [one for one in kept if not re.search("per_second|^step$", one[0])] for name, kept in found.items()}


def main(folder: Path, kind: str) -> None:
    """Kill a run ten times, finish it, and print what its loggers have and what those of a whole run have."""
    make = {"files": files, "mlflow": mlflow, "wandb": wandb}[kind]
    count = len(make(folder))
    for number, rows in enumerate(KILLS):
        place = count if number % 2 else count - 1  # every logger has the last row, or the last one has not
        assert in_process(folder / "killed", make, rows, place) == -signal.SIGKILL
    for part in ("killed", "whole"):
        assert in_process(folder / part, make) == 0
    print(json.dumps([read(folder / part, kind) for part in ("killed", "whole")]))


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    main(Path(sys.argv[1]), sys.argv[2])
