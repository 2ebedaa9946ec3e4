"""The public names of the package with their parameters, as lines of ``tests/api_snapshot.txt``.

    python -m tests.api_snapshot            # what was removed since the file was written, and what was added
    python -m tests.api_snapshot --update   # write the file

The first line is the version of the package. Another line is a function, a class with the parameters of its
constructor, or a public method that the class itself defines. A parameter with a default ends in ``=``.
"""

from __future__ import annotations

import argparse
import inspect
import re
import types
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pydoc import locate
from typing import Any

from lightning_ding import __version__
from lightning_ding.registry import Registry

FILE = Path(__file__).with_name("api_snapshot.txt")
MODULES = (
    *("callbacks", "checkpoints", "datamodules", "distributed", "envs", "model", "policy", "reward_model", "rl"),
    *("tune", "worker"),
    *("config", "hub", "nested", "registry", "search_spaces"),
)
"""Modules whose ``__all__`` is public, or without one every name that they define without an underscore."""
NAMES = {
    "entry": (
        *("eval", "parallel_pipeline", "serial_pipeline", "serial_pipeline_bc", "serial_pipeline_dqfd"),
        *("serial_pipeline_gail", "serial_pipeline_offline", "serial_pipeline_onpolicy"),
        *("serial_pipeline_reward_model_offpolicy", "serial_pipeline_reward_model_onpolicy", "serial_pipeline_sqil"),
    ),
    "entry.agent": ("Agent",),
    "entry.cli": ("main",),
    "entry.collect": ("collect",),
    "entry.enjoy": ("enjoy",),
    "entry.evaluate": ("evaluate", "statistics"),
    "entry.lightning_cli": ("DingCLI", "datamodule_class", "main"),
}
"""Modules of which these names alone are public."""
VERSION = "version "
UPDATE = "python -m tests.api_snapshot --update"
LINE = re.compile(r"(?P<name>[\w.]+)(?:\((?P<parameters>.*)\))?")


def public_api() -> dict[str, tuple[str, ...]]:
    """Return the parameters of each public name; none for names that cannot be called."""
    found: dict[str, tuple[str, ...]] = {}
    for short in (*MODULES, *NAMES):
        module = import_module(f"lightning_ding.{short}")
        for name in sorted(NAMES.get(short) or _names_of(module)):
            found |= dict(_described(f"{module.__name__}.{name}", getattr(module, name)))
    return found


def _names_of(module: Any) -> list[str]:
    """Return the public names of a module: those of its ``__all__``, or what it defines itself."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    made = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    kinds = (types.FunctionType, type, Registry)
    own = {name for name, value in made.items() if isinstance(value, kinds)}
    return [name for name in own if getattr(made[name], "__module__", "") == module.__name__]


def version(text: str) -> str:
    """Return the version of the package that a snapshot was written for."""
    return text.splitlines()[0].removeprefix(VERSION)


def read(text: str) -> dict[str, tuple[str, ...]]:
    """Return the names and parameters in the text of a snapshot."""
    found = {}
    for line in text.splitlines()[1:]:
        match = LINE.fullmatch(line)
        assert match is not None, line
        found[match["name"]] = tuple((match["parameters"] or "").split(", ")) if match["parameters"] else ()
    return found


def write(api: dict[str, tuple[str, ...]]) -> str:
    """Return the text of a snapshot."""
    lines = [f"{name}({', '.join(parameters)})\n" for name, parameters in sorted(api.items())]
    return "".join([f"{VERSION}{__version__}\n", *lines])


def broken(old: dict[str, tuple[str, ...]], new: dict[str, tuple[str, ...]]) -> list[str]:
    """Return what calls of the old API would no longer find: names, parameters and defaults."""
    problems = [f"{name} vanished" for name in old if name not in new and not _is_inherited(name, new)]
    for name in old.keys() & new.keys():
        now = {one.rstrip("="): one for one in new[name]}
        before = {one.rstrip("="): one for one in old[name]}
        takes_all = any(one.startswith("**") for one in now)
        problems += [f"{name}: parameter {one!r} was removed" for one in before if one not in now and not takes_all]
        required = [one for one, text in now.items() if not text.endswith("=") and not one.startswith("*")]
        problems += [f"{name}: parameter {one!r} is required now" for one in required if before.get(one) != one]
    return sorted(problems)


def _is_inherited(name: str, new: dict[str, tuple[str, ...]]) -> bool:
    """Return whether a class that is still public has the method from a base class now."""
    return name.rpartition(".")[0] in new and locate(name) is not None


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
