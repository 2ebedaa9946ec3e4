"""Which errors are answers to a command line, so that one line says them, and which are bugs with a traceback."""

from __future__ import annotations

import os
import sys
import traceback

from gymnasium.error import Error as GymnasiumError
from lightning.fabric.utilities.exceptions import MisconfigurationException

KINDS = (ValueError, TypeError, KeyError, ImportError, FileNotFoundError, MisconfigurationException, GymnasiumError)
CHECKING = {"lightning_ding", "lightning", "gymnasium", "jsonargparse", "importlib"}
"""Packages whose errors are about what they were given."""
RUNNING = "lightning.pytorch.loops"  # whose method `run` trains or evaluates
DEBUG = "LIGHTNING_DING_DEBUG"


def is_refusal(error: BaseException) -> bool:
    """Return whether an error refuses the settings of a run: a check raised it, in no code of the user, before the run.

    With ``LIGHTNING_DING_DEBUG`` in the environment no error is one.
    """
    if os.environ.get(DEBUG) or not isinstance(error, KINDS):
        return False
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    modules = [frame.f_globals.get("__name__", "") for frame in frames]
    packages = [module.partition(".")[0] for module in modules]
    runs = any(
        frame.f_code.co_name == "run" and frame.f_globals.get("__name__", "").startswith(RUNNING) for frame in frames
    )
    of_users = set(packages) - CHECKING - {"torch"} - sys.stdlib_module_names
    return packages[-1] in CHECKING and not of_users and not runs


def line_of(error: BaseException) -> str:
    """Return an error's message in one line."""
    text = str(error.args[0] if isinstance(error, KeyError) and error.args else error)
    return " ".join((text or type(error).__name__).split())
