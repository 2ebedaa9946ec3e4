"""Reports of a collector without a Trainer: they cover one interval, are written when due, and cost nothing if logging
is off."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import SimpleNamespace

import pytest

from lightning_ding.worker.episodes import EpisodeStatistics
from lightning_ding.worker.log import CollectReport, WorkerLog


class Reporter:
    """Stands in for a collector and for its Lightning logger, which keeps what it gets."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.seconds = 0.0
        self.statistics = EpisodeStatistics()
        self.report = CollectReport(WorkerLog(self, instance_name="collector"), 100)

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.rows.append((step, metrics))

    def collect(
        self,
        train_iter: int,
        seconds: float = 1.0,
        steps: int = 1,
        sample: int = 1,
        lengths: Sequence[int] = (1,),
        returns: Sequence[float] = (0.0,),
        named: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        self.report.begin(self.statistics)
        self.seconds += seconds
        self.statistics.envstep += steps
        self.statistics.sample += sample
        self.statistics.add_episodes(list(returns), list(lengths))
        self.report.finish(self.statistics, train_iter, named)

    def values(self, name: str) -> list[float]:
        return [row[f"collector/{name}"] for _, row in self.rows]


@pytest.fixture
def reporter(monkeypatch: pytest.MonkeyPatch) -> Reporter:
    made = Reporter()
    clock = SimpleNamespace(perf_counter=lambda: made.seconds)
    monkeypatch.setattr("lightning_ding.worker.log.time", clock)
    return made


def test_collect_report_adds_an_interval_up(reporter: Reporter) -> None:
    reporter.statistics.envstep, reporter.statistics.sample, reporter.statistics.episode = 960, 860, 67
    reporter.statistics.dropped_episode = 2
    reporter.collect(99, seconds=1.5, steps=30, sample=24, lengths=[10], returns=[5.0])
    reporter.collect(100, seconds=0.5, steps=10, sample=16, lengths=[6, 14], returns=[1.0, 3.0])

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
        "total_dropped_episode_count": 2,
    }
    ((step, row),) = reporter.rows
    assert step == 1000
    assert row == pytest.approx({f"collector/{name}": value for name, value in expected.items()}, rel=1e-12)


def test_collect_report_carries_nothing_from_one_interval_to_the_next(reporter: Reporter) -> None:
    for train_iter in (100, 200, 300):
        reporter.collect(train_iter, seconds=2.0, returns=[float(train_iter)])

    assert reporter.values("collect_time") == [2.0] * 3
    assert reporter.values("return_mean") == [100, 200, 300]


def test_collect_report_counts_updates_from_the_last_report(reporter: Reporter) -> None:
    for train_iter in (99, 130, 200, 229, 230):
        reporter.collect(train_iter)

    assert [step for step, _ in reporter.rows] == [2, 5]
    assert reporter.values("envstep_count") == [2, 3]


def test_collect_report_waits_for_an_episode(reporter: Reporter) -> None:
    reporter.collect(500, steps=5, lengths=[], returns=[])
    assert reporter.rows == []

    reporter.collect(501, steps=5, lengths=[10], returns=[1.0])

    assert reporter.values("envstep_count") == [10]


def test_collect_report_names_the_returns_of_several_players(reporter: Reporter) -> None:
    reporter.collect(100, named={"return0": [1.0], "return1": [-1.0]})

    assert (reporter.values("return0_mean"), reporter.values("return1_mean")) == ([1.0], [-1.0])


def test_collect_report_forgets_everything_when_it_is_reset(reporter: Reporter) -> None:
    reporter.collect(100)
    reporter.collect(100, steps=7)

    reporter.report.reset()
    reporter.collect(100, steps=2)

    assert reporter.values("envstep_count") == [1, 2]


def test_collect_report_leaves_out_a_call_that_is_not_recorded(reporter: Reporter) -> None:
    reporter.report.begin(reporter.statistics, is_recorded=False)
    reporter.statistics.envstep += 7
    reporter.report.finish(reporter.statistics, 100)
    reporter.collect(100, steps=2)

    assert reporter.values("envstep_count") == [2]


def test_collect_report_is_off_without_a_logger(
    reporter: Reporter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reporter.report._log, "tb_logger", None)
    reporter.collect(100)
    assert reporter.report._mark is None

    with caplog.at_level(logging.INFO, logger="lightning_ding"):
        reporter.collect(200)
    assert "train_iter 200, env_step 2: episode_count 1" in caplog.text
