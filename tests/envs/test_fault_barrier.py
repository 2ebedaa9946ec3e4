"""Env faults: the barrier ends the episode, the stepper reports the fault, and no fault is hidden."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from lightning_ding.envs import EnvStepper, FaultBarrier, Timestep
from tests.toys.envs import CountingEnv

MODES = [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED]
Place = tuple[int, int]  # episode and step; the step is 0 in a reset


class FaultyEnv(CountingEnv):
    """A CountingEnv with faults at some places, of a kind: an exception's type, or what turns bad."""

    def __init__(self, number: int = 0, length: int = 3, places: Any = (), kind: Any = ValueError) -> None:
        super().__init__(number, (length,))
        self.places, self.kind = places, kind
        self.seeds: list[int | None] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.seeds.append(seed)
        obs, info = super().reset(seed=seed)
        return (*self.spoil(obs, 0.0)[:1], info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, *rest = super().step(action)
        return (*self.spoil(obs, reward), *rest)

    def spoil(self, obs: Any, reward: float) -> tuple[Any, float]:
        if (self._episode, self._step) not in self.places:
            return obs, reward
        if self.kind == "obs":
            return obs + np.float32(np.nan), reward
        if self.kind == "reward":
            return obs, np.inf
        if self.kind == "large reward":
            return obs, 1e39
        if self.kind == "death":
            os._exit(3)
        raise self.kind("it broke")


class ReportingEnv(CountingEnv):
    """A CountingEnv that reports its faults itself, with an observation and a reward that are nan."""

    def __init__(self, number: int = 0, length: int = 3, places: Any = (), ends: bool = False) -> None:
        super().__init__(number, (length,))
        self.places, self.ends = places, ends

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, _ = super().step(action)
        if (self._episode, self._step) not in self.places:
            return obs, reward, terminated, truncated, {"abnormal": False}
        return obs + np.float32(np.nan), np.nan, self.ends, False, {"abnormal": True}


def barrier(places: Any, kind: Any = ValueError, max_faults: int = 10, **kwargs: Any) -> FaultBarrier:
    return FaultBarrier(FaultyEnv(places=places, kind=kind, **kwargs), max_faults)


def step_zeros(stepper: EnvStepper) -> Timestep:
    return stepper.step(np.zeros(stepper.env.num_envs, dtype=np.int64))


# ------------------------------------------------------------------ the barrier


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        (ValueError, "ValueError: it broke"),
        (AssertionError, "AssertionError: it broke"),
        ("obs", "FloatingPointError: the observation is not finite: [nan nan nan]"),
        ("reward", "FloatingPointError: the reward is not finite: inf"),
    ],
)
def test_fault_barrier_makes_a_fault_the_end_of_the_episode(kind: Any, fault: str) -> None:
    env = barrier([(0, 2)], kind)
    env.reset()
    env.step(0)

    obs, *rest = env.step(0)

    assert obs.tolist() == [0, 0, 1]  # the last good one
    assert rest == [0.0, False, True, {"abnormal": True, "fault": fault}]


def test_fault_barrier_takes_a_reward_that_would_be_infinite_as_float32_for_a_fault() -> None:
    env = barrier([(0, 1)], "large reward")
    env.reset()

    _, reward, terminated, truncated, info = env.step(0)

    assert (reward, terminated, truncated) == (0.0, False, True)
    allowed = "(allowed: -3.40e+38 to 3.40e+38): 1e+39"
    assert info["fault"] == f"FloatingPointError: the reward is too large for float32, in which it is stored {allowed}"


def test_fault_barrier_starts_a_new_episode_after_a_fault() -> None:
    env = barrier([(0, 1)])
    env.reset()
    env.step(0)

    assert env.reset()[0].tolist() == [0, 1, 0]
    assert env.step(0)[0].tolist() == [0, 1, 1]


def test_fault_barrier_does_not_change_valid_steps() -> None:
    plain, behind = CountingEnv(lengths=(2,)), barrier([], length=2)
    plain.reset()
    behind.reset()

    for _ in range(2):
        obs, *rest = behind.step(0)
        expected, *expected_rest = plain.step(np.int64(0))
        assert (obs.tolist(), rest) == (expected.tolist(), expected_rest)


def test_fault_barrier_returns_a_good_observation_of_an_env_that_writes_into_its_last_one() -> None:
    class Rewriter(FaultyEnv):
        memory = np.zeros(3, dtype=np.float32)

        def spoil(self, obs: Any, reward: float) -> tuple[Any, float]:
            self.memory[:] = super().spoil(obs, reward)[0]
            return self.memory, reward

    env = FaultBarrier(Rewriter(places=[(0, 2)], kind="obs"))
    env.reset()
    env.step(0)

    assert env.step(0)[0].tolist() == [0, 0, 1]


def test_fault_barrier_looks_into_nested_observations() -> None:
    pair = gym.spaces.Tuple([gym.spaces.Dict({"b": gym.spaces.Box(0, 9, (3,))}), gym.spaces.Discrete(9)])
    space = gym.spaces.Dict({"a": pair, "n": gym.spaces.Discrete(9)})
    inner = FaultyEnv(places=[(0, 1)], kind="obs")
    env = FaultBarrier(gym.wrappers.TransformObservation(inner, lambda obs: {"a": ({"b": obs}, 1), "n": 3}, space))
    env.reset()

    assert env.step(0)[4]["abnormal"]


@pytest.mark.usefixtures("handled_ctrl_c")
def test_fault_barrier_stops_no_one_from_ending_the_process() -> None:
    env = barrier([(0, 1)], KeyboardInterrupt)  # with Python's handler of Ctrl-C it may come from the keyboard
    env.reset()

    with pytest.raises(KeyboardInterrupt):
        env.step(0)


@pytest.mark.parametrize("kind", [ValueError, "obs"])
def test_fault_barrier_tries_a_reset_again_with_another_seed(kind: Any) -> None:
    env = barrier([(0, 0), (1, 0)], kind)

    obs, _ = env.reset(seed=5)

    assert obs.tolist() == [0, 2, 0]
    assert env.unwrapped.seeds == [5, 6, 7]  # type: ignore[attr-defined]


def test_fault_barrier_tries_a_reset_without_a_seed_again_without_one() -> None:
    env = barrier([(0, 0)])
    env.reset()

    assert env.unwrapped.seeds == [None, None]  # type: ignore[attr-defined]


def test_fault_barrier_handles_up_to_max_faults_in_a_row() -> None:
    env = barrier([(episode, 1) for episode in range(9)], max_faults=3)
    for _ in range(3):
        env.reset()
        assert env.step(0)[4]["abnormal"]
    env.reset()

    with pytest.raises(RuntimeError, match=r"failed 4 times .*, the last time with ValueError: it broke") as info:
        env.step(0)

    assert repr(info.value.__cause__) == "ValueError('it broke')"


def test_fault_barrier_counts_faults_of_resets_with_those_of_steps() -> None:
    env = barrier([(0, 1), (1, 0), (2, 0)], max_faults=2)
    env.reset()
    env.step(0)

    with pytest.raises(RuntimeError, match="failed 3 times"):
        env.reset()


def test_fault_barrier_counts_from_0_after_a_valid_step() -> None:
    env = barrier([(episode, 2) for episode in range(50)], max_faults=1)

    for _ in range(20):
        env.reset()
        env.step(0)
        assert env.step(0)[4]["abnormal"]


def test_mistakes_are_named() -> None:
    with pytest.raises(gym.error.ResetNeeded):
        FaultBarrier(gym.make("CartPole-v1")).step(0)
    with pytest.raises(ValueError, match="max_faults must be >= 1, got 0"):
        FaultBarrier(CountingEnv(), max_faults=0)


# ------------------------------------------------------------------ the stepper


def behind_barrier(number: int, places: Any) -> gym.Env[Any, Any]:
    return FaultBarrier(FaultyEnv(number, places=places))


def reports_and_ends(number: int, places: Any) -> gym.Env[Any, Any]:
    return ReportingEnv(number, places=places, ends=True)


def reports_only(number: int, places: Any) -> gym.Env[Any, Any]:
    return ReportingEnv(number, places=places)


@pytest.fixture(params=[SyncVectorEnv, AsyncVectorEnv], ids=["sync", "async"])
def vector_class(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=[behind_barrier, reports_and_ends, reports_only], ids=lambda make: make.__name__)
def faulty(request: pytest.FixtureRequest, vector_class: Any) -> Iterator[Any]:
    """Return a function that makes a stepper of three envs; env 1 fails at step 2 of its episode 1."""
    made: list[VectorEnv] = []

    def make(mode: AutoresetMode) -> EnvStepper:
        makers = [functools.partial(request.param, i, [(1, 2)] if i == 1 else []) for i in range(3)]
        made.append(vector_class(makers, autoreset_mode=mode))
        stepper = EnvStepper(made[0])
        stepper.reset()
        return stepper

    yield make
    made[0].close()


@pytest.mark.parametrize("mode", MODES)
def test_env_stepper_makes_a_fault_a_truncation_that_is_no_transition(mode: AutoresetMode, faulty: Any) -> None:
    stepper = faulty(mode)
    steps = [step_zeros(stepper) for _ in range(7)]

    found = [(place, step) for place, step in enumerate(steps) if step.abnormal.any()]

    place, step = found[0]
    assert (len(found), place) == (1, 5 if mode == AutoresetMode.NEXT_STEP else 4)
    assert step.abnormal.tolist() == [False, True, False]
    assert step.valid.tolist() == [True, False, True]
    assert (step.truncated.tolist(), step.terminated.tolist()) == ([False, True, False], [False] * 3)
    assert (step.reward.tolist(), step.next_obs[1].tolist()) == ([2, 0, 2], [1, 1, 1])


@pytest.mark.parametrize("mode", MODES)
def test_env_stepper_continues_with_the_next_episode_after_a_fault(mode: AutoresetMode, faulty: Any) -> None:
    stepper = faulty(mode)
    places = []
    for _ in range(16):
        obs, step = stepper.obs, step_zeros(stepper)
        places += [tuple(obs[1, 1:].astype(int).tolist())] if step.valid[1] else []

    # Episode 1 fails at its second step, so only its first step is a transition.
    assert places[:10] == [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (2, 1), (2, 2), (3, 0), (3, 1), (3, 2)]


@pytest.mark.parametrize("mode", MODES)
def test_timestep_describes_the_fault(mode: AutoresetMode) -> None:
    makers = [functools.partial(behind_barrier, i, [(0, 1)] if i == 1 else []) for i in range(2)]
    stepper = EnvStepper(SyncVectorEnv(makers, autoreset_mode=mode))
    stepper.reset()

    assert step_zeros(stepper).fault(1) == "ValueError: it broke"


def test_timestep_describes_a_fault_without_a_reason() -> None:
    stepper = EnvStepper(SyncVectorEnv([functools.partial(reports_only, 0, [(0, 1)])]))
    stepper.reset()

    assert step_zeros(stepper).fault(0) == "its info is abnormal"


def test_env_stepper_ignores_the_info_of_a_reset() -> None:
    class OddReset(CountingEnv):
        def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
            return super().reset(**kwargs)[0], {"abnormal": True}

    for mode in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
        stepper = EnvStepper(SyncVectorEnv([functools.partial(OddReset, 0, (1,))], autoreset_mode=mode))
        stepper.reset()
        assert not any(step_zeros(stepper).abnormal.any() for _ in range(4))


def test_env_stepper_seeds_the_reset_after_a_fault() -> None:
    class Seeded(ReportingEnv):
        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            return super().reset(seed=seed)[0] + np.float32(seed or 0), {}

    stepper = EnvStepper(SyncVectorEnv([lambda: Seeded(places=[(0, 1)])], autoreset_mode=AutoresetMode.DISABLED))
    stepper.reset([10])
    stepper.next_seed = [20]
    step_zeros(stepper)

    assert stepper.obs.tolist() == [[20, 21, 20]]


def test_env_stepper_refuses_a_fault_of_an_env_that_cannot_be_reset_alone() -> None:
    class Native(VectorEnv[Any, Any, Any]):
        num_envs = 2
        metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012
        single_observation_space = gym.spaces.Box(0, 1, (1,))
        single_action_space = gym.spaces.Discrete(2)

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return np.zeros((2, 1), dtype=np.float32), {}

        def step(self, actions: Any) -> Any:
            none = np.zeros(2, dtype=bool)
            return np.zeros((2, 1), dtype=np.float32), np.zeros(2), none, none, {"abnormal": np.array([False, True])}

    stepper = EnvStepper(Native())
    stepper.reset()

    with pytest.raises(RuntimeError, match="env 1 reported a fault without ending its episode, and this vector env"):
        step_zeros(stepper)


# ------------------------------------------------------------------ without a barrier


def failing(vector_class: Any, **kwargs: Any) -> EnvStepper:
    """Return a stepper of two envs, of which the second fails at its second step."""
    makers = [FaultyEnv, functools.partial(FaultyEnv, 1, places=[(0, 2)], **kwargs)]
    stepper = EnvStepper(vector_class(makers, autoreset_mode=AutoresetMode.SAME_STEP))
    stepper.reset()
    step_zeros(stepper)
    return stepper


@pytest.mark.filterwarnings("ignore:.*ERROR.*")
@pytest.mark.parametrize("kind", [KeyError, ConnectionResetError])
def test_exception_of_an_env_is_raised_unchanged(vector_class: Any, kind: type[Exception]) -> None:
    stepper = failing(vector_class, kind=kind)

    with pytest.raises(kind, match="it broke") as info:
        step_zeros(stepper)
    stepper.env.close()

    if sys.version_info >= (3, 11):
        assert info.value.__notes__ == ["raised while the vector env was stepped with the actions [0 0]"]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="an error takes no notes")
def test_exception_in_a_reset_has_a_note_about_the_reset() -> None:
    stepper = EnvStepper(SyncVectorEnv([functools.partial(FaultyEnv, places=[(0, 0)])]))

    with pytest.raises(ValueError, match="it broke") as info:
        stepper.reset([7])

    assert info.value.__notes__ == ["raised while the vector env was reset with the seeds [7]"]


def test_env_stepper_must_be_reset_after_a_step_that_raised() -> None:
    stepper = failing(SyncVectorEnv)
    with pytest.raises(ValueError, match="it broke"):
        step_zeros(stepper)

    with pytest.raises(RuntimeError, match=r"not in an episode: call reset\(\) first"):
        step_zeros(stepper)

    stepper.reset()
    assert step_zeros(stepper).valid.tolist() == [True, True]
