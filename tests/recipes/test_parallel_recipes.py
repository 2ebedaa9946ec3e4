"""Recipes of distributed runs."""

from __future__ import annotations

import re
import sys
from types import ModuleType
from typing import Any

import pytest

from lightning_ding.config import resolve, to_dict
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.entry.config_file import read_config
from lightning_ding.policy import get_policy_cls
from tests.recipes.test_recipes import RECIPES, load

CONFIGS = (
    "parallel_dqn_cartpole.yaml",
    "parallel_her_bitflip.yaml",
    "parallel_league_tictactoe.yaml",
    "parallel_ppo_cartpole.yaml",
    "parallel_sac_pendulum.yaml",
)


@pytest.fixture
def recipe() -> ModuleType:
    return load(RECIPES / "parallel_dqn.py")


def test_every_distributed_recipe_is_known_here() -> None:
    assert {file.name for file in RECIPES.glob("parallel_*.py")} == {"parallel_dqn.py"}
    assert {file.name for file in RECIPES.rglob("parallel_*.yaml")} == set(CONFIGS)


def test_recipe_is_short() -> None:
    assert len((RECIPES / "parallel_dqn.py").read_text().splitlines()) <= 60


@pytest.mark.parametrize("name", CONFIGS)
def test_config_is_read_and_names_its_command_and_its_folder(name: str) -> None:
    cfg = read_config(RECIPES / "configs" / name)
    assert cfg.main.exp_name == f"runs/{name.removesuffix('.yaml')}"
    first = (RECIPES / "configs" / name).read_text().splitlines()[0]
    assert first == f"# lightning-ding parallel --config recipes/configs/{name}"


def test_recipe_and_its_yaml_have_equal_settings(recipe: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def pipeline(cfg: Any) -> dict[str, Any]:
        given.append(resolve(ParallelConfig, cfg))
        return {"results": {"test/return_mean": 500.0}}

    monkeypatch.setattr(recipe, "parallel_pipeline", pipeline)
    monkeypatch.setattr(sys, "argv", ["parallel_dqn.py", "--seed", "3"])
    recipe.main()
    yaml = read_config(RECIPES / "configs" / CONFIGS[0], ["main.seed=3", f"main.exp_name={given[0].main.exp_name}"])
    assert to_dict(given[0]) == to_dict(yaml)


def test_settings_of_the_policy_are_those_of_the_recipe_in_one_process(recipe: ModuleType) -> None:
    one = load(RECIPES / "dqn.py")
    policy = {key: value for key, value in recipe.POLICY.items() if key != "type"}
    config_class = get_policy_cls(recipe.POLICY).config_class
    assert resolve(config_class, policy) == resolve(config_class, one.CONFIG)
    assert recipe.MAX_ENV_STEP == one.MAX_ENV_STEP


def test_recipe_prints_the_return_and_the_seconds(
    recipe: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(recipe, "parallel_pipeline", lambda cfg: {"results": {"test/return_mean": 499.25}})
    monkeypatch.setattr(sys, "argv", ["parallel_dqn.py", "--transport", "ray"])
    recipe.main()
    score, seconds = capsys.readouterr().out.splitlines()
    assert score == "mean return of 20 greedy episodes: 499.2"
    assert re.fullmatch(r"seconds: \d+\.\d", seconds)
