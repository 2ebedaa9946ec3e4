"""Envs in processes that raise, die or hang: error messages, recovery, and synchronisation of the envs."""

from __future__ import annotations

import functools
import math
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from lightning_ding.envs import EnvProcessError, EnvStepper, FaultBarrier, Pausable, ProcessVectorEnv
from tests.envs.faulty import FaultyEnv
from tests.toys.envs import CountingEnv

SAME, NEXT, DISABLED = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED
Make = Callable[..., ProcessVectorEnv]
each_mode = pytest.mark.parametrize("mode", [SAME, NEXT, DISABLED])
KINDS = ["raise", "exit", "segfault", "kill", "hang"]
each_kind = pytest.mark.parametrize("kind", KINDS)
SAID = {
    "raise": "ArithmeticError: it broke",
    "exit": "its process ended with exit code 3",
    "segfault": "its process was ended by SIGSEGV",
    "kill": "its process was ended by SIGKILL",
    "hang": "no answer within 1 s",
}

STOPPED = """
import functools
import time
import numpy as np
from lightning_ding.envs import ProcessVectorEnv
from tests.toys.envs import CountingEnv

class Busy(CountingEnv):
    def step(self, action):
        for _ in range(60):
            time.sleep(0.01)
        return super().step(action)

envs = ProcessVectorEnv([functools.partial(Busy, number) for number in range(2)], step_timeout=3.0, context="fork")
envs.reset()
print("steps", flush=True)
print(envs.step(np.zeros(2, dtype=np.int64))[0].tolist())
envs.close()
"""


@pytest.fixture
def make() -> Iterator[Make]:
    """Make vector envs that are closed after the test, with deadlines that a test can wait for."""
    made: list[ProcessVectorEnv] = []

    def make_and_remember(makers: Any, mode: AutoresetMode = SAME, **kwargs: Any) -> ProcessVectorEnv:
        deadlines = {"reset_timeout": 30.0, "step_timeout": 1.0, "close_timeout": 2.0, "num_workers": len(makers)}
        made.append(ProcessVectorEnv(makers, mode, **{**deadlines, **kwargs}))
        return made[-1]

    yield make_and_remember
    for env in made:
        env.close()


def faulty(kind: str, *places: Any, number: int = 0, marker: Any = None) -> Any:
    return functools.partial(FaultyEnv, number, kind, places, marker)


def good(number: int) -> Any:
    return functools.partial(FaultyEnv, number)


def zeros(envs: Any) -> Any:
    return np.zeros(envs.num_envs, dtype=np.int64)


def own_processes() -> list[Any]:
    return [process for process in multiprocessing.active_children() if process.name.startswith("envs ")]


# ------------------------------------------------------------------ raised


@each_kind
def test_failure_in_a_step_is_raised_with_env_seed_and_action(make: Make, kind: str) -> None:
    envs = make([good(0), faulty(kind, (0, 2), number=1), good(2)])
    envs.reset(seed=5)
    envs.step(zeros(envs))
    start = time.monotonic()

    with pytest.raises(EnvProcessError) as caught:
        envs.step(np.array([1, 3, 2]))

    said = f"env 1 failed in step(): {SAID[kind]} (last reset with seed 6, last action 3)"
    assert str(caught.value).splitlines()[0] == said
    assert caught.value.env_ids == (1,)
    assert ("Traceback" in str(caught.value)) == (kind == "raise")
    assert kind == "hang" or time.monotonic() - start < 1.0
    assert "in break_down" in str(caught.value) or kind != "raise"


@each_kind
def test_failure_in_a_reset_is_raised(make: Make, kind: str) -> None:
    envs = make([good(0), faulty(kind, (0, 0), number=1)], reset_timeout=1.0)

    with pytest.raises(
        EnvProcessError, match=re.escape(f"env 1 failed in reset(): {SAID[kind]} (last reset with seed 8)")
    ):
        envs.reset(seed=7)


@each_kind
def test_failure_while_an_env_is_created_is_raised_and_leaves_no_process(kind: str) -> None:
    makers = [good(0), faulty(kind, "made", number=1), good(2)]
    said = SAID[kind].replace("1 s", "5 s")

    with pytest.raises(EnvProcessError, match=f"env 1 failed in the function that makes it: {said}"):
        ProcessVectorEnv(makers, reset_timeout=5.0 if kind == "hang" else 30.0, num_workers=3)
    assert own_processes() == []


@pytest.mark.parametrize("kind", ["exit", "hang"])
def test_all_envs_that_went_wrong_are_named(make: Make, kind: str) -> None:
    envs = make([faulty(kind, (0, 1), number=number) for number in range(3)], num_workers=2)
    envs.reset()

    with pytest.raises(EnvProcessError) as caught:
        envs.step(zeros(envs))

    assert caught.value.env_ids == (0, 1, 2)
    assert str(caught.value).startswith(f"envs [0, 1] failed in step(): {SAID[kind]} in env 0 (never reset with a seed")


def test_the_death_of_one_is_seen_while_another_is_waited_for(make: Make) -> None:
    envs = make([faulty("hang", (0, 1)), good(1), faulty("kill", (0, 1), number=2)], step_timeout=60.0)
    envs.reset()
    start = time.monotonic()

    with pytest.raises(EnvProcessError, match="env 2 failed"):
        envs.step(zeros(envs))
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("kind", ["exit", "hang"])
def test_all_processes_are_ended_after_one_is_lost(make: Make, kind: str) -> None:
    envs = make([good(0), faulty(kind, (0, 1), number=1)])
    envs.reset()
    with pytest.raises(EnvProcessError):
        envs.step(zeros(envs))

    assert own_processes() == []
    with pytest.raises(ClosedEnvironmentError):
        envs.reset()


@each_mode
def test_reset_works_after_an_exception(make: Make, mode: AutoresetMode) -> None:
    envs = make([good(0), faulty("raise", (0, 2), number=1)], mode)
    envs.reset()
    envs.step(zeros(envs))
    with pytest.raises(EnvProcessError):
        envs.step(zeros(envs))

    assert envs.reset()[0].tolist() == [[0, 1, 0], [1, 1, 0]]
    assert envs.step(zeros(envs))[0].tolist() == [[0, 1, 1], [1, 1, 1]]


def test_reset_within_a_step_has_the_time_limit_of_a_reset(make: Make) -> None:
    class SlowReset(CountingEnv):
        def reset(self, **kwargs: Any) -> Any:
            time.sleep(1.5 if self._episode == 0 else 0.0)
            return super().reset(**kwargs)

    envs = make([functools.partial(SlowReset, lengths=(1,))], step_timeout=0.5)
    envs.reset()

    assert envs.step(zeros(envs))[0].tolist() == [[0, 1, 0]]


def test_hang_in_the_reset_within_a_step_ends(make: Make) -> None:
    envs = make([faulty("hang", (1, 0))], step_timeout=0.5)
    envs.reset()
    for _ in range(2):
        envs.step(zeros(envs))
    envs._reset_timeout = 1.0

    with pytest.raises(
        EnvProcessError, match=r"env 0 failed in the reset\(\) that its step\(\) led to: no answer within 1 s"
    ):
        envs.step(zeros(envs))


def test_without_deadlines_a_slow_env_is_waited_for(make: Make) -> None:
    class Slow(CountingEnv):
        def step(self, action: Any) -> Any:
            time.sleep(1.5)
            return super().step(action)

    envs = make([Slow], reset_timeout=None, step_timeout=None)
    envs.reset()

    assert envs.step(zeros(envs))[0].tolist() == [[0, 0, 1]]


def test_an_info_that_cannot_be_sent_is_an_error_of_its_env(make: Make) -> None:
    class Secretive(CountingEnv):
        def step(self, action: Any) -> Any:
            return *super().step(action)[:4], {"secret": lambda: None}

    envs = make([Secretive])
    envs.reset()

    with pytest.raises(EnvProcessError, match=r"env 0 failed in step\(\): .*[Pp]ickle"):
        envs.step(zeros(envs))


class TwoError(Exception):
    """Is pickled, but cannot be unpickled: what it is given is not what it keeps."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


@pytest.mark.parametrize("together", [2, 3])
def test_an_info_that_cannot_be_unpickled_is_an_error_of_its_env_and_nothing_more(make: Make, together: int) -> None:
    class Telling(FaultyEnv):
        def step(self, action: Any) -> Any:
            return *super().step(action)[:4], {"error": TwoError(1, 2)}

    envs = make([good(0), good(1), Telling], num_workers=together)
    envs.reset()

    with pytest.raises(EnvProcessError, match=r"env 2 failed in step\(\): its answer cannot be unpickled: TypeError"):
        envs.step(zeros(envs))
    start = time.monotonic()
    assert envs.reset()[0].tolist() == [[0, 1, 0], [1, 1, 0], [0, 1, 0]]
    assert time.monotonic() - start < 10


def test_a_call_that_was_broken_off_is_not_answered_later(make: Make) -> None:
    class Slow(CountingEnv):
        def step(self, action: Any) -> Any:
            time.sleep(0.6)
            return super().step(action)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    envs = make([good(0), functools.partial(Slow, 1)], step_timeout=30.0)
    envs.reset()
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            envs.step(zeros(envs))
    finally:
        signal.signal(signal.SIGALRM, before)

    assert envs.get_attr("number") == (0, 1)
    assert envs.reset()[0].tolist() == [[0, 1, 0], [1, 1, 0]]
    assert envs.step(zeros(envs))[0].tolist() == [[0, 1, 1], [1, 1, 1]]


def test_error_shows_the_last_action_of_a_tuple_space(make: Make) -> None:
    envs = make([good(0), faulty("raise", (0, 1), number=1)])
    envs.reset(seed=5)

    with pytest.raises(EnvProcessError, match=r"it broke \(last reset with seed 6, last action 3\)"):
        envs.step((2, 3))


def test_an_answer_that_is_there_is_not_late(make: Make) -> None:
    class Slow(CountingEnv):
        def step(self, action: Any) -> Any:
            time.sleep(1.0)
            return super().step(action)

    envs = make([functools.partial(Slow, 0), good(1), good(2)], step_timeout=0.15)
    envs.reset()

    with pytest.raises(EnvProcessError) as caught:
        envs.step(zeros(envs))
    assert caught.value.env_ids == (0,)


def test_time_in_which_all_processes_are_stopped_does_not_count() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", STOPPED], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "steps\n"
    time.sleep(0.3)
    os.killpg(parent.pid, signal.SIGSTOP)
    time.sleep(3.0)
    os.killpg(parent.pid, signal.SIGCONT)

    assert parent.communicate(timeout=60)[0] == "[[0.0, 0.0, 1.0], [1.0, 0.0, 1.0]]\n"


@pytest.mark.parametrize("seconds", [math.inf, 1e9])
def test_deadlines_may_be_as_far_as_one_likes(make: Make, seconds: float) -> None:
    class Slow(CountingEnv):
        def step(self, action: Any) -> Any:
            time.sleep(0.4)
            return super().step(action)

    envs = make([Slow], step_timeout=seconds, reset_timeout=seconds, close_timeout=seconds)
    envs.reset()

    assert envs.step(zeros(envs))[0].tolist() == [[0, 0, 1]]


def test_reset_before_a_step_is_not_taken_for_one_within_it(make: Make) -> None:
    envs = make([good(0)], step_timeout=0.5)
    envs.reset()
    os.kill(envs._processes.all[0].process.pid, signal.SIGSTOP)

    with pytest.raises(EnvProcessError, match=r"env 0 failed in step\(\): no answer within 0.5 s"):
        envs.step(zeros(envs))


# ------------------------------------------------------------------ survived


@pytest.mark.parametrize("kind", ["raise", "segfault", "hang"])
@each_mode
def test_a_fault_in_a_step_ends_the_episode_of_that_env_alone(
    make: Make, mode: AutoresetMode, kind: str, tmp_path: Any
) -> None:
    makers = [good(0), faulty(kind, (0, 2), number=1, marker=tmp_path / "marker")]
    envs = make(makers, mode, on_env_error="restart")
    envs.reset(seed=5)
    envs.step(zeros(envs))

    obs, reward, terminated, truncated, info = envs.step(zeros(envs))

    fault = SAID[kind] if kind == "raise" else f"{SAID[kind]} in step()"
    assert reward.tolist() == [2, 0]
    assert terminated.tolist() == [False, False]
    assert truncated.tolist() == [False, True]
    assert obs.tolist() == [[0, 0, 2], [1, 0, 0] if mode == SAME else [1, 0, 1]]
    told = info["final_info"] if mode == SAME else info
    assert told["abnormal"].tolist() == told["_abnormal"].tolist() == told["_fault"].tolist() == [False, True]
    assert told["fault"].tolist() == [None, fault]
    assert "final_obs" not in info or info["final_obs"][1].tolist() == [1, 0, 1]
    assert envs.faults.tolist() == [0, 1]
    if mode == DISABLED:
        envs.reset(options={"reset_mask": truncated})
    assert envs.step(zeros(envs))[0][1].tolist() == ([1, 0, 0] if mode == NEXT else [1, 0, 1])


@each_mode
def test_faults_are_those_of_a_barrier_in_one_process(make: Make, mode: AutoresetMode) -> None:
    places = [(0, 2)]
    behind = [lambda i=i: FaultBarrier(FaultyEnv(i, "raise", places if i else ())) for i in range(2)]
    sync = SyncVectorEnv(behind, autoreset_mode=mode)
    ours = make([good(0), faulty("raise", (0, 2), number=1)], mode, on_env_error="restart")
    for envs in (ours, sync):
        envs.reset()
        envs.step(zeros(envs))

    one, other = ours.step(zeros(ours)), sync.step(zeros(sync))

    for mine, theirs in zip(one[1:4], other[1:4], strict=True):
        assert mine.tolist() == theirs.tolist()
    told, expected = (step[4]["final_info"] if mode == SAME else step[4] for step in (one, other))
    assert told.keys() == expected.keys()
    for key in told:
        assert told[key].tolist() == expected[key].tolist()
        assert told[key].dtype == expected[key].dtype


@each_mode
@pytest.mark.parametrize("kind", ["raise", "kill"])
def test_stepper_continues_when_all_envs_fail_repeatedly(make: Make, mode: AutoresetMode, kind: str) -> None:
    envs = make([faulty(kind, (1, 2), number=number) for number in range(2)], mode, on_env_error="restart")
    stepper = EnvStepper(envs)
    stepper.reset()

    seen: list[list[int]] = []
    faults = 0
    while faults < 4:
        before = stepper.obs.copy()
        step = stepper.step(zeros(envs))
        faults += int(step.abnormal.sum())
        assert (step.next_obs[step.valid][:, 2] == before[step.valid][:, 2] + 1).all()
        seen += before[step.valid][:, 1:].tolist()

    assert envs.faults.tolist() == [2, 2]
    assert sorted(set(map(tuple, seen))) == [(0, 0), (0, 1), (0, 2), (1, 0)]


def test_envs_that_share_a_process_share_its_faults(make: Make, tmp_path: Any) -> None:
    makers = [good(0), faulty("raise", (0, 1), number=1, marker=tmp_path / "marker"), good(2)]
    envs = make(makers, NEXT, num_workers=2, on_env_error="restart")
    envs.reset()

    _, _, _, truncated, info = envs.step(zeros(envs))

    assert truncated.tolist() == [True, True, False]
    line = "ArithmeticError: it broke"
    assert info["fault"].tolist() == [f"env 1 in the same process: {line}", line, None]
    assert envs.faults.tolist() == [1, 1, 0]


@pytest.mark.parametrize("place", [(0, 2), (1, 0)], ids=["step", "reset"])
@pytest.mark.parametrize("kind", ["hang", "stop", "lock"])
def test_recovery_takes_the_time_limit_and_at_most_three_seconds(
    make: Make, kind: str, place: Any, tmp_path: Any
) -> None:
    makers = [faulty(kind, place, marker=tmp_path / "marker"), good(1)]
    envs = make(makers, on_env_error="restart")
    envs.reset()
    envs._reset_timeout, envs._step_timeout = 0.8, 0.5
    seconds = []
    while not envs.faults.any():
        start = time.monotonic()
        envs.step(zeros(envs))
        seconds.append(time.monotonic() - start)
    assert 0.5 <= seconds[-1] < 0.8 + 3


def test_replacement_that_does_not_answer_either_ends_the_run(make: Make) -> None:
    envs = make([faulty("hang", (0, 0)), good(1)], on_env_error="restart")
    envs._supervisor._limits = (0.5, None)
    start = time.monotonic()

    with pytest.raises(EnvProcessError, match=r"^a replacement did not answer either: env 0 failed in reset\(\)"):
        envs.reset()
    assert time.monotonic() - start < 2 * 0.5 + 3
    assert own_processes() == []


@each_kind
def test_a_fault_in_a_reset_is_followed_by_another_try(make: Make, kind: str, tmp_path: Any) -> None:
    makers = [good(0), faulty(kind, (0, 0), number=1, marker=tmp_path / "marker")]
    envs = make(makers, on_env_error="restart", reset_timeout=5.0 if kind == "hang" else 30.0)

    assert envs.reset(seed=5)[0].tolist() == [[0, 0, 0], [1, 0, 0]]
    fresh = int(np.random.SeedSequence(6, spawn_key=(1,)).generate_state(1)[0])
    assert envs.get_attr("seeds") == ([5], [fresh])
    assert envs.faults.tolist() == [0, 1]


def test_env_lost_in_the_reset_of_another_one_reports_a_fault_in_the_next_step(make: Make, tmp_path: Any) -> None:
    makers = [faulty("exit", (1, 0), marker=tmp_path / "marker"), good(1)]
    envs = make(makers, DISABLED, num_workers=1, on_env_error="restart")
    envs.reset()
    envs.step(zeros(envs))
    obs, _ = envs.reset(options={"reset_mask": np.array([True, False])})

    _, reward, _, truncated, info = envs.step(zeros(envs))

    assert obs.tolist() == [[0, 0, 0], [1, 0, 1]]
    assert truncated.tolist() == [True, True]
    assert reward.tolist() == [0, 0]
    assert info["fault"].tolist() == ["its process ended with exit code 3 in env 0 in reset()"] * 2


def test_replaced_env_has_a_seed_of_its_stream_and_the_attributes_that_were_set(make: Make, tmp_path: Any) -> None:
    envs = make([faulty("exit", (0, 1), marker=tmp_path / "marker")], on_env_error="restart")
    envs.set_attr("lengths", [(7,)])
    envs.reset(seed=11)
    envs.step(zeros(envs))

    assert envs.get_attr("seeds") == ([int(np.random.SeedSequence(11, spawn_key=(1,)).generate_state(1)[0])],)
    assert envs.get_attr("lengths") == ((7,),)


def test_more_faults_than_the_budget_are_raised(make: Make) -> None:
    envs = make([faulty("exit", (0, 2))], on_env_error="restart", restart_budget=2)
    envs.reset(seed=3)
    for _ in range(2):
        envs.step(zeros(envs))
        envs.step(zeros(envs))
    envs.step(zeros(envs))

    with pytest.raises(EnvProcessError, match="more than 2 faults without a complete episode in between: env 0 failed"):
        envs.step(zeros(envs))
    assert own_processes() == []


def test_a_whole_episode_gives_the_budget_back(make: Make) -> None:
    envs = make([faulty("exit", (1, 1))], on_env_error="restart", restart_budget=1)
    envs.reset()

    for _ in range(4 * 4):  # three good steps, which are an episode, and a fault
        envs.step(zeros(envs))

    assert envs.faults.tolist() == [4]


def test_a_process_that_was_killed_between_steps_is_replaced(make: Make) -> None:
    envs = make([good(0), lambda: Pausable(FaultyEnv(1))], on_env_error="restart")
    envs.reset()
    envs.step(zeros(envs))
    victim = envs._processes.all[1].process
    os.kill(victim.pid, signal.SIGKILL)
    victim.join(5)

    envs.set_attr("paused", [False, True])
    _, _, _, truncated, info = envs.step(zeros(envs))

    assert truncated.tolist() == [False, True]
    assert info["final_info"]["abnormal"].tolist() == [False, True]
    assert envs.get_attr("paused")[1] is True


def test_a_paused_env_may_lose_its_process(make: Make) -> None:
    envs = make([lambda: Pausable(CountingEnv(lengths=(9,)))] * 2, on_env_error="restart")
    stepper = EnvStepper(envs)
    stepper.reset()
    stepper.pause(np.array([False, True]))
    envs._processes.all[1].process.kill()

    steps = [stepper.step(zeros(envs)) for _ in range(2)]

    assert [step.valid.tolist() for step in steps] == [[True, False]] * 2
    assert stepper.obs.tolist() == [[0, 0, 2], [0, 0, 0]]


# ------------------------------------------------------------------ closing


@each_kind
def test_closing_is_bounded_whatever_the_envs_do(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    envs = ProcessVectorEnv([good(0), faulty(kind, "close", number=1)], close_timeout=1.0)
    start = time.monotonic()

    envs.close()

    assert time.monotonic() - start < 10
    assert own_processes() == []
    assert f"env 1 failed in close(): {SAID[kind]}" in caplog.text


def test_envs_that_hang_can_be_closed(make: Make) -> None:
    envs = make([faulty("hang", (0, 1))], step_timeout=0.5)
    envs.reset()
    with pytest.raises(EnvProcessError):
        envs.step(zeros(envs))

    envs.close()
    assert own_processes() == []
