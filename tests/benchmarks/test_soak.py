"""Long runs do not leak memory, files, threads or processes, and the soak benchmark detects a leak."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.footprint import Sample, descendants, judge

ROOT = Path(__file__).parents[2]
FLAT = [Sample(episode=100 * i, memory_mib=400 + (i % 3), files=6, threads=4, processes=i % 2) for i in range(40)]


def soak(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """Run the benchmark to its end, and return what it found of each part."""
    out = tmp_path / "soak.json"
    command = [sys.executable, "-m", "benchmarks.soak", *arguments, "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    parts: dict[str, Any] = json.loads(out.read_text())["parts"]
    return parts


@pytest.mark.slow
def test_two_thousand_episodes_leave_no_file_thread_or_process_behind(tmp_path: Path) -> None:
    parts = soak(tmp_path, "--episodes", "2000", "--samples", "24", "--only", "replay")

    settled = parts["replay"]["samples"][6:]
    assert settled[-1]["episode"] > 1900
    assert {(one["files"], one["threads"], one["processes"]) for one in settled} == {
        (settled[0]["files"], settled[0]["threads"], 0)
    }
    assert parts["replay"]["growth"]["memory_mib"] < 4


@pytest.mark.slow
def test_hundred_thousand_episodes_leave_nothing_behind(tmp_path: Path) -> None:
    parts = soak(tmp_path)

    assert set(parts) == {"replay", "episodes", "processes"}
    assert all(part["is_flat"] for part in parts.values())
    assert parts["replay"]["samples"][-1]["episode"] > 95_000
    assert parts["processes"]["dropped_episodes"] > 50


def test_what_stays_the_same_is_flat_however_it_trembles() -> None:
    verdict = judge(FLAT, bound_mib=2)

    assert verdict["is_flat"]
    assert verdict["growth"] == {"memory_mib": pytest.approx(0, abs=0.5), "files": 0, "threads": 0, "processes": 0}


@pytest.mark.parametrize("name", ["files", "threads", "processes"])
def test_one_more_file_thread_or_process_is_not_flat(name: str) -> None:
    leaking = [replace(one, **{name: getattr(one, name) + (one.episode > 3000)}) for one in FLAT]

    verdict = judge(leaking, bound_mib=2)

    assert not verdict["is_flat"]
    assert verdict["growth"][name] == 1


def test_linear_memory_growth_is_not_flat_and_its_slope_is_reported() -> None:
    leaking = [replace(one, memory_mib=400 + one.episode / 1024) for one in FLAT]

    verdict = judge(leaking, bound_mib=2)

    assert not verdict["is_flat"]
    assert verdict["bytes_per_episode"] == pytest.approx(1024)
    assert verdict["growth"]["memory_mib"] == pytest.approx(2900 / 1024)  # from episode 1000 to 3900


def test_what_comes_in_the_first_quarter_is_warming_up() -> None:
    warm = [replace(one, files=1, memory_mib=100.0) if one.episode < 1000 else one for one in FLAT]

    assert judge(warm, bound_mib=2)["is_flat"]


def test_sample_counts_open_files_and_children_alive_or_dead() -> None:
    before = Sample.now(0)
    alive, dead = (subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) for code in ("input()", ""))
    try:
        files = Sample.now(1).files
        with open(os.devnull):
            assert Sample.now(1).files == files + 1
        assert {alive.pid, dead.pid} <= set(descendants(os.getpid()))
        assert Sample.now(1).processes == before.processes + 2
    finally:
        for process in (alive, dead):
            process.kill()
            process.wait()
    assert Sample.now(2).processes == before.processes
