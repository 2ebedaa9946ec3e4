"""Counters, reports and restarts of the sample collector."""

from __future__ import annotations

import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from lightning_ding.policy.random import random_collect_mode
from lightning_ding.worker import EpisodeSerialCollector, SampleSerialCollector
from tests.toys.envs import CountingEnv
from tests.worker.collector.sampling_toys import MODES, PlacePolicy, collect, collector_of, counting_envs, logs


@pytest.mark.parametrize("mode", MODES)
def test_collector_counts_the_steps_that_were_transitions_and_the_episodes_that_ended(mode: AutoresetMode) -> None:
    env = counting_envs(mode)
    collector = collector_of(env)

    collect(collector, 50)

    assert collector.envstep == sum(map(len, logs(env)))  # a step that only resets is none
    assert collector.episode == sum(row[4] or row[5] for log in logs(env) for row in log)


def test_collector_counts_the_transitions_handed_over() -> None:
    collector = collector_of(counting_envs())
    for n_sample in (1, 4, 2):
        collect(collector, n_sample)

    assert (collector.sample, collector.envstep) == (7, 9)  # two wait for the next call


def test_collector_continues_counting_from_a_number_that_was_set() -> None:
    collector = collector_of(counting_envs())
    collector.envstep = 1000

    collect(collector, 3)

    assert collector.envstep == 1003


@pytest.mark.parametrize("mode", MODES)
def test_pop_episodes_gives_the_returns_and_lengths_of_ended_episodes(mode: AutoresetMode) -> None:
    collector = collector_of(counting_envs(mode, num_envs=2))
    collect(collector, 200)

    returns, lengths = collector.pop_episodes()

    # Env 0: one step, return 1. Env 1: two steps, return 1 + 2 = 3, or four, return 1 + 2 + 3 + 4 = 10.
    assert {1, 2, 4} == set(lengths)
    assert returns == [{1: 1.0, 2: 3.0, 4: 10.0}[length] for length in lengths]
    assert len(returns) == collector.episode
    assert collector.pop_episodes() == ([], [])  # each episode once


def test_collector_counts_an_episode_that_a_reset_broke_off_for_nothing() -> None:
    collector = collector_of(SyncVectorEnv([functools.partial(CountingEnv, 0, (3,))]))
    collect(collector, 2)

    collector.reset_env()
    collect(collector, 3)

    assert collector.pop_episodes() == ([6.0], [3])  # 1 + 2 + 3, without the 1 + 2 from before


def test_reset_env_keeps_what_was_not_handed_over_and_makes_the_policy_forget() -> None:
    policy = PlacePolicy()
    collector = collector_of(counting_envs(), policy)
    collect(collector, 1)
    policy.resets.clear()

    collector.reset_env()

    assert policy.resets == [None]
    assert collect(collector, 3)["obs"][:, :2].tolist() == [[1, 0], [2, 0], [0, 2]]  # env 0 was in its second episode


def test_collector_leaves_its_env_open_and_forgets_it_when_its_context_ends() -> None:
    env = counting_envs()
    with collector_of(env) as collector:
        pass

    assert env.step(np.zeros(3, dtype=np.int64))[1].tolist() == [1.0, 1.0, 1.0]
    with pytest.raises(RuntimeError, match="no policy"):
        collector.collect(1)


def test_mistakes_are_named() -> None:
    with pytest.raises(RuntimeError, match="no env: pass env to the constructor or call reset_env"):
        SampleSerialCollector(policy=PlacePolicy().mode).collect(1)
    with pytest.raises(RuntimeError, match="no policy: pass policy to the constructor or call reset_policy"):
        SampleSerialCollector(env=counting_envs()).collect(1)


class Sink:
    """A Lightning logger that keeps what it gets."""

    closed = False

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.rows.append({"step": step, **{name.split("/")[1]: value for name, value in metrics.items()}})

    def close(self) -> None:
        self.closed = True


def reporting(sink: Any, freq: int = 10) -> SampleSerialCollector:
    cfg = {"collect_print_freq": freq}
    return SampleSerialCollector(cfg, counting_envs(), PlacePolicy().mode, sink, "experiment", "mine")


def test_collector_reports_an_interval_to_the_logger(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 2))  # every call takes two seconds, and so does what is between the calls
    monkeypatch.setattr("time.perf_counter", lambda: float(next(clock)))
    sink = Sink()
    collector = reporting(sink)
    for train_iter in (0, 5, 10, 15, 20):
        collect(collector, 6, train_iter)

    first, second = sink.rows
    assert (first["step"], second["step"]) == (18, 30)
    # Three calls of six steps, two seconds each. Env 0 ended six episodes with return 1, env 1 episodes of 2 and 4
    # steps, env 2 one of 5.
    assert (first["episode_count"], first["envstep_count"], first["train_sample_count"]) == (9, 18, 18)
    assert (first["collect_time"], first["avg_envstep_per_sec"]) == (6, 3)
    assert first["return_mean"] == pytest.approx((6 * 1 + 3 + 10 + 15) / 9, rel=1e-12)
    assert first["avg_envstep_per_episode"] == pytest.approx((6 * 1 + 2 + 4 + 5) / 9, rel=1e-12)
    assert (second["collect_time"], second["envstep_count"], second["total_envstep_count"]) == (4, 12, 30)
    assert second["total_episode_count"] == collector.episode


def test_collector_reports_with_the_names_it_was_given(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="lightning_ding"):
        collect(reporting(None), 6, train_iter=10)

    assert caplog.records[0].name == "lightning_ding.experiment.mine"
    assert "train_iter 10, env_step 6: episode_count 3" in caplog.records[0].getMessage()


def test_collector_reports_episodes_that_somebody_else_has_taken() -> None:
    sink = Sink()
    collector = reporting(sink)
    collect(collector, 6, train_iter=5)
    collector.pop_episodes()
    collect(collector, 6, train_iter=10)

    assert sink.rows[0]["episode_count"] == collector.episode


def test_collector_leaves_what_is_not_recorded_out_of_its_reports() -> None:
    sink = Sink()
    collector = reporting(sink)
    collect(collector, 30, 10, random_collect=True, record_random_collect=False)
    assert sink.rows == []

    collect(collector, 6, 10)

    assert sink.rows[0]["envstep_count"] == 6
    assert sink.rows[0]["total_envstep_count"] == 36


def test_collector_does_no_work_for_reports_without_a_logger(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("nobody reads this")

    collector = reporting(None)
    monkeypatch.setattr("time.perf_counter", refuse)
    monkeypatch.setattr("lightning_ding.worker.log.CollectReport._values", refuse)

    collect(collector, 30, train_iter=100)


def test_collector_leaves_the_logger_open_when_it_is_closed() -> None:
    sink = Sink()
    with reporting(sink) as collector:
        collect(collector, 6)

    assert not sink.closed


def test_collector_makes_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with reporting(None) as collector:
        collect(collector, 6, train_iter=10)

    assert list(tmp_path.iterdir()) == []


def test_reset_without_arguments_restarts_the_env_and_the_policy_that_are_there() -> None:
    env, policy = counting_envs(), PlacePolicy()
    collector = collector_of(env, policy)
    collect(collector, 7)
    policy.resets.clear()

    collector.reset()

    assert None in policy.resets
    assert (collector.envstep, collector.sample, collector.episode, collector.pop_episodes()) == (0, 0, 0, ([], []))
    data = collect(collector, 3)
    assert data["obs"][:, 2].tolist() == [0, 0, 0]  # first steps
    assert (collector.envstep, collector.sample) == (3, 3)


def test_reset_of_a_collector_without_env_and_policy_waits_for_them() -> None:
    collector = SampleSerialCollector()
    collector.reset()
    collector.reset(policy=PlacePolicy().mode)
    collector.reset(env=counting_envs())

    assert len(collect(collector, 4)["reward"]) == 4


def test_reset_restarts_a_policy_that_has_no_env_yet() -> None:
    policy = PlacePolicy()
    collector = SampleSerialCollector(policy=policy.mode)

    collector.reset()

    assert policy.resets == [None, None]


def test_reset_restarts_the_reports() -> None:
    sink = Sink()
    collector = reporting(sink, freq=10)
    collect(collector, 6, train_iter=10)
    collect(collector, 6, train_iter=11)

    collector.reset()
    collect(collector, 6, train_iter=10)

    assert [row["envstep_count"] for row in sink.rows] == [6, 6]


def test_reset_takes_another_env_and_another_policy() -> None:
    collector = collector_of(counting_envs(num_envs=3), PlacePolicy(n_sample=1))
    collect(collector)

    collector.reset(PlacePolicy(n_sample=5).mode, counting_envs(num_envs=5))

    assert collect(collector)["env_id"].tolist() == [0, 1, 2, 3, 4]


def test_collector_refuses_a_policy_that_learns_from_sequences() -> None:
    class Sequences(PlacePolicy):
        def get_attribute(self, name: str) -> Any:
            return 8 if name == "unroll_len" else super().get_attribute(name)

    with pytest.raises(ValueError, match=r"collect\.unroll_len must be 1 with the sample collector .*, got 8"):
        collector_of(counting_envs(), Sequences())


@pytest.mark.parametrize("kind", [SampleSerialCollector, EpisodeSerialCollector])
def test_amount_may_be_a_numpy_integer_but_no_bool(kind: Any) -> None:
    collector = kind(env=counting_envs(), policy=PlacePolicy().mode)
    data = collector.collect(np.int64(2))

    assert len(data["reward"] if isinstance(data, dict) else data) == 2
    with pytest.raises(ValueError, match="must be an int >= 1, got True"):
        collector.collect(True)


def test_policy_that_says_nothing_of_memory_has_none() -> None:
    env = counting_envs()
    collector = SampleSerialCollector(env=env, policy=random_collect_mode(env.single_action_space, 0))

    assert len(collect(collector, 5)["reward"]) == 5
    with pytest.raises(ValueError, match="n_sample must be an int >= 1, got None"):
        collector.collect()


@pytest.mark.parametrize("kind", [SampleSerialCollector, EpisodeSerialCollector])
def test_collector_takes_the_collect_mode_of_a_whole_policy(kind: Any) -> None:
    policy = SimpleNamespace(collect_mode=PlacePolicy().mode)
    given, later = kind(env=counting_envs(), policy=policy), kind(env=counting_envs())
    later.reset_policy(policy)

    data = [given.collect(3), later.collect(3)]

    assert [len(one["reward"] if isinstance(one, dict) else one) for one in data] == [3, 3]
