"""How long this package takes to import, and its command line to answer, against ``import lightning``.

    python -m benchmarks.startup      # writes docs/results/startup.json

Each statement runs in a new process, whose seconds include the start of Python. The statements take turns; the ratios
are those of the medians. ``tests/test_light_imports.py`` lists the packages that the statements may load.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.compare import provenance

BASE = "import lightning"
COMMAND_LINE = "from lightning_ding.entry.cli import main; main"
STATEMENTS = {
    BASE: BASE,
    "import lightning_ding": "import lightning_ding",
    "lightning-ding --help": f"{COMMAND_LINE}(['--help'])",
    "a policy and a datamodule": (
        "from lightning_ding.policy import DQNPolicy; from lightning_ding.datamodules import ReplayDataModule"
    ),
    "lightning-ding fit --help": f"{COMMAND_LINE}(['fit', '--help'])",
}


def seconds_of(statement: str) -> float:
    """Return the seconds of a process that executes a statement.

    Raises:
        subprocess.CalledProcessError: If the process fails.
    """
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], capture_output=True, check=True)
    return time.perf_counter() - start


def measure(repeats: int) -> dict[str, list[float]]:
    """Return the seconds of each statement, by its name, in ``repeats`` turns after one that is not measured."""
    seconds: dict[str, list[float]] = {name: [] for name in STATEMENTS}
    for turn in range(repeats + 1):
        for name, statement in STATEMENTS.items():
            passed = seconds_of(statement)
            if turn:  # the first one reads the files from the disk
                seconds[name].append(passed)
    return seconds


def ratios_of(seconds: dict[str, list[float]]) -> dict[str, float]:
    """Return the median of each statement's seconds over that of ``import lightning``.

    Example:
        >>> ratios_of({"import lightning": [2.0, 4.0, 3.0], "import lightning_ding": [1.5]})
        {'import lightning': 1.0, 'import lightning_ding': 0.5}
    """
    base = statistics.median(seconds[BASE])
    return {name: statistics.median(all_of_it) / base for name, all_of_it in seconds.items()}


def main() -> None:
    """Print the table, and write it to a JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="number of turns")
    parser.add_argument("--out", type=Path, default=Path("docs/results/startup.json"), help="JSON file")
    options = parser.parse_args()
    seconds = measure(options.repeats)
    ratios = ratios_of(seconds)
    for name, ratio in ratios.items():
        print(f"{name:>26} {statistics.median(seconds[name]):6.2f} s {ratio:6.2f}")
    record = {**provenance(), "seconds": seconds, "ratios": ratios}
    options.out.write_text(json.dumps(record, indent=2) + "\n")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
