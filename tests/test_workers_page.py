"""The table in docs/workers.md matches the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import lightning_ding.worker

DOCS = Path(__file__).parents[1] / "docs"
ROW = re.compile(r"^\| `(\w+)` \| \[\w+\]\((api/\w+\.md)\) \| `(tests/[\w/]+\.py)` \| (.+) \|$", flags=re.MULTILINE)
ROWS = ROW.findall((DOCS / "workers.md").read_text())


def test_table_has_every_worker_once() -> None:
    names = [name for name, *_ in ROWS]
    assert len(names) == len(set(names)) >= 33


@pytest.mark.parametrize(("name", "page", "test", "better"), ROWS)
def test_worker_of_the_table_imports_has_its_page_and_its_tests(name: str, page: str, test: str, better: str) -> None:
    worker = getattr(lightning_ding.worker, name)
    assert name in lightning_ding.worker.__all__
    assert f"::: {worker.__module__}.{name}\n" in (DOCS / page).read_text()
    assert name in (DOCS.parent / test).read_text()
    assert better.strip()
