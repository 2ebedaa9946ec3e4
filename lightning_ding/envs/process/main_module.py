"""Starting env processes that do not import the user's script.

Each process that ``multiprocessing`` starts imports the script and everything that the script imports, which takes
seconds of CPU time and hundreds of megabytes for each env. Env processes do not need that import. Objects that the
script defines are pickled by value instead.
"""

from __future__ import annotations

import operator
import pickle
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from multiprocessing.reduction import ForkingPickler
from pickle import PicklingError
from typing import Any

import cloudpickle

NAME = "__main__"
_one_at_a_time = threading.Lock()  # with two threads, one could restore the other's placeholder


@contextmanager
def hidden_script() -> Iterator[None]:
    """Hide the script from ``multiprocessing``, so that processes and fork servers do not import it."""
    with _one_at_a_time:
        script = sys.modules[NAME]
        sys.modules[NAME] = types.ModuleType(NAME)
        try:
            yield
        finally:
            sys.modules[NAME] = script


def dumps_for_child(message: Any) -> Any:
    """Return a pickled message to an env process, with the script's objects pickled by value."""
    data = ForkingPickler.dumps(message)
    return data if NAME.encode() not in data.tobytes() else cloudpickle.dumps(message)


def dumps_for_parent(message: Any) -> Any:
    """Return a pickled message from an env process, with the script's objects pickled by name."""
    with suppress(Exception):  # the usual message is plain data, which this pickles in half the time
        return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    try:
        return ForkingPickler.dumps(message)
    except (AttributeError, PicklingError) as error:
        if NAME not in str(error):
            raise
    buffer = BytesIO()
    _ByName(buffer).dump(message)
    return buffer.getbuffer()


class _ByName(ForkingPickler):
    """A pickler that refers to classes and functions of the parent's script by their names."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, (type, types.FunctionType)) and value.__module__ == NAME:
            return _of_script, (value.__qualname__,)
        return NotImplemented


def _of_script(name: str) -> Any:
    return operator.attrgetter(name)(sys.modules[NAME])
