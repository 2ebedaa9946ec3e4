"""Recorded metrics: a run that is stopped leaves what it has seen, and other records stay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import learn, vitals
from lightning_ding.callbacks import metrics
from lightning_ding.callbacks.diagnosis import Diagnosis
from lightning_ding.utils.run_facts import Facts


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "Diagnosis", Diagnosis)  # the recorder takes its place
    monkeypatch.setattr(vitals, "EVERY", -1.0)


def run(is_stopped: bool, file: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the record of a run with two rows."""

    def train(*_: Any) -> dict[str, Any]:
        seen = vitals.Recorder(Facts(budget=1000))
        for step in (100.0, 200.0):
            seen.see({"step": step, "learn/grad_norm": 0.123456, "time/fps": 5.0})
        if is_stopped:
            raise KeyboardInterrupt
        return {"best": 9.0}

    monkeypatch.setattr(learn, "run_one", train)
    file.write_text('{"other": 1}')
    try:
        vitals.record("dqn_cartpole", 3, 1000, file)
    except KeyboardInterrupt:
        assert is_stopped
    stored = json.loads(file.read_text())
    assert stored.pop("other") == 1
    found: dict[str, Any] = stored.pop("dqn_cartpole")
    assert not stored
    return found


@pytest.mark.parametrize(("is_stopped", "budget", "best"), [(False, 1000, 9.0), (True, 200, None)])
def test_a_run_that_is_stopped_leaves_the_part_that_it_has_seen(
    is_stopped: bool, budget: int, best: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = run(is_stopped, tmp_path / "vitals.json", monkeypatch)
    assert (found["seed"], found["budget"], found["best"], found["facts"]["budget"]) == (3, budget, best, 1000)
    assert found["columns"] == {"step": [100.0, 200.0], "learn/grad_norm": [0.1235, 0.1235]}
    assert [file.name for file in tmp_path.iterdir()] == ["vitals.json"]
