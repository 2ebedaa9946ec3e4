from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from lightning_ding.config import resolve
from lightning_ding.registry import POLICY_REGISTRY

RECIPES = Path(__file__).parents[2] / "recipes"
TWINS = {"dqn.py": "dqn_cartpole.yaml"}


def load(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_recipe_and_every_yaml_is_known_here() -> None:
    assert {file.name for file in RECIPES.glob("*.py")} - {"__init__.py"} == set(TWINS)
    assert {file.name for file in RECIPES.rglob("*.yaml")} == set(TWINS.values())


@pytest.mark.parametrize("name", TWINS)
def test_recipe_is_short(name: str) -> None:
    assert len((RECIPES / name).read_text().splitlines()) <= 60


@pytest.mark.parametrize("name", TWINS)
def test_recipe_and_its_yaml_have_equal_settings(name: str) -> None:
    recipe = load(RECIPES / name)
    twin: dict[str, Any] = yaml.safe_load((RECIPES / "configs" / TWINS[name]).read_text())
    config_class = POLICY_REGISTRY.get(twin["policy"]).config_class
    assert resolve(config_class, twin["model"]["cfg"]) == resolve(config_class, recipe.CONFIG)
    assert (twin["data"]["env_id"], twin["data"]["max_env_step"]) == (recipe.ENV_ID, recipe.MAX_ENV_STEP)


@pytest.mark.parametrize("name", TWINS)
def test_recipe_trains_and_ends_with_the_return_and_the_best_checkpoint(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(RECIPES / name), "--max-env-step", "1200"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    score, best = done.stdout.strip().splitlines()[-2:]
    assert re.fullmatch(r"mean return of 20 greedy episodes: \d+\.\d", score)
    file = tmp_path / best.removeprefix("best checkpoint: ")
    assert file.is_file()
    assert list(file.parents[1].glob("events.out.tfevents.*"))
    assert "env steps" in done.stdout


def test_recipes_are_no_package() -> None:
    done = subprocess.run([sys.executable, "-c", "import recipes"], cwd=RECIPES.parent, capture_output=True, text=True)
    assert "recipes are scripts" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_dqn_recipe_holds_the_pole(seed: int, tmp_path: Path) -> None:
    command = [sys.executable, str(RECIPES / "dqn.py"), "--seed", str(seed)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert float(done.stdout.strip().splitlines()[-2].split()[-1]) >= 475
