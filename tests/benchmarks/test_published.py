"""The page that compares with published returns."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import published
from benchmarks.proofs import PROOFS
from benchmarks.published import PUBLISHED, Published

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def test_page_is_what_the_script_writes() -> None:
    assert (RESULTS / "published.md").read_text() == published.page(RESULTS / "learn"), (
        "run python -m benchmarks.published"
    )


def test_every_published_return_is_of_an_experiment() -> None:
    assert set(PUBLISHED) <= set(PROOFS)


@pytest.mark.parametrize(
    ("result", "std", "expected"),
    [(100.0, 10.0, "above"), (95.0, 10.0, "within one deviation"), (89.0, 10.0, "below"), (99.0, None, "below")],
)
def test_result_is_above_within_or_below(result: float, std: float | None, expected: str) -> None:
    assert published.compared(Published("", 100.0, std), result) == expected


def test_row_has_both_returns_and_their_spread() -> None:
    runs = [{"curve": [[1_000_000, 1.0, score]]} for score in (4_000.0, 6_000.0, 8_000.0)]
    line = published.row("ppo_halfcheetah", {"env_id": "HalfCheetah-v5", "ours": {"runs": runs}})
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[:4] == ["ppo_halfcheetah", "HalfCheetah-v5", "1,000,000", "5,784.0 ± 1,244.0"]
    assert cells[-3:] == ["6,000.0 [4,000.0, 8,000.0]", "3", "above"]
