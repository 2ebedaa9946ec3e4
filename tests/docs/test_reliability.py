"""Each row of docs/reliability.md names a test, which exists and is slow only if the row says so."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLES = re.findall(r"(?m)^\| attack \|.*\n((?:\|.*\n)+)", (ROOT / "docs/reliability.md").read_text())
ATTACKS = [row for table in TABLES for row in table.splitlines() if row.startswith("| ")]
NAMED = re.compile(r"\| `(tests/[\w/]+\.py)::(test_\w+)`( \(slow\))? \|$")


def is_slow(file: str, name: str) -> bool:
    """Return whether a test or its whole file is slow; raise ``StopIteration`` if it does not exist."""
    body = ast.parse((ROOT / file).read_text()).body
    test = next(node for node in body if isinstance(node, ast.FunctionDef) and node.name == name)
    of_file = [node for node in body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"]
    marks = test.decorator_list + [mark for node in of_file for mark in getattr(node.value, "elts", [node.value])]
    return any(ast.unparse(mark) == "pytest.mark.slow" for mark in marks)


def test_every_attack_names_a_test_that_exists() -> None:
    assert len(ATTACKS) >= 100
    wrong = []
    for row in ATTACKS:
        found = NAMED.search(row)
        if found is None or is_slow(found[1], found[2]) != bool(found[3]):
            wrong.append(row)
    assert wrong == []


def test_every_test_is_named_once() -> None:
    names = Counter(found[0] for row in ATTACKS if (found := NAMED.search(row)) is not None)
    assert [name for name, count in names.items() if count > 1] == []


def test_every_scenario_in_a_cluster_of_ray_with_a_fault_has_a_row() -> None:
    """Without a fault is only the scenario that counts how often weights are fetched."""
    named = {found[2] for row in ATTACKS if (found := NAMED.search(row)) is not None}
    body = ast.parse((ROOT / "tests/distributed/ray/test_cluster.py").read_text()).body
    tests = {node.name for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}
    assert tests - named == {"test_weights_are_fetched_once_for_each_node"}
