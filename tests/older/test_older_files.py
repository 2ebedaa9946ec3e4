"""Files that older versions wrote, and which this version loads; ``make.py`` says with which commits.

On the machine that wrote them, a continued run has to end with the same bits. Elsewhere the last bits of a sum differ.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from lightning_ding.checkpoints import last_checkpoint, verify
from lightning_ding.config import resolve
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.coordinator.coordinator import Coordinator
from lightning_ding.distributed.file_store import FileStore
from lightning_ding.entry.config_file import read_config
from lightning_ding.policy import get_policy_cls
from lightning_ding.policy.load import load_policy
from lightning_ding.tune.study import Study
from tests.distributed.coordinator.coordinating import config
from tests.older.make import RUNS, SEARCH, SPACES, actions, continued, machine, write_config

HERE = Path(__file__).parent
EXPECTED: dict[str, Any] = json.loads((HERE / "expected.json").read_text())


@pytest.fixture
def unpacked(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Unpack the files of a name into the current folder, which is an empty one, and return the name."""
    kind: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # not in Python 3.11.2
    shutil.unpack_archive(HERE / f"{request.param}.tar.xz", tmp_path, **kind)
    monkeypatch.chdir(tmp_path)
    return str(request.param)


@pytest.mark.parametrize("unpacked", RUNS, indirect=True)
def test_run_of_an_older_version_continues_to_the_same_end(unpacked: str) -> None:
    found, expected = continued(Path("config.yaml"), unpacked), load_file(HERE / f"{unpacked}_end.safetensors")
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        is_same = torch.equal if machine() == EXPECTED["machine"] else torch.allclose
        assert is_same(tensor, expected[name]), name


@pytest.mark.parametrize("unpacked", RUNS, indirect=True)
def test_policy_of_an_older_version_acts_as_it_did(unpacked: str) -> None:
    checkpoint = last_checkpoint("runs")
    assert checkpoint is not None
    verify(Path(checkpoint).parent)
    for file in (checkpoint, f"{unpacked}.safetensors"):
        torch.testing.assert_close(torch.tensor(actions(file)), torch.tensor(EXPECTED[unpacked]))
    by_class = get_policy_cls({"type": unpacked}).load_from_checkpoint(checkpoint, map_location="cpu")
    for name, tensor in load_policy(checkpoint).state_dict().items():
        assert torch.equal(tensor, by_class.state_dict()[name]), name


@pytest.mark.parametrize("unpacked", ["tune"], indirect=True)
def test_search_of_an_older_version_is_found(unpacked: str) -> None:
    study = Study(yaml.safe_load(write_config("dqn").read_text()), "study", {**SEARCH, "spaces": SPACES})
    assert [trial.value for trial in study.study.trials] == EXPECTED[unpacked]


@pytest.mark.parametrize("unpacked", ["coordinator"], indirect=True)
def test_coordinator_of_an_older_version_is_resumed(unpacked: str) -> None:
    cfg = read_config("config.json", [])
    assert cfg == resolve(ParallelConfig, config(Path("run")))
    coordinator = Coordinator(cfg, FileStore(Path("run/data")), resume=True)
    replay: Any = next(iter(coordinator.run.replays.values()))
    storage = replay.buffer._storage
    assert coordinator.run.env_step() == EXPECTED[unpacked]["env_step"]
    rows = {name: column[: storage.count].tolist() for name, column in storage.columns.items()}
    assert rows == EXPECTED[unpacked]["rows"]
