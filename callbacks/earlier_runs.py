"""Which run a logger writes to, and how it continues the run of a checkpoint.

Lightning 2.6 chooses the version of a logger, or W&B and MLflow the id of a run, when the logger is first used, and has
no public way to choose it before. This module is the only one that uses the private attributes ``_version``
(TensorBoard, CSV), ``_id`` and ``_wandb_init`` (W&B) and ``_run_id`` (MLflow). A logger without them counts as one
whose run the user has chosen.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger

FILES = (TensorBoardLogger, CSVLogger)
"""Loggers that write to a separate folder."""
RunName = dict[str, Any]
"""The run of a logger: its ``kind``, the ``place`` of all its runs, and the ``version`` among them."""


def is_open(one: Logger) -> bool:
    """Return whether a logger has begun no run, and the user has not chosen one.

    The job id of Slurm, which Lightning's default logger takes as its version, is not the user's choice.
    """
    if isinstance(one, FILES):
        version = getattr(one, "_version", "unknown")
        return version is None or (version == SLURMEnvironment.job_id() and one._experiment is None)
    if isinstance(one, WandbLogger):
        init = getattr(one, "_wandb_init", {"id": "unknown"})
        return one._experiment is None and init.get("id") is None and not os.environ.get("WANDB_RUN_ID")
    return isinstance(one, MLFlowLogger) and getattr(one, "_run_id", "unknown") is None


def place_of(one: Logger) -> str | None:
    """Return the place of all runs of a logger, without beginning one; None for other loggers."""
    if isinstance(one, FILES):
        return os.path.abspath(one.root_dir) if "://" not in one.root_dir else one.root_dir
    if isinstance(one, WandbLogger):
        return f"{one._wandb_init.get('entity') or ''}/{one.name}"
    if isinstance(one, MLFlowLogger):
        uri = hashlib.sha256(str(one._tracking_uri).encode()).hexdigest()[:16]  # it may contain a password
        return f"{uri}/{runs_folder(one)}"
    return None


def run_name(one: Logger) -> RunName | None:
    """Return the run that a logger writes to; None for other loggers."""
    place = place_of(one)
    return None if place is None else {"kind": type(one).__name__, "place": place, "version": version_of(one)}


def version_of(one: Logger) -> str | None:
    """Return the version or the id of a logger's run, such as ``"version_0"``; None if it has none yet."""
    if isinstance(one, FILES):
        return one.version if isinstance(one.version, str) else f"version_{one.version}"
    if isinstance(one, WandbLogger):
        return one.version or os.environ.get("WANDB_RUN_ID")
    return None if one.version is None else str(one.version)


def runs_folder(one: Logger) -> str:
    """Return ``one.name``, without beginning a run of MLflow as that property does.

    MLflow's name is the id of the experiment; if there is no such experiment, the name of the one to be made.
    """
    if isinstance(one, MLFlowLogger) and is_open(one):
        found = one._mlflow_client.get_experiment_by_name(one._experiment_name)
        return one._experiment_name if found is None else str(found.experiment_id)
    return str(one.name)


def is_same_place(one: Logger, run: RunName, checkpoint: Path) -> bool:
    """Return whether a logger can write to the run of a checkpoint, whose folder may have been moved since."""
    if run["kind"] != type(one).__name__:
        return False
    if run["place"] == place_of(one):
        return True
    if not isinstance(one, FILES) or run["version"] is None:
        return False
    return (Path(one.root_dir) / run["version"]).resolve() in checkpoint.resolve().parents


def continue_run(one: Logger, run: Mapping[str, Any]) -> None:
    """Make a logger that :func:`is_open` write to an earlier run."""
    logger: Any = one
    version = run["version"]
    if isinstance(one, FILES):
        logger._version = version
    elif isinstance(one, WandbLogger):
        logger._id = logger._wandb_init["id"] = version  # Lightning passes resume="allow"
    else:
        logger._run_id = version
