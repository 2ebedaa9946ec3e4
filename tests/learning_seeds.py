"""Whether the learning tests pass for any seed and CPU: each of them over seeds and instruction sets.

    python -m tests.learning_seeds --seeds 20 --capability default avx2
    python -m tests.learning_seeds --seeds 3 --select "ppo and image"

Each line is a test: how many seeds passed under each ``ATEN_CPU_CAPABILITY``, and the smallest margin over its bar. The
exit code is 1 if a test passed fewer than 19 seeds of 20 somewhere. Failures go to stderr as they occur.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

import pytest

VARIABLE = "LEARNING_SEED"
NEEDED = 0.95
"""Share of seeds for which a test must pass."""


def learning_seed() -> int:
    """Return the seed of the learning tests: that of the environment variable, or 0."""
    return int(os.environ.get(VARIABLE, "0"))


def assert_reached(request: pytest.FixtureRequest, value: float, bar: float) -> None:
    """Assert that a value is at least the bar, and report by how much."""
    request.node.user_properties.append(("margin", value - bar))
    assert value >= bar


def run(seed: int, capability: str, select: str) -> dict[str, tuple[bool, float]]:
    """Return for each learning test whether it passed, and its margin (NaN if it came to none)."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.xml"
        options = ["-q", "-m", "learns and not slow", "-p", "no:cacheprovider", f"--junitxml={file}", *learning_files()]
        options += ["-k", select] if select else []
        variables = {VARIABLE: str(seed), "ATEN_CPU_CAPABILITY": capability, "OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, "-m", "pytest", *options], env={**os.environ, **variables}, capture_output=True)
        cases = ElementTree.parse(file).getroot().iter("testcase")
        return {f"{case.get('classname')}::{case.get('name')}": _outcome(case) for case in cases}


def learning_files() -> list[str]:
    """Return the test files that have learning tests; collecting all others takes longer than the tests."""
    return [str(file) for file in sorted(Path(__file__).parent.rglob("test_*.py")) if "mark.learns" in file.read_text()]


def _outcome(case: ElementTree.Element) -> tuple[bool, float]:
    passed = case.find("failure") is None and case.find("error") is None
    margins = [float(one.get("value", "nan")) for one in case.iter("property") if one.get("name") == "margin"]
    return passed, min(margins, default=float("nan"))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20, help="seeds 0 to N - 1")
    parser.add_argument("--capability", nargs="+", default=["default", "avx2"], help="values of ATEN_CPU_CAPABILITY")
    parser.add_argument("--select", default="", help="expression for pytest -k")
    options = parser.parse_args()
    results: dict[str, dict[str, list[tuple[bool, float]]]] = defaultdict(lambda: defaultdict(list))
    for capability in options.capability:
        for seed in range(options.seeds):
            report = run(seed, capability, options.select)
            for name, outcome in report.items():
                results[name][capability].append(outcome)
            failed = [f"{name} ({margin:.3f})" for name, (passed, margin) in report.items() if not passed]
            print(f"{capability}, seed {seed}: failed: {', '.join(failed) or 'none'}", file=sys.stderr, flush=True)
    is_weak = not results
    for name, by_capability in sorted(results.items()):
        parts = []
        for capability, outcomes in by_capability.items():
            passes, worst = sum(passed for passed, _ in outcomes), min(margin for _, margin in outcomes)
            is_weak |= passes < NEEDED * len(outcomes)
            parts.append(f"{capability} {passes}/{len(outcomes)} (margin {worst:.3f})")
        print(f"{name}: {', '.join(parts)}")
    raise SystemExit(int(is_weak))


if __name__ == "__main__":
    main()
