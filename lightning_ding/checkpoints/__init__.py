"""Checkpoints of a run: folders that are either complete or not visible under their final names."""

from lightning_ding.checkpoints.files import save_object, sync_tree
from lightning_ding.checkpoints.folder import (
    RUN_FILE,
    RunFolder,
    SaveBuffer,
    find_rank_folder,
    last_checkpoint,
    save_run,
)
from lightning_ding.checkpoints.manifest import TornCheckpointError, verify

__all__ = [
    "RUN_FILE",
    "RunFolder",
    "SaveBuffer",
    "TornCheckpointError",
    "find_rank_folder",
    "last_checkpoint",
    "save_object",
    "save_run",
    "sync_tree",
    "verify",
]
