"""Every block of the page about DI-engine runs."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from lightning_ding.di_engine.configs import read_pair
from lightning_ding.di_engine.convert import to_yaml
from lightning_ding.di_engine.translate import translate
from lightning_ding.entry.cli import main
from lightning_ding.registry import ENV_REGISTRY, POLICY_REGISTRY

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "from_di_engine.md").read_text()
CONFIG = "cartpole_dqn_config.py"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Change to a folder with the config of the page, and remove what its blocks register afterwards."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / CONFIG).write_text(blocks("python")[0])
    before = [(registry, set(registry)) for registry in (ENV_REGISTRY, POLICY_REGISTRY)]
    yield tmp_path
    for registry, names in before:
        for name in set(registry) - names:
            registry._entries.pop(name)


def test_page_has_as_many_blocks_as_are_run_here() -> None:
    counts = {name: len(blocks(name)) for name in ("python", "bash", "yaml")}
    assert counts == {"python": 7, "bash": 2, "yaml": 1}  # the last one is run by tests/di_engine/test_checkpoint.py


@pytest.mark.parametrize("number", range(1, 6))
def test_python_block_runs(number: int, folder: Path) -> None:
    file = folder / "block.py"
    file.write_text(blocks("python")[number])
    runpy.run_path(str(file), run_name="__main__")


def test_commands_run_in_their_order(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line for block in blocks("bash") for line in block.splitlines()]
    short = {"serial": ["--env-step", "300"], "convert": ["--env-step", "300"], "fit": [], "eval": []}
    assert len(lines) == 5
    for line in lines:
        program, *options = line.split()
        if program == "python":
            monkeypatch.setattr(sys, "argv", options)
            runpy.run_path(options[0], run_name="__main__")
            continue
        main([*options, *short["eval" if "eval" in options else options[0]]])
    assert (folder / "cartpole_dqn" / "ckpt" / "best.ckpt").is_file()
    assert len(list((folder / "cartpole_dqn").rglob("last.ckpt"))) == 3  # of serial, fit and the recipe


def test_yaml_of_the_page_is_the_converted_config(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (text,) = blocks("yaml")
    converted = to_yaml(translate(CONFIG), "lightning-ding fit --config cartpole_dqn_config.yaml")
    assert yaml.safe_load(text) == yaml.safe_load(converted)
    assert text == converted


def test_config_of_the_page_is_a_pair(folder: Path) -> None:
    main, create = read_pair(folder / CONFIG)
    assert (main["exp_name"], create["policy"]["type"]) == ("cartpole_dqn", "dqn")
