"""Compares this project with its peers: docs/results/versus.md, and a table of docs/index.md and README.md.

    python -m benchmarks.versus

Reads what ``python -m benchmarks.learn`` and ``python -m benchmarks.offline`` wrote. Each row is one algorithm, env and
peer; both sides had the same env, seeds and number of env steps or updates, and each the settings of its project.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import curves, intervals, offline
from benchmarks.proofs import end_return
from lightning_ding.entry.seed_statistics import interval

HOME = {
    "dqn_cartpole": "DQN on CartPole-v1",
    "ppo_cartpole": "PPO on CartPole-v1",
    "sac_pendulum": "SAC on Pendulum-v1",
    "td3_pendulum": "TD3 on Pendulum-v1",
}
"""Experiments of the table on the home page and in README.md."""
HOME_HEAD = """| return at the end of a run | lightning_ding | best checkpoint | Stable-Baselines3 | best checkpoint |
|---|--:|--:|--:|--:|"""
SEEDS = 5
"""Seeds of each side that a comparison needs; the intervals of fewer are little more than their range."""
HOME_MARKS = ("<!-- returns -->\n", "<!-- /returns -->")
HEAD = (
    "| experiment | peer | length | return at the end, lightning_ding | return at the end, peer | intervals overlap "
    "| best checkpoint, lightning_ding | best checkpoint, peer | seconds, lightning_ding | seconds, peer | ratio |"
)
NOTES = (
    "Return at the end: interquartile mean over seeds, and its 95 % interval by the bootstrap, of the mean return of "
    "greedy episodes of the policy as it is in the last tenth of the env steps; after offline learning, of the last "
    "policy. Best checkpoint: the same of the policy of the best evaluation, on episodes that were not used to choose"
    " it (100, or 20 where the JSON file has no `n_test`); offline learning chooses none. Intervals of the return at "
    "the end that do not overlap name the side with the higher return; fewer than five seeds are not compared. "
    "Length: env steps, or updates of offline learning; both numbers where they differ. Seconds: median over the "
    "seeds, without evaluations; ratio: those of this project divided by those of the peer, so below 1 this project "
    "is faster. Settings are those that each project publishes, so a row compares settings as well as code: "
    "Tianshou's examples on CartPole stop at a return of 195 or less, and are run here for as long as this project. "
    "Seconds are rough where a run shared its cores; the JSON files have each run's command, commit, time and "
    "machine."
)


@dataclass(frozen=True)
class Side:
    """Results of one implementation in one experiment."""

    label: str
    returns: tuple[float, ...]
    """Result of each seed: its return at the end."""
    seconds: float
    """Median seconds of training."""
    length: int
    """Median env steps, or updates."""
    best: tuple[float, ...] = ()
    """Return of the best checkpoint of each seed; empty for offline learning."""

    @property
    def shown(self) -> str:
        """The interquartile mean of the returns and its interval."""
        return intervals.text(self.returns)

    @property
    def shown_best(self) -> str:
        """The same for the best checkpoints; a dash if there are none."""
        return intervals.text(self.best) if self.best else "-"


def overlap(ours: Side, peer: Side) -> str:
    """Return whether the intervals of two sides overlap, or which side has the higher return."""
    if (seeds := min(len(ours.returns), len(peer.returns))) < SEEDS:
        return f"{seeds} seed{'s' * (seeds > 1)}"
    (low, high), (other_low, other_high) = interval(ours.returns), interval(peer.returns)
    if low <= other_high and other_low <= high:
        return "yes"
    return f"no, {(ours if low > other_high else peer).label} is higher"


def learning_pairs(folder: Path) -> Iterator[tuple[str, Side, Side]]:
    """Yield the name and both sides of every experiment of ``benchmarks/learn.py`` that a peer ran too."""
    for file in sorted(folder.glob("*.json")):
        record = json.loads(file.read_text())
        sides = {side: _of_curves(side, record[side]["runs"]) for side in curves.sides_of(record)}
        for name, side in sides.items():
            if name != "ours" and "ours" in sides:
                yield file.stem, sides["ours"], side


def _of_curves(side: str, runs: Sequence[Any]) -> Side:
    length = statistics.median_low(run["curve"][-1][0] for run in runs)
    seconds = statistics.median(run["seconds"] for run in runs)
    returns, best = tuple(map(end_return, runs)), tuple(run["best"] for run in runs)
    return Side(curves.LABELS[side], returns, seconds, length, best)


def offline_pairs(file: Path) -> Iterator[tuple[str, Side, Side]]:
    """Yield the name and both sides of every algorithm of ``benchmarks/offline.py`` that a peer ran too."""
    for name, runs in json.loads(file.read_text()).items():
        sides = {side: [run for run in runs if offline.side_of(run) == side] for side in offline.LABELS}
        if all(sides.values()):
            made = [_of_data(name, side, found) for side, found in sides.items()]
            yield f"{name}, offline", made[0], made[1]


def _of_data(name: str, side: str, runs: Sequence[Any]) -> Side:
    seconds = statistics.median(run["seconds"] for run in runs)
    updates = offline.updates_of(name)
    return Side(offline.LABELS[side], tuple(run["return"] for run in runs), seconds, updates)


def row(name: str, ours: Side, peer: Side) -> str:
    """Return one line of the table."""
    differ = abs(ours.length - peer.length) > 0.05 * ours.length
    length = f"{ours.length:,} and {peer.length:,}" if differ else f"{ours.length:,}"
    cells = [name, peer.label, length, ours.shown, peer.shown, overlap(ours, peer)]
    cells += [ours.shown_best, peer.shown_best]
    cells += [f"{ours.seconds:,.1f}", f"{peer.seconds:,.1f}", f"{ours.seconds / peer.seconds:.2f}"]
    return f"| {' | '.join(cells)} |"


def page(pairs: Sequence[tuple[str, Side, Side]]) -> str:
    """Return the page with the table of all pairs."""
    lines = [
        "---\nhide: [navigation, toc]\n---\n\n# Against peers",
        "",
        "`python -m benchmarks.versus` makes this page from the results of ",
    ]
    lines[-1] += "`benchmarks/learn.py` and `benchmarks/offline.py`."
    lines += ["", HEAD, "|---|---|--:|--:|--:|---|--:|--:|--:|--:|--:|", *(row(*pair) for pair in pairs), "", NOTES]
    return "\n".join(lines) + "\n"


def home_table(pairs: Sequence[tuple[str, Side, Side]], page: str) -> str:
    """Return the table of the home page.

    Args:
        pairs: Names and sides of all comparisons.
        page: Link to the page of this module.
    """
    found = {name: (ours, peer) for name, ours, peer in pairs if peer.label == curves.LABELS["peer"]}
    rows = []
    for name, title in HOME.items():
        if name in found:
            cells = [cell for side in found[name] for cell in (side.shown, side.shown_best)]
            rows.append(f"| [{title}, {found[name][0].length:,} env steps]({page}) | {' | '.join(cells)} |")
    return "\n".join([HOME_HEAD, *rows])


def with_table(text: str, table: str, marks: tuple[str, str] = HOME_MARKS) -> str:
    """Return a page with another table between two comments.

    Args:
        text: The page.
        table: The table.
        marks: The comments, the first with the end of its line.

    Raises:
        ValueError: If the page lacks one of them.
    """
    start, end = marks
    before, first, rest = text.partition(start)
    _, last, after = rest.partition(end)
    if not (first and last):
        raise ValueError(f"page must have the lines {start.strip()} and {end}, got {text[:40]!r}")
    return f"{before}{start}{table}\n{end}{after}"


def main() -> None:
    """Read the JSON files and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("docs/results/learn"), help="folder of the JSON files")
    parser.add_argument("--offline", type=Path, default=offline.RESULT, help="JSON file of offline learning")
    parser.add_argument("--out", type=Path, default=Path("docs/results/versus.md"), help="file of the page")
    parser.add_argument("--home", type=Path, default=Path("docs/index.md"), help="file of the home page")
    parser.add_argument("--readme", type=Path, default=Path("README.md"), help="the README")
    options = parser.parse_args()
    pairs = [*learning_pairs(options.results)]
    pairs += offline_pairs(options.offline) if options.offline.is_file() else []
    if not pairs:
        parser.error(f"no experiment of both sides in {options.results} and {options.offline}")
    options.out.write_text(page(pairs))
    for file, link in ((options.home, "results/versus.md"), (options.readme, "docs/results/versus.md")):
        if file.is_file():
            file.write_text(with_table(file.read_text(), home_table(pairs, link)))


if __name__ == "__main__":
    main()
