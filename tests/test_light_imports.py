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


def packages_loaded_by(statement: str) -> set[str]:
    """Return the top-level modules that a statement loads in a new process, without the standard library."""
    code = f"import sys; {statement}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split()) - sys.stdlib_module_names


@pytest.fixture(scope="module")
def packages_of_lightning() -> set[str]:
    """Return what ``import lightning`` loads."""
    return packages_loaded_by("import lightning")


GYMNASIUM = {"cloudpickle", "farama_notifications", "gymnasium"}
COMMAND_LINE = {"docstring_parser", "jsonargparse", "ruamel", "typeshed_client"}  # ruamel only where it is installed


@pytest.mark.parametrize(
    ("statement", "allowed"),
    [
        ("import lightning_ding", set()),
        ("from lightning_ding.entry.cli import main; main(['--help'])", {"easydict"}),
        ("import lightning_ding.policy", {"easydict", "safetensors", *GYMNASIUM}),
        ("import lightning_ding.datamodules, lightning_ding.callbacks", {"easydict", "safetensors", *GYMNASIUM}),
        ("import lightning_ding.distributed", {"easydict", "safetensors", *GYMNASIUM}),
        ("import lightning_ding.di_engine", {"easydict", "safetensors", *GYMNASIUM}),
        ("import lightning_ding.entry.lightning_cli", {"easydict", "safetensors", *GYMNASIUM, *COMMAND_LINE}),
    ],
)
def test_import_loads_few_packages_more_than_lightning(
    statement: str, allowed: set[str], packages_of_lightning: set[str]
) -> None:
    assert packages_loaded_by(statement) - packages_of_lightning <= {"lightning_ding", *allowed}
