"""The comparison with peers, on results that were made up."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import offline, versus
from benchmarks.versus import Side, overlap, row


def side(*returns: float, label: str = "x", seconds: float = 10.0, length: int = 1000) -> Side:
    return Side(label, returns, seconds, length, tuple(one + 1 for one in returns))


def runs(*ends: float, seconds: float, steps: int = 1000) -> dict[str, Any]:
    found = [
        {"seed": seed, "seconds": seconds, "best": 9.0, "curve": [(steps, seconds, end)]}
        for seed, end in enumerate(ends)
    ]
    return {"runs": found}


@pytest.mark.parametrize(
    ("ours", "peer", "expected"),
    [
        ((9.0, 9.5, 10.0, 10.5, 11.0), (10.0, 10.5, 11.0, 11.5, 12.0), "yes"),
        ((9.0, 9.5, 10.0, 10.5, 11.0), (19.0, 19.5, 20.0, 20.5, 21.0), "no, peer is higher"),
        ((9.0, 9.5, 10.0, 10.5, 11.0), (0.0, 0.5, 1.0, 1.5, 2.0), "no, ours is higher"),
        ((9.0, 10.0, 11.0), (90.0,), "1 seed"),
        ((9.0,) * 5, (90.0,) * 4, "4 seeds"),
        ((5.0,) * 5, (5.0,) * 5, "yes"),
    ],
)
def test_overlap_names_the_higher_side(ours: tuple[float, ...], peer: tuple[float, ...], expected: str) -> None:
    assert overlap(side(*ours, label="ours"), side(*peer, label="peer")) == expected


def test_row_has_returns_and_the_ratio_of_the_seconds() -> None:
    assert row("a", side(4.0, 4.0, seconds=5.0), side(3.0, label="P", seconds=20.0)) == (
        "| a | P | 1,000 | 4.00 [4.00, 4.00] | 3.00 | 1 seed | 5.00 [5.00, 5.00] | 4.00 | 5.0 | 20.0 | 0.25 |"
    )


def test_row_shows_both_lengths_where_they_differ() -> None:
    assert "| 1,000 and 2,000 |" in row("a", side(4.0), side(3.0, length=2000))
    assert "| 1,000 |" in row("a", side(4.0), side(3.0, length=1040))


def test_page_has_a_row_for_each_peer_and_no_experiment_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "learn").mkdir()
    both = {"ours": runs(1.0, 2.0, seconds=3.0), "peer": runs(1.0, 2.0, seconds=6.0)}
    both["tianshou"] = runs(7.0, 9.0, seconds=1.5)
    (tmp_path / "learn" / "iqn_cartpole.json").write_text(json.dumps(both))
    (tmp_path / "learn" / "dqn_cartpole.json").write_text(json.dumps(both))
    (tmp_path / "learn" / "pg_cartpole.json").write_text(json.dumps({"ours": both["ours"]}))
    made: list[dict[str, Any]] = [{"seed": seed, "seconds": 8.0, "return": 1.0} for seed in range(2)]
    made += [{**run, "seconds": 2.0, "side": "tianshou"} for run in made]
    (tmp_path / "offline.json").write_text(json.dumps({"cql": made, "iql": made[:2]}))
    arguments = ["--results", tmp_path / "learn", "--offline", tmp_path / "offline.json", "--out", tmp_path / "v.md"]
    (tmp_path / "home.md").write_text("# Home\n\n<!-- returns -->\nold\n<!-- /returns -->\nmore\n")
    arguments += ["--home", tmp_path / "home.md", "--readme", tmp_path / "none.md"]
    monkeypatch.setattr(sys, "argv", ["versus", *map(str, arguments)])
    versus.main()
    rows = [line for line in (tmp_path / "v.md").read_text().splitlines() if line.startswith("| ")][1:]
    assert [line.split(" | ")[:2] for line in rows] == [
        ["| dqn_cartpole", "Stable-Baselines3, zoo"],
        ["| dqn_cartpole", "Tianshou, examples"],
        ["| iqn_cartpole", "Stable-Baselines3, zoo"],
        ["| iqn_cartpole", "Tianshou, examples"],
        ["| cql, offline", "Tianshou, examples"],
    ]
    assert [line.split(" | ")[-1] for line in rows] == ["0.50 |", "2.00 |", "0.50 |", "2.00 |", "4.00 |"]
    assert f"| {offline.updates_of('cql'):,} |" in rows[4]
    assert "| 1.50 [1.00, 2.00] | 1.50 [1.00, 2.00] | 2 seeds | 9.00 [9.00, 9.00] | 9.00 [9.00, 9.00] |" in rows[0]
    assert "| 2 seeds | - | - |" in rows[4]
    home = (tmp_path / "home.md").read_text()
    assert home.startswith(f"# Home\n\n<!-- returns -->\n{versus.HOME_HEAD}\n")
    mine, best = "1.50 [1.00, 2.00]", "9.00 [9.00, 9.00]"
    row_of_home = f"| [DQN on CartPole-v1, 1,000 env steps](results/versus.md) | {mine} | {best} | {mine} | {best} |"
    assert home.endswith(f"\n{row_of_home}\n<!-- /returns -->\nmore\n")


def test_results_without_a_pair_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["versus", "--results", str(tmp_path), "--offline", str(tmp_path / "none.json")])
    with pytest.raises(SystemExit):
        versus.main()
    assert "no experiment of both sides" in capsys.readouterr().err
