"""The shape of the code base: few small files, no long ones, configs next to their algorithms, few base classes."""

from __future__ import annotations

import ast

import pytest
from lightning.pytorch import LightningModule

import lightning_ding.policy  # noqa: F401 - registers the algorithms
from lightning_ding.registry import POLICY_REGISTRY
from tests.test_imports import ROOT, source_files

MAX_FILES = 591
OF_DING = (
    "config",
    "data",
    "entry",
    "envs",
    "framework/task",
    "model",
    "policy",
    "reward_model",
    "rl_utils",
    "scheduler",
    "torch_utils",
    "utils",
    "worker",
)
"""Files of ``di_engine`` that have the names of DI-engine's packages."""
MAX_SMALL_FILES = 24
SMALL = 60  # lines
MAX_LINES = 475
MAX_CLASSES = 7  # rlpd is redq, calql is cql, and ppg_offpolicy is ppo_offpolicy, with one change


def algorithms() -> list[type]:
    found: list[type] = [POLICY_REGISTRY.get(name) for name in POLICY_REGISTRY]
    return [one for one in found if one.__module__.startswith("lightning_ding.")]


def test_number_of_files_is_bounded() -> None:
    assert len(source_files()) <= MAX_FILES


def test_few_files_are_small() -> None:
    lines = {path: len(path.read_text().splitlines()) for path in source_files() if path.name != "__init__.py"}
    assert sum(number < SMALL for number in lines.values()) <= MAX_SMALL_FILES


def test_no_file_is_long() -> None:
    long = [path for path in source_files() if len(path.read_text().splitlines()) > MAX_LINES]
    assert [path.relative_to(ROOT).as_posix() for path in long] == []


def test_config_of_an_algorithm_is_in_its_file() -> None:
    assert list((ROOT / "lightning_ding" / "policy").rglob("*_config.py")) == []


@pytest.mark.parametrize("algorithm", algorithms(), ids=lambda one: one.__name__)
def test_algorithm_has_few_base_classes(algorithm: type) -> None:
    chain = algorithm.__mro__[: algorithm.__mro__.index(LightningModule)]
    ours = [one.__name__ for one in chain if one.__module__.startswith("lightning_ding.")]
    of_team = ".teams." in algorithm.__module__  # that of a single agent, with an axis of agents
    assert len(ours) <= MAX_CLASSES + 3 * of_team, ours


def test_no_two_public_classes_share_a_name() -> None:
    names: dict[str, list[str]] = {}
    theirs = [ROOT / "lightning_ding" / "di_engine" / f"{one}.py" for one in OF_DING]
    for path in (one for one in source_files() if one not in theirs):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                names.setdefault(node.name, []).append(path.relative_to(ROOT).as_posix())
    assert {name: files for name, files in names.items() if len(files) > 1} == {}
