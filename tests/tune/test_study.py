from __future__ import annotations

import os
import re
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import optuna
import pytest
import yaml
from optuna.trial import TrialState

from lightning_ding.entry.lightning_cli import make_run
from lightning_ding.policy.base.dump import NonFiniteError
from lightning_ding.search_spaces import Choice, LogUniform
from lightning_ding.tune import Study, TuneResult, tune
from lightning_ding.tune.config import Candidate
from lightning_ding.tune.report import replacing

RUN: dict[str, Any] = {
    "policy": "dqn",
    "seed_everything": 1,
    "model": {
        "cfg": {
            "learn": {"update_per_collect": 1, "batch_size": 8},
            "collect": {"n_sample": 8},
            "random_collect_size": 8,
            "eval": {"evaluator": {"eval_freq": 2, "n_episode": 1}},
        }
    },
    "data": {"env_id": "CartPole-v1", "num_envs": 2, "max_env_step": 40},
    "trainer": {"accelerator": "cpu", "logger": False},
}
SPACES = {"learn.learning_rate": LogUniform(1e-4, 1e-2), "nstep": Choice(1, 2, 3)}
SEARCH: dict[str, Any] = {"trials": 3, "candidates": 1, "candidate_seeds": 2, "pruner": "none"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("study")


@pytest.fixture(scope="module")
def result(folder: Path) -> TuneResult:
    return tune(RUN, folder, SPACES, **SEARCH)


def reopened(folder: Path, **changes: Any) -> Study:
    return Study(RUN, folder, {**SEARCH, "spaces": {name: str(one) for name, one in SPACES.items()}, **changes})


def test_search_compares_the_best_trials_with_the_settings_as_given(result: TuneResult) -> None:
    as_given, best_trial = result.candidates
    assert as_given.name == "as given"
    assert dict(as_given.values) == {}
    assert best_trial.name in ("trial 0", "trial 1", "trial 2")
    assert best_trial.values.keys() <= SPACES.keys()
    assert [len(one.returns) for one in result.candidates] == [2, 2]
    assert result.best.mean == max(one.mean for one in result.candidates)


def test_best_settings_are_a_config_file_of_fit(result: TuneResult) -> None:
    run = make_run(["--config", str(result.best_file)])
    assert run.datamodule.max_env_step == 40
    for name, value in result.best.values.items():
        section = run.model.config.learn if name.startswith("learn.") else run.model.config
        assert getattr(section, name.removeprefix("learn.")) == value
    assert result.best_file.read_text().startswith(f"# lightning-ding fit --config {result.best_file}\n")


def test_real_study_ends_a_trial_early_that_is_worse_than_others(tmp_path: Path) -> None:
    spaces = {"discount_factor": "choice(0.9, 0.99)"}
    search = {"trials": 3, "candidates": 0, "pruner": "halving", "reports": 2, "seed": 0, "spaces": spaces}
    study = Study(RUN, tmp_path, search)
    found = study.run()
    first, *later = study.study.trials
    pruned = [trial for trial in later if trial.state is TrialState.PRUNED]
    assert first.state is TrialState.COMPLETE  # nothing to compare it with
    assert len(pruned) >= 1
    assert all(set(trial.intermediate_values) == {20} for trial in pruned)  # of 40 env steps
    assert all(trial.intermediate_values[20] < first.intermediate_values[20] for trial in pruned)
    assert f"trials: {3 - len(pruned)} complete, {len(pruned)} pruned" in found.summary


def test_seed_of_each_trial_is_recorded_and_used(folder: Path, result: TuneResult) -> None:
    trials = reopened(folder).study.trials
    seeds = [trial.user_attrs["seed"] for trial in trials]
    assert len(set(seeds)) == 3
    used = [yaml.safe_load((folder / "trials" / f"{slot:04d}" / "trial.yaml").read_text()) for slot in range(3)]
    assert [settings["data"]["seed"] for settings in used] == seeds
    assert [settings["seed_everything"] for settings in used] == seeds


def test_summary_and_plots_are_written(folder: Path, result: TuneResult) -> None:
    for part in (
        "trials: 3 complete",
        "learn.learning_rate: log(0.0001, 0.01)",
        "comparison over 2 new seeds",
        "winner:",
    ):
        assert part in result.summary
    assert (folder / "summary.txt").read_text() == result.summary + "\n"
    assert (folder / "history.png").stat().st_size > 1000


def test_study_that_has_ended_is_not_run_again(
    folder: Path, result: TuneResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightning_ding.tune.study.run_trial", None)
    again = reopened(folder).run()
    assert again.candidates == result.candidates
    assert again.best == result.best


def test_results_are_replaced_and_never_written_in_place(folder: Path, result: TuneResult) -> None:
    files = [folder / name for name in ("best.yaml", "summary.txt", "history.png")]
    with ExitStack() as stack:
        old = [stack.enter_context(file.open("rb")) for file in files]  # as another process reads them
        reopened(folder).run()
        for file, opened in zip(files, old, strict=True):
            assert not os.path.samestat(os.fstat(opened.fileno()), file.stat()), file
    assert not list(folder.glob(".*"))


def test_result_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    file = tmp_path / "best.yaml"
    file.write_text("old")

    def write() -> None:
        with replacing(file) as new:
            new.write_text("ha")
            raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        write()
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("failing", "best", "returns", "mean"),
    [
        ("trial_1_seed_[12]", "as given", [[150.0, 150.0, 150.0], [200.0]], 150.0),
        (".*_seed_[12]", "as given", [[150.0], [200.0]], float("-inf")),
        ("as_given_seed_0", "trial 1", [[150.0, 150.0], [200.0, 200.0, 200.0]], 200.0),
    ],
)
def test_settings_that_diverge_with_a_seed_do_not_win(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, best: str, returns: list[list[float]], mean: float
) -> None:
    def run_trial(maker: Any, settings: dict[str, Any], *_: Any) -> float:
        name = Path(settings["trainer"]["default_root_dir"]).name
        if re.fullmatch(failing, name):
            raise NonFiniteError.__new__(NonFiniteError)  # its arguments describe an update
        return 200.0 if name.startswith("trial_1") or name == "0001" else 150.0

    monkeypatch.setattr("lightning_ding.tune.study.run_trial", run_trial)
    found = tune(RUN, tmp_path, SPACES, **{**SEARCH, "trials": 2, "candidate_seeds": 3})
    assert [list(one.returns) for one in found.candidates] == returns
    assert (found.best.name, found.best.mean) == (best, mean)
    incomplete = [one.name for one in found.candidates if len(one.returns) < 3]
    for name in incomplete:
        assert re.search(rf"{name} +no return with \d of 3 seeds", found.summary)


def test_values_of_a_choice_keep_their_type(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"choice\(huber, \"none\"\) holds 'none'"):
        tune(RUN, tmp_path, {"learn.loss": Choice("huber", "none")})


def test_folder_of_another_search_is_refused(folder: Path, result: TuneResult) -> None:
    with pytest.raises(ValueError, match=r"folder must be a new folder, or .* tune.metric='last', got .*'best'"):
        reopened(folder, metric="best")


def test_standard_error_is_that_of_the_mean() -> None:
    one = Candidate("trial 1", {}, [1.0, 2.0, 6.0])  # mean 3, variance (4 + 1 + 9) / 2 = 7, error sqrt(7 / 3)
    assert one.mean == 3
    assert one.standard_error == pytest.approx((7 / 3) ** 0.5, rel=1e-6)


@pytest.mark.parametrize(("pruner", "kind"), [("halving", "SuccessiveHalvingPruner"), ("median", "MedianPruner")])
def test_pruner_and_sampler_are_those_of_the_config(folder: Path, pruner: str, kind: str) -> None:
    study = reopened(folder / pruner, pruner=pruner, sampler="random").study
    assert type(study.pruner).__name__ == kind
    sampler: Any = study.sampler
    assert type(sampler._sampler) is optuna.samplers.RandomSampler


def test_missing_extra_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ImportError, match=r"pip install 'lightning_ding\[tune\]'"):
        Study(RUN, tmp_path)
