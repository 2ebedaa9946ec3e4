"""The tables of the benchmark of teams: a row for each library, with an interval over its seeds."""

from __future__ import annotations

import json
from typing import Any

from benchmarks import teams_table

TAG = {"learned predators, learned prey": {"predators": 4.0, "prey": -3.0}}


def run(side: str, seed: int, **more: Any) -> dict[str, Any]:
    return {"side": side, "algorithm": "mappo", "task": "game", "seed": seed, "cpu_s": 10.0, "wall_s": 20.0, **more}


def test_rows_have_the_mean_over_seeds_and_the_cpu_seconds_of_all_processes() -> None:
    runs = [run("ours", seed, **{"return": 2.0}) for seed in range(3)]
    runs += [run("epymarl", 0, cpu_s_of_envs=5.0, **{"return": -1.0}), run("ours", 0, returns=TAG), run("ours", 7)]
    assert teams_table.table(runs).splitlines()[2:] == [
        "| game | mappo | EPyMARL | 1 | -1.0 | 15 | 20 |",
        "| game | mappo | this project | 3 | 2.0 [2.0, 2.0] | 10 | 20 |",
    ]


def test_runs_with_one_seed_for_all_envs_have_a_row_of_their_own() -> None:
    runs = [run("benchmarl", seed, one_seed=seed > 0, **{"return": float(seed)}) for seed in range(3)]
    rows = [row.split(" | ")[2:5] for row in teams_table.table(runs).splitlines()[2:]]
    assert rows == [["BenchMARL", "1", "0.0"], ["BenchMARL, one seed for all envs", "2", "1.0, 2.0"]]


def test_each_kind_of_episode_of_tag_has_a_row() -> None:
    runs = [run("ours", 0, returns=TAG), run("ours", 1, **{"return": 1.0})]
    assert teams_table.tag_table(runs).splitlines()[2:] == [
        "| this project | 1 | learned predators, learned prey | 4.0 | -3.0 | 10 | 20 |"
    ]


def test_published_runs_are_counted_once() -> None:
    runs = json.loads(teams_table.FILE.read_text())["returns"]
    keys = [(one["task"], one["algorithm"], teams_table.library(one), one["seed"]) for one in runs]
    assert len(keys) == len(set(keys)) >= 23
