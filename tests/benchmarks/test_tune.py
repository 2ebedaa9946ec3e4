"""The benchmark of the search for hyper-parameters compares its winner with the recipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import tune
from lightning_ding.tune.config import Candidate


def verdict(*winner: float) -> tune.Verdict:
    return tune.Verdict(Candidate("recipe", {}, [100.0, 104.0]), Candidate("winner", {"nstep": 1}, winner))


def test_winner_is_worse_if_it_is_lower_by_more_than_the_standard_error() -> None:
    # Means 102 and 98; standard errors 2 and 1, of the difference sqrt(4 + 1) = 2.24.
    assert verdict(97.0, 99.0).standard_error == pytest.approx(5**0.5, rel=1e-6)
    assert verdict(97.0, 99.0).is_worse
    assert not verdict(100.0, 100.0).is_worse  # 2 lower, with a standard error of 2
    assert not verdict(200.0, 200.0).is_worse


def test_recipe_and_winner_have_the_same_seeds_and_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[tuple[Any, ...]] = []

    def train(maker: Any, settings: dict[str, Any], *_: Any) -> float:
        runs.append((settings["data"]["seed"], settings["data"]["max_env_step"], settings["model"]["cfg"]["nstep"]))
        return float(len(runs))

    monkeypatch.setattr(tune, "run_trial", train)
    found = tune.judge(tune.settings_of(500), {"nstep": 1}, [7, 8], tmp_path)
    assert runs == [(7, 500, 3), (8, 500, 3), (7, 500, 1), (8, 500, 1)]
    assert (found.recipe.returns, found.winner.returns) == ([1.0, 2.0], [3.0, 4.0])


@pytest.mark.slow
def test_search_is_no_worse_than_the_recipe(tmp_path: Path) -> None:
    assert tune.main(["--out", str(tmp_path / "tune.json")]) == 0
    assert len(json.loads((tmp_path / "tune.json").read_text())["returns"]["recipe"]) == tune.SEEDS
