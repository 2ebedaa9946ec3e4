from .base import RunDataModule as RunDataModule
from .collecting import CollectingDataModule as CollectingDataModule
from .dataset import Dataset as Dataset, DatasetStatistics as DatasetStatistics
from .dataset_files import load_dataset as load_dataset, save_dataset as save_dataset
from .offline import OfflineDataModule as OfflineDataModule
from .remote import RemoteReplayDataModule as RemoteReplayDataModule
from .replay import ReplayDataModule as ReplayDataModule
from .rollout import RolloutDataModule as RolloutDataModule
