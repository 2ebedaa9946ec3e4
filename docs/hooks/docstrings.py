"""Extension of Griffe, which reads the docstrings of the API pages: cross-references and examples.

A role such as ``:class:`Policy` `` becomes a link if the API pages document its target, and code otherwise. A name
that does not exist is a warning, so that a strict build fails. ``Example:`` becomes ``Examples:``, which is rendered as
Python.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import griffe
from mkdocs.plugins import get_plugin_logger

API = Path(__file__).resolve().parents[1] / "api"
ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod|obj):`(~?)([\w.]+)`")
EXAMPLE = re.compile(r"^(\s*)Example:$", flags=re.MULTILINE)
EXTERNAL = ("gymnasium", "lightning.", "numpy", "torch", "weakref")

log = get_plugin_logger("docstrings")


class Docstrings(griffe.Extension):
    """Turns the roles of docstrings into cross-references, and their examples into code."""

    def __init__(self) -> None:
        pages = "\n".join(page.read_text() for page in API.rglob("*.md"))
        self.top_level: dict[str, griffe.Object] = {}  # classes and functions, for modules that do not import them
        self.documented = set(re.findall(r"^::: (\S+)", pages, flags=re.MULTILINE))

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Change all docstrings of a package.

        Args:
            pkg: The package, as Griffe read it.
        """
        if pkg.path != "lightning_ding":
            return
        objects = list(objects_of(pkg))
        self.top_level = {one.name: one for one in objects if one.parent is not None and one.parent.is_module}
        for one in objects:
            if one.docstring is not None:
                text = EXAMPLE.sub(r"\1Examples:", one.docstring.value)
                one.docstring.value = ROLE.sub(partial(self._link, one), text)

    def link(self, owner: griffe.Object, name: str, short: bool) -> str:
        """Return the link to an object, or its name as code.

        Args:
            owner: Object that has the docstring.
            name: Name in the docstring.
            short: Whether to show the last part of the name only.
        """
        label = f"`{name.rpartition('.')[2] if short else name}`"
        first, *rest = name.split(".")
        path = path_of(owner, name) or (member_of(self.top_level[first], rest) if first in self.top_level else "")
        if not path and not name.startswith(EXTERNAL):
            log.warning(f"{owner.path} refers to {name}, which does not exist")
        return f"[{label}][{path}]" if self.has_entry(path) else label

    def _link(self, owner: griffe.Object, role: re.Match[str]) -> str:
        return self.link(owner, role[2], bool(role[1]))

    def has_entry(self, path: str) -> bool:
        """Return whether an API page documents an object.

        Args:
            path: Full name of the object.
        """
        parts = path.split(".")
        if any(part.startswith("_") for part in parts):
            return path in self.documented
        return any(".".join(parts[:count]) in self.documented for count in range(2, len(parts) + 1))


def objects_of(parent: griffe.Object) -> Iterator[griffe.Object]:
    """Return an object and all objects that are defined in it.

    Args:
        parent: A package, module, class or function.
    """
    yield parent
    for member in parent.members.values():
        if isinstance(member, griffe.Object):
            yield from objects_of(member)


def path_of(owner: griffe.Object, name: str) -> str:
    """Return the full name of the object that a name means in a docstring, or an empty string if there is none.

    Args:
        owner: Object that has the docstring.
        name: Name, relative to the object, its class or its module, or absolute.
    """
    first, *rest = name.split(".")
    scope: griffe.Object | griffe.Alias | None = owner
    while scope is not None:
        found = member_of(scope, [first, *rest])
        if found:
            return found
        scope = scope.parent
    return member_of(owner.package, rest) if first == owner.package.name else ""


def member_of(scope: griffe.Object | griffe.Alias, names: list[str]) -> str:
    """Return the full name of a member, inherited and imported ones included, or an empty string.

    Args:
        scope: Package, module or class.
        names: Names of members, from outer to inner.
    """
    try:
        for name in names:
            scope = scope.all_members[name]
            scope = scope.final_target if isinstance(scope, griffe.Alias) else scope
    except (KeyError, griffe.AliasResolutionError, griffe.CyclicAliasError):
        return ""
    return described(scope).path


def described(one: griffe.Object | griffe.Alias) -> griffe.Object | griffe.Alias:
    """Return the object itself or, for a method without a docstring, the method of a base class that has one.

    Args:
        one: Module, class, function or attribute.
    """
    if one.docstring is None and isinstance(one.parent, griffe.Class):
        inherited = [base.members[one.name] for base in one.parent.mro() if one.name in base.members]
        return next((method for method in inherited if method.docstring is not None), one)
    return one
