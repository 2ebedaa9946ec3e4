"""Compares this project with published returns: docs/results/published.md.

    python -m benchmarks.published

The published numbers are those of the projects' own pages and files, to which the table links.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import curves, learn
from benchmarks.intervals import number, text
from benchmarks.proofs import PROOFS, end_return
from lightning_ding.entry.seed_statistics import interquartile_mean

GITHUB = "https://github.com"
ZOO = f"[RL Baselines3 Zoo]({GITHUB}/DLR-RM/rl-baselines3-zoo/blob/22e3ff2/benchmark.md)"
TIANSHOU = f"[Tianshou]({GITHUB}/thu-ml/tianshou/blob/f2402056/examples/mujoco/README.md)"
SIMBA_V2 = f"[SimbaV2's baselines]({GITHUB}/DAVIAN-Robotics/SimbaV2/tree/master/results/baseline)"
SIMBA = f"[SimBa]({GITHUB}/SonyResearch/simba/tree/7d0358b/results)"
XQC = f"[XQC]({GITHUB}/danielpalenicek/xqc/blob/9a6832b/results/xqc.csv)"
GYMNAX = f"[gymnax]({GITHUB}/RobertTLange/gymnax)"


@dataclass(frozen=True)
class Published:
    """A published return of an experiment's algorithm and env."""

    source: str
    mean: float
    std: float | None = None
    """Standard deviation over seeds; None for a single run."""
    note: str = ""
    """What differs from the experiment."""


PPO_NOTE = "Gym's v3 env (v2 of the pendulum and Reacher), ten seeds; the best mean over the run"
PUBLISHED = {
    "qrdqn_cartpole": Published(ZOO, 500.0, None, "one run"),
    "ppo_lunarlander": Published(ZOO, 242.1, None, "one run"),
    "ppo_minigrid": Published(ZOO, 0.964, None, "one run; actions are drawn"),
    "ppo_minigrid_unlock": Published(ZOO, 0.963, None, "one run; actions are drawn"),
    "ppo_minigrid_key_corridor": Published(ZOO, 0.949, None, "one run; actions are drawn"),
    "sac_pendulum": Published(ZOO, -157.0, None, "one run"),
    "td3_pendulum": Published(ZOO, -151.9, None, "one run"),
    "sac_mountaincar_continuous": Published(ZOO, 94.7, None, "one run"),
    "tqc_fetch_reach": Published(ZOO, -1.66, None, "one run"),
    "ppo_halfcheetah": Published(TIANSHOU, 5_784, 1_244, PPO_NOTE),
    "ppo_hopper": Published(TIANSHOU, 2_609, 701, PPO_NOTE),
    "ppo_walker2d": Published(TIANSHOU, 3_589, 757, PPO_NOTE),
    "ppo_ant": Published(TIANSHOU, 3_258, 1_079, PPO_NOTE),
    "ppo_double_pendulum": Published(TIANSHOU, 9_231, 270, PPO_NOTE),
    "ppo_reacher": Published(TIANSHOU, -4.1, 0.3, PPO_NOTE),
    "ppo_swimmer": Published(ZOO, 281.6, None, "one run"),
    "sac_halfcheetah": Published(SIMBA_V2, 6_156, 700, "HalfCheetah-v4"),
    "sac_hopper": Published(SIMBA_V2, 1_103, 368, "Hopper-v4"),
    "sac_walker2d": Published(SIMBA_V2, 690, 241, "Walker2d-v4"),
    "crossq_halfcheetah": Published(SIMBA_V2, 8_112, None, "HalfCheetah-v4; wider critics"),
    "xqc_hopper": Published(XQC, 2_735, 617, "Hopper-v4, ten seeds; critics of four layers of 512"),
    "sac_simba": Published(SIMBA, 900, 80, "critics of width 512"),
    "ppo_minatar": Published(GYMNAX, 28, None, "ten times as many env steps"),
    "ppo_minatar_asterix": Published(GYMNAX, 15, None, "ten times as many env steps"),
    "ppo_minatar_freeway": Published(GYMNAX, 58, None, "ten times as many env steps"),
    "ppo_minatar_space_invaders": Published(GYMNAX, 131, None, "ten times as many env steps"),
}
"""Returns after as many env steps as the experiment has, unless the note says otherwise."""
HEAD = """---
hide: [navigation, toc]
---

# Against published returns

`python -m benchmarks.published` makes this page from the results of `benchmarks/learn.py`.

| experiment | env | env steps | published | source | what differs | here, at the end | seeds | compared |
|---|---|--:|--:|---|---|--:|--:|---|
"""
NOTES = """
Published: the mean over seeds and their standard deviation, or one run. Here: the interquartile mean and its 95 %
interval by the bootstrap of the return of the policy as it is in the last tenth of the env steps, see
[how to read the tables](learning.md#how-to-read-the-tables). Compared: above, or at least equal to, the published mean;
otherwise within a standard deviation of it, or below. A single published run has no deviation. Other versions of an env
have other rewards and observations, and settings differ, so that rows compare what a user gets, not algorithms.
"""


def row(name: str, record: dict[str, Any]) -> str:
    """Return the line of an experiment.

    Args:
        name: A key of ``PUBLISHED``.
        record: The JSON file of its runs.
    """
    found, returns = PUBLISHED[name], [end_return(run) for run in record["ours"]["runs"]]
    spread = "" if found.std is None else f" ± {number(found.std)}"
    cells = [name, curves.env_of(record), f"{PROOFS[name].budget:,}", number(found.mean) + spread, found.source]
    cells += [found.note, text(returns), str(len(returns)), compared(found, interquartile_mean(returns))]
    return f"| {' | '.join(cells)} |"


def compared(found: Published, result: float) -> str:
    """Return where a result is, relative to what was published."""
    if result >= found.mean:
        return "above"
    return "within one deviation" if found.std is not None and result >= found.mean - found.std else "below"


def rows(folder: Path) -> Iterator[str]:
    """Yield the line of every experiment that has been run here.

    Args:
        folder: Folder of the JSON files that ``benchmarks.learn`` writes.
    """
    for name in PUBLISHED:
        record = learn.read(name, folder)
        if "ours" in record:
            yield row(name, record)


def page(folder: Path) -> str:
    """Return the page.

    Args:
        folder: Folder of the JSON files that ``benchmarks.learn`` writes.
    """
    return HEAD + "\n".join(rows(folder)) + "\n" + NOTES


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("docs/results"), help="folder of the page")
    options = parser.parse_args()
    (options.results / "published.md").write_text(page(options.results / "learn"))


if __name__ == "__main__":
    main()
