"""docs/distributed.md matches the code."""

from __future__ import annotations

import dataclasses
import json
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lightning_ding.distributed.config import ParallelConfig

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "distributed.md").read_text()


def defaults(cfg: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(cfg):
        value = getattr(cfg, field.name)
        if dataclasses.is_dataclass(value):
            yield from defaults(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, list(value) if isinstance(value, tuple) else value


def test_table_holds_every_key_with_its_default() -> None:
    rows = re.findall(r"^\| `((?:main|system)\.[\w.]+)` \| `(.+?)` \| (.+) \|$", PAGE, flags=re.MULTILINE)
    assert [(key, json.loads(value)) for key, value, _ in rows] == list(defaults(ParallelConfig()))
    assert all(text.strip() for _, _, text in rows)


def test_settings_that_the_page_speaks_of_exist() -> None:
    known = {key for key, _ in defaults(ParallelConfig())}
    known |= {key.rpartition(".")[0] for key in known}
    named = set(re.findall(r"\b(?:main|system)(?:\.[a-z_]+)+\b", PAGE))
    named = {re.sub(r"^main\.policy\..*", "main.policy", key) for key in named}  # its options depend on its type
    assert len(named) > 40
    assert named - known == set()


def test_files_that_the_page_speaks_of_exist() -> None:
    files = set(re.findall(r"recipes/[\w/]+\.\w+", PAGE))
    assert len(files) >= 2
    assert [file for file in files if not (ROOT / file).exists()] == []


def test_metrics_of_the_page_are_in_the_source() -> None:
    folders = ("lightning_ding", "callbacks", "datamodules")
    source = "".join(file.read_text() for folder in folders for file in (ROOT / folder).rglob("*.py"))
    names = set(re.findall(r"`remote/(\w+)`", PAGE))
    assert len(names) >= 6
    assert {name for name in names if name not in source} == set()


def test_api_page_names_what_is_there() -> None:
    api = (ROOT / "docs" / "api" / "distributed.md").read_text()
    names = re.findall(r"^::: (lightning_ding\.[\w.]+)$", api, flags=re.MULTILINE)
    assert len(names) >= 25
    assert [name for name in names if pkgutil.resolve_name(name).__doc__ is None] == []
