"""Comm collectors and comm learners by name."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightning_ding.registry import COMM_COLLECTOR_REGISTRY, COMM_LEARNER_REGISTRY, Registry
from lightning_ding.worker import create_comm_collector, create_comm_learner

KINDS = [
    (COMM_COLLECTOR_REGISTRY, "COMM_COLLECTOR_REGISTRY", create_comm_collector),
    (COMM_LEARNER_REGISTRY, "COMM_LEARNER_REGISTRY", create_comm_learner),
]


@pytest.mark.parametrize(("registry", "name", "create"), KINDS)
def test_comm_worker_is_made_by_the_module_that_its_config_imports(
    registry: Registry[Any],
    name: str,
    create: Callable[[Any], Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = f"my_{name.lower()}"
    source = f"from lightning_ding.registry import {name}\n\n@{name}.register('wire')\nclass Wire:\n"
    (tmp_path / f"{module}.py").write_text(source + "    def __init__(self, cfg): self.port = cfg['port']\n")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert create({"type": "wire", "import_names": [module], "port": 7}).port == 7
        with pytest.raises(KeyError, match=r"is registered as 'wier'; did you mean 'wire'\?"):
            create({"type": "wier"})
    finally:
        registry._entries.pop("wire", None)
        sys.modules.pop(module, None)


@pytest.mark.parametrize(("registry", "name", "create"), KINDS)
def test_comm_worker_without_a_type_is_refused(
    registry: Registry[Any], name: str, create: Callable[[Any], Any]
) -> None:
    with pytest.raises(KeyError, match=f"a {registry.kind} config needs a 'type'"):
        create({"port": 7})
