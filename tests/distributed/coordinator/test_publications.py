"""Publications of weights that a signal interrupts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

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
