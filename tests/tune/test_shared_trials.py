from __future__ import annotations

import multiprocessing
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from types import SimpleNamespace

import optuna
import pytest
from optuna.samplers import RandomSampler
from optuna.trial import Trial, TrialState

from lightning_ding.policy.base.dump import NonFiniteError
from lightning_ding.tune.shared_trials import RETRIES, SeededSampler, SharedTrials

optuna.logging.set_verbosity(optuna.logging.ERROR)


def make(folder: Path, total: int = 3, seed: int = 0) -> SharedTrials:
    return SharedTrials(folder / "study.sqlite3", "study", total, SeededSampler(RandomSampler, seed))


def draw(trial: Trial, slot: int) -> float:
    return trial.suggest_float("x", 0, 1)


def drawn(trials: SharedTrials) -> list[float]:
    return [trial.params["x"] for trial in trials.in_state(TrialState.COMPLETE)]


def test_trials_have_slots_in_order_and_end_at_their_number(tmp_path: Path) -> None:
    slots: list[int] = []
    make(tmp_path).run(lambda trial, slot: slots.append(slot) or 0.0)  # type: ignore[func-returns-value]
    assert slots == [0, 1, 2]


def test_study_that_is_opened_again_has_only_the_missing_trials(tmp_path: Path) -> None:
    make(tmp_path, 2).run(draw)
    again = make(tmp_path, 3)
    again.run(draw)
    assert len(drawn(again)) == 3
    assert len(set(drawn(again))) == 3


def test_draws_depend_on_the_seed_and_the_number_of_the_trial_only(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
    at_once, in_parts, other_seed = make(folders[0], 3), make(folders[1], 1), make(folders[2], 3, seed=1)
    at_once.run(draw)
    in_parts.run(draw)
    in_parts = make(folders[1], 3)
    in_parts.run(draw)
    other_seed.run(draw)
    assert drawn(in_parts) == drawn(at_once)
    assert set(drawn(other_seed)).isdisjoint(drawn(at_once))


def test_first_trial_has_the_given_values(tmp_path: Path) -> None:
    trials = make(tmp_path)
    for _ in range(2):  # a second process gives them too
        trials.begin_with({"x": 0.125})
    trials.run(draw)
    assert drawn(trials)[0] == 0.125
    assert len(drawn(trials)) == 3


@pytest.mark.parametrize("error", [RuntimeError("disk"), KeyboardInterrupt(), SystemExit(143)])
def test_trial_that_an_error_or_a_signal_ended_is_run_again_with_the_same_values(
    tmp_path: Path, error: BaseException
) -> None:
    trials, seen = make(tmp_path, 2), list[tuple[int, float]]()

    def fails_once(trial: Trial, slot: int) -> float:
        seen.append((slot, draw(trial, slot)))
        if len(seen) == 1:
            raise error
        return 0.0

    with pytest.raises(type(error)):
        trials.run(fails_once)
    make(tmp_path, 2).run(fails_once)
    assert [slot for slot, _ in seen] == [0, 0, 1]
    assert seen[0] == seen[1]
    assert not trials.in_state(TrialState.RUNNING)


def test_trial_that_always_fails_is_given_up(tmp_path: Path) -> None:
    trials, calls = make(tmp_path, 1), list[int]()

    def fails(trial: Trial, slot: int) -> float:
        calls.append(slot)
        raise RuntimeError("always")

    for _ in range(RETRIES + 1):
        with pytest.raises(RuntimeError):
            trials.run(fails)
    trials.run(fails)
    assert len(calls) == RETRIES + 1


def test_trial_whose_loss_is_not_finite_counts_as_failed_and_the_search_continues(tmp_path: Path) -> None:
    trials = make(tmp_path, 2)

    def diverges(trial: Trial, slot: int) -> float:
        if slot == 0:
            raise NonFiniteError.__new__(NonFiniteError)  # its arguments describe an update
        return 1.0

    trials.run(diverges)
    assert len(trials.in_state(TrialState.FAIL)) == 1
    assert len(trials.in_state(TrialState.COMPLETE)) == 1


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Callable[[], None]]:
    """Return actions, of which one is carried out whenever a process would wait for another; no time passes."""
    actions: list[Callable[[], None]] = []
    monkeypatch.setattr("lightning_ding.tune.shared_trials.time", SimpleNamespace(sleep=lambda _: actions.pop(0)()))
    return actions


def silence(folder: Path) -> None:
    """Make the last sign of life of all trials an hour old."""
    with closing(sqlite3.connect(folder / "study.sqlite3", timeout=60)) as file, file:
        file.execute("UPDATE trial_heartbeats SET heartbeat = datetime('now', '-1 hour')")


def test_trial_of_a_dead_process_is_run_again(tmp_path: Path, looks: list[Callable[[], None]]) -> None:
    trials = make(tmp_path, 1)
    dead = trials.study.ask()
    value = dead.suggest_float("x", 0, 1)
    trials._storage.record_heartbeat(dead._trial_id)
    looks += [lambda: None, partial(silence, tmp_path)]
    make(tmp_path, 1).run(draw)
    assert looks == []  # it waited while the trial showed signs of life
    assert drawn(trials) == [value]


def test_trial_of_a_process_that_died_before_its_first_sign_of_life_is_run_again(
    tmp_path: Path, looks: list[Callable[[], None]]
) -> None:
    trials = make(tmp_path, 1)
    trials.study.ask()
    looks += [lambda: None, partial(silence, tmp_path)]
    make(tmp_path, 1).run(draw)
    assert looks == []
    assert len(drawn(trials)) == 1


def hang(folder: Path, started: Connection) -> None:
    """Take a trial, send its slot and value, and wait to be killed."""

    def objective(trial: Trial, slot: int) -> float:
        started.send((slot, draw(trial, slot)))
        time.sleep(600)
        return 0.0

    make(folder).run(objective)


def test_killed_process_leaves_its_trial_to_another_process(tmp_path: Path, looks: list[Callable[[], None]]) -> None:
    make(tmp_path)  # the study exists before two processes use it
    context = multiprocessing.get_context("fork")  # a new interpreter would import torch again
    started, sender = context.Pipe(duplex=False)
    victim = context.Process(target=hang, args=(tmp_path, sender), daemon=True)
    victim.start()
    seen: list[tuple[int, float]] = []

    def kill() -> None:
        assert [slot for slot, _ in seen] == [1, 2]  # those that the other process has not taken
        victim.kill()
        victim.join()
        silence(tmp_path)

    try:
        assert started.poll(60)
        first = started.recv()
        looks.append(kill)
        looks.extend([partial(silence, tmp_path)] * 5)  # the first sign of life may be missing
        make(tmp_path).run(lambda trial, slot: seen.append((slot, draw(trial, slot))) or 0.0)  # type: ignore[func-returns-value]
    finally:
        victim.kill()
    assert victim.exitcode == -signal.SIGKILL
    assert seen[2] == first
    assert first[0] == 0
    assert len(seen) == 3


def test_trial_beyond_the_last_slot_is_not_run(tmp_path: Path) -> None:
    trials = make(tmp_path, 1)
    trials._has_work = iter([True, True, False]).__next__  # type: ignore[method-assign] # two processes saw one slot
    slots: list[int] = []
    trials.run(lambda trial, slot: slots.append(slot) or 0.0)  # type: ignore[func-returns-value]
    assert slots == [0]
    make(tmp_path, 3).run(lambda trial, slot: slots.append(slot) or 0.0)  # type: ignore[func-returns-value]
    assert slots == [0, 1, 2]  # a larger number of trials extends the study


def test_slot_of_a_surplus_trial_is_taken_by_a_later_one(tmp_path: Path) -> None:
    trials, slots = make(tmp_path, 3), list[int]()
    surplus = trials.study.ask()  # of a process with fewer trials
    trials._has_work = iter([True, False]).__next__  # type: ignore[method-assign]

    def objective(trial: Trial, slot: int) -> float:
        slots.append(slot)
        trials.study.tell(surplus, state=TrialState.FAIL)
        return 0.0

    trials.run(objective)
    make(tmp_path, 3).run(lambda trial, slot: slots.append(slot) or 0.0)  # type: ignore[func-returns-value]
    assert slots == [1, 0, 2]


def test_trial_that_was_put_back_survives_processes_with_fewer_trials(tmp_path: Path) -> None:
    seen: list[tuple[int, float]] = []

    def interrupted(trial: Trial, slot: int) -> float:
        seen.append((slot, draw(trial, slot)))
        if slot == 1:  # slot 2 is put back first, by another process
            with pytest.raises(KeyboardInterrupt):
                make(tmp_path).run(interrupted)
        if slot > 0:
            raise KeyboardInterrupt
        return 0.0

    with pytest.raises(KeyboardInterrupt):
        make(tmp_path, 3).run(interrupted)
    fewer = make(tmp_path, 2)
    fewer.run(lambda trial, slot: seen.append((slot, draw(trial, slot))) or 0.0)  # type: ignore[func-returns-value]
    for _ in range(RETRIES + 1):
        fewer._has_work = iter([True, False]).__next__  # type: ignore[method-assign]
        fewer.run(draw)
    make(tmp_path, 3).run(lambda trial, slot: seen.append((slot, draw(trial, slot))) or 0.0)  # type: ignore[func-returns-value]
    assert [slot for slot, _ in seen] == [0, 1, 2, 1, 2]
    assert seen[3:] == seen[1:3]


def test_free_slot_is_taken_although_a_trial_of_a_later_one_waits(tmp_path: Path) -> None:
    trials, slots = make(tmp_path, 2), list[int]()
    surplus = trials.study.ask()

    def interrupted(trial: Trial, slot: int) -> float:
        slots.append(slot)
        trials.study.tell(surplus, state=TrialState.FAIL)
        raise KeyboardInterrupt

    trials._has_work = iter([True]).__next__  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        trials.run(interrupted)
    for total in (1, 2):
        make(tmp_path, total).run(lambda trial, slot: slots.append(slot) or draw(trial, slot))  # type: ignore[func-returns-value]
    assert slots == [1, 0, 1]
    assert len(drawn(trials)) == 2


ROUNDS = 3


def open_folders(folder: Path, start: Barrier) -> None:
    """Open the study of each folder at the same moment as other processes."""
    for number in range(ROUNDS):
        start.wait(60)
        make(folder / str(number)).begin_with({"x": 0.5})


def test_processes_that_start_at_the_same_moment_share_one_study(tmp_path: Path) -> None:
    for number in range(ROUNDS):
        (tmp_path / str(number)).mkdir()
    context = multiprocessing.get_context("fork")  # a new interpreter would import torch again
    start = context.Barrier(3)
    processes = [context.Process(target=open_folders, args=(tmp_path, start), daemon=True) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert [len(make(tmp_path / str(number)).study.trials) for number in range(ROUNDS)] == [1] * ROUNDS
