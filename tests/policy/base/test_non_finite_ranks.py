"""Two ranks of which one has a bad minibatch: both do the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_ding.policy import NonFiniteError, load_dump
from tests.processes import run_two_ranks


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank found."""
    folder = tmp_path_factory.mktemp("ranks")
    script = Path(__file__).with_name("non_finite_ranks_script.py")
    run_two_ranks(script, folder, timeout=140)
    return [torch.load(folder / f"rank_{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("what", ["raise", "clip", "loss"])
def test_all_ranks_raise_at_the_update_in_which_one_has_a_bad_minibatch(what: str, ranks: list[dict[str, Any]]) -> None:
    one, other = (found[what] for found in ranks)
    assert one["update"] == other["update"] == 3
    assert one["is_unchanged"]
    assert other["is_unchanged"]
    assert torch.equal(one["weights"], other["weights"])
    numbers = [found["error"].split(";")[0] for found in (one, other)]
    assert numbers[0] == numbers[1]
    assert "is nan" in numbers[0]


def test_each_rank_writes_its_own_minibatch(ranks: list[dict[str, Any]]) -> None:
    folders = [Path(found["raise"]["folder"]) for found in ranks]
    assert [folder.name for folder in folders] == ["update_3_rank_0", "update_3_rank_1"]
    good, bad = (load_dump(folder) for folder in folders)
    assert good.batch["reward"].isfinite().all()
    assert bad.batch["reward"].isnan().sum() == 1
    good.repeat()
    with pytest.raises(NonFiniteError, match="update 3: "):
        bad.repeat()


def test_all_ranks_skip_the_update_in_which_one_has_a_bad_minibatch(ranks: list[dict[str, Any]]) -> None:
    one, other = (found["skip"] for found in ranks)
    assert one["error"] is other["error"] is None
    assert one["skipped"] == other["skipped"] == 1
    assert one["is_unchanged"]
    assert other["is_unchanged"]
    assert torch.equal(one["weights"], other["weights"])
    assert one["weights"].isfinite().all()
    assert not torch.equal(one["weights"], ranks[0]["raise"]["weights"])  # it went on
