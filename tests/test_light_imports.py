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
    names = vars(lightning_ding.envs)["__all__"]
    assert {"BaseEnv", "make_vector_env"} <= set(names) <= set(dir(lightning_ding.envs))
    assert all(getattr(lightning_ding.envs, name) is not None for name in names)


def test_a_name_that_the_envs_do_not_have_raises() -> None:
    with pytest.raises(AttributeError, match="make_vectr_env"):
        _ = lightning_ding.envs.make_vectr_env  # type: ignore[attr-defined]


AFTER_LIGHTNING = """
import os, sys
import lightning
before = set(sys.modules)
for statement in sys.argv[1:]:
    if os.fork() == 0:
        exec(statement)
        packages = {name.partition('.')[0] for name in set(sys.modules) - before}
        print(*(packages - {name.partition('.')[0] for name in before}), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0, statement
    print("end of statement", flush=True)
"""


@pytest.fixture(scope="module")
def packages() -> dict[str, set[str]]:
    """Return the top-level modules, without the standard library, that each statement loads after Lightning.

    Each statement runs in a fork of a process that has imported Lightning, which takes seconds.
    """
    command = [sys.executable, "-c", AFTER_LIGHTNING, *ALLOWED]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    *outputs, rest = done.stdout.split("end of statement\n")
    assert not rest
    loaded = (set(output.splitlines()[-1].split()) - sys.stdlib_module_names for output in outputs)
    return dict(zip(ALLOWED, loaded, strict=True))


GYMNASIUM = {"cloudpickle", "farama_notifications", "gymnasium", "lazy_loader"}
COMMAND_LINE = {"docstring_parser", "jsonargparse", "ruamel", "typeshed_client"}  # ruamel only where it is installed


ALLOWED: dict[str, set[str]] = {
    "import lightning_ding": set(),
    "from lightning_ding.entry.cli import main; main(['--help'])": set(),
    "import lightning_ding.policy": {"easydict", "safetensors", *GYMNASIUM},
    "import lightning_ding.datamodules, lightning_ding.callbacks": {"easydict", "safetensors", *GYMNASIUM},
    "import lightning_ding.distributed": {"easydict", "safetensors", *GYMNASIUM},
    "import lightning_ding.di_engine": {"easydict", "safetensors", *GYMNASIUM},
    "import lightning_ding.entry.lightning_cli": {"easydict", "safetensors", *GYMNASIUM, *COMMAND_LINE},
}


@pytest.mark.parametrize("statement", ALLOWED)
def test_import_loads_few_packages_more_than_lightning(statement: str, packages: dict[str, set[str]]) -> None:
    assert packages[statement] <= {"lightning_ding", *ALLOWED[statement]}
    assert "lightning_ding" in packages[statement]
