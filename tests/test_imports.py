from __future__ import annotations

import ast
import re
from pathlib import Path

import lightning_ding.policy  # noqa: F401 - registers the algorithms
from lightning_ding.registry import POLICY_REGISTRY

ROOT = Path(__file__).parents[1]
LOW = {"config", "registry", "progress", "nested", "rl", "worker_config", "exit_codes", "posix"}
ALLOWED = {
    "config": set(),
    "registry": {"config"},
    "progress": set(),
    "nested": set(),
    "worker_config": {"config"},
    "rl": set(),
    "exit_codes": set(),
    "posix": set(),
    "checkpoints": LOW,
    "model": LOW,
    "envs": LOW,
    "policy": LOW | {"model"},
    "worker": LOW | {"envs", "policy.modes"},
    "callbacks": LOW | {"__version__", "checkpoints", "worker", "policy.modes"},
    "datamodules": LOW | {"checkpoints", "envs", "worker", "callbacks", "policy.modes"},
    "distributed": LOW | {"__version__", "checkpoints", "envs", "policy", "worker", "callbacks", "datamodules"},
    "entry": LOW
    | {"__version__", "checkpoints", "model", "envs", "policy", "worker", "callbacks", "datamodules", "distributed"},
}  # type: dict[str, set[str]]


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
