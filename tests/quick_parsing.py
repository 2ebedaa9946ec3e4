"""Look-ups of jsonargparse that are made once: it repeats them for each key of each config, a tenth of a short run."""

from __future__ import annotations

import functools
from typing import Any

from jsonargparse import _subcommands as untyped_subcommands, _util as untyped_util

KEPT = 16
"""Number of lists of actions whose parsed ones are kept."""
_subcommands: Any = untyped_subcommands
_util: Any = untyped_util
_original_filter = _subcommands.filter_non_parsing_actions
_original_path = _util.get_import_path
_parsing: dict[int, tuple[Any, int, Any, Any]] = {}


def parsing_actions(actions: Any) -> Any:
    """Return the actions that are parsed, which are filtered again only if the list has changed."""
    known = _parsing.get(id(actions))
    last = actions[-1] if isinstance(actions, list) and actions else None
    if known is not None and known[0] is actions and known[1] == len(actions) and known[2] is last:
        return list(known[3])
    found = _original_filter(actions)
    if last is not None:
        if len(_parsing) >= KEPT:
            _parsing.clear()
        _parsing[id(actions)] = (actions, len(actions), last, found)
    return list(found)


_path_of_class = functools.cache(_original_path)


def import_path(value: Any) -> Any:
    """Return the import path of an object; those of the classes of type hints are kept."""
    is_kept = isinstance(value, type) and value.__module__ in ("typing", "types", "builtins")
    return _path_of_class(value) if is_kept else _original_path(value)


def install() -> None:
    """Let jsonargparse use these functions."""
    _subcommands.filter_non_parsing_actions = parsing_actions
    _util.get_import_path = import_path
