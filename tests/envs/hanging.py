"""An env that never ends a step; apart from the tests, so that scripts can import it."""

from __future__ import annotations

import ctypes
import time
from typing import Any

from tests.toys.envs import CountingEnv


class HangingEnv(CountingEnv):
    """Sleeps in Python, or in C with Python's lock held, which lets no other thread run."""

    how = "sleeps"

    def step(self, action: Any) -> Any:
        """Hang."""
        if self.how == "sleeps":
            time.sleep(3600)
        ctypes.PyDLL(None).sleep(3600)
