"""Publications of weights that a signal interrupts."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_ding.distributed.coordinator import publications
from lightning_ding.distributed.file_store import FileStore
from lightning_ding.distributed.stop_signals import StopSignal
from tests.distributed.coordinator.coordinating import Run, both, config


def test_signal_during_a_publication_leaves_the_previous_weights_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(config(tmp_path / "run"), FileStore(tmp_path / "data"))
    learner, collector = both(run)
    learner.publish(1)

    def write_half(tensors: Any, file: Path, metadata: Any) -> None:
        file.write_bytes(b"half of the weights")
        raise StopSignal

    with monkeypatch.context() as patch:
        patch.setattr("lightning_ding.distributed.block_files.write_tensors", write_half)
        with pytest.raises(StopSignal):
            learner.publish(2)
    answer = collector.call("get_policy", policy_id=learner.info()["policy_id"], serial=-1)
    assert run.store.get(answer["handle"]).tensors["weight"].tolist() == [1.0]
    assert len(list((tmp_path / "data" / "policy").iterdir())) == 1
    assert learner.publish(3) == 2


def test_weights_whose_index_could_not_be_written_are_written_and_deleted_with_the_next_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(config(tmp_path / "run"), FileStore(tmp_path / "data"))
    learner, collector = both(run)
    for version in range(1, 4):
        learner.publish(version)
    before = len(list((tmp_path / "data" / "policy").iterdir()))

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    handle = run.store.put("policy", {"weight": torch.tensor([4.0])})
    said = {"policy_id": learner.info()["policy_id"], "policy_version": 4, "data_id": handle}
    with monkeypatch.context() as patch:
        patch.setattr(publications, "replace_text", fail)
        for _ in range(2):
            with pytest.raises(OSError, match="no space left"):
                learner.call("learner_send_policy", **said)
    learner.call("learner_send_policy", **said)  # as the channel does until it is answered

    assert len(list((tmp_path / "data" / "policy").iterdir())) == before
    run.restart()
    answer = collector.call("get_policy", policy_id=said["policy_id"], serial=-1)
    assert run.store.get(answer["handle"]).tensors["weight"].tolist() == [4.0]
