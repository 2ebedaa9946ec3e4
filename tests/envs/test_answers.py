"""The values that an env returns are checked alike in this process and in env processes."""

from __future__ import annotations

import functools
import logging
import re
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from lightning_ding.envs import BrokenEnvError, EnvStepper, FaultBarrier, ProcessVectorEnv, answers
from lightning_ding.envs.bounds import CHECKED_BATCHES, BoundsCheck, _reported
from lightning_ding.envs.faults import is_of_env
from lightning_ding.envs.sync import _SyncVectorEnv
from tests.envs.attacking import STEPS, AttackingEnv, IndexEnv, OutsideEnv, WideEnv

SAME, NEXT, DISABLED = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED
WHO = r"^env 1, AttackingEnv, violates gymnasium's API in step 3 of its episode: "
END = r"^env 1, AttackingEnv, must not end its process, raised "
CANCELLED = r"^env 1, AttackingEnv, must handle the cancellation of its tasks, raised CancelledError\(\) in step 3 of"
FIVE = r"step\(\) must return \(observation, reward, terminated, truncated, info\), got "
OBS = r"the observation of step\(\) must have shape \(3,\) and dtype float32 .*, got "
SAID = {
    "none": WHO + FIVE + "NoneType None",
    "4-tuple": WHO + FIVE + "a tuple of 4; a single `done` is the old API",
    "6-tuple": WHO + FIVE + "a tuple of 6",
    "list": WHO + FIVE + "list ",
    "no info": WHO + r"the info of step\(\) must be a dict, got NoneType None",
    "array as reward": WHO + r"the reward of step\(\) must be a number, got shape \(1,\) and dtype float64",
    "text as reward": WHO + r"the reward of step\(\) must be a number, got str '1.5'",
    "huge reward": WHO + r"the reward of step\(\) must be a number, got int 10000",
    "no reward": WHO + r"the reward of step\(\) must be a number, got NoneType None",
    "nan as terminated": WHO + r"terminated of step\(\) must be a bool, got float nan",
    "text as truncated": WHO + r"truncated of step\(\) must be a bool, got str 'False'",
    "no observation": WHO + OBS + "NoneType None",
    "other shape": WHO + OBS + r"shape \(4,\)",
    "other last shape": WHO + OBS + r"shape \(4,\)",
    "more axes": WHO + OBS + r"shape \(3, 1\)",
    "text as observation": WHO + OBS + r"shape \(3,\) and dtype <U1",
    "exit": END + r"SystemExit\(0\) in step 3 of its episode$",
    "interrupt": END + r"KeyboardInterrupt\(\) in step 3 of its episode$",
    "cancelled task": CANCELLED,
    "cancelled future": CANCELLED,
}


def pair(make: Any = AttackingEnv, mode: AutoresetMode = SAME) -> tuple[VectorEnv, VectorEnv]:
    """Return two envs in this process and two in one other process."""
    return _SyncVectorEnv([make] * 2, mode), ProcessVectorEnv([make] * 2, mode, num_workers=1)


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[VectorEnv, VectorEnv]]:
    envs = pair()
    yield envs
    for env in envs:
        env.close()


@pytest.fixture
def no_keyboard() -> Iterator[None]:
    """Handle SIGINT as a run does, so that an env's KeyboardInterrupt cannot come from the keyboard."""
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    yield
    signal.signal(signal.SIGINT, before)


def zeros(env: Any) -> Any:
    return np.zeros(env.num_envs, dtype=np.int64)


def error_of(env: Any, steps: int = 3) -> str:
    stepper = EnvStepper(env)
    stepper.reset()
    for _ in range(steps - 1):
        stepper.step(zeros(env))
    with pytest.raises(BrokenEnvError) as caught:
        stepper.step(zeros(env))
    return str(caught.value)


@pytest.mark.usefixtures("no_keyboard")
@pytest.mark.parametrize("attack", STEPS)
def test_wrong_answer_of_a_step_names_env_and_step_in_both_modes(both: Any, attack: str) -> None:
    for env in both:
        env.set_attr("attack", ["", attack])

    here, there = (error_of(env) for env in both)

    assert here == there
    assert re.search(SAID[attack], here)


def test_wrong_answer_of_a_reset_names_the_env_in_both_modes(both: Any) -> None:
    texts = []
    for env in both:
        env.set_attr("attack", ["", "none in reset"])
        with pytest.raises(BrokenEnvError, match=r"^env 1, AttackingEnv, violates .* API in reset\(\)") as caught:
            env.reset()
        texts.append(str(caught.value).partition(" in ")[2].partition(": ")[2])
        env.set_attr("attack", "")

    assert texts[0] == texts[1]
    assert texts[0].startswith("reset() must return (observation, info), got NoneType None")


@pytest.mark.parametrize("mode", [NEXT, DISABLED])
def test_wrong_answer_is_found_in_every_autoreset_mode(mode: AutoresetMode) -> None:
    env = _SyncVectorEnv([AttackingEnv, lambda: AttackingEnv("no info")], mode)

    assert error_of(env).startswith("env 1, AttackingEnv, violates gymnasium's API in step 3 of its episode: the info")


def test_index_outside_of_its_space_is_refused_in_both_modes() -> None:
    envs = pair(IndexEnv)

    here, there = (error_of(env) for env in envs)

    assert here == there
    assert here.endswith("in step 3 of its episode: the observation of step() must be in Discrete(4), got 7")
    envs[1].close()


WIDE: dict[str, tuple[Any, str, float]] = {
    "bytes": (spaces.Box(0, 255, (3,), np.uint8), "uint16", 300),
    "signed bytes": (spaces.Box(-5, 5, (3,), np.int8), "int64", -129),
    "integers": (spaces.Box(0, 9, (3,), np.int32), "int64", 2**32 + 1),
    "floats": (spaces.Box(-1, 1, (3,), np.float32), "float64", 1e300),
    "half floats": (spaces.Box(-1, 1, (3,), np.float16), "float32", 1e5),
}
"""Spaces of observations, the wider type of what the env returns, and a number that does not fit."""


@pytest.mark.parametrize("ends", [False, True])
def test_number_that_does_not_fit_into_the_type_of_its_space_is_refused_in_both_modes(ends: bool) -> None:
    makers = [functools.partial(WideEnv, *case, ends) for case in WIDE.values()]
    for number, (space, _, value) in enumerate(WIDE.values()):
        env = _SyncVectorEnv([makers[number]] * 2, SAME)
        text = error_of(env)
        assert text.startswith("env 0, WideEnv, violates gymnasium's API in step 3 of its episode: the observation of")
        assert f"step() must fit into {space.dtype}, the type of the space {space}, got" in text
        assert float(text.rpartition("got ")[2]) == pytest.approx(value)
    process = ProcessVectorEnv(makers[:1] * 2, SAME, num_workers=1)
    assert error_of(process) == error_of(_SyncVectorEnv(makers[:1] * 2, SAME))
    process.close()


@pytest.mark.parametrize("case", WIDE)
def test_numbers_of_a_wider_type_that_fit_are_converted(case: str) -> None:
    space, kind, _ = WIDE[case]
    env = _SyncVectorEnv([lambda: WideEnv(space, kind, 5)] * 2, SAME)
    env.reset()
    found = [env.step(zeros(env))[0] for _ in range(3)]

    assert [one.tolist() for one in found] == [[[value] * 3] * 2 for value in (1, 2, 5)]
    assert found[0].dtype == space.dtype


def test_observations_of_a_wider_type_are_checked_together() -> None:
    env = _SyncVectorEnv([lambda: WideEnv(spaces.Box(-1, 1, (3,), np.float32), "float64", 5)] * 2, SAME)
    env.reset()
    seen: list[Any] = []
    env._check = lambda obs, method: seen.append(obs)
    env.step(zeros(env))

    assert not seen  # a check of each observation takes as long as a step of a small env


def test_entries_of_a_dict_are_held_against_their_types() -> None:
    space = spaces.Dict({"a": spaces.Box(-1, 1, (3,), np.float32), "b": spaces.Box(0, 255, (1,), np.uint8)})

    class Entries(AttackingEnv):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space: Any = space

        def reset(self, **kwargs: Any) -> Any:
            obs, info = super().reset()
            return {"a": obs, "b": np.array([self.steps], np.uint8)}, info

        def step(self, action: Any) -> Any:
            obs, *rest = super().step(action)
            return {"a": obs, "b": np.array([300 if self.steps == 3 else self.steps], np.uint16)}, *rest

    env = _SyncVectorEnv([Entries] * 2, SAME)
    env.reset()
    assert env.step(zeros(env))[0]["b"].tolist() == [[1], [1]]
    assert error_of(env).endswith("the type of the space Box(0, 255, (1,), uint8), got 300")


def test_env_in_progress_is_named_with_its_step(both: Any) -> None:
    seen: list[str | None] = []

    class Asks(AttackingEnv):
        def step(self, action: Any) -> Any:
            seen.append(env.in_progress())
            return super().step(action)

    env = _SyncVectorEnv([Asks] * 2, SAME)
    env.reset()
    for _ in range(2):
        env.step(zeros(env))
    assert seen == [f"env {number}, Asks, in step {step} of its episode" for step in (1, 2) for number in (0, 1)]
    assert env.in_progress() is None
    processes = both[1]._processes
    processes.all[0].ask("call()", ("call", "attack", (), {}))
    assert both[1].in_progress() == "envs [0, 1], AttackingEnv, in their processes"
    processes.gather(processes.all, (10.0, None))
    assert both[1].in_progress() is None


@pytest.mark.usefixtures("no_keyboard")
def test_wrong_answers_drop_the_episode_in_both_modes() -> None:
    def make(attack: str) -> Any:
        return lambda: FaultBarrier(AttackingEnv(attack))

    makers = [make(attack) for attack in STEPS]
    process = ProcessVectorEnv(makers, DISABLED, num_workers=1, on_env_error="restart")
    faults = []
    for env in (_SyncVectorEnv(makers, DISABLED), process):
        stepper = EnvStepper(env)
        stepper.reset()
        steps = [stepper.step(zeros(env)) for _ in range(7)]
        assert [step.abnormal.tolist() for step in steps] == [[place in (2, 5)] * len(makers) for place in range(7)]
        faults.append([steps[2].fault(number) for number in range(len(makers))])
        env.close()

    assert faults[0] == faults[1]
    assert faults[0][0].startswith("InvalidAnswerError: step() must return")
    assert faults[0][-4:] == ["SystemExit: 0", "KeyboardInterrupt: ", "CancelledError: ", "CancelledError: "]


def test_exit_in_a_signal_handler_is_not_taken_for_a_fault_of_the_env() -> None:
    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(3)

    before = signal.signal(signal.SIGTERM, leave)

    class Signals(AttackingEnv):
        def step(self, action: Any) -> Any:
            signal.raise_signal(signal.SIGTERM)

    env = FaultBarrier(Signals())
    env.reset()
    try:
        with pytest.raises(SystemExit):
            env.step(0)
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("handled_ctrl_c")
def test_ctrl_c_is_not_taken_for_a_fault_of_the_env() -> None:
    assert not is_of_env(KeyboardInterrupt())
    assert is_of_env(SystemExit(0))
    assert not is_of_env(GeneratorExit())


@pytest.mark.parametrize("attack", ["cancelled task", "cancelled future"])
def test_cancelled_task_of_an_env_is_a_fault_of_the_env(attack: str) -> None:
    env = FaultBarrier(AttackingEnv(attack))
    env.reset()
    steps = [env.step(0) for _ in range(3)]
    assert steps[2][3]
    assert steps[2][4] == {"abnormal": True, "fault": "CancelledError: "}
    envs = _SyncVectorEnv([AttackingEnv, lambda: AttackingEnv(attack)], SAME)
    assert error_of(envs).startswith("env 1, AttackingEnv, must handle the cancellation")


def test_numbers_are_converted() -> None:
    class Numbers(AttackingEnv):
        def step(self, action: Any) -> Any:
            self.steps += 1
            return [0, 0.0, 0], np.array(2, np.int32), np.float64(self.steps == 2), 0, {}

    env = _SyncVectorEnv([Numbers], SAME)
    env.reset()

    assert [part.tolist() for part in env.step(zeros(env))[:4]] == [[[0.0, 0.0, 0.0]], [2.0], [False], [False]]
    assert env.step(zeros(env))[2].tolist() == [True]


def test_observation_outside_its_space_is_used_and_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    _reported.clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            stepper = EnvStepper(_SyncVectorEnv([OutsideEnv] * 2, SAME))
            stepper.reset()
            steps = [stepper.step(zeros(stepper.env)) for _ in range(3)]

    assert steps[0].next_obs.tolist() == [[2.5] * 3] * 2
    (record,) = caplog.records
    said = "env 0, OutsideEnv, returned an observation at index (0,) outside its space: 2.5, allowed: -1.0 to 1.0"
    assert record.getMessage().startswith(said)


def test_bounds_are_only_compared_at_the_beginning() -> None:
    stepper = EnvStepper(_SyncVectorEnv([AttackingEnv], SAME))
    stepper.reset()
    assert stepper._bounds.left == CHECKED_BATCHES - 1

    for _ in range(2 * CHECKED_BATCHES):
        stepper.step(zeros(stepper.env))

    assert stepper._bounds.left == 0
    assert BoundsCheck(IndexEnv().observation_space, "Index").left == 0


def test_unusual_answers_that_are_good_are_not_described(monkeypatch: pytest.MonkeyPatch) -> None:
    def describe(value: Any) -> str:
        raise AssertionError(f"a description of {type(value)} was made for a good answer")

    monkeypatch.setattr(answers, "describe", describe)
    answer = answers.step_values((0, np.int32(1), 0, 1, {"frame": np.zeros((84, 84))}))
    assert answer[1:4] == (1.0, False, True)
    assert answers.reset_values((0, {})) == (0, {})
    answers.observation_check(spaces.Box(-1, 1, (2,), np.float32))(np.zeros(2), "step()")  # of 64 bits
    answers.observation_check(spaces.Discrete(3))(2, "step()")
