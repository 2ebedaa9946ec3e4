"""Importing what comes with the extra ``video``."""

from __future__ import annotations

import importlib
from typing import Any


def import_extra(module: str) -> Any:
    """Return a module.

    Raises:
        ImportError: If it is not installed; the message says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(f"this needs {package}: pip install 'lightning_ding[video]'") from error
