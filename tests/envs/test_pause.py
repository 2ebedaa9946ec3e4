"""A paused env continues from the same state, without lost or additional steps."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from lightning_ding.envs import EnvStepper, FaultBarrier, Pausable, Timestep, make_vector_env
from tests.toys.envs import CountingEnv

MODES = [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED]
LENGTHS = [(1,), (2, 4), (5, 3, 1)]  # lengths of the episodes of env 0, 1, 2


def pausable(number: int, lengths: Sequence[int]) -> gym.Env[Any, Any]:
    return Pausable(CountingEnv(number, lengths))


@pytest.fixture(params=[SyncVectorEnv, AsyncVectorEnv], ids=["sync", "async"])
def vector_class(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=MODES)
def stepper(request: pytest.FixtureRequest, vector_class: Any) -> Iterator[EnvStepper]:
    """Return a stepper of three pausable envs."""
    makers = [functools.partial(pausable, i, of_env) for i, of_env in enumerate(LENGTHS)]
    env = vector_class(makers, autoreset_mode=request.param)
    stepper = EnvStepper(env)
    stepper.reset()
    yield stepper
    env.close()


def step_zeros(stepper: EnvStepper) -> Timestep:
    return stepper.step(np.zeros(stepper.env.num_envs, dtype=np.int64))


def pause(stepper: EnvStepper, *env_ids: int) -> bool:
    return stepper.pause(np.isin(np.arange(stepper.env.num_envs), env_ids))


# ------------------------------------------------------------------ one env


def test_step_has_no_effect_on_a_paused_env() -> None:
    env = Pausable(CountingEnv(lengths=(2,)))
    env.reset()
    env.step(0)
    env.paused = True

    steps = [env.step(0) for _ in range(3)]

    assert [(obs.tolist(), *rest) for obs, *rest in steps] == [([0, 0, 1], 0.0, False, False, {"paused": True})] * 3


def test_paused_env_continues_where_it_stopped() -> None:
    env = Pausable(CountingEnv(lengths=(2,)))
    env.reset()
    env.paused = True
    env.step(0)
    env.paused = False

    assert env.step(0)[0].tolist() == [0, 0, 1]
    assert env.step(0)[2] is True


def test_a_paused_env_shows_the_first_observation_after_a_reset() -> None:
    env = Pausable(CountingEnv(lengths=(2,)))
    env.reset()
    env.step(0)
    env.paused = True
    env.reset()

    assert env.step(0)[0].tolist() == [0, 1, 0]


# ------------------------------------------------------------------ many envs


def test_env_stepper_marks_the_steps_of_paused_envs_as_not_valid(stepper: EnvStepper) -> None:
    assert pause(stepper, 0, 2)

    step = step_zeros(stepper)

    assert step.valid.tolist() == [False, True, False]
    assert step.next_obs.tolist() == [[0, 0, 0], [1, 0, 1], [2, 0, 0]]
    assert step.reward.tolist() == [0, 1, 0]
    assert not (step.terminated | step.truncated).any()


def test_pausing_leaves_no_gap_in_the_transitions_of_an_env(stepper: EnvStepper) -> None:
    seen: list[list[list[float]]] = [[], [], []]
    rng = np.random.default_rng(0)
    at_start = np.ones(3, dtype=bool)
    for _ in range(60):
        stepper.pause(at_start & (rng.random(3) < 0.5))
        obs = stepper.obs
        step = step_zeros(stepper)
        for i in np.flatnonzero(step.valid):
            seen[i].append([*obs[i].tolist(), *step.next_obs[i].tolist()])
        at_start = np.where(step.valid, step.terminated | step.truncated, at_start)

    for number, rows in enumerate(seen):
        expected = [
            [number, episode, t, number, episode, t + 1]
            for episode in range(len(rows))
            for t in range(LENGTHS[number][episode % len(LENGTHS[number])])
        ]
        assert 10 < len(rows) < 60
        assert rows == expected[: len(rows)]


def test_env_paused_after_its_episode_continues_with_the_first_observation_of_the_next(stepper: EnvStepper) -> None:
    step_zeros(stepper)  # ends the episode of env 0
    pause(stepper, 0)
    step_zeros(stepper)
    step_zeros(stepper)
    pause(stepper)

    obs, step = stepper.obs, step_zeros(stepper)

    assert obs[0].tolist() == [0, 1, 0]
    assert step.valid[0]
    assert step.terminated[0]
    assert step.next_obs[0].tolist() == [0, 1, 1]


def test_reset_of_the_env_stepper_resumes_all_envs(stepper: EnvStepper) -> None:
    pause(stepper, 0, 1, 2)
    step_zeros(stepper)

    stepper.reset()

    assert step_zeros(stepper).valid.tolist() == [True, True, True]


def test_env_stepper_sends_only_changes_to_the_envs(monkeypatch: pytest.MonkeyPatch) -> None:
    env = SyncVectorEnv([functools.partial(pausable, i, (3,)) for i in range(2)])
    told: list[list[bool]] = []
    monkeypatch.setattr(env, "set_attr", lambda name, values: told.append(values))
    stepper = EnvStepper(env)

    for env_ids in [(), (1,), (1,), (0, 1), (), ()]:
        pause(stepper, *env_ids)

    assert told == [[False, True], [True, True], [False, False]]


def test_env_stepper_copies_the_mask() -> None:
    stepper = EnvStepper(SyncVectorEnv([functools.partial(pausable, i, (3,)) for i in range(2)]))
    stepper.reset()
    mask = np.array([True, False])
    stepper.pause(mask)
    mask[:] = [False, True]

    assert step_zeros(stepper).valid.tolist() == [False, True]


def test_envs_can_be_paused_inside_and_outside_a_barrier() -> None:
    makers = [
        lambda: Pausable(FaultBarrier(CountingEnv(0, (2,)))),
        lambda: FaultBarrier(Pausable(CountingEnv(1, (2,)))),
    ]
    stepper = EnvStepper(SyncVectorEnv(makers))
    stepper.reset()

    assert pause(stepper, 0, 1)
    assert step_zeros(stepper).next_obs.tolist() == [[0, 0, 0], [1, 0, 0]]


def not_all_pausable(vector_class: Any) -> VectorEnv:
    env: VectorEnv = vector_class([functools.partial(pausable, 0, (3,)), functools.partial(CountingEnv, 1, (3,))])
    return env


def test_pausing_does_nothing_if_an_env_is_not_pausable(vector_class: Any) -> None:
    env = not_all_pausable(vector_class)
    stepper = EnvStepper(env)
    stepper.reset()

    assert not pause(stepper, 0, 1)
    assert step_zeros(stepper).valid.tolist() == [True, True]
    env.close()


def test_a_native_vector_env_cannot_be_paused() -> None:
    env = make_vector_env("CartPole-v1", 2, mode="native")

    assert not pause(EnvStepper(env), 0)


def test_env_stepper_asks_once_whether_the_envs_can_be_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    env = not_all_pausable(SyncVectorEnv)
    asked: list[str] = []

    def call(name: str, *_: Any) -> list[bool]:
        asked.append(name)
        return [False, False]

    monkeypatch.setattr(env, "call", call)
    stepper = EnvStepper(env)

    pause(stepper, 0)
    pause(stepper, 1)

    assert len(asked) == 1


def test_env_stepper_notices_a_wrapper_that_counts_paused_steps() -> None:
    def make() -> gym.Env[Any, Any]:
        return gym.wrappers.TimeLimit(Pausable(CountingEnv(0, (9,))), 2)

    stepper = EnvStepper(SyncVectorEnv([make, make], autoreset_mode=AutoresetMode.SAME_STEP))
    stepper.reset()
    pause(stepper, 1)
    step_zeros(stepper)

    with pytest.raises(RuntimeError, match="env 1 ended an episode while it was paused: Pausable must be"):
        step_zeros(stepper)
