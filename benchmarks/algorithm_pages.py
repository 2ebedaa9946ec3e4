"""Write what was measured of each algorithm into its page in docs/algorithms, between two comments.

    python -m benchmarks.algorithm_pages

Reads what ``python -m benchmarks.learn`` and ``python -m benchmarks.offline`` wrote. A page has a row for each of its
experiments in ``benchmarks/proofs.py`` and for each of its runs on data sets; what is outside the comments is kept.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import curves, learn, offline, versus
from benchmarks.intervals import number
from benchmarks.proofs import PROOFS
from benchmarks.zoo_page import ALGORITHMS, RESULTS, algorithm_of

START, END = "<!-- measured -->", "<!-- /measured -->"
PEER = (("peer and its return", "---"), ("ratio of seconds", "--:"))
"""Last columns of both tables, which a table without peers leaves out: titles and alignments."""
LEARN = (
    ("experiment", "---"),
    ("env", "---"),
    ("return at the end", "--:"),
    ("best checkpoint", "--:"),
    ("required", "--:"),
    ("seeds that passed", "---"),
    ("env steps to it", "---"),
    *PEER,
)
OFFLINE = (
    ("data set run", "---"),
    ("env", "---"),
    ("return of each seed", "---"),
    ("mean in data", "--:"),
    ("best in data", "--:"),
    ("updates", "--:"),
    ("seconds", "--:"),
    *PEER,
)
LEARN_NOTE = (
    "[How to read the tables](../results/learning.md#how-to-read-the-tables) explains returns, intervals and what a "
    "seed must reach. Env steps to it: median over the seeds, up to the first evaluation that has the required return."
)
OFFLINE_NOTE = (
    f"The return is that of the last policy, the mean of {offline.N_EVALUATION} greedy episodes. "
    "[Data sets](../results.md#data-sets) describes the data; seconds are the median over the seeds."
)
PEER_NOTE = (
    "Ratio of seconds: those of this project divided by those of the peer, each with its own published settings, which "
    "differ in networks, batches and numbers of updates too; [Against peers](../results/versus.md) has the details. "
    "[Results](../results.md#speed-of-dqn) has ratios for the same work of DQN, PPO and SAC."
)

Pairs = Mapping[str, Sequence[tuple[versus.Side, versus.Side]]]
"""Results of this project and of a peer, for each peer of an experiment, by the name that versus.md gives it."""


def cells_of(row: str) -> list[str]:
    """Return the cells of a line of a table."""
    return row.removeprefix("| ").removesuffix(" |").split(" | ")


def pairs_of(results: Path) -> Pairs:
    """Return the comparisons with peers.

    Args:
        results: Folder of the JSON files of results.
    """
    file = results / "offline.json"
    found = [*versus.learning_pairs(results / "learn")]
    found += versus.offline_pairs(file) if file.is_file() else []
    pairs: dict[str, list[tuple[versus.Side, versus.Side]]] = {}
    for name, ours, peer in found:
        pairs.setdefault(name, []).append((ours, peer))
    return pairs


def peer_cells(name: str, pairs: Pairs) -> list[str]:
    """Return the cells of ``PEER``, with a line for each peer; empty if there is none."""
    rows = [cells_of(versus.row(name, *pair)) for pair in pairs.get(name, ())]
    return ["<br>".join(f"{label}: {shown}" for _, label, _, _, shown, *_ in rows), "<br>".join(r[-1] for r in rows)]


def learn_rows(algorithm: str, folder: Path, pairs: Pairs) -> dict[str, list[str]]:
    """Return the cells of each experiment of an algorithm by its name; no cells if no run has been published.

    Args:
        algorithm: Name of a page in docs/algorithms.
        folder: Folder of the JSON files that ``benchmarks.learn`` writes.
        pairs: Comparisons with peers.
    """
    names = [name for name, proof in PROOFS.items() if algorithm_of(f"{proof.recipe}_") == algorithm]
    records = {name: learn.read(name, folder) for name in names}
    return {name: _learn_row(name, record, pairs) if "ours" in record else [] for name, record in records.items()}


def _learn_row(name: str, record: dict[str, Any], pairs: Pairs) -> list[str]:
    _, _, shown, best, _, required, seeds, budget, steps, *_ = cells_of(curves.row(name, record, "ours"))
    env = curves.env_of(record)
    link = f"[{name}](../results/learning.md#{env.lower()})"
    return [link, env, shown, best, required, seeds, f"{steps} of {budget}", *peer_cells(name, pairs)]


def offline_rows(algorithm: str, file: Path, pairs: Pairs) -> dict[str, list[str]]:
    """Return the cells of each run of an algorithm on a data set by its name; no cells if none has been published.

    Args:
        algorithm: Name of a page in docs/algorithms.
        file: JSON file that ``benchmarks.offline`` writes.
        pairs: Comparisons with peers.
    """
    record = json.loads(file.read_text()) if file.is_file() else {}
    lines = offline.table(file).splitlines()[2:] if record else []
    found = {name.strip("`"): cells for name, side, *cells in map(cells_of, lines) if side == offline.LABELS["ours"]}
    names = [name for name in offline.ALGORITHMS if offline.OTHER_ENVS.get(name, (name,))[0] == algorithm]
    return {name: _offline_row(name, found[name], record[name], pairs) if name in found else [] for name in names}


def _offline_row(name: str, returns: list[str], runs: Sequence[Any], pairs: Pairs) -> list[str]:
    seconds = statistics.median(run["seconds"] for run in runs if offline.side_of(run) == "ours")
    cells = [f"[{name}](../results/offline.json)", offline.recipe_of(name)[2], *returns]
    return [*cells, f"{offline.updates_of(name):,}", number(seconds), *peer_cells(f"{name}, offline", pairs)]


def table(columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown; the columns of ``PEER`` are left out if no row has a peer.

    Args:
        columns: Title and alignment of each column.
        rows: Cells of each line.
    """
    n_column = len(columns) if has_peer(rows) else len(columns) - len(PEER)
    titles, alignments = zip(*columns[:n_column], strict=True)
    lines = [" | ".join(row[:n_column]) for row in (titles, *rows)]
    first, *others = (f"| {line} |" for line in lines)
    return "\n".join([first, f"|{'|'.join(alignments)}|", *others])


def has_peer(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether any row has a peer."""
    return any(row[-1] for row in rows)


def measured(algorithm: str, results: Path, pairs: Pairs) -> str:
    """Return what was measured of an algorithm.

    Args:
        algorithm: Name of a page in docs/algorithms.
        results: Folder of the JSON files of results.
        pairs: Comparisons with peers.
    """
    learnt = learn_rows(algorithm, results / "learn", pairs)
    of_data = offline_rows(algorithm, results / "offline.json", pairs)
    parts = [*_part(LEARN, learnt, LEARN_NOTE), *_part(OFFLINE, of_data, OFFLINE_NOTE)]
    absent = [name for name, cells in {**learnt, **of_data}.items() if not cells]
    names = ", ".join(f"`{name}`" for name in absent)
    if not parts:
        return f"Not measured yet: no run has been published{f' of {names}' if names else ''}."
    return "\n\n".join([*parts, f"No runs have been published yet of: {names}."] if names else parts)


def _part(columns: Sequence[tuple[str, str]], rows: Mapping[str, list[str]], note: str) -> Iterator[str]:
    """Yield a table of the rows that have cells, and its note; nothing if there is no such row."""
    shown = [cells for cells in rows.values() if cells]
    if shown:
        yield table(columns, shown)
        yield f"{note} {PEER_NOTE}" if has_peer(shown) else note


def rewritten(page: str, text: str) -> str:
    """Return a page with another text between its comments.

    Args:
        page: Text of the page.
        text: New text between ``START`` and ``END``.

    Raises:
        ValueError: If the page does not have both comments.
    """
    before, start, rest = page.partition(f"{START}\n")
    _, end, after = rest.partition(END)
    if not (start and end):
        raise ValueError(f"page must have the lines {START} and {END}, got {page[:40]!r}")
    return f"{before}{start}\n{text}\n\n{end}{after}"


def pages(results: Path, folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield the file and the new text of every page.

    Args:
        results: Folder of the JSON files of results.
        folder: Folder of the pages.
    """
    pairs = pairs_of(results)
    for file in sorted(folder.glob("*.md")):
        yield file, rewritten(file.read_text(), measured(file.stem, results, pairs))


def main() -> None:
    """Write the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the JSON files")
    parser.add_argument("--pages", type=Path, default=ALGORITHMS, help="folder of the pages")
    options = parser.parse_args()
    for file, text in pages(options.results, options.pages):
        file.write_text(text)


if __name__ == "__main__":
    main()
