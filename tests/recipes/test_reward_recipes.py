"""The recipes of reward models and of hindsight: an algorithm of another recipe with a section of its own."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from lightning_ding.config import resolve
from lightning_ding.entry.collect import collect
from lightning_ding.entry.lightning_cli import main
from lightning_ding.registry import POLICY_REGISTRY
from tests.recipes.test_recipes import RECIPES, REWARDED, load, policy_class_of, run

BARS = {"rnd": -150, "icm": -150, "gail": 450, "her": 0.9}
"""The mean return of greedy episodes that each recipe has to reach."""
EVERY = pytest.mark.parametrize("name", REWARDED)
SCORE = re.compile(
    r"(mean return of 20 greedy episodes|share of 50 greedy episodes that reach their goal): (-?\d+\.\d+)"
)


def twin_of(name: str) -> dict[str, Any]:
    twin: dict[str, Any] = yaml.safe_load((RECIPES / "configs" / REWARDED[name]).read_text())
    return twin


def arguments_of(name: str, folder: Path) -> list[str]:
    """Return what the command line of a recipe needs; a recipe with an expert gets a random policy's episodes."""
    if name != "gail":
        return []
    collect(None, str(folder / "expert.npz"), 3, random=True, env_id="CartPole-v1")
    return ["expert.npz"]


def test_every_recipe_has_a_bar() -> None:
    assert set(BARS) == set(REWARDED)


@EVERY
def test_recipe_and_its_yaml_have_equal_settings(name: str) -> None:
    recipe, twin = load(RECIPES / f"{name}.py"), twin_of(name)
    policy_class = POLICY_REGISTRY.get(twin["policy"])
    assert policy_class is policy_class_of(recipe)
    config_class = policy_class.config_class
    assert resolve(config_class, twin["model"]["cfg"]) == resolve(config_class, recipe.CONFIG)
    data = {"env_id": recipe.ENV_ID, "num_envs": recipe.NUM_ENVS, "seed": 0, "max_env_step": recipe.MAX_ENV_STEP}
    more = {"norm_obs": "NORM_OBS", "env_kwargs": "ENV_KWARGS"}
    data |= {key: getattr(recipe, constant) for key, constant in more.items() if hasattr(recipe, constant)}
    assert (twin["data"], twin["seed_everything"]) == (data, 0)
    name_of_runs = REWARDED[name].removesuffix(".yaml")
    assert twin["trainer"]["logger"]["init_args"] == {"save_dir": "runs", "name": name_of_runs}
    text = (RECIPES / f"{name}.py").read_text()
    assert f'TensorBoardLogger("runs", name="{name_of_runs}")' in text
    assert len(text.splitlines()) <= 60


@EVERY
def test_recipe_trains_and_ends_with_the_return_and_the_best_checkpoint(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, *arguments_of(name, tmp_path), "--max-env-step", "1"])  # one round
    load(RECIPES / f"{name}.py").main()
    score, best = capsys.readouterr().out.strip().splitlines()[-2:]
    assert SCORE.fullmatch(score)
    assert Path(best.removeprefix("best checkpoint: ")).is_file()


@EVERY
def test_yaml_trains_from_the_command_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments_of(name, tmp_path)  # the name of the file is in the YAML file
    short = ["--data.max_env_step", "1", "--model.cfg.eval.evaluator.n_episode", "2"]
    main(["fit", "--config", str(RECIPES / "configs" / REWARDED[name]), *short])
    (file,) = tmp_path.rglob("last.ckpt")
    state = torch.load(file, weights_only=True)
    assert state["progress"]["train_iter"] >= 1
    has_model = any(key.startswith("reward_model.") for key in state["state_dict"])
    assert has_model == ("reward_model" in twin_of(name)["model"]["cfg"])


def test_option_of_the_command_line_reaches_the_reward_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    short = ["--data.max_env_step", "1", "--model.cfg.eval.evaluator.n_episode", "2"]
    short += ["--model.cfg.reward_model.hidden_size_list", "[7]"]
    main(["fit", "--config", str(RECIPES / "configs" / REWARDED["icm"]), *short])
    (file,) = tmp_path.rglob("last.ckpt")
    state = torch.load(file, weights_only=True)
    assert state["state_dict"]["reward_model.encoder.layers.0.weight"].shape == (7, 2)
    assert state["hyper_parameters"]["cfg"]["reward_model"]["hidden_size_list"] == [7]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", ["0", "1", "2"])
@EVERY
def test_recipe_reaches_its_return(name: str, seed: str, tmp_path: Path) -> None:
    if name == "gail":
        output = run("dqn.py", tmp_path)
        best = output.strip().splitlines()[-1].removeprefix("best checkpoint: ")
        collect(tmp_path / best, str(tmp_path / "expert.npz"), 10, greedy=True)
    output = run(f"{name}.py", tmp_path, *(["expert.npz"] if name == "gail" else []), "--seed", seed)
    found = SCORE.fullmatch(output.strip().splitlines()[-2])
    assert found is not None
    assert float(found[2]) >= BARS[name]
