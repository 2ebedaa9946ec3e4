"""A run that is killed while it saves leaves a complete checkpoint, from which it can be resumed."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.processes import run

SCRIPT = Path(__file__).with_name("killed_script.py")


def seen_after_kills(folder: Path, kills: int, seconds: int) -> list[dict[str, Any]]:
    """Kill runs that resume each other, and return what was found after each kill and at the end."""
    output = run(SCRIPT, folder / "here", kills, 0, timeout=seconds)
    assert "skipping" not in output  # it never has to skip one
    seen: list[dict[str, Any]] = json.loads(output.splitlines()[-1])
    return seen


def check(seen: list[dict[str, Any]], kills: int) -> None:
    assert len(seen) == kills + 1
    assert all(after["env_step"] > before["env_step"] for before, after in itertools.pairwise(seen))
    assert all(one["env_step"] == one["progress"] == one["transitions"] for one in seen)  # of one moment, and none lost
    assert seen[-1]["env_step"] >= seen[-2]["env_step"] + 64
    assert not seen[-1]["half_written"]


def test_run_killed_while_saving_leaves_a_complete_checkpoint_and_can_be_resumed(tmp_path: Path) -> None:
    check(seen_after_kills(tmp_path, 4, 120), 4)


@pytest.mark.slow
def test_run_killed_a_hundred_times_while_saving_leaves_a_whole_checkpoint_each_time(tmp_path: Path) -> None:
    seen = seen_after_kills(tmp_path, 100, 580)
    check(seen, 100)
    assert sum(one["half_written"] for one in seen) >= 10  # it was hit in the middle of saving
