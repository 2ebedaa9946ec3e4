"""Every block of every guide runs."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from lightning_ding.entry import sweep
from tests.docs.pages import as_before, run_page
from tests.processes import popen
from tests.test_docs import ROOT

GUIDES = sorted((ROOT / "docs" / "guides").rglob("*.md"))
PAGES = {
    "index.md",
    "agent.md",
    "curriculum.md",
    "auxiliary_losses.md",
    "from_cleanrl.md",
    "from_sb3.md",
    "envs.md",
    "exploration.md",
    "games.md",
    "not_learning.md",
    "metrics_of_envs.md",
    "offline.md",
    "own_algorithm.md",
    "own_callback.md",
    "own_env.md",
    "own_network.md",
    "pixels.md",
    "reading_metrics.md",
    "reproducibility.md",
    "resume.md",
    "scaling.md",
    "speed.md",
    "teams.md",
    "tensor_envs.md",
    "tracking.md",
    "tuning.md",
}


def test_every_guide_is_run_here() -> None:
    assert {page.name for page in GUIDES} >= PAGES
    assert len(GUIDES) == len(list((ROOT / "docs" / "guides").iterdir()))


def test_every_guide_is_in_the_nav() -> None:
    nav = (ROOT / "mkdocs.yml").read_text()
    assert [page.name for page in GUIDES if f"guides/{page.name}\n" not in nav] == []


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_blocks_of_a_guide_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # the seeds of a sweep; test_sweep.py starts them as a user's command does
    monkeypatch.setattr(sweep, "subprocess", SimpleNamespace(Popen=popen, STDOUT=subprocess.STDOUT))
    with as_before(tmp_path, monkeypatch):
        run_page(page)
