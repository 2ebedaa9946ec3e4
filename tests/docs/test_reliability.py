"""Each row of docs/reliability.md names a test, which exists and is slow only if the row says so."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROWS = [row for row in (ROOT / "docs/reliability.md").read_text().splitlines() if row.startswith("| ")]
ATTACKS = [row for row in ROWS if not row.startswith("| attack |")]
NAMED = re.compile(r"\| `(tests/[\w/]+\.py)::(test_\w+)`( \(slow\))? \|$")


def is_slow(file: str, name: str) -> bool:
    """Return whether a test is slow; raise ``StopIteration`` if it does not exist."""
    body = ast.parse((ROOT / file).read_text()).body
    test = next(node for node in body if isinstance(node, ast.FunctionDef) and node.name == name)
    return any(ast.unparse(decorator) == "pytest.mark.slow" for decorator in test.decorator_list)


def test_every_attack_names_a_test_that_exists() -> None:
    assert len(ATTACKS) >= 35
    wrong = []
    for row in ATTACKS:
        found = NAMED.search(row)
        if found is None or is_slow(found[1], found[2]) != bool(found[3]):
            wrong.append(row)
    assert wrong == []
