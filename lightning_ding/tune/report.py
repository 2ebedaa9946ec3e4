"""The results of a search: a summary, plots, and the best settings as a config file."""

from __future__ import annotations

import math
import os
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
import yaml
from optuna.exceptions import ExperimentalWarning
from optuna.trial import FrozenTrial, TrialState

from lightning_ding.config import deep_merge
from lightning_ding.search_spaces import SearchSpace
from lightning_ding.tune.config import Candidate, TuneConfig, nested
from lightning_ding.utils.protocols import return_text

SHOWN = 5  # trials of the summary


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """Yield the path of a new file, which replaces ``file`` at the end of the block.

    Several processes may replace the file at the same time; readers see a complete one.
    """
    new = file.with_name(f".{uuid.uuid4().hex}{file.suffix}")
    try:
        yield new
        os.replace(new, file)
    finally:
        new.unlink(missing_ok=True)


def write_best(file: Path, settings: Mapping[str, Any], best: Candidate, budget: int | None) -> None:
    """Write the settings of a run with those of a candidate as a config file of ``fit``."""
    content = deep_merge(settings, {"model": {"cfg": nested(best.values)}})
    head = [f"# lightning-ding fit --config {file}", "#", f"# Settings of a search: {best.name}, {_score(best)}."]
    with replacing(file) as new:
        new.write_text("\n".join([*head, yaml.safe_dump(content, sort_keys=False)]))


def plot(study: optuna.Study, folder: Path) -> list[Path]:
    """Write the history of the study and the importance of its fields as images, and return the files.

    The importance needs at least two complete trials, and fields that differ between them.
    """
    from matplotlib import pyplot, rc_context
    from optuna.importance import PedAnovaImportanceEvaluator
    from optuna.visualization import matplotlib as drawing

    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    files: list[Path] = []
    with warnings.catch_warnings(), rc_context():  # Optuna changes the style
        warnings.simplefilter("ignore", ExperimentalWarning)
        if complete:
            files.append(_save(drawing.plot_optimization_history(study), folder / "history.png"))
        if len({trial.value for trial in complete}) > 1:
            evaluator = PedAnovaImportanceEvaluator()
            files.append(_save(drawing.plot_param_importances(study, evaluator=evaluator), folder / "importances.png"))
    pyplot.close("all")
    return files


def _save(axes: Any, file: Path) -> Path:
    axes.figure.tight_layout()
    with replacing(file) as new:
        axes.figure.savefig(new, dpi=120)
    return file


def summary_of(
    study: optuna.Study,
    config: TuneConfig,
    spaces: Mapping[str, SearchSpace],
    candidates: Sequence[Candidate],
    best: Candidate,
    files: Sequence[Path],
) -> str:
    """Return the spaces, the best trials, the comparison, the winner and the files as text."""
    trials = study.get_trials(deepcopy=False)
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    again = {number for trial in trials for number in trial.system_attrs.get("retry_history", ())}
    shown = [trial for trial in trials if trial.number not in again]  # a trial whose process died has been run again
    counts = {state.name.lower(): sum(trial.state == state for trial in shown) for state in TrialState}
    states = ", ".join(f"{number} {name}" for name, number in counts.items() if number)
    lines = [f"trials: {states}", "searched:"]
    lines += [f"  {name}: {space}" for name, space in spaces.items()]
    lines += [f"best trials ({config.metric} mean return):"]
    ranked = sorted(complete, key=lambda trial: trial.value or 0.0, reverse=True)
    lines += [_line_of(trial) for trial in ranked[:SHOWN]] or ["  none is complete"]
    if candidates:
        lines += [f"comparison over {config.candidate_seeds} new seeds:"]
        lines += [f"  {one.name:<10} {_score(one)}" for one in candidates]
    changes = ", ".join(f"{name}={_short(value)}" for name, value in best.values.items())
    lines += [f"winner: {best.name}" + (f" ({changes})" if changes else "")]
    lines += ["files: " + ", ".join(map(str, files)), f"train with it: lightning-ding fit --config {files[0]}"]
    return "\n".join(lines)


def _line_of(trial: FrozenTrial) -> str:
    values = ", ".join(f"{name}={_short(value)}" for name, value in trial.params.items())
    return f"  trial {trial.user_attrs['slot']:<4} {return_text(trial.value or 0.0):>9}  {values}"


def _score(candidate: Candidate) -> str:
    if candidate.failed:
        return f"no return with {candidate.failed} of {candidate.failed + len(candidate.returns)} seeds"
    if not candidate.returns:
        return "no return"
    if math.isnan(candidate.standard_error):
        return f"mean return {return_text(candidate.mean)} with one seed"
    error, count = candidate.standard_error, len(candidate.returns)
    return f"mean return {return_text(candidate.mean)} with a standard error of {return_text(error)} over {count} seeds"


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
