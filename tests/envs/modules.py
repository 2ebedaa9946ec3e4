"""An env that says which modules its process has; apart from the tests, so that the process need not import pytest."""

from __future__ import annotations

import sys

from tests.toys.envs import CountingEnv


class ModulesEnv(CountingEnv):
    def modules(self) -> list[str]:
        return sorted({name.partition(".")[0] for name in sys.modules})
