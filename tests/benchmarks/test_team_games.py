"""The games of teams: a run of each kind of algorithm, and the table in the page of results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import team_games

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["vdn", "mappo"])
def test_run_writes_the_return_of_a_greedy_game(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "games.json"
    other: dict[str, Any] = {"runs": {"qmix": {"climbing": [{"seed": 0, "return": 5.0, "seconds": 1.0}]}}}
    file.write_text(json.dumps(other))
    monkeypatch.setattr(team_games, "STEPS", 300)
    options = ["--only", name, "--games", "penalty", "--seeds", "3", "--out", str(file)]
    monkeypatch.setattr("sys.argv", ["team_games", *options])
    team_games.main()
    runs = json.loads(file.read_text())["runs"]
    assert runs["qmix"] == other["runs"]["qmix"]
    (run,) = runs[name]["penalty"]
    assert run["seed"] == 3
    assert run["return"] in (-100, 0, 2, 10)


def test_table_has_the_mean_and_the_seeds() -> None:
    runs = [{"seed": seed, "return": value, "seconds": 1.0} for seed, value in enumerate((7.0, 8.0))]
    table = team_games.table({"runs": {"vdn": {"two-step": runs}}}).splitlines()
    assert table[0] == (
        "| algorithm | nonmonotonic (best 8) | climbing (best 11) | penalty (best 10) | two-step (best 8) |"
    )
    assert table[2] == "| `vdn` |  |  |  | 7.5 (7, 8) |"


def test_best_returns_are_those_of_the_games() -> None:
    from lightning_ding.envs.teams.games import MATRIX_GAMES, TwoStepGame

    found = {name: float(max(map(max, payoff))) for name, payoff in MATRIX_GAMES.items()}
    assert found | {"two-step": float(TwoStepGame.SECOND.max())} == team_games.BEST


def test_page_has_the_table_of_the_file() -> None:
    table = team_games.table(json.loads((ROOT / team_games.FILE).read_text()))
    assert table in (ROOT / "docs" / "results.md").read_text()
