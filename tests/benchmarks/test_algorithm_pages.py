"""The pages of algorithms have what was measured, from the JSON files of results."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import algorithm_pages, intervals, offline
from benchmarks.algorithm_pages import END, START, learn_rows, measured, offline_rows, pairs_of, rewritten
from benchmarks.proofs import PROOFS
from benchmarks.zoo_page import ALGORITHMS

ROOT = Path(__file__).parents[2]
NAMES = [page.stem for page in sorted(ALGORITHMS.glob("*.md"))]


def runs(*made: tuple[float, float, int]) -> dict[str, Any]:
    """Return the runs of a side, each with a return, seconds, and the env step of the evaluation that has it."""
    found = [
        {"seed": seed, "seconds": seconds, "best": 500.0, "curve": [(10, 1.0, -9e9), (step, seconds, end)]}
        for seed, (end, seconds, step) in enumerate(made)
    ]
    return {"runs": found}


def write(folder: Path, name: str, **sides: Any) -> None:
    """Write the JSON file of an experiment."""
    proof = PROOFS[name]
    record = {"env_id": proof.env_id, "budget": proof.budget, "bar": proof.bar, "is_ceiling": proof.is_ceiling}
    (folder / "learn").mkdir(exist_ok=True)
    (folder / "learn" / f"{name}.json").write_text(json.dumps({**record, **sides}))


def write_offline(folder: Path, **made: list[tuple[str, float, float]]) -> None:
    """Write the JSON file of runs on data sets, each with its side, return and seconds."""
    data = {"mean": -926.4, "max": -267.5}
    record = {
        name: [
            {"side": side, "seed": i, "return": score, "seconds": seconds, "data": data}
            for i, (side, score, seconds) in enumerate(of_one)
        ]
        for name, of_one in made.items()
    }
    (folder / "offline.json").write_text(json.dumps(record))


def rows_of(text: str) -> list[str]:
    """Return the lines of tables, without their heads."""
    return [line for line in text.splitlines() if line.startswith("| [")]


def test_pages_are_what_the_script_writes() -> None:
    written = algorithm_pages.pages(ROOT / "docs" / "results", ALGORITHMS)
    assert [file.name for file, text in written if file.read_text() != text] == [], (
        "python -m benchmarks.algorithm_pages"
    )


def test_row_has_the_return_its_interval_the_env_steps_and_the_peer(tmp_path: Path) -> None:
    ours = runs((470.0, 10.0, 3_000), (480.0, 20.0, 2_000), (490.0, 30.0, 1_000))
    write(tmp_path, "dqn_cartpole", ours=ours, peer=runs((500.0, 40.0, 1_000)))
    text = measured("dqn", tmp_path, pairs_of(tmp_path))
    assert rows_of(text) == [
        "| [dqn_cartpole](../results/learning.md#cartpole-v1) | CartPole-v1 | 480.0 [470.0, 490.0] "
        "| 500.0 [500.0, 500.0] | 475 | 2 of 3 "
        "| 2,000 of 50,000 | Stable-Baselines3, zoo: 500.0 | 0.50 |"
    ]
    assert "[Against peers](../results/versus.md)" in text
    assert "No runs have been published yet of: `dqn_no_velocity`, `dqn_acrobot`, " in text


def test_row_of_a_ceiling_says_below_and_tables_without_a_peer_have_no_columns_for_it(tmp_path: Path) -> None:
    write(tmp_path, "dqn_bitflip", ours=runs((0.0, 5.0, 100), (0.0, 5.0, 100), (0.5, 5.0, 100)))
    text = measured("her", tmp_path, pairs_of(tmp_path))
    assert rows_of(text) == [
        "| [dqn_bitflip](../results/learning.md#bitflipenv) | BitFlipEnv | 0.17 [0.00, 0.50] "
        "| 500.0 [500.0, 500.0] | below 0.1 | 2 of 3 "
        "| - of 100,000 |"
    ]
    assert "peer" not in text


def test_every_peer_of_an_experiment_has_a_line_in_its_row(tmp_path: Path) -> None:
    peers = {"peer": runs((-150.0, 40.0, 100)), "sbx": runs((-140.0, 5.0, 100))}
    write(tmp_path, "sac_pendulum", ours=runs((-160.0, 10.0, 100)), **peers)
    (row,) = rows_of(measured("sac", tmp_path, pairs_of(tmp_path)))
    assert row.endswith("| Stable-Baselines3, zoo: -150.0<br>SBX, zoo: -140.0 | 0.25<br>2.00 |")


def test_row_of_a_data_set_has_each_seed_the_data_and_the_peer(tmp_path: Path) -> None:
    made = [("ours", -800.4, 10.0), ("ours", -500.6, 14.0), ("ours", -700.0, 12.0), ("tianshou", -600.0, 48.0)]
    write_offline(tmp_path, td3_bc=made)
    assert rows_of(measured("td3_bc", tmp_path, pairs_of(tmp_path))) == [
        "| [td3_bc](../results/offline.json) | Pendulum-v1 | -800, -501, -700 | -926 | -268 "
        f"| {offline.updates_of('td3_bc'):,} | 12.0 | Tianshou, examples: -600.0 | 0.25 |"
    ]


def test_run_of_a_recipe_on_another_data_set_is_on_the_page_of_its_algorithm(tmp_path: Path) -> None:
    write_offline(tmp_path, bc_cartpole=[("ours", 500.0, 1.0)])
    text = measured("bc", tmp_path, pairs_of(tmp_path))
    assert [row.split(" | ")[:3] for row in rows_of(text)] == [
        ["| [bc_cartpole](../results/offline.json)", "CartPole-v1", "500"]
    ]
    assert "No runs have been published yet of: `bc`." in text


def test_algorithm_without_runs_has_a_sentence(tmp_path: Path) -> None:
    expected = "Not measured yet: no run has been published of `mdqn_cartpole`."
    assert measured("mdqn", tmp_path, pairs_of(tmp_path)) == expected
    write(tmp_path, "mdqn_cartpole", peer=runs((500.0, 40.0, 1_000)))
    assert measured("mdqn", tmp_path, pairs_of(tmp_path)) == expected
    assert measured("new", tmp_path, {}) == "Not measured yet: no run has been published."


def test_every_experiment_and_every_run_on_a_data_set_is_on_one_page(tmp_path: Path) -> None:
    listed = [name for page in NAMES for name in learn_rows(page, tmp_path, {})]
    assert sorted(listed) == sorted(PROOFS)
    listed = [name for page in NAMES for name in offline_rows(page, tmp_path / "offline.json", {})]
    assert sorted(listed) == sorted(offline.ALGORITHMS)


def test_page_of_the_tutorial_is_what_the_script_writes() -> None:
    tutorial = (ROOT / "docs" / "contributing" / "algorithm.md").read_text()
    assert rewritten(tutorial, measured("mellowmax", ROOT / "docs" / "results", {})) == tutorial


def test_text_outside_the_comments_is_kept_and_a_page_without_them_is_refused() -> None:
    page = f"# A\n\n{START}\nold\n{END}\n\nA remark.\n"
    new = f"# A\n\n{START}\n\nnew\n\n{END}\n\nA remark.\n"
    assert rewritten(page, "new") == rewritten(new, "new") == new
    for without in (page.replace(START, ""), page.replace(END, "")):
        with pytest.raises(ValueError, match="page must have the lines"):
            rewritten(without, "new")


def test_command_writes_the_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "sql_cartpole", ours=runs((460.0, 10.0, 1_000)))
    page = tmp_path / "sql.md"
    page.write_text(f"{START}\n{END}\nA remark.\n")
    arguments = ["algorithm_pages", "--results", str(tmp_path), "--pages", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", arguments)
    algorithm_pages.main()
    (row,) = rows_of(page.read_text())
    assert row.endswith("| CartPole-v1 | 460.0 | 500.0 | 450 | 1 of 1 | 1,000 of 50,000 |")
    assert page.read_text().endswith(f"{END}\nA remark.\n")


@pytest.mark.parametrize(("seeds", "expected"), [([5.0], "5.00"), ([10.0, 20.0, 60.0], "30.0 [10.0, 60.0]")])
def test_text_shows_the_interval_unless_there_is_one_seed(seeds: list[float], expected: str) -> None:
    assert intervals.text(seeds) == expected
