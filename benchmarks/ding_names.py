"""Whether code for DI-engine finds the names that it imports from ``ding`` here.

    python -m benchmarks.ding_names --folder FOLDER [--missing 40] [--out docs/results/ding_names.json]

FOLDER has DI-engine's sources: the packages ``ding`` and ``dizoo`` of a clone. Nothing of them is run: each file is
parsed, and each name that it imports from ``ding`` is looked up as :mod:`lightning_ding.di_engine.as_ding` does. Four
sets of files are counted: the env files of the dizoo, those that register an env; its main, eval and deploy scripts,
by their file names; the policies in ``ding/policy``, without its helpers; and the scripts in ``ding/example``.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

HELPERS = ("__init__.py", "common_utils.py", "command_mode_policy_instance.py", "policy_factory.py")
Name = tuple[str, str]
"""A module of DI-engine, and a name that is imported from it; empty for the module alone."""


class Found(NamedTuple):
    """A set of files, and what they miss."""

    files: dict[str, list[Name]]
    """The names that each file does not find."""

    @property
    def complete(self) -> int:
        """Number of files that find every name."""
        return sum(not missing for missing in self.files.values())


def sets_of(folder: Path) -> dict[str, list[Path]]:
    """Return the files of each set."""
    zoo = sorted((folder / "dizoo").rglob("*.py"))
    policies, examples = (sorted((folder / "ding" / name).glob("*.py")) for name in ("policy", "example"))
    return {
        "env files": [one for one in zoo if not one.name.startswith("test_") and "ENV_REGISTRY.register" in _text(one)],
        "main, eval and deploy scripts": [one for one in zoo if re.search("main|eval|deploy", one.name)],
        "policy sources": [one for one in policies if one.name not in HELPERS],
        "examples": [one for one in examples if one.name != "__init__.py"],
    }


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def imported(file: Path, folder: Path) -> Iterator[Name]:
    """Yield the names that a file imports from ``ding``, relative ones of ``ding`` included."""
    package = file.relative_to(folder).parts[:-1]
    for node in ast.walk(ast.parse(_text(file))):
        if isinstance(node, ast.Import):
            yield from ((one.name, "") for one in node.names if one.name.split(".")[0] == "ding")
        elif isinstance(node, ast.ImportFrom):
            parts = [*package[: len(package) - node.level + 1]] if node.level else []
            module = ".".join([*parts, *([node.module] if node.module else [])])
            if module.split(".")[0] == "ding":
                yield from ((module, one.name) for one in node.names)


def is_there(module: str, name: str) -> bool:
    """Return whether a name of DI-engine is found here."""
    as_ding = importlib.import_module("lightning_ding.di_engine.as_ding")
    try:
        if name not in ("", "*"):
            as_ding.find(module, name)
        elif module != "ding":
            as_ding.home_of(module)
    except ImportError:
        return False
    return True


def check(folder: Path) -> dict[str, Found]:
    """Return what the files of each set miss."""
    known: dict[Name, bool] = {}
    found = {}
    for kind, files in sets_of(folder).items():
        missing: dict[str, list[Name]] = {}
        for file in files:
            names = sorted(set(imported(file, folder)))
            known |= {one: is_there(*one) for one in names if one not in known}
            missing[str(file.relative_to(folder))] = [one for one in names if not known[one]]
        found[kind] = Found(missing)
    return found


def main(arguments: list[str] | None = None) -> None:
    """Print the counts, and the names that most files miss."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="DI-engine's sources")
    parser.add_argument("--missing", type=int, default=20, help="missing names to print")
    parser.add_argument("--out", type=Path, help="JSON file for what each file misses")
    options = parser.parse_args(arguments)
    found = check(options.folder)
    for kind, one in found.items():
        print(f"{one.complete} of {len(one.files)} {kind} find every name")
    counts: Counter[Name] = Counter(name for one in found.values() for names in one.files.values() for name in names)
    for (module, name), count in counts.most_common(options.missing):
        print(f"{count:4} files miss {name or 'the module'} of {module}")
    if options.out is not None:
        result: dict[str, Any] = {kind: one.files for kind, one in found.items()}
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
