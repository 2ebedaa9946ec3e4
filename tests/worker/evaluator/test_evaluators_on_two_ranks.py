"""Evaluations by hand on two gloo processes give every one of them what one process gets."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.processes import run_two_ranks

SCRIPT = Path(__file__).with_name("evaluator_ranks_script.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[dict[str, Any]]:
    """Return what each of two ranks reports."""
    run_two_ranks(SCRIPT, folder)
    return [json.loads((folder / f"rank_{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what one process reports, without torch.distributed."""
    report = runpy.run_path(str(SCRIPT))["report"]
    return json.loads(json.dumps(report(tmp_path_factory.mktemp("alone"))))  # type: ignore[no-any-return]


def test_each_rank_runs_its_share_of_the_episodes(ranks: list[dict[str, Any]]) -> None:
    assert [rank["interaction"]["ran"] for rank in ranks] == [[0, 2, 4], [1, 3]]
    assert [rank["interaction"]["has_drawn"] for rank in ranks] == [True, False]


def test_every_rank_gets_the_returns_that_one_process_gets(ranks: list[dict[str, Any]], alone: dict[str, Any]) -> None:
    (stop, info) = alone["interaction"]["result"]
    assert stop is True
    assert len(set(info["eval_episode_return"])) == 5
    for rank in ranks:
        assert rank["interaction"]["result"] == [stop, info]


def test_every_rank_remembers_and_saves_the_same(ranks: list[dict[str, Any]], alone: dict[str, Any]) -> None:
    for rank in ranks:
        assert rank["interaction"]["state"] == alone["interaction"]["state"]
        assert rank["interaction"]["saved"] == ["ckpt_best.ckpt"]


def test_only_rank_zero_writes(ranks: list[dict[str, Any]], alone: dict[str, Any], folder: Path) -> None:
    zero, one = (rank["interaction"]["written"] for rank in ranks)
    assert zero == alone["interaction"]["written"]
    assert (zero["video"], zero["figure"]) == (1, 1)
    assert one == {"scalar": 0, "video": 0, "figure": 0}
    assert [file.name for file in (folder / "figures").iterdir()] == ["evaluator_3.png"]


def test_rank_without_an_episode_is_an_error_on_every_rank(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["interaction"]["too_few"] == "n_episode must be at least one for each of 2 ranks, got 1"


@pytest.mark.parametrize("kind", ["IMetric", "torchmetrics", "collection", "sampler"])
def test_every_rank_gets_the_metric_that_one_process_gets(
    ranks: list[dict[str, Any]], alone: dict[str, Any], kind: str
) -> None:
    stop, values = alone["metric"]["result"][kind]
    for rank in ranks:
        stop_of_rank, values_of_rank = rank["metric"]["result"][kind]
        assert stop_of_rank == stop
        assert list(values_of_rank) == list(values)
        assert values_of_rank == pytest.approx(values, rel=1e-6)  # torchmetrics sums in float32
    assert ranks[0]["metric"]["result"] == ranks[1]["metric"]["result"]


def test_metric_of_one_process_is_that_of_all_examples(alone: dict[str, Any]) -> None:
    errors = [x + 1 - x**2 / 7 for x in range(11)]
    values = alone["metric"]["result"]["IMetric"][1]
    assert values["squared"] == pytest.approx(sum(error**2 for error in errors) / 11, rel=1e-6)
    assert values["absolute"] == pytest.approx(sum(map(abs, errors)) / 11, rel=1e-6)


def test_rank_without_a_batch_is_an_error_on_every_rank(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["metric"]["too_few"] == "every rank needs a batch of the data loader, but 1 got none"


def test_ranks_that_would_shuffle_each_in_its_own_way_are_refused(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["metric"]["shuffled"].startswith("shuffle must be False on several ranks")
