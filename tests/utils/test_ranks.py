from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from tests.processes import run_two_ranks
from tests.utils.ranks_script import results

SCRIPT = Path(__file__).with_name("ranks_script.py")


def test_two_ranks_get_the_same_results(tmp_path: Path) -> None:
    run_two_ranks(SCRIPT, tmp_path)
    first, second = (json.loads((tmp_path / f"rank_{rank}.json").read_text()) for rank in range(2))
    expected: dict[str, Any] = {
        "sum": [2.0, 21.0],
        "mean": 1.5,
        "min": 6,
        "max": 7,
        "all": [True, False, False],
        "any": [True, True, False],
        "rows": [[0, 5], [1, 5]],
        "bytes": ["", "ab"],
    }
    for rank, found in enumerate((first, second)):
        own = {"rank_and_world_size": [rank, 2], "argument": [1.0, 10.0 + rank]}
        assert found == expected | own


def test_a_process_without_a_group_is_the_only_rank() -> None:
    assert not torch.distributed.is_initialized()
    assert results(0) == {
        "rank_and_world_size": (0, 1),
        "sum": [1.0, 10.0],
        "argument": [1.0, 10.0],
        "mean": 1.0,
        "min": 7,
        "max": 7,
        "all": [True, True, False],
        "any": [True, True, False],
        "rows": [[0, 5]],
        "bytes": [""],
    }
