"""Checkpoints of a run: folders that are whole or not there."""

from lightning_ding.checkpoints.rank_folder import find_rank_folder

__all__ = ["find_rank_folder"]
