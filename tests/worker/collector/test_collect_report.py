"""Reports of a collector without a Trainer: they cover one interval, are written when due, and cost nothing if logging
is off."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from lightning_ding.worker.episodes import CollectReport
from lightning_ding.worker.log import WorkerLog


class Sink:
    """A Lightning logger that keeps what it gets."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.rows.append((step, metrics))


def report_to(sink: Any, freq: int = 100) -> CollectReport:
    return CollectReport(WorkerLog(sink, instance_name="collector"), freq)


def test_collect_report_adds_an_interval_up() -> None:
    sink = Sink()
    report = report_to(sink)
    report.add(seconds=1.5, envstep=30, sample=24, lengths=[10], returns={"return": [5.0]})
    report.add(seconds=0.5, envstep=10, sample=16, lengths=[6, 14], returns={"return": [1.0, 3.0]})

    report.write_if_due(100, {"envstep": 1000, "train_sample": 900, "episode": 70})

    # 40 steps and samples and 3 episodes in 2 seconds; returns 5, 1, 3 with mean 3 and variance (4 + 4 + 0) / 3.
    expected = {
        "episode_count": 3,
        "envstep_count": 40,
        "train_sample_count": 40,
        "collect_time": 2.0,
        "avg_envstep_per_episode": 10,
        "avg_time_per_episode": 2 / 3,
        "avg_envstep_per_sec": 20,
        "avg_train_sample_per_sec": 20,
        "avg_episode_per_sec": 1.5,
        "return_mean": 3,
        "return_std": (8 / 3) ** 0.5,
        "return_max": 5,
        "return_min": 1,
        "total_envstep_count": 1000,
        "total_train_sample_count": 900,
        "total_episode_count": 70,
    }
    ((step, row),) = sink.rows
    assert step == 1000
    assert row == pytest.approx({f"collector/{name}": value for name, value in expected.items()}, rel=1e-12)


def test_collect_report_carries_nothing_from_one_interval_to_the_next() -> None:
    sink = Sink()
    report = report_to(sink)
    for train_iter in (100, 200, 300):
        report.add(seconds=2.0, envstep=10, sample=10, lengths=[10], returns={"return": [float(train_iter)]})
        report.write_if_due(train_iter, {"envstep": train_iter})

    assert [row["collector/collect_time"] for _, row in sink.rows] == [2.0] * 3
    assert [row["collector/return_mean"] for _, row in sink.rows] == [100, 200, 300]


def test_collect_report_counts_updates_from_the_last_report() -> None:
    sink = Sink()
    report = report_to(sink)
    for train_iter in (99, 130, 200, 229, 230):
        report.add(seconds=1.0, envstep=1, sample=1, lengths=[1], returns={"return": [0.0]})
        report.write_if_due(train_iter, {"envstep": train_iter})

    assert [step for step, _ in sink.rows] == [130, 230]
    assert [row["collector/envstep_count"] for _, row in sink.rows] == [2, 3]


def test_collect_report_waits_for_an_episode() -> None:
    sink = Sink()
    report = report_to(sink)
    report.add(seconds=1.0, envstep=5, sample=5, lengths=[], returns={"return": []})
    report.write_if_due(500, {"envstep": 5})
    assert sink.rows == []

    report.add(seconds=1.0, envstep=5, sample=5, lengths=[10], returns={"return": [1.0]})
    report.write_if_due(501, {"envstep": 10})

    assert sink.rows[0][1]["collector/envstep_count"] == 10


def test_collect_report_names_the_returns_of_several_players() -> None:
    report = report_to(Sink())
    report.add(seconds=1.0, envstep=2, sample=2, lengths=[2], returns={"return0": [1.0], "return1": [-1.0]})

    values = report.values()

    assert (values["return0_mean"], values["return1_mean"]) == (1.0, -1.0)


def test_collect_report_forgets_everything_when_it_is_reset() -> None:
    sink = Sink()
    report = report_to(sink)
    report.add(seconds=1.0, envstep=1, sample=1, lengths=[1], returns={"return": [0.0]})
    report.write_if_due(100, {"envstep": 1})
    report.add(seconds=1.0, envstep=7, sample=7, lengths=[7], returns={"return": [9.0]})

    report.reset()
    report.add(seconds=1.0, envstep=2, sample=2, lengths=[2], returns={"return": [3.0]})
    report.write_if_due(100, {"envstep": 2})

    assert sink.rows[1][1]["collector/envstep_count"] == 2


def test_collect_report_is_off_where_nobody_reads(caplog: pytest.LogCaptureFixture) -> None:
    assert report_to(Sink()).is_on
    assert not report_to(None).is_on
    with caplog.at_level(logging.INFO, logger="lightning_ding"):
        assert report_to(None).is_on
