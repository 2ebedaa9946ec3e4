"""Every algorithm trains on an accelerator, repeats a run to the last bit, and resumes with the same bits."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule, Trainer

from lightning_ding.callbacks import RunCheckpoint
from lightning_ding.policy import Policy
from tests.algorithms.table import ALGORITHMS, TEAMS, make_datamodule, make_policy, plain, state_of

ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
QUIET: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}


def fit(
    name: str, accelerator: str, epochs: int, folder: Path | None = None, start: Path | None = None
) -> tuple[Policy[Any], LightningDataModule, Trainer]:
    """Train an algorithm for some epochs of two rounds, and return what took part."""
    torch.manual_seed(0)
    policy, data = make_policy(name), make_datamodule(name, rounds_per_epoch=2)
    saving: list[Callback] = [] if folder is None else [RunCheckpoint(folder)]
    flags = {"accelerator": accelerator, "devices": 1, "enable_checkpointing": bool(saving), **QUIET}
    trainer = Trainer(max_epochs=epochs, callbacks=saving, **flags)
    trainer.fit(policy, data, ckpt_path=start, weights_only=None if start is None else True)
    return policy, data, trainer


def check_same_bits(name: str, accelerator: str, folder: Path) -> None:
    """Check that a run, its repetition and its continuation from the half end with the same bits."""
    policy, data, trainer = fit(name, accelerator, 4)
    assert policy.progress.train_iter > 0
    assert next(policy.parameters()).dtype == torch.float32
    straight = copy.deepcopy(plain(state_of(policy, data)))
    assert plain(state_of(*fit(name, accelerator, 4)[:2])) == straight
    fit(name, accelerator, 2, folder)
    assert plain(state_of(*fit(name, accelerator, 4, start=folder / "last.ckpt")[:2])) == straight
    (scores,) = trainer.test(policy, data, verbose=False)
    assert "test/return_mean" in scores


@pytest.mark.gpu
@ON_GPU
@pytest.mark.parametrize("name", [*ALGORITHMS, *TEAMS])
def test_a_run_on_a_gpu_repeats_and_resumes_with_the_same_bits(name: str, tmp_path: Path) -> None:
    check_same_bits(name, "gpu", tmp_path)


def test_the_check_passes_on_the_cpu(tmp_path: Path) -> None:
    check_same_bits("dqn", "cpu", tmp_path)
