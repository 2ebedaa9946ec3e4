"""Checkpoints of a run: folders that are whole or not there."""

from lightning_ding.checkpoints.files import save_object, sync_tree
from lightning_ding.checkpoints.find import last_checkpoint
from lightning_ding.checkpoints.manifest import TornCheckpointError, verify
from lightning_ding.checkpoints.rank_folder import RUN_FILE, find_rank_folder
from lightning_ding.checkpoints.run_folder import RunFolder, SaveBuffer

__all__ = [
    "RUN_FILE",
    "RunFolder",
    "SaveBuffer",
    "TornCheckpointError",
    "find_rank_folder",
    "last_checkpoint",
    "save_object",
    "sync_tree",
    "verify",
]
