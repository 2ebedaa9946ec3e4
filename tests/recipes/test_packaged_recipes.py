"""The recipes for envs of optional packages. Those without their package are skipped, except for their settings."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from lightning_ding.config import resolve
from lightning_ding.entry.lightning_cli import main
from lightning_ding.registry import POLICY_REGISTRY
from tests.recipes.test_recipes import PACKAGED, RECIPES, load, policy_class_of

PACKAGES = {"ppo_lunarlander": "Box2D"}
"""The package that each recipe needs."""
EVERY = pytest.mark.parametrize("name", PACKAGED)


def needs(name: str) -> None:
    """Skip the test if the package of a recipe is missing."""
    if find_spec(PACKAGES[name]) is None:
        pytest.skip(f"needs the package {PACKAGES[name]}, which an extra installs")


def test_every_recipe_names_its_package() -> None:
    assert set(PACKAGES) == set(PACKAGED)


@EVERY
def test_recipe_and_its_yaml_have_equal_settings(name: str) -> None:
    recipe, twin = load(RECIPES / f"{name}.py"), yaml.safe_load((RECIPES / "configs" / PACKAGED[name]).read_text())
    policy_class = POLICY_REGISTRY.get(twin["policy"])
    assert policy_class is policy_class_of(recipe)
    config_class = policy_class.config_class
    assert resolve(config_class, twin["model"]["cfg"]) == resolve(config_class, recipe.CONFIG)
    data = {"env_id": recipe.ENV_ID, "num_envs": recipe.NUM_ENVS, "seed": 0, "max_env_step": recipe.MAX_ENV_STEP}
    assert (twin["data"], twin["seed_everything"]) == (data, 0)
    assert twin["trainer"]["logger"]["init_args"] == {"save_dir": "runs", "name": name}
    text = (RECIPES / f"{name}.py").read_text()
    assert f'TensorBoardLogger("runs", name="{name}")' in text
    assert len(text.splitlines()) <= 60


@EVERY
def test_recipe_trains_and_ends_with_the_return_and_the_best_checkpoint(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needs(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, "--max-env-step", "1"])  # one round
    load(RECIPES / f"{name}.py").main()
    score, best = capsys.readouterr().out.strip().splitlines()[-2:]
    assert re.fullmatch(r"mean return of 20 greedy episodes: -?\d+\.\d", score)
    assert Path(best.removeprefix("best checkpoint: ")).is_file()


@EVERY
def test_yaml_trains_from_the_command_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs(name)
    monkeypatch.chdir(tmp_path)
    short = ["--data.max_env_step", "1", "--model.cfg.eval.evaluator.n_episode", "2"]
    main(["fit", "--config", str(RECIPES / "configs" / PACKAGED[name]), *short])
    (file,) = tmp_path.rglob("last.ckpt")
    assert file.parents[2].name == name
