"""A rank of a run of ``serial_pipeline`` under torchrun."""

from __future__ import annotations

import os

import torch

from lightning_ding.entry import serial_pipeline
from tests.di_engine.pairs import small_pair

if __name__ == "__main__":
    torch.set_num_threads(1)
    policy = serial_pipeline(small_pair("dqn"), max_train_iter=12)
    torch.save(policy.state_dict(), f"weights_{os.environ['RANK']}.pt")
