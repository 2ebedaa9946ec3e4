"""The zoo: the tuned settings in recipes/configs, and the returns of the policies that they train.

make zoo                        # trains what has not been measured, draws the curves and writes this page; many hours
python -m benchmarks.zoo_page   # writes docs/zoo.md from the results of benchmarks.learn and benchmarks.offline
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks import learn, offline
from benchmarks.curves import short_name
from benchmarks.intervals import text
from benchmarks.proofs import PROOFS, RECIPES, Run, end_return

RESULTS = Path("docs/results")
ALGORITHMS = RECIPES.parent / "docs" / "algorithms"
PROOF_OF = {
    "crossq_mujoco": "crossq_halfcheetah",
    "ppo_mujoco": "ppo_halfcheetah",
    "sac_mujoco": "sac_hopper",
    "td3_mujoco": "td3_halfcheetah",
    "tqc_mujoco": "tqc_halfcheetah",
    "r2d2_cartpole": "r2d2_no_velocity",
    "recurrent_ppo_cartpole": "recurrent_ppo_no_velocity",
    "recurrent_ppo_t_maze": "gtrxl_t_maze",
}
"""Experiments of ``benchmarks/proofs.py`` that do not have the name of their YAML file."""
HEAD = """---
hide: [toc]
---

# Zoo

An entry is a YAML file with tuned settings, and the return of the policies that they train.
`lightning-ding fit --config recipes/configs/ENTRY.yaml` trains seed 0 of an entry. Add `--seed_everything 1
--data.seed 1` for another seed. `lightning-ding test` with the same options and `--ckpt_path PATH` evaluates a
checkpoint. `python -m benchmarks.offline --only_data` makes the data sets that some entries need; the option that names
them is below the tables.
"""
ENVS = """
## Envs

The return at the end is that of the policy as it is in the last tenth of the env steps: the mean of all evaluations
there. Each run also keeps the policy of its best evaluation; the return of this best checkpoint is the mean of 100
other greedy episodes (20 in older runs). The table has interquartile means over seeds with their 95 % intervals by the
bootstrap, and the number of seeds that were measured. These runs do not end early at a `stop_value`.

| entry | algorithm | env | return at the end | best checkpoint | seeds | env steps |
|---|---|---|--:|--:|--:|--:|
"""
DATA_SETS = """
## Data sets

The return is the mean of 100 greedy episodes of the last policy of a run; nothing is chosen with the env. The page
[Results](results.md#data-sets) says how the data were made, and what return they have.

| entry | algorithm | env | return | seeds | updates |
|---|---|---|--:|--:|--:|
"""
DISTRIBUTED = """
## Distributed runs

The entries `parallel_*.yaml` are configs of `lightning-ding parallel`. Their returns are on the page
[Distributed](distributed.md#measurements).

## Making this page

`make zoo` trains five seeds of every entry, leaves out those that [the results](results/learning.md) have with the same
settings, draws the curves and writes the tables. `make zoo KEEP=commit` repeats the runs of other commits too,
and `make zoo SIDES=ours` leaves out the peers. A run that fails is listed at the end and does not stop the others.
"""


@dataclass(frozen=True)
class Entry:
    """A YAML file and the returns of the policies that it trains."""

    name: str
    """Name of the file, without its ending."""
    algorithm: str
    env: str
    length: int
    """Env steps of the run, or updates of a run on a data set."""
    returns: list[float]
    """Return at the end of each seed that was run with these settings."""
    best: list[float]
    """Return of the best checkpoint of each seed; empty on data sets, where none is chosen."""
    is_offline: bool
    data: str = ""
    """Option of the command that names the data set."""

    def row(self) -> str:
        """Return the line of the table."""
        file = f"recipes/configs/{self.name}.yaml"
        cells = [f"[{self.name}](../{file})", f"[{self.algorithm}](algorithms/{self.algorithm}.md)"]
        cells += [self.env, text(self.returns) if self.returns else "not yet"]
        cells += [] if self.is_offline else [text(self.best) if self.best else "not yet"]
        cells += [str(len(self.returns)), f"{self.length:,}"]
        return f"| {' | '.join(cells)} |"


def entries(results: Path) -> Iterator[Entry]:
    """Yield every entry of the zoo.

    Args:
        results: Folder of the JSON files of results.
    """
    of_data_sets = json.loads((results / "offline.json").read_text())
    for file in sorted((RECIPES / "configs").glob("*.yaml")):
        if file.stem.startswith("parallel_"):
            continue
        run = yaml.safe_load(file.read_text())
        algorithm, is_offline = algorithm_of(file.stem), "max_train_iter" in run["data"]
        runs = [] if is_offline else runs_of(file.stem, results / "learn")
        found = offline_returns(algorithm, of_data_sets) if is_offline else [end_return(run) for run in runs]
        best = [run["best"] for run in runs]
        length = run["data"]["max_train_iter" if is_offline else "max_env_step"]
        option = data_option(file.stem, algorithm)
        env = short_name(run["data"]["env_id"], run["data"].get("env_kwargs"))
        yield Entry(file.stem, algorithm, env, length, found, best, is_offline, option)


def algorithm_of(name: str) -> str:
    """Return the algorithm of an entry: the longest start of its name that has a page in docs/algorithms.

    Args:
        name: Name of the YAML file, without its ending.
    """
    pages = {page.stem for page in ALGORITHMS.glob("*.md")}
    return max((page for page in pages if name.startswith(f"{page}_")), key=len)


def data_option(name: str, algorithm: str) -> str:
    """Return the option of the command that names the data set of an entry; an empty string if it has none.

    Args:
        name: Name of the YAML file, without its ending.
        algorithm: Name of its recipe.
    """
    if algorithm in offline.ALGORITHMS:
        return f"--data.dataset {offline.file_of(offline.ALGORITHMS[algorithm])}"
    proof = PROOFS.get(PROOF_OF.get(name, name))
    if proof is None:  # not measured yet
        return ""
    if proof.expert is not None:
        return f"--model.cfg.reward_model.data_path {offline.file_of(proof.expert)}"
    return "" if proof.demonstrations is None else f"--data.demonstrations {offline.file_of(proof.demonstrations)}"


def runs_of(name: str, folder: Path) -> list[Run]:
    """Return the run of each seed that was made with the settings of today.

    Args:
        name: Name of the YAML file, without its ending.
        folder: Folder of the JSON files that ``benchmarks.learn`` writes.
    """
    proof = PROOF_OF.get(name, name)
    record = learn.read(proof, folder)
    is_same = proof in PROOFS and record.get("budget") == PROOFS[proof].budget
    return learn.kept_runs(record, proof, "ours") if is_same else []


def offline_returns(algorithm: str, record: dict[str, Any]) -> list[float]:
    """Return the return of each seed of an algorithm for data sets.

    Args:
        algorithm: A key of ``benchmarks.offline.ALGORITHMS``.
        record: Results of all algorithms.
    """
    ours = [run for run in record.get(algorithm, ()) if offline.side_of(run) == "ours"]
    settings = offline.settings_of(algorithm, "ours")
    return [run["return"] for run in ours if run.get("config", settings) == settings]


def page(results: Path) -> str:
    """Return the page.

    Args:
        results: Folder of the JSON files of results.
    """
    parts = [HEAD]
    for is_offline, start in enumerate((ENVS, DATA_SETS)):
        found = [one for one in entries(results) if one.is_offline is bool(is_offline)]
        options = "\n".join(f"* {one.name}: `{one.data}`" for one in found if one.data)
        parts += [start, "\n".join(one.row() for one in found), f"\n\nOptions for data sets:\n\n{options}\n"]
    return "".join([*parts, DISTRIBUTED])


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the JSON files")
    parser.add_argument("--out", type=Path, default=Path("docs/zoo.md"), help="file of the page")
    options = parser.parse_args()
    options.out.write_text(page(options.results))


if __name__ == "__main__":
    main()
