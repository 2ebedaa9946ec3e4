"""DataModules: collect, store and serve data for a policy's ``training_step``."""

if __name__ != "lightning_ding.datamodules":  # the folder is also importable from the repository root, as a second copy
    raise ImportError("import lightning_ding.datamodules, not datamodules")

from lightning_ding.datamodules.base import CollectingDataModule
from lightning_ding.datamodules.dataset import Dataset, DatasetStatistics
from lightning_ding.datamodules.dataset_files import load_dataset, save_dataset
from lightning_ding.datamodules.offline import OfflineDataModule
from lightning_ding.datamodules.remote import RemoteReplayDataModule
from lightning_ding.datamodules.replay import ReplayDataModule
from lightning_ding.datamodules.rollout import RolloutDataModule

__all__ = [
    "CollectingDataModule",
    "Dataset",
    "DatasetStatistics",
    "OfflineDataModule",
    "RemoteReplayDataModule",
    "ReplayDataModule",
    "RolloutDataModule",
    "load_dataset",
    "save_dataset",
]
