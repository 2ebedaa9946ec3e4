"""Search for hyper-parameters, compare the best trials over new seeds, and write the winner as a config file.

    from lightning_ding.tune import tune

    result = tune("recipes/configs/dqn_cartpole.yaml", "runs/tune/dqn", trials=20)
    print(result.summary)

Each trial is a run of ``fit`` with other values of some fields. Several processes share a study through its folder.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_ding.config import ConfigLike, deep_merge, require, resolve
from lightning_ding.search_spaces import SearchSpace
from lightning_ding.tune.config import Candidate, TuneConfig, derived_seed, find_spaces, read_files, values_of
from lightning_ding.tune.trial_run import RunMaker, TrialReporter, run_trial

if TYPE_CHECKING:
    import optuna
    from optuna.samplers import BaseSampler
    from optuna.trial import Trial

logger = logging.getLogger(__name__)

FILE, STUDY = "study.sqlite3", "search"
BEST, SUMMARY = "best.yaml", "summary.txt"
SETTINGS = "settings"
FIXED = ("spaces", "sampler", "pruner", "reports", "metric", "seed")
"""Fields of ``TuneConfig`` that a study keeps when it is resumed."""
SEARCH_SEEDS, COMPARISON_SEEDS = 0, 1
AS_GIVEN = "as given"


@dataclass(frozen=True)
class TuneResult:
    """The result of a search."""

    best: Candidate
    """The settings with the highest mean return; the settings as given if no trial is better."""
    candidates: Sequence[Candidate]
    """All compared settings, those as given first; empty without a comparison."""
    best_file: Path
    """Config file of ``fit`` with the best settings."""
    summary: str
    """The trials, the comparison and the files as text."""


def tune(
    run: Mapping[str, Any] | str | Path, folder: str | Path, spaces: Mapping[str, str | SearchSpace] = {}, **cfg: Any
) -> TuneResult:
    """Search for the hyper-parameters of a run, and return the best settings.

    Args:
        run: The path of a config file of ``lightning-ding fit``, or its content.
        folder: Folder of the study. If it holds a study of the same settings, that study is resumed.
        spaces: Search space of each field of the policy's config by dotted name: a space, a text such as
            ``log(1e-5,1e-2)``, or ``declared``; empty for all fields that declare one.
        **cfg: Further fields of :class:`TuneConfig`.

    Raises:
        ImportError: If Optuna is not installed.
        ValueError: If an option, a field or a space is unknown or not allowed, or the folder holds another study.
        TypeError: If a value has the wrong type.
    """
    given = {**cfg, "spaces": {name: str(space) for name, space in spaces.items()}}
    if isinstance(run, Mapping):
        return Study(run, folder, given).run()
    options, section = read_files([run])
    return Study(options, folder, deep_merge(section, given)).run()


class Study:
    """A search for hyper-parameters in a folder.

    Args:
        run: The content of a config file of ``lightning-ding fit``, or a list of options of ``fit``.
        folder: Folder of the study. If it holds a study of the same settings, that study is resumed.
        cfg: The settings of the search.

    Raises:
        ImportError: If Optuna is not installed.
        ValueError: If an option, a field or a space is unknown or not allowed, or the folder holds another study.
        TypeError: If a value has the wrong type.
    """

    def __init__(
        self,
        run: Mapping[str, Any] | Sequence[str],
        folder: str | Path,
        cfg: ConfigLike[TuneConfig] = None,
    ) -> None:
        _require_extra()
        self.config = resolve(TuneConfig, cfg, "tune.")
        self.folder = Path(folder)
        self._maker = RunMaker(run)
        self.spaces = find_spaces(self._maker.config, self.config.spaces)
        """Search space of each field by dotted name."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._open()

    def run(self) -> TuneResult:
        """Run the trials and the comparison, and write the plots, the summary and the config file of the best settings.

        Other processes that run the same study share the work. All of them wait for its end and return its result.
        """
        from lightning_ding.tune.report import plot, replacing, summary_of, write_best

        began = time.monotonic()
        self._trials.run(self._search)
        logger.info("%d trials have ended after %.0f s", self.config.trials, time.monotonic() - began)
        candidates = self._compare(self._candidates())
        best = max(candidates, key=lambda one: one.mean)
        file = self.folder / BEST
        write_best(file, self._maker.settings, best, self._maker.budget)
        plots = plot(self.study, self.folder)
        compared = candidates if self.config.candidates else []
        summary = summary_of(self.study, self.config, self.spaces, compared, best, [file, *plots])
        with replacing(self.folder / SUMMARY) as new:
            new.write_text(summary + "\n")
        return TuneResult(best, compared, file, summary)

    @property
    def study(self) -> optuna.Study:
        """The study of Optuna."""
        return self._trials.study

    def _open(self) -> None:
        """Open the study, or make it.

        Raises:
            ValueError: If the folder holds a study of other settings.
        """
        from lightning_ding.tune.shared_trials import SharedTrials

        sampler, pruner = self._sampler(), self._pruner()
        self._trials = SharedTrials(self.folder / FILE, STUDY, self.config.trials, sampler, pruner)
        fixed = {name: getattr(self.config, name) for name in FIXED}
        fixed["spaces"] = {name: str(space) for name, space in self.spaces.items()}
        mine = json.loads(json.dumps({"run": self._maker.settings, "tune": fixed}))
        found = self.study.user_attrs.get(SETTINGS, mine)
        if found != mine:
            path, then, now = _first_difference(found, mine)
            allowed = f"a new folder, or the folder of a study with {path}={then!r}"
            raise ValueError(f"folder must be {allowed}, got {str(self.folder)!r} with {path}={now!r}")
        for trial in self.study.get_trials(deepcopy=False):  # their values become settings of runs
            foreign = sorted(trial.params.keys() - self.spaces.keys())
            where = f"the fields of trial {trial.number} in {str(self.folder)!r}"
            require(not foreign, where, f"among those that are searched, {sorted(self.spaces)}", foreign)
        self.study.set_user_attr(SETTINGS, mine)
        given = values_of(self._maker.config, self.spaces)
        self._trials.begin_with({name: value for name, value in given.items() if value in self.spaces[name]})

    def _sampler(self) -> Any:
        from optuna.samplers import RandomSampler, TPESampler

        from lightning_ding.tune.shared_trials import SeededSampler

        makers: dict[str, Callable[[int], BaseSampler]] = {
            "tpe": lambda seed: TPESampler(seed=seed, constant_liar=True),
            "random": RandomSampler,
        }
        return SeededSampler(makers[self.config.sampler], self.config.seed)

    def _pruner(self) -> Any:
        from optuna.pruners import MedianPruner, NopPruner, SuccessiveHalvingPruner

        step = max(1, (self._maker.budget or 0) // self.config.reports)
        if self.config.pruner == "median":
            return MedianPruner(n_startup_trials=5, n_warmup_steps=2 * step)
        if self.config.pruner == "halving":
            return SuccessiveHalvingPruner(min_resource=step, reduction_factor=3)
        return NopPruner()

    def _search(self, trial: Trial, slot: int) -> float:
        """Run a trial of the search and return its value."""
        import optuna

        values = {name: space.suggest(trial, name) for name, space in self.spaces.items()}
        seed = derived_seed(self.config.seed, SEARCH_SEEDS, slot)
        trial.set_user_attr("seed", seed)
        folder = self.folder / "trials" / f"{slot:04d}"
        trial.set_user_attr("folder", str(folder))
        reporter = TrialReporter(trial, self.config.reports)
        value = run_trial(self._maker, self._maker.trial_settings(values, seed, folder), self.config.metric, reporter)
        if reporter.is_pruned:
            raise optuna.TrialPruned
        return value

    def _candidates(self) -> list[Candidate]:
        """Return the settings as given and those of the best trials that differ from them, or only the best ones."""
        from optuna.trial import TrialState

        ended = self._trials.in_state(TrialState.COMPLETE)
        ended.sort(key=lambda trial: trial.value or 0.0, reverse=True)  # complete trials have a value; sort is stable
        found: dict[str, Candidate] = {}
        for trial in ended:
            given = values_of(self._maker.config, trial.params)
            changed = {name: value for name, value in trial.params.items() if value != given[name]}
            name = f"trial {trial.user_attrs['slot']}" if changed else AS_GIVEN
            returns = [trial.value or 0.0]
            found.setdefault(json.dumps(changed, sort_keys=True), Candidate(name, changed, returns))
        as_given = found.pop("{}", Candidate(AS_GIVEN, {}))
        return [as_given, *list(found.values())[: self.config.candidates or 1]]

    def _compare(self, candidates: list[Candidate]) -> list[Candidate]:
        """Return the candidates with their returns over the seeds of the comparison."""
        from lightning_ding.tune.shared_trials import SLOT, SharedTrials

        count = self.config.candidate_seeds
        if not self.config.candidates:
            return candidates
        text = json.dumps([[one.name, dict(one.values)] for one in candidates] + [count], sort_keys=True)
        name = f"comparison {hashlib.sha256(text.encode()).hexdigest()[:12]}"

        def compare(trial: Trial, slot: int) -> float:
            candidate, number = candidates[slot // count], slot % count
            seed = derived_seed(self.config.seed, COMPARISON_SEEDS, number)
            trial.set_user_attr("seed", seed)
            folder = self.folder / name.replace(" ", "_") / f"{candidate.name.replace(' ', '_')}_seed_{number}"
            settings = self._maker.trial_settings(candidate.values, seed, folder)
            return run_trial(self._maker, settings, self.config.metric, TrialReporter())

        trials = SharedTrials(self.folder / FILE, name, len(candidates) * count)
        trials.run(compare)
        values: dict[int, float] = {
            one.user_attrs[SLOT]: one.value for one in trials.study.get_trials(deepcopy=False) if one.value is not None
        }
        returns = [[values[slot] for slot in sorted(values) if slot // count == at] for at in range(len(candidates))]
        pairs = zip(candidates, returns, strict=True)
        return [Candidate(one.name, one.values, got, count - len(got)) for one, got in pairs]


def _first_difference(then: Any, now: Any, path: str = "") -> tuple[str, Any, Any]:
    """Return the dotted name of the first value that differs between nested dicts, and both values."""
    if not (isinstance(then, dict) and isinstance(now, dict)):
        return path, then, now
    key = next(key for key in sorted({*then, *now}) if then.get(key) != now.get(key))
    return _first_difference(then.get(key), now.get(key), f"{path}.{key}".removeprefix("."))


def _require_extra() -> None:
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        raise ImportError("tuning needs Optuna and Matplotlib: pip install 'lightning_ding[tune]'") from error
