"""Hooks of MkDocs: pages of the repository's files that the docs link to, and llms.txt.

The links in docs/ work in a checkout, where ``../recipes/dqn.py`` is a file. The site gets a page for each such file,
and the links lead there.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure import StructureItem
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page

DOCS = Path(__file__).resolve().parents[1]
ROOT = DOCS.parent
PROJECT_PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing/index.md",
    "README.md": "readme.md",
    "SECURITY.md": "security.md",
}
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".md": "markdown"}
CODE = re.compile(r"^( *)(`{3,}).*?^\1\2$", flags=re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<=\]\()(?![a-z]+:)([^)#\s]+)")

_markdown: dict[str, str] = {}  # of the pages of the current build, by path in docs/
_navigation: list[Navigation] = []  # of the current build


def uri_of(target: Path) -> str:
    """Return the path in the site of a file or folder of the repository, or an empty string if it has none.

    Args:
        target: Absolute path of a file or folder.
    """
    if target.is_relative_to(DOCS):
        return target.relative_to(DOCS).as_posix()
    if not target.is_relative_to(ROOT) or not target.exists():
        return ""
    path = target.relative_to(ROOT).as_posix()
    return PROJECT_PAGES.get(path) or (f"source/{path}/index.md" if target.is_dir() else f"source/{path}.md")


def folder_of(uri: str) -> Path:
    """Return the folder that the links of a page are relative to.

    Args:
        uri: Path of the page in the site.
    """
    return ROOT if uri in PROJECT_PAGES.values() else (DOCS / uri).parent


def with_links_to_the_site(markdown: str, uri: str) -> str:
    """Return the text of a page whose links to files of the repository lead to pages of the site.

    Args:
        markdown: Text of the page.
        uri: Path of the page in the site.
    """

    def replace(found: re.Match[str]) -> str:
        target = uri_of(Path(os.path.normpath(folder_of(uri) / found[1])))
        return posixpath.relpath(target, posixpath.dirname(uri) or ".") if target else found[1]

    blocks = [block[0] for block in CODE.finditer(markdown)]
    texts = CODE.sub("\0", markdown).split("\0")
    return "".join(LINK.sub(replace, text) + block for text, block in zip(texts, [*blocks, ""], strict=True))


def linked_files(pages: dict[str, str]) -> list[Path]:
    """Return the files and folders outside of docs/ that pages link to, and the files in these folders, each once.

    Args:
        pages: Texts of pages by their paths in the site.
    """
    links = ((uri, link) for uri, text in pages.items() for link in LINK.findall(CODE.sub("", text)))
    found = {Path(os.path.normpath(folder_of(uri) / link)) for uri, link in links}
    found |= {file for path in found if uri_of(path).startswith("source/") for file in files_in(path)}
    return sorted(path for path in found if uri_of(path).startswith("source/"))


def files_in(path: Path) -> list[Path]:
    """Return the files of a folder that have a language; none for a file.

    Args:
        path: A file or folder.
    """
    return sorted(file for file in path.iterdir() if file.suffix in LANGUAGES) if path.is_dir() else []


def source_page(path: Path) -> str:
    """Return the page of a file, or of a folder with links to its files.

    Args:
        path: A file or folder of the repository.
    """
    options = "---\nsearch: {exclude: true}\nhide: [navigation, toc]\n---"
    head = f"{options}\n\n# {path.name}\n\n`{path.relative_to(ROOT)}`\n\n"
    if path.is_dir():
        return head + "".join(f"* [{file.name}]({file.name}.md)\n" for file in files_in(path))
    return f"{head}``````{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text()}``````\n"


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the project's pages, and a page for each file or folder of the repository that a page links to."""
    for name, uri in PROJECT_PAGES.items():
        files.append(File.generated(config, uri, content=(ROOT / name).read_text()))
    pages = {file.src_uri: file.content_string for file in files.documentation_pages()}
    for path in linked_files(pages):
        files.append(File.generated(config, uri_of(path), content=source_page(path)))
    return files


def on_nav(nav: Navigation, *, config: MkDocsConfig, files: Files) -> Navigation:
    """Keep the navigation for llms.txt."""
    _navigation[:] = [nav]
    _markdown.clear()
    return nav


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead the links of a page to the site, and keep its text."""
    uri = page.file.src_uri
    _markdown[uri] = markdown if uri.startswith("source/") else with_links_to_the_site(markdown, uri)
    return _markdown[uri]


def on_post_build(*, config: MkDocsConfig) -> None:
    """Write each page's text, ``llms.txt`` with a line for each, and ``llms-full.txt`` with all but sources and API."""
    site = Path(config.site_dir)
    for uri, text in _markdown.items():
        (site / uri).write_text(text)
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", *outline(_navigation[0].items)]
    (site / "llms.txt").write_text("\n".join(lines) + "\n")
    texts = [text for uri, text in _markdown.items() if not uri.startswith(("source/", "api/"))]
    (site / "llms-full.txt").write_text("\n\n".join(texts))


def outline(items: Sequence[StructureItem]) -> Iterator[str]:
    """Return the lines of llms.txt: a heading for each section, and a link with the first sentence for each page.

    Args:
        items: Pages and sections of the navigation.
    """
    for item in items:
        if isinstance(item, Section):
            yield from ("", f"## {item.title}", "")
            yield from outline(item.children)
        elif isinstance(item, Page):
            uri = item.file.src_uri
            sentence = re.search(r"^[A-Z`][^|\n]*(?:\n[^|\n]+)*", _markdown[uri], flags=re.MULTILINE)
            summary = re.split(r"(?<=\.)\s", " ".join(sentence[0].split()))[0] if sentence else ""
            summary = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", summary)
            yield f"- [{item.title}]({uri})" + (f": {summary}" if summary else "")
