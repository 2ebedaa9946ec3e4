"""The site that `make docs` builds: it has no warning, and a browser opens every page of it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[2]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
OPTIONS = [
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-gpu",
    "--disable-quic",
    "--disable-software-rasterizer",
    "--disable-sync",
    "--headless",
    "--in-process-gpu",
    "--no-first-run",
    "--no-sandbox",
    "--renderer-process-limit=1",
]
WIDTHS = (1300, 800, 400)
SOURCE = "source/recipes/dqn.py/"  # the pages of files have one template: the browser opens this one
CHOSEN = [
    "",
    "guides/own_env/",
    "results/",
    "results/learning/",
    "zoo/",
    "algorithms/",
    "algorithms/dqn/",
    "api/policies/",
]
"""Pages that the fast test opens, one of each kind; `-m slow` opens all."""
EMPTY_INDEX = {"config": {"lang": ["en"], "separator": r"[\s\-]+", "pipeline": [], "fields": {}}, "docs": []}
WIDTH = "() => [document.scrollingElement.scrollWidth, document.scrollingElement.clientWidth]"
CUT = """() => [...document.querySelectorAll('.md-typeset__scrollwrap')]
    .filter(one => one.scrollWidth > one.clientWidth).map(one => one.innerText.slice(0, 60))"""
LINK = re.compile(r"""<(?:a|img|link|script)\b[^>]*?\b(?:href|src)=["']?([^"'\s>]+)""")
ID = re.compile(r"""\b(?:id|name)=["']?([^"'\s>]+)""")


class Quiet(SimpleHTTPRequestHandler):
    """Serves the site over connections that stay open."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


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


@pytest.fixture(scope="module")
def base(site: Path) -> Iterator[str]:
    """Serve the site, and return its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return a tab of a new Chromium; skip where it is not installed."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    folder = tmp_path_factory.mktemp("chromium")
    with sync_playwright() as playwright:
        options: dict[str, Any] = {"executable_path": CHROMIUM, "args": OPTIONS, "reduced_motion": "reduce"}
        browser = playwright.chromium.launch_persistent_context(folder, **options)
        yield browser.pages[0]
        browser.close()


def pages_of(site: Path) -> dict[str, str]:
    """Return the HTML of each page by its address in the site."""
    files = {file.relative_to(site).as_posix(): file.read_text() for file in sorted(site.rglob("*.html"))}
    return {name.removesuffix("index.html"): text for name, text in files.items()}


def broken_links(pages: dict[str, str], site: Path) -> list[str]:
    """Return the links of the pages to files, pages and headings of the site that do not exist."""
    ids = {name: set(ID.findall(text)) | {""} for name, text in pages.items()}
    broken = set()
    for name, text in pages.items():
        for link in LINK.findall(text):
            path, _, anchor = unquote(link).partition("#")
            if re.match(r"[a-z]+:", path) or name == "404.html":
                continue
            folder = name if name.endswith("/") else name.rpartition("/")[0]
            target = os.path.normpath(site / folder / path) if path else str(site / name)
            page = os.path.relpath(target, site).removesuffix("index.html").removeprefix(".").removesuffix("/")
            page = f"{page}/" if f"{page}/" in ids else page
            exists = anchor in ids[page] if page in ids else Path(target).is_file()
            broken |= set() if exists else {f"{name}: {link}"}
    return sorted(broken)


def test_site_has_the_api_and_the_files_that_pages_link_to(site: Path) -> None:
    assert "AdvancedReplayBuffer" in (site / "api" / "buffers" / "index.html").read_text()
    assert "SampleSerialCollector" in (site / "api" / "collectors" / "index.html").read_text()
    assert "CONFIG" in (site / SOURCE / "index.html").read_text()


def test_docstrings_have_links_and_highlighted_examples(site: Path) -> None:
    page = (site / "api" / "value_based" / "index.html").read_text()
    assert not re.findall(r":(?:class|meth|func):", page)
    assert "<blockquote>" not in page  # what `>>>` becomes outside of code


def test_llms_txt_lists_every_page_and_leads_to_its_text(site: Path) -> None:
    links = re.findall(r"^- \[[^\]]+\]\(([^)]+)\)", (site / "llms.txt").read_text(), flags=re.MULTILINE)
    assert {"index.md", "algorithms/dqn.md", "api/policies.md", "contributing/index.md"} <= set(links)
    assert [link for link in links if not (site / link).is_file()] == []
    assert "# DQN\n" in (site / "llms-full.txt").read_text()


def test_every_internal_link_leads_to_a_page_and_its_heading(site: Path) -> None:
    pages = pages_of(site)
    assert len(pages) >= 200
    assert sum(len(LINK.findall(text)) for text in pages.values()) >= 10_000
    assert broken_links(pages, site) == []


@pytest.mark.timeout(900)  # about 1 second of CPU time for each page
@pytest.mark.parametrize("chosen", [CHOSEN, pytest.param(None, marks=pytest.mark.slow)], ids=["chosen", "all"])
def test_pages_open_in_a_browser_without_errors_and_fit_their_width(
    site: Path, base: str, tab: Any, chosen: list[str] | None
) -> None:
    problems: list[str] = []
    tab.on(
        "console", lambda message: problems.append(f"{tab.url}: {message.text}") if message.type == "error" else None
    )
    tab.on("pageerror", lambda error: problems.append(f"{tab.url}: {error}"))
    tab.on("request", lambda one: None if one.url.startswith((base, "data:", "blob:")) else problems.append(one.url))
    tab.route("**/search_index.json", lambda route: route.fulfill(json=EMPTY_INDEX))  # half the work of most pages
    names = [name for name in pages_of(site) if not name.startswith("source/") or name == SOURCE]
    assert len(names) >= 70
    assert set(chosen or ()) <= set(names)
    for name in chosen or names:
        tab.set_viewport_size({"width": WIDTHS[0], "height": 900})
        assert tab.goto(base + name).ok
        for width in WIDTHS:
            tab.set_viewport_size({"width": width, "height": 900})
            scroll, client = tab.evaluate(WIDTH)
            if scroll > client:
                problems.append(f"{name} is {scroll} px wide in a window of {width} px")
    tab.unroute("**/search_index.json")
    assert problems == []


@pytest.mark.parametrize("name", ["results/learning/", "results/versus/", "zoo/"])
def test_tables_of_results_fit_a_window_of_1300_px(name: str, base: str, tab: Any) -> None:
    tab.set_viewport_size({"width": 1300, "height": 900})
    tab.goto(base + name)
    tab.wait_for_selector(".md-typeset__scrollwrap")
    assert tab.evaluate(CUT) == []


def test_button_that_copies_is_hidden_where_it_would_cover_code(base: str, tab: Any) -> None:
    for width, is_visible in ((1300, True), (400, False)):
        tab.set_viewport_size({"width": width, "height": 900})
        tab.goto(base + "guides/own_env/")
        button = tab.wait_for_selector(".md-code__button", state="attached")
        assert button.is_visible() is is_visible


def test_figures_are_inverted_in_the_dark_theme(base: str, tab: Any) -> None:
    tab.set_viewport_size({"width": 1300, "height": 900})
    tab.goto(base + "results/learning/")
    for scheme, is_inverted in (("default", False), ("slate", True)):
        tab.evaluate(f"document.body.dataset.mdColorScheme = '{scheme}'")
        found = tab.evaluate("getComputedStyle(document.querySelector('.md-typeset p > img')).filter")
        assert ("invert(1)" in found) is is_inverted


def test_search_finds_rainbow(base: str, tab: Any) -> None:
    tab.set_viewport_size({"width": 1300, "height": 900})
    tab.goto(base)
    tab.fill("[data-md-component=search-query]", "rainbow")
    first = tab.wait_for_selector(".md-search-result__link[href*='algorithms/rainbow']", timeout=60_000)
    assert "Rainbow" in first.inner_text()
