from .files import save_object as save_object, sync_tree as sync_tree
from .folder import (
    RUN_FILE as RUN_FILE,
    RunFolder as RunFolder,
    SaveBuffer as SaveBuffer,
    find_rank_folder as find_rank_folder,
    last_checkpoint as last_checkpoint,
    save_run as save_run,
)
from .manifest import TornCheckpointError as TornCheckpointError, verify as verify
