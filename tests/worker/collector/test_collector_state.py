"""Collectors continue from a saved state, with the saved state of the envs or with new episodes."""

from __future__ import annotations

import functools
import io
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from lightning_ding import nested
from lightning_ding.datamodules.rank_state import read_collecting, restore_collecting, rng_state, set_rng_state
from lightning_ding.envs import FaultBarrier, Pausable, env_state, load_env_state
from lightning_ding.policy.random import random_collect_mode
from lightning_ding.utils.modes import CollectMode
from lightning_ding.worker import (
    BattleSampleSerialCollector,
    EpisodeSerialCollector,
    ISerialCollector,
    SampleSerialCollector,
)
from tests.toys.envs import CountingEnv

KINDS: list[Any] = [SampleSerialCollector, EpisodeSerialCollector]
LENGTHS = [(7,), (5, 3), (4, 9, 2)]
MODES = [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED]
each_mode = pytest.mark.parametrize("mode", MODES)
pausing = pytest.mark.parametrize("can_pause", [True, False], ids=["pausable", "not_pausable"])


class Brittle(CountingEnv):
    """Fails at the second step of its second episode."""

    def step(self, action: Any) -> Any:
        timestep = super().step(action)
        if (self._episode, self._step) == (1, 2):
            raise ArithmeticError("it broke")
        return timestep


def make_env(number: int, can_pause: bool, kind: Any) -> gym.Env[Any, Any]:
    env: gym.Env[Any, Any] = FaultBarrier(kind(number, LENGTHS[number]))
    return Pausable(env) if can_pause else env


def envs(mode: AutoresetMode = MODES[0], can_pause: bool = False, kind: Any = CountingEnv) -> VectorEnv:
    return SyncVectorEnv([functools.partial(make_env, i, can_pause, kind) for i in range(3)], autoreset_mode=mode)


def policy() -> CollectMode:
    space = gym.spaces.Discrete(4)
    space.seed(0)
    return random_collect_mode(space)


def go_on(kind: Any, mode: AutoresetMode, can_pause: bool, amount: int) -> tuple[Any, Any]:
    """Collect twice, and load the state after that into a second collector with separate envs."""
    env, other_env = envs(mode, can_pause), envs(mode, can_pause)
    collector, other = kind(env=env, policy=policy()), kind(env=other_env, policy=policy())
    collector.collect(amount)
    collector.collect(amount)
    state = through_a_file({"collector": collector.state_dict(), "envs": env_state(env)})
    other.collect(1)  # so that it is somewhere else
    load_env_state(other_env, state["envs"])
    other.load_state_dict(state["collector"])
    return collector, other


def through_a_file(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def plain(data: Any) -> Any:
    """Return what was collected without the actions, which are random."""
    episodes = data if isinstance(data, list) else [data]
    kept = [{name: part for name, part in episode.items() if name != "action"} for episode in episodes]
    return nested.apply(lambda leaf: leaf.tolist(), dict(enumerate(kept)))


def counts(collector: ISerialCollector) -> list[Any]:
    return [collector.envstep, collector.sample, collector.episode, collector.pop_episodes()]


@each_mode
def test_resumed_collector_returns_kept_transitions_first(mode: AutoresetMode) -> None:
    collector, other = go_on(SampleSerialCollector, mode, False, amount=10)  # 12 steps are made, 2 and 4 wait
    assert other._kept.count == collector._kept.count > 0
    for _ in range(4):
        assert plain(other.collect(10)) == plain(collector.collect(10))
    assert counts(other) == counts(collector)


@pausing
@each_mode
def test_resumed_collector_continues_with_kept_and_unfinished_episodes(mode: AutoresetMode, can_pause: bool) -> None:
    collector, other = go_on(EpisodeSerialCollector, mode, can_pause, amount=5)
    assert bool(any(collector._waiting)) is not can_pause
    assert collector._length.any() or can_pause
    for _ in range(4):
        assert plain(other.collect(5)) == plain(collector.collect(5))
    assert counts(other) == counts(collector)


@pytest.mark.parametrize("kind", [SampleSerialCollector, EpisodeSerialCollector])
def test_collector_resumed_without_env_state_keeps_counters_and_kept_data_and_starts_new_episodes(kind: Any) -> None:
    collector, other = kind(env=envs(), policy=policy()), kind(env=envs(), policy=policy())
    collector.collect(5)
    begun = collector.next_episode_id
    other.load_state_dict(through_a_file(collector.state_dict()), continues=False)
    other.reset_env()
    data = [other.collect(5) for _ in range(6)]
    if kind is EpisodeSerialCollector:
        data = [nested.concatenate_arrays(episodes) for episodes in data]
    ids, steps = (np.concatenate([one[name] for one in data]) for name in ("episode_id", "obs"))
    assert begun in ids.tolist()
    assert other.envstep > collector.envstep
    assert other.sample > collector.sample
    for episode in range(begun, int(ids.max()) + 1):  # of episodes under way there is nothing left
        mine = steps[ids == episode][:, 2].tolist()
        assert mine == list(range(len(mine)))


@pytest.mark.parametrize("kinds", [KINDS, KINDS[::-1]], ids=lambda kinds: kinds[0].__name__)
def test_a_collector_of_another_kind_begins_new_episodes_and_keeps_the_counters(kinds: Any) -> None:
    env, other_env = envs(), envs()
    saved, other = kinds[0](env=env, policy=policy()), kinds[1](env=other_env, policy=policy())
    saved.collect(5)
    normaliser = SimpleNamespace(episode_state=dict, load_episode_state=lambda *_: None)
    learner = SimpleNamespace(rewards=None)
    parts: dict[str, Any] = {"normaliser": normaliser, "learner": learner}
    metrics = SimpleNamespace(state_dict=dict, load_state_dict=lambda *_: None)
    parts |= {"metrics": metrics, "collect_metrics": metrics}
    old: Any = SimpleNamespace(collect_memory=dict, **parts)
    state = through_a_file(read_collecting(old, saved, env, envs()))
    new: Any = SimpleNamespace(device="cpu", **parts)
    missing = restore_collecting(state, new, other, other_env, envs())
    assert missing == f"the collector was a {kinds[0].__name__}, now it is a {kinds[1].__name__}"
    other.reset_env()
    assert other.envstep == saved.envstep > 0
    assert len(other.collect(5)) > 0


def test_random_states_of_cuda_devices_that_are_not_there_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    state = rng_state(np.random.default_rng(0)) | {"cuda": [torch.zeros(16), torch.ones(16)]}
    taken: list[Any] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda one, device: taken.append((one.tolist(), int(device))))
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", lambda every: taken.extend([(one, 0) for one in every]))
    set_rng_state(state, np.random.default_rng(1))
    assert taken == [([0.0] * 16, 0)]


def test_state_with_a_different_number_of_envs_is_refused_if_episodes_should_continue() -> None:
    state = SampleSerialCollector(env=envs(), policy=policy()).state_dict()
    two = SyncVectorEnv([CountingEnv, CountingEnv], autoreset_mode=MODES[0])
    other = SampleSerialCollector(env=two, policy=policy())
    with pytest.raises(ValueError, match="num_envs must be 3, as saved, got 2"):
        other.load_state_dict(state)
    other.load_state_dict(state, continues=False)


@pytest.mark.parametrize("kind", [SampleSerialCollector, EpisodeSerialCollector])
def test_dropped_episodes_are_reported_once(kind: Any) -> None:
    collector = kind({"env_fault": "drop"}, env=envs(kind=Brittle), policy=policy())
    told: list[int] = []
    for _ in range(6):
        collector.collect(5)
        told += collector.pop_dropped_episodes()
    assert len(told) == len(set(told)) == collector.dropped_episode == 3
    assert collector.pop_dropped_episodes() == []


def test_unread_dropped_episodes_are_part_of_the_state() -> None:
    collector = SampleSerialCollector({"env_fault": "drop"}, env=envs(kind=Brittle), policy=policy())
    collector.collect(40)
    other = SampleSerialCollector({"env_fault": "drop"}, env=envs(kind=Brittle), policy=policy())
    other.load_state_dict(collector.state_dict(), continues=False)
    assert len(other.pop_dropped_episodes()) == 3


def test_collectors_of_several_players_say_that_they_give_no_state() -> None:
    collector = BattleSampleSerialCollector()
    with pytest.raises(NotImplementedError, match="a BattleSampleSerialCollector cannot save its state"):
        collector.state_dict()
    with pytest.raises(NotImplementedError, match="a BattleSampleSerialCollector cannot load a state"):
        collector.load_state_dict({})
