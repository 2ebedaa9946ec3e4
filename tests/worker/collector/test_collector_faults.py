"""Faults of env or policy in collectors with one policy are reported, dropped or raised, but never hidden."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from lightning_ding.envs import FaultBarrier
from lightning_ding.worker import EpisodeSerialCollector, SampleSerialCollector
from lightning_ding.worker.episodes import FaultCounter
from tests.toys.envs import CountingEnv
from tests.worker.collector.sampling_toys import MODES, PlacePolicy

KINDS = [SampleSerialCollector, EpisodeSerialCollector]
Place = tuple[int, int]  # episode and step

both = pytest.mark.parametrize("kind", KINDS)
each_mode = pytest.mark.parametrize("mode", MODES)


class FaultyEnv(CountingEnv):
    """A CountingEnv that fails at some steps, of some episodes or of all."""

    def __init__(self, number: int, length: int, places: Sequence[Place] = (), steps: Sequence[int] = ()) -> None:
        super().__init__(number, (length,))
        self.places, self.steps = places, steps

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        timestep = super().step(action)
        if (self._episode, self._step) in self.places or self._step in self.steps:
            raise ArithmeticError("it broke")
        return timestep


class NanEnv(FaultyEnv):
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        try:
            return super().step(action)
        except ArithmeticError:
            return self._observe() * np.float32(np.nan), 0.0, False, False, {}


class Endless(CountingEnv):
    """Reports a fault at its second step, or at every one, and has no limit to that."""

    def __init__(self, good_steps: int) -> None:
        super().__init__(lengths=(3,))
        self.good_steps = good_steps

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return *super().step(action)[:4], {"abnormal": self._step > self.good_steps}


class ZeroPolicy(PlacePolicy):
    def forward(self, obs: Any, **kwargs: Any) -> Any:
        return {"action": torch.zeros(len(obs), dtype=torch.int64)}

    def process_transition(self, obs: Any, output: dict[str, Any], timestep: Any) -> dict[str, Any]:
        return {"obs": obs, "reward": timestep.reward, "next_obs": timestep.next_obs, "truncated": timestep.truncated}


def make(kind: Any, env: VectorEnv, policy: ZeroPolicy | None = None, **cfg: Any) -> Any:
    return kind(cfg, env=env, policy=(policy or ZeroPolicy()).mode)


def envs(
    places: Sequence[Sequence[Place]], mode: AutoresetMode = AutoresetMode.SAME_STEP, barrier: bool = True
) -> VectorEnv:
    """Return envs with episodes of three steps that fail at these places."""

    def one(number: int) -> Any:
        env = FaultyEnv(number, 3, places[number])
        return FaultBarrier(env) if barrier else env

    return SyncVectorEnv([functools.partial(one, i) for i in range(len(places))], autoreset_mode=mode)


def columns(data: Any) -> Any:
    """Return what a collector gave as one dict of columns."""
    if isinstance(data, list):
        return {name: np.concatenate([episode[name] for episode in data]) for name in data[0]}
    return data


def places_of(data: Any, env_id: int) -> list[Place]:
    """Return episode and step of the observations of an env."""
    obs = columns(data)["obs"]
    return [(int(e), int(s)) for _, e, s in obs[obs[:, 0] == env_id].tolist()]


# ------------------------------------------------------------------ steps that were lost


@both
@each_mode
def test_collector_does_not_continue_after_a_step_that_it_could_not_keep(
    kind: Any, mode: AutoresetMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector = make(kind, envs([[], []], mode))

    def stumble(*_: Any) -> None:
        raise ArithmeticError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(collector, "_keep", stumble)
        with pytest.raises(ArithmeticError, match="no room"):
            collector.collect(2)
    with pytest.raises(RuntimeError, match=r"call reset_env\(\) to start new episodes"):
        collector.collect(2)
    collector.reset_env()

    assert places_of(collector.collect(2 if kind is EpisodeSerialCollector else 6), 0) == [(1, 0), (1, 1), (1, 2)]


# ------------------------------------------------------------------ reported faults


@both
@each_mode
def test_collector_raises_a_reported_fault_by_default(kind: Any, mode: AutoresetMode) -> None:
    collector = make(kind, envs([[], [(0, 2)]], mode))

    with pytest.raises(RuntimeError, match='env 1 reported a fault: ArithmeticError: it broke; with env_fault="drop"'):
        collector.collect(20)


@both
@each_mode
def test_collector_can_continue_after_a_fault_that_it_raised(kind: Any, mode: AutoresetMode) -> None:
    collector = make(kind, envs([[(0, 2)]], mode))
    with pytest.raises(RuntimeError, match="env 0 reported a fault"):
        collector.collect(1 if kind is EpisodeSerialCollector else 6)

    data = columns(collector.collect(1 if kind is EpisodeSerialCollector else 4))

    # The first step of episode 0 was good; only the sample collector uses it.
    expected = [(1, 0), (1, 1), (1, 2)]
    expected = expected if kind is EpisodeSerialCollector else [(0, 0), *expected]
    assert places_of(data, 0) == expected
    assert len(set(data["episode_id"].tolist())) == len({episode for episode, _ in expected})


@each_mode
def test_sample_collector_drops_only_the_step_of_a_fault(mode: AutoresetMode) -> None:
    collector = make(SampleSerialCollector, envs([[(0, 2), (2, 1), (4, 3)], []], mode), env_fault="drop")

    data = collector.collect(40)

    left = [(0, 0), (1, 0), (1, 1), (1, 2), (3, 0), (3, 1), (3, 2), (4, 0), (4, 1), (5, 0), (5, 1), (5, 2), (6, 0)]
    assert places_of(data, 0)[: len(left)] == left
    assert places_of(data, 1)[:12] == [(e, s) for e in range(4) for s in range(3)]
    assert not data["truncated"].any()  # what ended the episodes is not there


@each_mode
def test_episode_collector_drops_the_episode_of_a_fault(mode: AutoresetMode) -> None:
    collector = make(EpisodeSerialCollector, envs([[(0, 2), (2, 1), (4, 3)], []], mode), env_fault="drop")

    episodes = collector.collect(6)

    assert places_of(episodes, 0) == [(e, s) for e in (1, 3, 5) for s in range(3)]
    assert places_of(episodes, 1) == [(e, s) for e in (0, 1, 2) for s in range(3)]


@both
def test_log_has_the_cause_of_each_dropped_episode_and_of_every_hundredth(
    kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    collector = make(kind, envs([[(0, 2), (2, 1)], []], MODES[0]), env_fault="drop")
    collector.collect(6)
    lines = [one for one in caplog.messages if "reported a fault" in one]
    assert lines == [
        f"env 0 reported a fault, so its episode is dropped ({n} so far): ArithmeticError: it broke"
        for n in range(1, len(lines) + 1)
    ]
    assert lines
    faults = FaultCounter(1, "drop", "good step")
    caplog.clear()
    for _ in range(250):
        faults.handle(np.ones(1, bool), lambda _: "why")
    assert [int(one.split("(")[1].split()[0]) for one in caplog.messages] == [*range(1, 11), 100, 200]


@both
@each_mode
def test_collector_counts_dropped_episodes_apart(kind: Any, mode: AutoresetMode) -> None:
    collector = make(kind, envs([[(0, 3), (2, 1)]], mode), env_fault="drop")
    collector.collect(3 if kind is EpisodeSerialCollector else 2 + 3 + 0 + 3 + 3)  # whole are the episodes 1, 3 and 4

    assert (collector.dropped_episode, collector.episode, collector.envstep) == (2, 3, 11)
    assert collector.pop_episodes() == ([6.0] * 3, [3] * 3)  # 1 + 2 + 3


@both
def test_episode_after_a_fault_has_a_new_id(kind: Any) -> None:
    collector = make(kind, envs([[(0, 2), (1, 1)], []]), env_fault="drop")
    data = columns(collector.collect(24 if kind is SampleSerialCollector else 8))

    place = [tuple(row) for row in data["obs"][:, :2].tolist()]  # number and episode
    ids = data["episode_id"].tolist()
    assert len(set(place)) == len(set(ids)) == len(set(zip(place, ids, strict=True)))


@both
def test_collector_forgets_dropped_episodes_when_it_is_reset(kind: Any) -> None:
    collector = make(kind, envs([[(0, 1)]]), env_fault="drop")
    collector.collect(1)

    collector.reset()

    assert collector.dropped_episode == 0


@both
@each_mode
def test_collector_gives_up_an_env_that_never_recovers(kind: Any, mode: AutoresetMode) -> None:
    env = SyncVectorEnv([CountingEnv, functools.partial(Endless, 0)], autoreset_mode=mode)
    collector = make(kind, env, env_fault="drop")

    with pytest.raises(RuntimeError, match=r"env 1 reported 101 faults without a (good step|whole episode) between"):
        collector.collect(10_000)


def test_episode_collector_gives_up_an_env_that_never_ends_an_episode() -> None:
    collector = make(EpisodeSerialCollector, SyncVectorEnv([functools.partial(Endless, 1)]), env_fault="drop")

    with pytest.raises(RuntimeError, match="env 0 reported 101 faults without a whole episode between"):
        collector.collect(1)


def test_sample_collector_continues_with_an_env_that_gives_good_steps() -> None:
    collector = make(SampleSerialCollector, SyncVectorEnv([functools.partial(Endless, 1)]), env_fault="drop")

    assert places_of(collector.collect(300), 0) == [(episode, 0) for episode in range(300)]
    assert collector.dropped_episode >= 299


def test_collector_counts_faults_in_a_row_env_by_env_and_from_the_last_good_one() -> None:
    places = [(episode, 1) for episode in range(150) if episode != 75]
    makers = [functools.partial(FaultBarrier, FaultyEnv(i, 3, places), 1000) for i in range(2)]
    collector = make(EpisodeSerialCollector, SyncVectorEnv(makers), env_fault="drop")

    assert places_of(collector.collect(4), 0) == [(episode, step) for episode in (75, 150) for step in range(3)]
    assert collector.dropped_episode == 2 * 149


def test_error_names_the_env_that_never_recovers_and_not_another_failing_env() -> None:
    first = functools.partial(FaultBarrier, FaultyEnv(0, 200, steps=[101]))
    collector = make(SampleSerialCollector, SyncVectorEnv([first, functools.partial(Endless, 0)]), env_fault="drop")

    with pytest.raises(RuntimeError, match="env 1 reported 101 faults"):
        collector.collect(10_000)


# ------------------------------------------------------------------ unreported faults


@both
@pytest.mark.filterwarnings("ignore:.*ERROR.*")
@pytest.mark.parametrize("vector_class", [SyncVectorEnv, AsyncVectorEnv])
@pytest.mark.parametrize("env_fault", ["raise", "drop"])
def test_collector_lets_the_error_of_an_env_out(kind: Any, vector_class: Any, env_fault: str) -> None:
    makers = [functools.partial(FaultyEnv, i, 3, [(0, 2)] if i else []) for i in range(2)]
    env = vector_class(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    collector = make(kind, env, env_fault=env_fault)

    with pytest.raises(ArithmeticError, match="it broke"):
        collector.collect(20)
    env.close()


@both
@each_mode
def test_collector_must_start_new_episodes_after_an_error_of_an_env(kind: Any, mode: AutoresetMode) -> None:
    collector = make(kind, envs([[], [(0, 2)]], mode, barrier=False))
    with pytest.raises(ArithmeticError):
        collector.collect(20)

    with pytest.raises(RuntimeError, match=r"the last step of the env failed: call reset_env\(\)"):
        collector.collect(20)

    collector.reset_env()
    places = places_of(collector.collect(20), 1)
    assert (1, 0) in places
    assert (0, 1) not in places


@both
@each_mode
def test_collector_names_the_env_of_a_number_that_is_not_finite(kind: Any, mode: AutoresetMode) -> None:
    makers = [functools.partial(NanEnv, i, 3, [(0, 2)] if i else []) for i in range(2)]
    collector = make(kind, SyncVectorEnv(makers, autoreset_mode=mode))

    with pytest.raises(ValueError, match="env 1 gave an observation that is not finite after action 0"):
        collector.collect(20)


@both
def test_collector_says_which_shape_actions_must_have(kind: Any) -> None:
    class Short(ZeroPolicy):
        def forward(self, obs: Any, **kwargs: Any) -> Any:
            return {"action": torch.zeros(2, dtype=torch.int64)}

    with pytest.raises(ValueError, match=r"actions of shape \(3,\), got \(2,\)"):
        make(kind, envs([[], [], []]), Short()).collect(1)


@both
@pytest.mark.parametrize(
    ("output", "got"),
    [({"logit": 1, "act": 2}, r"\['act', 'logit'\]"), (None, "NoneType"), ([0, 0], "list")],
)
def test_collector_says_that_a_policy_gives_no_actions(kind: Any, output: Any, got: str) -> None:
    class Idle(ZeroPolicy):
        def forward(self, obs: Any, **kwargs: Any) -> Any:
            return output

    with pytest.raises(ValueError, match=f"the policy's forward must return a dict with 'action', got {got}"):
        make(kind, envs([[], []]), Idle()).collect(1)


@both
def test_collector_can_continue_after_an_error_of_the_policy(kind: Any) -> None:
    class Stumbling(ZeroPolicy):
        stumbles = True

        def forward(self, obs: Any, **kwargs: Any) -> Any:
            if self.stumbles and (obs[:, 2] == 2).any():
                self.stumbles = False
                raise ArithmeticError
            return super().forward(obs)

    collector = make(kind, envs([[], []]), Stumbling())
    with pytest.raises(ArithmeticError):
        collector.collect(12 if kind is SampleSerialCollector else 2)

    data = collector.collect(12 if kind is SampleSerialCollector else 4)

    assert places_of(data, 0) == places_of(data, 1) == [(e, s) for e in range(2) for s in range(3)]
