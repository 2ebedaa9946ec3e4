"""The trials of an Optuna study that several processes work on.

Each trial has a slot, from 0; a study has as many slots as trials are wanted. If a process dies, the others notice that
its heartbeat stopped, and one of them runs the same trial again in the same slot. The same happens when the command is
started again. A surplus trial has no slot: two processes made the last trial at the same moment.
"""

from __future__ import annotations

import itertools
import logging
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import optuna
import sqlalchemy
from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, RandomSampler
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback, fail_stale_trials
from optuna.trial import FrozenTrial, Trial, TrialState

from lightning_ding.policy.base.dump import NonFiniteError
from lightning_ding.tune.config import derived_seed

logger = logging.getLogger(__name__)

Objective = Callable[[Trial, int], float]
"""A function of a trial and its slot that returns the value to maximise."""
SLOT = "slot"
RETRIES = 3  # of a trial whose process died
BUSY_SECONDS = 60  # that a process waits for another one that writes
SILENT_TRIALS = sqlalchemy.text(
    "SELECT trial_id FROM trials WHERE state = 'RUNNING' AND trial_id NOT IN (SELECT trial_id FROM trial_heartbeats)"
)


class SurplusTrialError(Exception):
    """A trial has no slot below the number of trials that this process wants."""


class SeededSampler(BaseSampler):
    """Draw the values of each trial with a sampler whose seed depends on the study's seed and the trial's number.

    The draws of a trial then do not depend on which process runs it, and a study that is resumed does not repeat those
    of its beginning.

    Args:
        make: Function of a seed that returns the sampler of one trial.
        seed: Seed of the study, >= 0.
    """

    def __init__(self, make: Callable[[int], BaseSampler], seed: int) -> None:
        self._make, self._seed = make, seed
        self._sampler = make(seed)

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Make the sampler of the trial."""
        self._sampler = self._make(derived_seed(self._seed, trial.number))
        self._sampler.before_trial(study, trial)

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return the fields that are drawn together."""
        return self._sampler.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the values of the fields that are drawn together."""
        return self._sampler.sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return the value of one field."""
        return self._sampler.sample_independent(study, trial, param_name, param_distribution)


class SharedTrials:
    """The trials of one study in an SQLite file.

    Args:
        file: The SQLite file; it is made if it is missing.
        name: Name of the study in the file.
        total: Number of trials, >= 1.
        sampler: How values are drawn; None for trials that draw none.
        pruner: Which trials end early; None for no such trials.
    """

    heartbeat_seconds: ClassVar[int] = 20
    """Time between two signs of life of a running trial."""
    grace_seconds: ClassVar[int] = 60
    """Time without a sign of life after which a trial counts as dead."""
    poll_seconds: ClassVar[float] = 2.0
    """Time between two looks at the trials of other processes."""

    def __init__(
        self,
        file: Path,
        name: str,
        total: int,
        sampler: BaseSampler | None = None,
        pruner: optuna.pruners.BasePruner | None = None,
    ) -> None:
        self.total = total
        self._lock_file = file.with_suffix(".lock")
        with self._lock(), warnings.catch_warnings():  # Optuna cannot make one file in two processes at once
            warnings.simplefilter("ignore", ExperimentalWarning)  # of the heartbeat
            self._retry = RetryHeartbeatStaleTrialCallback(max_retry=RETRIES)
            self._storage = RDBStorage(
                f"sqlite:///{file.resolve()}",
                engine_kwargs={"connect_args": {"timeout": BUSY_SECONDS}},
                heartbeat_interval=self.heartbeat_seconds,
                grace_period=self.grace_seconds,
                heartbeat_stale_trial_callback=self._retry,
            )
        self.study = optuna.create_study(
            study_name=name,
            storage=self._storage,
            sampler=sampler or RandomSampler(seed=0),
            pruner=pruner or optuna.pruners.NopPruner(),
            direction="maximize",
            load_if_exists=True,
        )

    def begin_with(self, values: Mapping[str, Any]) -> None:
        """Give the first trial some values, unless it has been given."""
        with self._lock():
            if not self.study.get_trials(deepcopy=False):
                self.study.enqueue_trial(dict(values), skip_if_exists=True)

    def run(self, objective: Objective) -> None:
        """Run trials until all of them have ended, those of other processes included.

        A trial whose loss is not finite counts as failed. Any other error, or a signal that ends the process, puts the
        trial back, up to 3 times, and ends this process.
        """
        is_waiting = False
        while True:
            self._put_back_dead_trials()
            if self._has_work():
                caught = (NonFiniteError, SurplusTrialError)
                self.study.optimize(lambda trial: self._call(objective, trial), n_trials=1, catch=caught)
            elif running := self.in_state(TrialState.RUNNING):
                if not is_waiting:
                    logger.info("waiting for %d trials of other processes", len(running))
                is_waiting = True
                time.sleep(self.poll_seconds)
            else:
                return

    def in_state(self, *states: TrialState) -> list[FrozenTrial]:
        """Return the trials in some states, by number."""
        return self.study.get_trials(deepcopy=False, states=states)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Let only one process at a time run a block.

        The lock is that of an empty SQLite file: it exists on every system, and ends with its process.
        """
        with closing(sqlite3.connect(self._lock_file, timeout=BUSY_SECONDS, isolation_level=None)) as connection:
            connection.execute("BEGIN EXCLUSIVE")
            yield

    def _put_back_dead_trials(self) -> None:
        """Put back the trials without a sign of life for ``grace_seconds``.

        Optuna ignores a trial whose process died before its first sign of life. Such a trial gets one here, and counts
        as dead once ``grace_seconds`` have passed after it.
        """
        with self._storage.engine.connect() as connection:
            silent = connection.execute(SILENT_TRIALS).scalars().all()
        for trial_id in silent:
            self._storage.record_heartbeat(trial_id)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            fail_stale_trials(self.study)

    def _has_work(self) -> bool:
        waiting = self.in_state(TrialState.WAITING)
        return any(trial.user_attrs.get(SLOT, 0) < self.total for trial in waiting) or self._has_free_slot()

    def _has_free_slot(self) -> bool:
        """Return whether there are more free slots than trials that will take one."""
        expected = len(self._without_slot())  # first: a trial that takes its slot now is counted twice, not missed
        return expected + sum(slot < self.total for slot in self._taken()) < self.total

    def _call(self, objective: Objective, trial: Trial) -> float:
        slot = self._slot(trial)
        try:
            return objective(trial, slot)
        except (optuna.TrialPruned, NonFiniteError):
            raise
        except BaseException as error:
            (frozen,) = (one for one in self.study.get_trials() if one.number == trial.number)
            self._retry(self.study, frozen)
            if not isinstance(error, (Exception, KeyboardInterrupt)):  # Optuna handles these itself
                self.study.tell(trial, state=TrialState.FAIL)
            raise

    def _slot(self, trial: Trial) -> int:
        """Return the slot of a trial that repeats another one, or give a new trial a slot.

        Earlier trials without a slot will take the first ones that are free. If one of them turns out to be surplus,
        its slot remains free for a later trial.

        Raises:
            SurplusTrialError: If the slot is one that only a process with a larger ``total`` wants.
        """
        if SLOT in trial.user_attrs:
            slot: int = trial.user_attrs[SLOT]
            if slot >= self.total:
                if self._has_free_slot():
                    self.study.enqueue_trial({})  # a new trial, which runs before the one that is put back
                self._put_back(trial)
                raise SurplusTrialError(f"slot {slot} is left to a process that wants more than {self.total} trials")
            return slot
        with self._lock():
            taken = self._taken()
            earlier = sum(one.number < trial.number for one in self._without_slot())
            slot = next(itertools.islice((one for one in itertools.count() if one not in taken), earlier, None))
            if slot >= self.total:
                raise SurplusTrialError(f"all {self.total} trials are taken")
            trial.set_user_attr(SLOT, slot)
        return slot

    def _taken(self) -> set[int]:
        """Return the slots of all trials."""
        return {one.user_attrs[SLOT] for one in self.study.get_trials(deepcopy=False) if SLOT in one.user_attrs}

    def _without_slot(self) -> list[FrozenTrial]:
        """Return the trials that will take a slot as soon as they run."""
        return [one for one in self.in_state(TrialState.WAITING, TrialState.RUNNING) if SLOT not in one.user_attrs]

    def _put_back(self, trial: Trial) -> None:
        """Put back a trial that has not run; this is not one of its retries."""
        (frozen,) = (one for one in self.study.get_trials() if one.number == trial.number)
        self.study.add_trial(
            optuna.create_trial(
                state=TrialState.WAITING,
                params=frozen.params,
                distributions=frozen.distributions,
                user_attrs=frozen.user_attrs,
                system_attrs=frozen.system_attrs,
            )
        )
