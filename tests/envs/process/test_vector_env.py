"""Envs in processes: same results as a SyncVectorEnv, and errors for invalid arguments."""

from __future__ import annotations

import functools
import gc
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from lightning_ding.envs import BrokenEnvError, EnvProcessError, EnvStepper, Pausable, ProcessVectorEnv
from lightning_ding.envs.sync import _SyncVectorEnv
from tests.envs.rich import RichEnv, WordEnv
from tests.toys.envs import CountingEnv

MODES = list(AutoresetMode)
Make = Callable[..., ProcessVectorEnv]
each_mode = pytest.mark.parametrize("mode", MODES)


@pytest.fixture
def make() -> Iterator[Make]:
    """Make vector envs that are closed after the test."""
    made: list[ProcessVectorEnv] = []

    def make_and_remember(makers: Any, *args: Any, **kwargs: Any) -> ProcessVectorEnv:
        made.append(ProcessVectorEnv(makers, *args, **kwargs))
        return made[-1]

    yield make_and_remember
    for env in made:
        env.close()


def assert_same(ours: Any, theirs: Any) -> None:
    """Assert that nested things are alike to the last bit, types included."""
    if isinstance(theirs, dict):
        assert isinstance(ours, dict)
        assert ours.keys() == theirs.keys()
        for key in theirs:
            assert_same(ours[key], theirs[key])
    elif isinstance(theirs, (tuple, list)):
        assert type(ours) is type(theirs)
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other)
    elif isinstance(theirs, np.ndarray) and theirs.dtype == object:
        assert_same(ours.tolist(), theirs.tolist())
    else:
        assert np.asarray(ours).dtype == np.asarray(theirs).dtype
        np.testing.assert_array_equal(ours, theirs)


class OptionsEnv(CountingEnv):
    """Its info has the options of its reset."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        obs, _ = super().reset(seed=seed)
        return obs, {"options": repr(options)}


def actions_of(env: Any, steps: int) -> list[Any]:
    env.action_space.seed(3)
    return [env.action_space.sample() for _ in range(steps)]


# ------------------------------------------------------------------ the same as in one process


@pytest.mark.parametrize("together", [1, 2])
def test_options_of_a_reset_reach_each_env_as_they_are_given(make: Make, together: int) -> None:
    made = [OptionsEnv] * 2
    parallel, lean = (
        make(made, AutoresetMode.DISABLED, num_workers=together),
        _SyncVectorEnv(made, AutoresetMode.DISABLED),
    )
    mask = np.array([True, False])
    for given in (None, {}, {"total": 2}):
        wanted = [repr(given)] * 2
        assert [env.reset(options=given)[1]["options"].tolist() for env in (parallel, lean, SyncVectorEnv(made))] == [
            wanted
        ] * 3
        masked = [env.reset(options={**(given or {}), "reset_mask": mask})[1]["options"][0] for env in (parallel, lean)]
        assert masked == [repr(given or None)] * 2


@each_mode
@pytest.mark.parametrize("together", [1, 2, 3])
def test_envs_in_processes_give_the_very_results_of_envs_in_one(make: Make, mode: AutoresetMode, together: int) -> None:
    sync = SyncVectorEnv([RichEnv] * 3, autoreset_mode=mode)
    parallel = make([RichEnv] * 3, mode, num_workers=together)
    assert_same(parallel.reset(seed=4, options={"total": 2}), sync.reset(seed=4, options={"total": 2}))

    resets = 0
    for action in actions_of(sync, 200):
        ours, theirs = parallel.step(action), sync.step(action)
        assert_same(ours, theirs)
        ended = theirs[2] | theirs[3]
        if mode == AutoresetMode.DISABLED and ended.any():
            seed = [7 + i if end else None for i, end in enumerate(ended)]
            masks = [{"reset_mask": ended.copy(), "total": 1} for _ in range(2)]
            assert_same(parallel.reset(seed=seed, options=masks[0]), sync.reset(seed=seed, options=masks[1]))
        resets += int(ended.sum())
    assert resets > 30
    sync.close()


@pytest.mark.parametrize("kind", [RichEnv, WordEnv])
def test_actions_that_were_sent_before_give_the_same_step(make: Make, kind: Any) -> None:
    mode = AutoresetMode.SAME_STEP
    sync, parallel = SyncVectorEnv([kind] * 3, autoreset_mode=mode), make([kind] * 3, mode, num_workers=2)
    assert_same(parallel.reset(seed=4), sync.reset(seed=4))
    for action in actions_of(sync, 5):
        parallel.send(action)
        assert_same(parallel.step(None), sync.step(action))
    sync.close()


def test_what_is_asked_of_envs_that_step_waits_for_the_step(make: Make) -> None:
    envs = make([CountingEnv] * 2)
    actions = np.zeros(2, dtype=np.int64)
    with pytest.raises(ResetNeeded):
        envs.send(actions)
    envs.reset()
    envs.send(actions)
    assert envs.in_progress() is None  # nobody waits for it
    with pytest.raises(RuntimeError, match="the envs have got their actions"):
        envs.send(actions)
    assert envs.call("_step") == (1, 1)
    envs.set_attr("number", [3, 4])
    assert envs.step(None)[0].tolist() == [[0, 0, 1], [0, 0, 1]]
    assert envs.step(actions)[0].tolist() == [[3, 0, 2], [4, 0, 2]]
    for asks in (False, True):
        envs.send(actions)
        if asks:
            envs.get_attr("number")
        assert envs.reset()[0][:, 2].tolist() == [0, 0]  # the step is lost with its episode
    assert envs.step(actions)[0][:, 2].tolist() == [1, 1]
    envs.send(actions)
    envs.close()
    with pytest.raises(ClosedEnvironmentError, match="was closed after its envs got their actions"):
        envs.step(None)


@each_mode
def test_observations_without_a_fixed_size_travel_too(make: Make, mode: AutoresetMode) -> None:
    sync, parallel = SyncVectorEnv([WordEnv] * 2, autoreset_mode=mode), make([WordEnv] * 2, mode)
    assert_same(parallel.reset(), sync.reset())
    for _ in range(2 if mode == AutoresetMode.DISABLED else 9):
        assert_same(parallel.step(np.zeros(2, dtype=np.int64)), sync.step(np.zeros(2, dtype=np.int64)))


def test_actions_of_another_dtype_reach_the_envs_as_they_are(make: Make) -> None:
    class Echo(CountingEnv):
        def step(self, action: Any) -> Any:
            return *super().step(action)[:4], {"got": f"{type(action).__name__} {action}"}

    envs = make([functools.partial(Echo, lengths=(9,))] * 2)
    envs.reset()

    assert envs.step(np.array([0, 1], dtype=np.int32))[4]["got"].tolist() == ["int32 0", "int32 1"]
    assert envs.step([0, 1])[4]["got"].tolist() == ["int 0", "int 1"]
    assert envs.step(np.array([0, 1]))[4]["got"].tolist() == ["int64 0", "int64 1"]


def test_an_action_that_an_env_keeps_stays_what_it_was(make: Make) -> None:
    class Keeper(CountingEnv):
        def __init__(self) -> None:
            super().__init__(lengths=(9,))
            self.kept: list[Any] = []
            self.action_space: Any = spaces.Box(-1, 1, (1,), np.float32)

        def step(self, action: Any) -> Any:
            self.kept.append(action)
            return super().step(np.int64(0))

    envs = make([Keeper])
    envs.reset()
    for value in (0.25, 0.5):
        envs.step(np.full((1, 1), value, dtype=np.float32))

    assert [action.tolist() for action in envs.get_attr("kept")[0]] == [[0.25], [0.5]]


def test_observations_are_the_callers_own_unless_he_wants_them_lent(make: Make) -> None:
    for is_copy in (True, False):
        envs = make([CountingEnv], copy=is_copy)
        first = envs.reset()[0]
        second = envs.step(np.zeros(1, dtype=np.int64))[0]
        assert (first is second) is not is_copy


def test_an_observation_that_is_not_in_the_space_is_an_error(make: Make) -> None:
    class Wide(CountingEnv):
        def _observe(self) -> Any:
            return np.zeros(4, dtype=np.float32)

    said = r"env 0, Wide, violates .*reset\(\) must have shape \(3,\) and dtype float32 .*, got shape \(4,\)"
    with pytest.raises(BrokenEnvError, match=said):
        make([Wide]).reset()


class Giver(CountingEnv):
    """Observes what it is given, in a space that it is given."""

    def __init__(self, space: Any, given: Any) -> None:
        super().__init__(lengths=(9,))
        self.observation_space, self.given = space, given

    def _observe(self) -> Any:
        return self.given


@pytest.mark.parametrize(
    ("space", "given"),
    [
        (spaces.Box(0, 255, (2,), np.uint8), np.array([1.7, 300.0])),
        (spaces.Box(0, 255, (2,), np.uint8), np.array([1, 300])),
        (spaces.Discrete(5), 1.9),
    ],
)
def test_a_number_that_the_space_cannot_hold_is_an_error_as_in_one_process(make: Make, space: Any, given: Any) -> None:
    said = r"env 0, Giver, violates gymnasium's API in reset\(\): the observation of reset\(\) must have shape"
    with pytest.raises(BrokenEnvError, match=said):
        _SyncVectorEnv([functools.partial(Giver, space, given)], AutoresetMode.SAME_STEP).reset()
    with pytest.raises(BrokenEnvError, match=said):
        make([functools.partial(Giver, space, given)]).reset()


@pytest.mark.parametrize(
    ("space", "given"),
    [
        (spaces.Box(-1, 1, (2,), np.float32), np.array([0.1, 0.2])),
        (spaces.Box(-1, 1, (), np.float32), 0.3),
        (spaces.Discrete(5), 3),
        (spaces.Discrete(5), np.int32(3)),
        (spaces.MultiBinary(2), np.array([True, False])),
    ],
)
def test_number_of_the_kind_of_the_space_is_accepted(make: Make, space: Any, given: Any) -> None:
    sync = SyncVectorEnv([functools.partial(Giver, space, given)])

    assert_same(make([functools.partial(Giver, space, given)]).reset(), sync.reset())


# ------------------------------------------------------------------ talking to the envs


def test_methods_and_attributes_are_those_of_each_env(make: Make) -> None:
    envs = make([functools.partial(CountingEnv, number) for number in range(3)], num_workers=2)

    assert envs.get_attr("number") == envs.call("get_wrapper_attr", "number") == (0, 1, 2)
    envs.set_attr("number", [5, 6, 7])
    assert envs.get_attr("number") == (5, 6, 7)
    envs.set_attr("number", 8)
    assert envs.get_attr("number") == (8, 8, 8)
    with pytest.raises(ValueError, match="values must be 3, one for each env, got 2"):
        envs.set_attr("number", [1, 2])


def test_an_attribute_that_is_not_there_is_an_error_and_nothing_more(make: Make) -> None:
    envs = make([CountingEnv] * 2)
    with pytest.raises(EnvProcessError, match=r"env 0 failed in call\('nothing'\): AttributeError"):
        envs.call("nothing")

    assert envs.get_attr("render_mode") == (None, None)


def test_envs_in_processes_can_be_rendered(make: Make) -> None:
    envs = make([functools.partial(gym.make, "FrozenLake-v1", render_mode="ansi")] * 2)
    envs.reset(seed=0)

    assert envs.render_mode == "ansi"
    assert ["SFFF" in frame or "FFF" in frame for frame in envs.render()] == [True, True]


def test_spaces_and_metadata_are_those_of_the_envs(make: Make) -> None:
    envs, sync = make([RichEnv] * 2, AutoresetMode.DISABLED), SyncVectorEnv([RichEnv] * 2)

    assert envs.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    assert envs.single_observation_space == sync.single_observation_space
    assert envs.observation_space == sync.observation_space
    assert envs.action_space == sync.action_space


def test_envs_in_processes_can_be_paused(make: Make) -> None:
    stepper = EnvStepper(make([lambda: Pausable(CountingEnv(lengths=(5,)))] * 2))
    stepper.reset()

    assert stepper.pause(np.array([True, False]))
    timestep = stepper.step(np.zeros(2, dtype=np.int64))

    assert timestep.valid.tolist() == [False, True]
    assert timestep.next_obs[:, 2].tolist() == [0, 1]


# ------------------------------------------------------------------ what is refused


def test_without_autoreset_an_env_does_not_step_after_its_episode(make: Make) -> None:
    envs = make([functools.partial(CountingEnv, lengths=(length,)) for length in (1, 2)], AutoresetMode.DISABLED)
    envs.reset()
    envs.step(np.zeros(2, dtype=np.int64))

    with pytest.raises(RuntimeError, match=r"must be reset before they step: \[0\]"):
        envs.step(np.zeros(2, dtype=np.int64))
    envs.reset(options={"reset_mask": np.array([True, False])})
    envs.step(np.zeros(2, dtype=np.int64))


@pytest.mark.parametrize("mask", [[True, False], np.ones(3, dtype=bool), np.zeros(2, dtype=bool), np.ones(2)])
def test_a_reset_mask_that_is_none_is_refused(make: Make, mask: Any) -> None:
    with pytest.raises(
        ValueError, match=r"reset_mask'\] must be a boolean array of shape \(2,\) with at least one true entry"
    ):
        make([CountingEnv] * 2).reset(options={"reset_mask": mask})


def test_mistakes_are_named(make: Make) -> None:
    envs = make([CountingEnv] * 2)
    envs.reset()
    with pytest.raises(ValueError, match="actions must be 2, one for each env, got 1"):
        envs.step(np.zeros(1, dtype=np.int64))
    with pytest.raises(ResetNeeded, match=r"call reset\(\) before step\(\)"):
        make([CountingEnv]).step(np.zeros(1, dtype=np.int64))
    with pytest.raises(ValueError, match="seed must be an integer, None or a list of 2 of these, got 3"):
        make([CountingEnv] * 2).reset(seed=[1, 2, 3])


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"env_fns": []}, "env_fns must be one or more"),
        ({"num_workers": 0}, "num_workers must be from 1 to 1, the number of envs, or None for .* cores, got 0"),
        ({"num_workers": 2}, "num_workers must be from 1 to 1, .*, got 2"),
        ({"num_workers": True}, "num_workers must be from 1 to 1, .*, got True"),
        ({"reset_timeout": 0}, "reset_timeout must be > 0 or None, got 0"),
        ({"step_timeout": -1}, "step_timeout must be > 0 or None, got -1"),
        ({"close_timeout": 0}, "close_timeout must be > 0, got 0"),
        ({"on_env_error": "ignore"}, r"on_env_error must be one of \('raise', 'restart'\), got 'ignore'"),
        ({"restart_budget": -1}, "restart_budget must be >= 0, got -1"),
        ({"context": "threads"}, "context must be one of .*, got 'threads'"),
    ],
)
def test_arguments_out_of_their_range_are_refused(argument: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ProcessVectorEnv(**{"env_fns": [CountingEnv], **argument})


def test_a_factory_that_cannot_be_sent_is_named_before_a_process_is_there() -> None:
    lock = threading.Lock()
    before = multiprocessing.active_children()

    with pytest.raises(
        EnvProcessError, match=r"the functions that make the envs \[1\] cannot be sent to another .*: TypeError"
    ):
        ProcessVectorEnv([CountingEnv, lambda: CountingEnv(int(lock.locked()))])
    assert multiprocessing.active_children() == before


def test_envs_with_other_spaces_are_refused_and_leave_no_process() -> None:
    before = multiprocessing.active_children()

    with pytest.raises(EnvProcessError, match=r"all envs must have the same observation space, got .* and .* of env 1"):
        ProcessVectorEnv([CountingEnv, RichEnv])
    assert multiprocessing.active_children() == before


# ------------------------------------------------------------------ the end


def test_closing_twice_is_closing_once_and_nothing_works_afterwards() -> None:
    envs = ProcessVectorEnv([CountingEnv])
    envs.close()
    envs.close()

    with pytest.raises(ClosedEnvironmentError):
        envs.reset()


def test_envs_that_are_forgotten_leave_no_process() -> None:
    envs = ProcessVectorEnv([CountingEnv])
    process = multiprocessing.active_children()[-1]
    del envs

    process.join(10)
    assert process not in multiprocessing.active_children()


@pytest.mark.parametrize("context", ["forkserver", "fork"])
def test_making_and_closing_often_leaves_neither_processes_nor_descriptors(context: Any) -> None:
    def open_files() -> set[str]:
        ProcessVectorEnv([CountingEnv] * 2, context=context).close()
        return set(os.listdir("/proc/self/fd"))

    gc.collect()  # what earlier tests left must not be closed in the middle of this one
    before = len(open_files())
    for _ in range(20):
        after = len(open_files())

    assert after == before
    assert not [process for process in multiprocessing.active_children() if process.name.startswith("envs ")]
