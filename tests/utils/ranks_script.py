"""Calls every function of lightning_ding.utils.ranks, started by test_ranks.py.

Usage: python ranks_script.py FOLDER RANK WORLD_SIZE. Each rank writes what it gets to FOLDER/rank_R.json.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from lightning_ding.utils import ranks


def results(rank: int) -> dict[str, Any]:
    """Return what this rank gets; arguments differ between ranks."""
    values = torch.tensor([1.0, 10.0 + rank], dtype=torch.float64)
    return {
        "rank_and_world_size": ranks.rank_and_world_size(),
        "sum": ranks.sum_over_ranks(values).tolist(),
        "argument": values.tolist(),
        "mean": ranks.mean_over_ranks(1.0 + rank),
        "min": ranks.min_over_ranks(7 - rank),
        "max": ranks.max_over_ranks(7 - rank),
        "any": [ranks.on_any_rank(condition) for condition in (True, rank == 0, False)],
        "rows": ranks.gather_rows(torch.tensor([rank, 5])).tolist(),
        "bytes": [part.decode() for part in ranks.gather_bytes(b"ab" * rank)],
    }


if __name__ == "__main__":
    folder, own, world_size = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    store = f"file://{folder / 'store'}"
    dist.init_process_group("gloo", store, timedelta(seconds=60), world_size=world_size, rank=own)
    (folder / f"rank_{own}.json").write_text(json.dumps(results(own)))
    dist.destroy_process_group()
