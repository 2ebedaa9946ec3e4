"""The site that `make docs` builds: it has no warning, and a browser opens every page of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site strictly, and return its folder."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr
    return folder


def test_site_has_the_api_and_the_files_that_pages_link_to(site: Path) -> None:
    assert "AdvancedReplayBuffer" in (site / "api" / "buffers" / "index.html").read_text()
    assert "SampleSerialCollector" in (site / "api" / "collectors" / "index.html").read_text()
    assert "CONFIG" in (site / "source" / "recipes" / "dqn.py" / "index.html").read_text()


def test_docstrings_have_links_and_highlighted_examples(site: Path) -> None:
    page = (site / "api" / "policies" / "index.html").read_text()
    assert not re.findall(r":(?:class|meth|func):", page)
    assert "<blockquote>" not in page  # what `>>>` becomes outside of code


def test_llms_txt_lists_every_page_and_leads_to_its_text(site: Path) -> None:
    links = re.findall(r"^- \[[^\]]+\]\(([^)]+)\)", (site / "llms.txt").read_text(), flags=re.MULTILINE)
    assert {"index.md", "algorithms/dqn.md", "api/policies.md", "contributing/index.md"} <= set(links)
    assert [link for link in links if not (site / link).is_file()] == []
    assert "# DQN\n" in (site / "llms-full.txt").read_text()
