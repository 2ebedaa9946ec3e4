"""The recipes that train on a data set."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import yaml

from benchmarks import offline
from lightning_ding.config import resolve
from lightning_ding.entry.collect import collect
from lightning_ding.entry.lightning_cli import main
from lightning_ding.registry import POLICY_REGISTRY
from tests.recipes.test_recipes import OFFLINE, RECIPES, load, policy_class_of

EVERY = pytest.mark.parametrize("name", OFFLINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    collect(None, str(folder / "pendulum.npz"), 2, random=True, env_id="Pendulum-v1")
    collect(None, str(folder / "cartpole.npz"), 20, random=True, env_id="CartPole-v1")
    return folder


@pytest.fixture
def dataset(folder: Path, name: str) -> Path:
    return folder / f"{data_of(name)}.npz"


def data_of(name: str) -> str:
    return OFFLINE[name].removesuffix(".yaml").removeprefix(f"{name}_")


@EVERY
def test_recipe_and_its_yaml_have_equal_settings(name: str) -> None:
    recipe = load(RECIPES / f"{name}.py")
    twin = yaml.safe_load((RECIPES / "configs" / OFFLINE[name]).read_text())
    policy_class = POLICY_REGISTRY.get(twin["policy"])
    assert policy_class is policy_class_of(recipe)
    assert resolve(policy_class.config_class, twin["model"]["cfg"]) == resolve(policy_class.config_class, recipe.CONFIG)
    data = {"env_id": recipe.ENV_ID, "seed": 0, "max_train_iter": recipe.MAX_TRAIN_ITER, "norm_obs": recipe.NORM_OBS}
    data["norm_reward"] = recipe.NORM_REWARD
    assert twin["data"] == {"dataset": offline.file_of(offline.ALGORITHMS[name]).name, **data}
    assert len((RECIPES / f"{name}.py").read_text().splitlines()) <= 60


@EVERY
def test_recipe_trains_and_ends_with_both_returns(
    name: str, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, str(dataset), "--max-train-iter", "1"])  # one round
    load(RECIPES / f"{name}.py").main()
    score, behaviour = capsys.readouterr().out.strip().splitlines()[-2:]
    assert re.fullmatch(r"mean return of 20 greedy episodes: -?\d+\.\d", score)
    assert re.fullmatch(r"mean return in the data: -?\d+\.\d", behaviour)


@EVERY
def test_yaml_trains_from_the_command_line(
    name: str, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    short = ["--data.max_train_iter", "1", "--model.cfg.eval.evaluator.n_episode", "2"]
    main(["fit", "--config", str(RECIPES / "configs" / OFFLINE[name]), "--data.dataset", str(dataset), *short])
    assert [file.parent.name for file in tmp_path.rglob("run.ckpt")] == ["last-10"]
