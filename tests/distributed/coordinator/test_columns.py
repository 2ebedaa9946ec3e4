"""Blocks are held against the columns that the learner has announced, the first block too."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_ding.distributed.messages import read_columns
from lightning_ding.distributed.transport import Refusal
from tests.distributed.coordinator.coordinating import Run, Worker, announced, both, config, transitions

WIDE: dict[str, Any] = {"obs": torch.zeros(4, 9), "next_obs": torch.zeros(4, 9)}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(config(tmp_path / "run"))


def refused(worker: Worker, rows: Any) -> str:
    with pytest.raises(Refusal) as caught:
        worker.send(rows)
    assert caught.value.status == 422
    return caught.value.reason


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        (WIDE, "obs must have the shape (2,) of the learner's, got (9,)"),
        ({"next_obs": torch.zeros(4, 9)}, "next_obs must have the shape (2,)"),
        ({"extra": torch.zeros(4)}, "got ['extra'] in addition, [] missing"),
        ({"truncated": None}, "got [] in addition, ['truncated'] missing"),
        ({"reward": torch.zeros(4, 1)}, "reward must have the shape ()"),
        ({"action": torch.zeros(4)}, "action must have a type that fits the learner's int64, got float32"),
        ({"action": torch.tensor([0, 1, 2, 0])}, "action must be in [[0], [1]], the learner's space"),
        ({"action": torch.tensor([0, 1, -1, 0])}, "action must be in [[0], [1]], the learner's space"),
        ({"obs": {"camera": torch.zeros(4, 2)}}, "['obs/camera'] in addition, ['obs'] missing"),
        ({"obs": {"a/b": torch.zeros(4, 2)}}, "without '/'"),
    ],
)
def test_a_bad_first_block_is_refused_and_the_good_ones_after_it_are_kept(
    run: Run, changed: dict[str, Any], what: str
) -> None:
    learner, collector = both(run)
    learner.call("learner_send_columns", **announced())
    assert what in refused(collector, transitions(**changed))
    assert (run.counts.env_step, run.counts.refused, len(run.store)) == (0, 1, 0)
    collector.send(transitions())
    run.restart()
    assert run.rows()["reward"] == [0, 1, 2, 3]


def test_large_block_of_other_columns_is_refused_before_its_data_are_read(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, collector = both(run)
    learner.call("learner_send_columns", **announced())
    form = {name: (str(leaf.dtype).removeprefix("torch."), tuple(leaf.shape)) for name, leaf in transitions().items()}
    with monkeypatch.context() as patch:
        patch.setattr(run.store, "form", lambda handle: {**form, "obs": ("float32", (10**9, 9))}, raising=False)
        patch.setattr(run.store, "get", lambda handle: pytest.fail("the data were read"))
        assert "obs must have the shape (2,) of the learner's, got (9,)" in refused(collector, transitions())
    assert (run.counts.refused, len(run.store)) == (1, 0)
    monkeypatch.setattr(run.store, "form", lambda handle: form, raising=False)
    assert collector.send(transitions())["accepted"]


def test_columns_hold_after_a_restart(run: Run) -> None:
    learner, collector = both(run)
    learner.call("learner_send_columns", **announced())
    run.restart()
    assert "obs must have the shape (2,)" in refused(collector, transitions(**WIDE))
    assert collector.send(transitions())["accepted"]


def test_a_first_block_of_other_types_does_not_decide_those_of_the_buffer(run: Run) -> None:
    learner, collector = both(run)
    learner.call("learner_send_columns", **announced())
    narrow: dict[str, Any] = {
        "action": torch.tensor([0, 1, 1, 0], dtype=torch.int8),
        "reward": torch.zeros(4, dtype=torch.float16),
    }
    collector.send(transitions(**narrow))
    collector.send(transitions(reward=torch.full((4,), 1 / 3)))
    assert run.rows()["action"] == [0, 1, 1, 0, 0, 0, 0, 0]
    columns = run.replay.buffer._storage.columns
    assert [str(columns[name].dtype) for name in ("action", "reward")] == ["int64", "float32"]
    assert columns["reward"][4] == torch.tensor(1 / 3).numpy()


@pytest.mark.parametrize("restarts", ["before", "after", "with a snapshot"])
def test_data_that_came_before_the_learner_and_do_not_fit_are_dropped_with_one_line(
    run: Run, restarts: str, caplog: pytest.LogCaptureFixture
) -> None:
    learner, collector = both(run)
    collector.send(transitions(**WIDE))
    if restarts == "with a snapshot":
        run.coordinator.run.save()
    if restarts != "after":
        run.restart()
    with caplog.at_level(logging.ERROR):
        learner.call("learner_send_columns", **announced())
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "4 transitions that the learner cannot use are dropped"
    ]
    if restarts != "before":
        run.restart()
    collector.send(transitions(first=4))
    assert run.rows()["reward"] == [4, 5, 6, 7]
    run.restart()
    assert run.rows()["reward"] == [4, 5, 6, 7]


def test_data_that_came_before_the_learner_and_fit_are_kept(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    learner, collector = both(run)
    collector.send(transitions())
    for _ in range(2):  # an answer may be lost
        learner.call("learner_send_columns", **announced())
    collector.send(transitions(first=4))
    assert run.rows()["reward"] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_columns_of_a_learner_that_knows_only_its_observations_leave_the_others_open(run: Run) -> None:
    learner, collector = both(run)
    columns = {name: form for name, form in announced()["columns"].items() if "obs" in name}
    learner.call("learner_send_columns", columns=columns, is_whole=False)
    assert "obs must have the shape" in refused(collector, transitions(**WIDE))
    assert collector.send(transitions(extra=torch.zeros(4)))["accepted"]


def test_limits_are_those_of_each_number(run: Run) -> None:
    learner, collector = both(run)
    learner.call("learner_send_columns", **announced(action=("int64", [2], [0, 0], [1, 2])))
    assert "[[0, 0], [1, 2]]" in refused(collector, transitions(action=torch.tensor([[2, 0]] * 4)))
    assert collector.send(transitions(action=torch.tensor([[0, 2]] * 4)))["accepted"]


@pytest.mark.parametrize(
    "changed",
    [
        {"columns": {}},
        {"columns": None},
        {"is_whole": 1},
        {"columns": {"obs": {"type": "object", "shape": []}}},
        {"columns": {"obs": {"type": "float32", "shape": [-1]}}},
        {"columns": {"obs": {"type": "float32", "shape": [3], "least": [0, 0]}}},
        {"columns": {"obs": {"type": "float32", "shape": [1] * 65}}},
        {"columns": {"obs": 3}},
    ],
)
def test_malformed_columns_are_refused(run: Run, changed: dict[str, Any]) -> None:
    learner, collector = both(run)
    with pytest.raises(Refusal) as caught:
        learner.call("learner_send_columns", **{**announced(), **changed})
    assert caught.value.status == 400
    with pytest.raises(Refusal, match="400"):
        collector.call("learner_send_columns", **announced())
    assert collector.send(transitions())["accepted"]


def test_columns_are_saved_as_they_are() -> None:
    columns = read_columns(announced())
    assert read_columns(json.loads(json.dumps(columns.state_dict()))) == columns
