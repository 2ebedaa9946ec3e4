"""The public names of the package with their parameters, as lines of ``tests/api_snapshot.txt``.

    python -m tests.api_snapshot            # what was removed since the file was written, and what was added
    python -m tests.api_snapshot --update   # write the file

A line is a function, a class with the parameters of its constructor, or a public method that the class itself defines.
A parameter with a default ends in ``=``.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("api_snapshot.txt")
MODULES = ("callbacks", "datamodules", "distributed", "envs", "model", "policy", "reward_model", "rl", "tune", "worker")
UPDATE = "python -m tests.api_snapshot --update"
LINE = re.compile(r"(?P<name>[\w.]+)(?:\((?P<parameters>.*)\))?")


def public_api() -> dict[str, tuple[str, ...]]:
    """Return the parameters of each public name; none for names that cannot be called."""
    found: dict[str, tuple[str, ...]] = {}
    for short in MODULES:
        module = import_module(f"lightning_ding.{short}")
        for name in sorted(module.__all__):
            found |= dict(_described(f"{module.__name__}.{name}", getattr(module, name)))
    return found


def read(text: str) -> dict[str, tuple[str, ...]]:
    """Return the names and parameters in the text of a snapshot."""
    found = {}
    for line in text.splitlines():
        match = LINE.fullmatch(line)
        assert match is not None, line
        found[match["name"]] = tuple((match["parameters"] or "").split(", ")) if match["parameters"] else ()
    return found


def write(api: dict[str, tuple[str, ...]]) -> str:
    """Return the text of a snapshot."""
    return "".join(f"{name}({', '.join(parameters)})\n" for name, parameters in sorted(api.items()))


def broken(old: dict[str, tuple[str, ...]], new: dict[str, tuple[str, ...]]) -> list[str]:
    """Return what calls of the old API would no longer find: names, parameters and defaults."""
    problems = [f"{name} vanished" for name in old if name not in new]
    for name in old.keys() & new.keys():
        now = {one.rstrip("="): one for one in new[name]}
        before = {one.rstrip("="): one for one in old[name]}
        takes_all = any(one.startswith("**") for one in now)
        problems += [f"{name}: parameter {one!r} was removed" for one in before if one not in now and not takes_all]
        required = [one for one, text in now.items() if not text.endswith("=") and not one.startswith("*")]
        problems += [f"{name}: parameter {one!r} is required now" for one in required if before.get(one) != one]
    return sorted(problems)


def _described(path: str, value: object) -> Iterator[tuple[str, tuple[str, ...]]]:
    yield path, _parameters(value)
    if not inspect.isclass(value):
        return
    for name, method in sorted(vars(value).items()):
        if not name.startswith("_") and callable(getattr(method, "__func__", method)):
            yield f"{path}.{name}", _parameters(getattr(value, name), is_method=inspect.isfunction(method))


def _parameters(value: object, is_method: bool = False) -> tuple[str, ...]:
    if not callable(value):
        return ()
    try:
        parameters = list(inspect.signature(value).parameters.values())[is_method:]
    except (TypeError, ValueError):  # no signature, as of some builtins
        return ()
    stars: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return tuple(f"{stars.get(one.kind, '')}{one.name}{'' if one.default is one.empty else '='}" for one in parameters)


def main() -> None:
    """Compare the package with the file, or write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="write the file")
    options = parser.parse_args()
    old, new = read(FILE.read_text()) if FILE.exists() else {}, public_api()
    print(*broken(old, new), *(f"{name} is new" for name in new if name not in old), sep="\n")
    if options.update:
        FILE.write_text(write(new))


if __name__ == "__main__":
    main()
