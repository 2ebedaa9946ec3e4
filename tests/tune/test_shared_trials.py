from __future__ import annotations

import time
from pathlib import Path

import optuna
import pytest
from optuna.samplers import RandomSampler
from optuna.trial import Trial, TrialState

from lightning_ding.policy.base.update.non_finite import NonFiniteError
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


def test_trial_of_a_dead_process_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SharedTrials, "heartbeat_seconds", 1)
    monkeypatch.setattr(SharedTrials, "grace_seconds", 1)
    monkeypatch.setattr(SharedTrials, "poll_seconds", 0.2)
    trials = make(tmp_path, 1)
    dead = trials.study.ask()
    value = dead.suggest_float("x", 0, 1)
    trials.study._storage.record_heartbeat(dead._trial_id)  # type: ignore[attr-defined]
    assert trials.in_state(TrialState.RUNNING)
    began = time.monotonic()
    make(tmp_path, 1).run(draw)
    assert drawn(trials) == [value]
    assert time.monotonic() - began > 0.5  # it waited for the dead one


def test_trial_beyond_the_last_slot_is_not_run(tmp_path: Path) -> None:
    trials = make(tmp_path, 1)
    trials._has_work = iter([True, True, False]).__next__  # type: ignore[method-assign] # two processes saw one slot
    slots: list[int] = []
    trials.run(lambda trial, slot: slots.append(slot) or 0.0)  # type: ignore[func-returns-value]
    assert slots == [0]
