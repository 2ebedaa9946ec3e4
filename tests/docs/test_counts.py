"""Numbers that pages quote are those of the JSON files or of the page of the results."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import pytest

from tests.test_docs import DOCS


def of_json(name: str) -> Any:
    return json.loads((DOCS / "results" / f"{name}.json").read_text())


def text(page: str) -> str:
    """Return a page without its line breaks."""
    return re.sub(r"\s+", " ", (DOCS / page).read_text())


def test_counts_of_configs_of_di_engine_are_those_of_the_run() -> None:
    rows = of_json("dizoo_all")
    causes = Counter(row.get("cause", "runs") for row in rows)
    missing = {cause: number for cause, number in causes.items() if cause.startswith("missing ")}
    total, lacking = len(rows), sum(missing.values())
    page, results = text("from_di_engine.md"), text("results.md")
    assert f"{causes['runs']} of the {total} configs of DI-engine's dizoo run unchanged, and {lacking} lack" in text(
        "index.md"
    )
    assert f"({causes['runs']} of the {total} of its dizoo)" in text("../README.md")
    assert f"the {total} pairs of configs in its dizoo: {causes['runs']} run unchanged, and {lacking} lack" in page
    kinds = [missing[f"missing {kind}"] for kind in ("env", "data set", "checkpoint")]
    assert "a package ({}), a data set ({}) or a checkpoint ({})".format(*kinds) in page
    assert f"translates all {total} pairs of configs" in results
    (table,) = re.findall(r"\| configs \| cause \| \|---\|---\| (.*?) Before IQL", results)
    assert sorted(map(int, re.findall(r"\| (\d+) \| ", table))) == sorted(causes.values())
    others = re.findall(r"The others have (.*?); each ends in one line", page)
    expected = [number for cause, number in causes.items() if cause not in ("runs", *missing)]
    assert sorted(map(int, re.findall(r"\((\d+)\)", others[0]))) == sorted(expected)


def test_counts_of_files_of_di_engine_are_those_of_the_run() -> None:
    found = {
        kind: (sum(not missing for missing in files.values()), len(files))
        for kind, files in of_json("ding_names").items()
    }
    page = text("from_di_engine.md")
    assert "{} of {} env files".format(*found["env files"]) in page
    assert "{} of {} main, eval and deploy scripts".format(*found["main, eval and deploy scripts"]) in page
    assert "{} of {} policies find".format(*found["policy sources"]) in page
    assert "{} of the {} examples".format(*found["examples"]) in page


def test_counts_of_entries_of_the_zoo_of_stable_baselines3_are_the_sums_of_the_table() -> None:
    page = (DOCS / "results.md").read_text()
    rows = re.findall(r"^\| `\w+\.yml` \| (\d+) \| (\d+) \| (\d+) \|", page, re.MULTILINE)
    entries, translated, whole = (sum(map(int, column)) for column in zip(*rows, strict=True))
    assert f"| all | {entries} | {translated} | {whole} | |" in page
    assert f"All {translated} entries for the algorithms that it translates are translated, {whole} of them" in page


def test_counts_of_tasks_of_the_first_hour_are_those_of_its_page() -> None:
    page = (DOCS / "results" / "first_hour.md").read_text()
    tasks = len(re.findall(r"^\| `\w+` \|", page, re.MULTILINE))
    assert f"lists {tasks} tasks of a new user" in text("results.md")
    assert f" of {tasks} tasks of a new user work" in page


def test_collectors_of_the_guide_are_those_of_the_run() -> None:
    run = of_json("distributed")
    speed = run["results"]["throughput flask_fs 8"]["env_steps_per_second"]
    ratio = run["ratios_to_one"]["throughput flask_fs 8"]
    assert f"[{speed:,.0f} env steps per second, {ratio:.1f} times as many as one]" in text("guides/scaling.md")
    assert f"| 8 | {speed:,.0f} |" in text("distributed.md")


@pytest.mark.parametrize(
    ("page", "pattern", "expected"),
    [
        ("index.md", r"DQN takes ([\d.]+) s\.|compilation, ([\d.]+) s for DQN", 2),
        ("guides/speed.md", r"([\d.,]+) env steps/s, `\"sync\"` [\d,]+ \(\[collecting\]", 1),
        ("guides/speed.md", r"env steps/s, `\"sync\"` ([\d,]+) \(\[collecting\]", 1),
        ("guides/speed.md", r"1,024 envs: ([\d.]+) ms of CPU|eager ([\d.]+), a |function in JAX ([\d.]+)", 3),
        ("guides/tensor_envs.md", r"takes ([\d.]+) ms of CPU time compiled|and ([\d.]+) ms eager, with 64", 2),
    ],
)
def test_number_that_a_page_quotes_is_one_of_the_results(page: str, pattern: str, expected: int) -> None:
    quoted = [number for groups in re.finditer(pattern, text(page)) for number in groups.groups() if number]
    assert len(quoted) == expected
    results = text("results.md")
    assert [number for number in quoted if not re.search(rf"[|,] {re.escape(number)} (\||s\b)", results)] == []
