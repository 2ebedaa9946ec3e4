"""How much work a push to a replay buffer and a draw from it are, in counts that do not depend on the machine.

    python -m benchmarks.buffer_ops            # prints the counts, and those of docs/results/buffer_ops.json
    python -m benchmarks.buffer_ops --write    # stores them there

Counted are Python functions that are entered and calls of built-in functions and methods, among them those of numpy and
torch, on full buffers, on average over 100 calls with fixed seeds. ``tests/benchmarks/test_buffer_ops.py`` fails if a
count grows.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.buffers import BATCH_SIZE, ENVS, ROUND, STEPS, Ours
from benchmarks.ops import Counts, grown, versions

FILE = Path(__file__).parents[1] / "docs" / "results" / "buffer_ops.json"
CAPACITY = 8192
CALLS = 100


class CallCounter:
    """A context that counts the functions that are entered, those of Python and built-in ones."""

    def __init__(self) -> None:
        self.counts = {"python_frames": 0, "builtin_calls": 0}

    def __enter__(self) -> None:
        sys.setprofile(self._note)

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: Any, event: str, argument: Any) -> None:
        self.counts["python_frames"] += event == "call"
        self.counts["builtin_calls"] += event == "c_call"


def count() -> dict[str, dict[str, Counts]]:
    """Return the counts of each operation of the prioritised and of the uniform buffer."""
    ours = Ours(CAPACITY)
    for step in range(0, CAPACITY // ENVS, ROUND):
        ours.push(step, ROUND)
        ours.push_uniform(step, ROUND)
    priority = np.random.default_rng(0).random((CALLS + 1, BATCH_SIZE))
    prioritised: dict[str, Callable[[int], Any]] = {
        "step_push": lambda number: ours.push(number % STEPS, 1),
        "round_push": lambda number: ours.push(number * ROUND % STEPS, ROUND),
        "sample_with_update": lambda number: ours.learn(number, priority[number]),
    }
    uniform: dict[str, Callable[[int], Any]] = {
        "step_push": lambda number: ours.push_uniform(number % STEPS, 1),
        "round_push": lambda number: ours.push_uniform(number * ROUND % STEPS, ROUND),
        "sample": lambda number: ours.draw(),
    }
    kinds = {"prioritised": prioritised, "uniform": uniform}
    return {kind: {name: _count(call) for name, call in calls.items()} for kind, calls in kinds.items()}


def packages() -> dict[str, str]:
    """Return the versions on which the counts depend."""
    return {**versions(), "numba": importlib.metadata.version("numba")}


def _count(call: Callable[[int], Any]) -> Counts:
    call(0)
    counter = CallCounter()
    with counter:
        for number in range(1, CALLS + 1):
            call(number)
    return {name: round(total / CALLS, 2) for name, total in counter.counts.items()}


def main() -> None:
    """Print the counts, or store them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"store the counts in {FILE.name}")
    options = parser.parse_args()
    new = count()
    stored = json.loads(FILE.read_text())["counts"] if FILE.is_file() else new
    for kind, calls in new.items():
        for name, counts in calls.items():
            pairs = [f"{number:7.1f} {unit} ({stored[kind][name][unit]:.1f})" for unit, number in counts.items()]
            print(f"{kind:>12} {name:>18}: {'  '.join(pairs)}")
    print("\n".join(grown(stored, new)))
    if options.write:
        FILE.write_text(json.dumps({"versions": packages(), "counts": new}, indent=2) + "\n")
        print(f"written to {FILE.relative_to(FILE.parents[2])}")


if __name__ == "__main__":
    main()
