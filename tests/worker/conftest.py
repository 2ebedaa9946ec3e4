"""Two ranks of torch.distributed that try what learners do together; started once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.processes import run

SCRIPT = Path(__file__).with_name("learner_ranks_script.py")


@pytest.fixture(scope="session")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return what each of two gloo ranks reports; see learner_ranks_script.py."""
    folder = tmp_path_factory.mktemp("two_ranks")
    run(SCRIPT, folder)
    return [json.loads((folder / f"rank_{rank}.json").read_text()) for rank in range(2)]
