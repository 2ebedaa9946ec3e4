"""Saving on two processes of which one cannot write: no rank blocks, and all continue."""

from __future__ import annotations

import json
from pathlib import Path

from lightning_ding.checkpoints import verify
from tests.processes import run_ranks_of_lightning

SCRIPT = Path(__file__).with_name("saving_ranks_script.py")


def test_disk_of_one_rank_that_is_full_stops_no_rank_and_leaves_the_checkpoint_of_before(tmp_path: Path) -> None:
    output = "".join(run_ranks_of_lightning(SCRIPT, tmp_path))
    reports = [json.loads((tmp_path / f"rank_{number}.json").read_text()) for number in range(2)]
    assert reports[0] == reports[1]
    last = f"last-{reports[0]['env_step']}"
    first, *failed, fourth = reports[0]["left"]
    assert failed == [first, first]  # nothing is left of what was begun
    assert fourth == [last, "last.ckpt"]
    assert verify(tmp_path / "here" / last)["world_size"] == 2
    assert sorted(folder.name for folder in (tmp_path / "here" / last).glob("rank_*")) == ["rank_0", "rank_1"]
    assert output.count("could not be written to") == 3  # rank 0 says it both times, rank 1 where it knows why
    assert output.count("File too large") == 2
