from __future__ import annotations

import ast
import re
from pathlib import Path

import lightning_ding.policy  # noqa: F401 - registers the algorithms
from lightning_ding.registry import POLICY_REGISTRY

ROOT = Path(__file__).parents[1]
ROW = re.compile(r"^\| `(\w+)` \|[^|]*\|([^|]*)\|$", re.MULTILINE)


def import_rules(page: str) -> dict[str, set[str]]:
    """Return what each part of the package may import, from the table in CONTRIBUTING.md."""
    rows = dict(ROW.findall(page))
    base = {name for name, cell in rows.items() if not cell.strip().startswith("base")}
    named = {name: set(re.findall(r"`([\w.]+)`", cell)) for name, cell in rows.items()}
    return {name: named[name] if name in base else named[name] | base for name in rows}


ALLOWED = import_rules((ROOT / "CONTRIBUTING.md").read_text())


def room(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    return (parts[1] if parts[0] == "lightning_ding" else parts[0]).removesuffix(".py")


def imported(path: Path) -> set[str]:
    """Return what a file imports of this project, without the leading ``lightning_ding.``."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "lightning_ding":
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lightning_ding."):
            names.add((node.module or "").removeprefix("lightning_ding."))
        elif isinstance(node, ast.Import):
            names |= {
                a.name.removeprefix("lightning_ding.") for a in node.names if a.name.startswith("lightning_ding.")
            }
    return names


def source_files() -> list[Path]:
    folders = [ROOT / name for name in ("lightning_ding", "callbacks", "datamodules")]
    files = [path for folder in folders for path in folder.rglob("*.py") if not path.parent.is_symlink()]
    return [path for path in files if path.relative_to(ROOT).as_posix() != "lightning_ding/__init__.py"]


def is_allowed(name: str, own: str) -> bool:
    return any(name == open_ or name.startswith(f"{open_}.") for open_ in ALLOWED[own] | {own})


def test_imports_point_one_way() -> None:
    wrong = {
        f"{path.relative_to(ROOT)} imports {name}"
        for path in source_files()
        for name in imported(path)
        if not is_allowed(name, room(path))
    }
    assert wrong == set()


def module_name(path: Path) -> str:
    """Return the dotted name of a module, that of the package for an ``__init__.py``."""
    parts = ("lightning_ding", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[parts[1] == "lightning_ding" :]).removesuffix(".__init__")


def import_graph() -> dict[str, set[str]]:
    """Return which modules each module imports, those for type checking and those inside of functions included."""
    files = {module_name(path): path for path in source_files()}
    graph = {}
    for name, path in files.items():
        found: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lightning_ding"):
                full_names = [f"{node.module}.{alias.name}" for alias in node.names]
                found |= {full if full in files else str(node.module) for full in full_names}
            elif isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
        graph[name] = found & files.keys() - {name}
    return graph


def cycles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """Return the strongly connected components of several modules."""
    reached = {name: _reached(name, graph) for name in graph}
    groups = {frozenset(other for other in reached[name] if name in reached[other]) for name in graph}
    return {group for group in groups if len(group) > 1}


def _reached(start: str, graph: dict[str, set[str]]) -> set[str]:
    found, waiting = {start}, [start]
    while waiting:
        new = graph[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def test_a_cycle_is_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}
    assert cycles(graph) == {frozenset("bc")}


def test_no_modules_import_each_other() -> None:
    graph = import_graph()
    assert sum(map(len, graph.values())) > 500
    assert cycles(graph) == set()


def test_rules_are_read_from_the_table() -> None:
    page = "| `low` | x | |\n| `high` | y | base, `mid.part` |\n"
    assert import_rules(page) == {"low": set(), "high": {"low", "mid.part"}}


def test_import_rule_sees_every_room_and_many_files() -> None:
    files = source_files()
    assert {room(path) for path in files} == set(ALLOWED)
    assert len(files) > 50


def test_no_worker_datamodule_callback_or_env_names_an_algorithm() -> None:
    names = [name for name in POLICY_REGISTRY if POLICY_REGISTRY.get(name).__module__.startswith("lightning_ding.")]
    assert {"dqn", "ppo", "sac"} <= set(names)
    mentions = re.compile(rf"\b({'|'.join(names)})(policy|config)?\b", re.IGNORECASE)
    named = [
        path.relative_to(ROOT).as_posix()
        for path in source_files()
        if room(path) in ("worker", "datamodules", "callbacks", "envs") and mentions.search(path.read_text())
    ]
    assert named == []
