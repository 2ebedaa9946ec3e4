"""Whether this tree trains the same weights as another commit, to the last bit.

    python -m benchmarks.same_weights --base COMMIT               # all cases; about two minutes
    python -m benchmarks.same_weights --base COMMIT --cases dqn   # one of them
    make same-weights BASE=COMMIT

Checks COMMIT out into a temporary worktree and runs ``same_weights_run.py`` with the sources of both trees: all ten
algorithms with fixed seeds, on one rank and on two, each stopped at the half and continued from its checkpoint. This
tree is the one that the command is run in, with its uncommitted changes. What is compared are digests (name, dtype,
shape and bytes) of weights, target networks, normalisers and optimizer states, the counters, and the metrics of the
last evaluation. Then this tree continues from the checkpoints that COMMIT wrote, and has to end as COMMIT did.

Exits with 1 if anything differs or fails, and names the first tensor that differs. Distributed runs are left out: how
their processes take turns is not fixed. ``tests/distributed/test_chaos.py`` shows that nothing is lost in them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

Digests = dict[str, str]
Results = dict[tuple[str, str], Digests]
"""Digests by case and step."""

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = Path(__file__).with_name("same_weights_run.py")
DETERMINISTIC = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "PYTHONNOUSERSITE": "1"}
LONGEST_LOG = 2500  # characters that are shown of a step
HEADER = "== "  # prefix of the header of a step in the log
COLUMNS = ("start", "continue", "load", "base continue", "base load")


@dataclass(frozen=True)
class Run:
    """A run of the script with the sources of one tree.

    Attributes:
        tree: Folder of the sources.
        out: Folder that the script writes to.
        checkpoints: ``out`` of the run whose checkpoints are read; None reads those in ``out`` of this run.
    """

    tree: Path
    out: Path
    checkpoints: Path | None = None

    def start(self, script: Path, cases: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start the script in a new session; its output goes to ``out/log``."""
        self.out.mkdir()
        command = [sys.executable, str(script), "--tree", str(self.tree), "--out", str(self.out)]
        command += [] if self.checkpoints is None else ["--checkpoints", str(self.checkpoints)]
        command += ["--cases", *cases] if cases else []
        environment = {**os.environ, **DETERMINISTIC, "PYTHONPATH": str(self.tree)}
        with (self.out / "log").open("wb") as log:
            return subprocess.Popen(
                command, cwd=script.parent, env=environment, stdout=log, stderr=log, start_new_session=True
            )

    def results(self) -> Results:
        """Return the digests that the script wrote, those of all ranks of a step together."""
        found: Results = {}
        for file in sorted(self.out.glob("*/*_*.json")):
            step, _, rank = file.stem.rpartition("_")
            digests: Digests = json.loads(file.read_text())
            of_rank = {f"rank {rank}/{name}": digest for name, digest in digests.items()}
            found.setdefault((file.parent.name, step), {}).update(of_rank)
        return found


# ---------------------------------------------------------------------- comparing


def difference(base: Digests | None, new: Digests | None) -> str | None:
    """Return how the digests of a step differ, or None if they are the same.

    Args:
        base: Digests of the base commit by name; None if the step failed there.
        new: Digests of this tree by name; None if the step failed here.

    Example:
        >>> difference({"w": "float32[2] 12", "b": "float32[1] 34"}, {"w": "float32[2] 12", "b": "float32[1] 35"})
        'b: float32[1] 34 in the base commit, float32[1] 35 here (1 of 2 differ)'
    """
    if not base or not new:
        where = " and ".join(name for name, found in (("the base commit", base), ("this tree", new)) if not found)
        return f"failed in {where}"
    names = [*base, *(name for name in new if name not in base)]
    differing = [name for name in names if base.get(name) != new.get(name)]
    if not differing:
        return None
    first = differing[0]
    values = f"{base.get(first, 'missing')} in the base commit, {new.get(first, 'missing')} here"
    return f"{first}: {values} ({len(differing)} of {len(names)} differ)"


def compare(
    base: Results, new: Results, new_from_base: Results, cases: Collection[str]
) -> dict[tuple[str, str], str | None]:
    """Return how each step of each case differs from the base commit's, by case and column of the table.

    Args:
        base: Results of the base commit.
        new: Results of this tree.
        new_from_base: Results of this tree with the checkpoints of the base commit.
        cases: All cases; each has a start, even if it failed in both trees.
    """
    verdicts = {}
    for case, step in sorted({*base, *new, *((case, "start") for case in cases)}):
        verdicts[case, step] = difference(base.get((case, step)), new.get((case, step)))
        if step != "start":
            verdicts[case, f"base {step}"] = difference(base.get((case, step)), new_from_base.get((case, step)))
    return verdicts


def report(verdicts: Mapping[tuple[str, str], str | None], cases: Mapping[str, str]) -> bool:
    """Print a table and all differences, and return whether everything is the same.

    Args:
        verdicts: Differences that ``compare`` returned.
        cases: Description of each case by name.
    """
    width = max(map(len, cases), default=0)
    print(f"{'':{width}}  {'  '.join(COLUMNS)}")
    for case, about in cases.items():
        cells = [_cell(verdicts, case, column).ljust(len(column)) for column in COLUMNS]
        print(f"{case:{width}}  {'  '.join(cells)}  {about}")
    bad = {key: verdict for key, verdict in verdicts.items() if verdict is not None}
    print()
    for (case, column), verdict in bad.items():
        print(f"{case}, {column}: {verdict}")
    count = len(verdicts)
    print(f"{count - len(bad)} of {count} comparisons are the same" if bad else f"all {count} comparisons are the same")
    return not bad


def _cell(verdicts: Mapping[tuple[str, str], str | None], case: str, column: str) -> str:
    if (case, column) not in verdicts:
        return "-"
    return "same" if verdicts[case, column] is None else "DIFF"


def parts_of_log(log: str, cases: Collection[str]) -> list[str]:
    r"""Return what the script printed in each step of some cases, cut to its end if it is long.

    Example:
        >>> parts_of_log("== dqn, start\na\n== c51, start\nb\n", ["c51"])
        ['c51, start\nb']
    """
    parts = [part.strip() for part in f"\n{log}".split(f"\n{HEADER}")[1:] if part.partition(",")[0] in cases]
    return [part if len(part) <= LONGEST_LOG else f"{part.splitlines()[0]}\n...{part[-LONGEST_LOG:]}" for part in parts]


# ---------------------------------------------------------------------- running


@contextmanager
def worktree(commit: str, folder: Path) -> Iterator[Path]:
    """Check a commit out into a folder, and remove it in the end."""
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", str(folder), commit], check=True)
    try:
        yield folder
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=True)


def execute(runs: Sequence[Run], script: Path, cases: Sequence[str], timeout: float) -> None:
    """Make runs at the same time, and leave no process of them.

    Raises:
        RuntimeError: If a run failed as a whole; a case that fails only has no digests.
        subprocess.TimeoutExpired: If one takes too long, in seconds.
    """
    processes = []
    try:
        for run in runs:
            processes.append(run.start(script, cases))
        codes = [process.wait(timeout) for process in processes]
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    for run, code in zip(runs, codes, strict=True):
        if code:
            raise RuntimeError(f"the script failed with the sources in {run.tree}:\n{(run.out / 'log').read_text()}")


def main() -> None:
    """Compare this tree with a commit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", required=True, metavar="COMMIT", help="commit to compare with")
    parser.add_argument("--cases", nargs="+", default=[], help="run only these")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds of a run of all cases")
    options = parser.parse_args()
    name = ["git", "-C", str(ROOT), "rev-parse", "--verify", "--quiet", f"{options.base}^{{commit}}"]
    found = subprocess.run(name, capture_output=True, text=True)
    if found.returncode:
        parser.error(f"--base must be a commit, got {options.base!r}")
    commit = found.stdout.strip()
    print(f"comparing {ROOT} with commit {commit[:12]}", flush=True)
    with TemporaryDirectory(prefix="same_weights_") as temporary, worktree(commit, Path(temporary) / "base") as tree:
        script = Path(temporary) / "script" / SCRIPT.name  # in a folder without modules that could be imported instead
        script.parent.mkdir()
        shutil.copy(SCRIPT, script)
        base, new = Run(tree, Path(temporary) / "of_base"), Run(ROOT, Path(temporary) / "of_new")
        from_base = Run(ROOT, Path(temporary) / "of_new_from_base", base.out)
        execute([base, new], script, options.cases, options.timeout)
        execute([from_base], script, options.cases, options.timeout)
        cases: dict[str, str] = json.loads((base.out / "cases.json").read_text())
        verdicts = compare(base.results(), new.results(), from_base.results(), cases)
        bad = {case for (case, _), verdict in verdicts.items() if verdict is not None}
        for run in (base, new, from_base):
            for printed in parts_of_log((run.out / "log").read_text(), bad):
                print(f"{run.out.name}, {printed}\n")
        is_same = report(verdicts, cases)
    sys.exit(0 if is_same else 1)


if __name__ == "__main__":
    main()
