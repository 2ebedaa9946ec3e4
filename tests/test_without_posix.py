"""Windows has no fcntl, no fork and few signals; a run in one process needs none of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_everything_imports_and_trains_without_posix_and_names_what_needs_it(tmp_path: Path) -> None:
    script = [sys.executable, "-m", "tests.without_posix_script", str(tmp_path)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=240, cwd=ROOT)

    assert done.returncode == 0, done.stderr[-3000:]
    modules, *refusals = [line for line in done.stdout.splitlines() if line]
    assert int(modules.split()[0]) > 150
    wanted = ['mode="async"', "a distributed run", "a distributed run"]
    assert len(refusals) == len(wanted)
    for line, what in zip(refusals, wanted, strict=True):
        assert line.startswith(f"{what} needs Linux or macOS")
