"""Modules that must not import torch, so that a command line's help and env processes start quickly."""

from __future__ import annotations

import subprocess
import sys

import pytest

import lightning_ding.envs

HEAVY = "{'torch', 'lightning', 'jsonargparse', 'matplotlib'}"


@pytest.mark.parametrize(
    "statement",
    [
        "import lightning_ding",
        "import lightning_ding.envs.vector",
        "from lightning_ding.envs import FaultBarrier, Pausable, ProcessVectorEnv, make_vector_env",
        "import lightning_ding.envs.process.worker",
        "from lightning_ding.envs import BaseEnv, BaseEnvTimestep, make_base_env",
        "import lightning_ding.di_engine.env_wrappers",
        "import tests.toys.envs",
        "from lightning_ding.entry.cli import main; main(['--help'])",
        "from lightning_ding.entry.cli import main; main(['--version'])",
    ],
)
def test_import_does_not_import_torch(statement: str) -> None:
    code = f"import sys; {statement}; print(sorted({HEAVY} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_every_public_name_of_the_envs_is_found() -> None:
    assert all(getattr(lightning_ding.envs, name) is not None for name in lightning_ding.envs.__all__)
    assert set(lightning_ding.envs._HOMES) == set(lightning_ding.envs.__all__)
    assert set(lightning_ding.envs.__all__) <= set(dir(lightning_ding.envs))


def test_a_name_that_the_envs_do_not_have_raises() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'make_vectr_env'"):
        _ = lightning_ding.envs.make_vectr_env  # type: ignore[attr-defined]
