"""The recipes for envs of optional packages. Those without their package are skipped, except for their settings."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from lightning_ding.config import resolve
from lightning_ding.entry.lightning_cli import main
from lightning_ding.envs import GameEnv
from lightning_ding.policy import load_policy
from lightning_ding.registry import POLICY_REGISTRY
from tests.recipes.test_recipes import PACKAGES, RECIPES, load, policy_class_of, run
from tests.toys.players import perfect

EVERY = pytest.mark.parametrize("name", PACKAGES)
ARGUMENTS = ("env_kwargs", "eval_env_kwargs", "wrappers", "norm_obs")
"""Arguments of a datamodule that a recipe may have as a constant, in capitals."""
SMALL = {  # config keys that make a round of a recipe short
    "dqn_acrobot": {"eval.evaluator.max_episode_steps": 4},
    "dqn_minatar": {"random_collect_size": 100},
    "dqn_pong": {
        "random_collect_size": 32,
        "learn.batch_size": 4,
        "eval.evaluator.max_episode_steps": 4,
        "eval.evaluator.n_episode": 2,
    },
    "sac_bipedalwalker": {"random_collect_size": 64},
    "sac_hopper": {"random_collect_size": 300},
    "sac_lunarlander_continuous": {"random_collect_size": 300},
    "td3_halfcheetah": {"random_collect_size": 300, "eval.evaluator.max_episode_steps": 100},
    "tqc_lunarlander_continuous": {"random_collect_size": 300},
}


def needs(name: str) -> None:
    """Skip the test if the package of a recipe is missing."""
    if find_spec(PACKAGES[name]) is None:
        pytest.skip(f"needs the package {PACKAGES[name]}, which an extra installs")


def twin_of(name: str) -> dict[str, Any]:
    twin: dict[str, Any] = yaml.safe_load((RECIPES / "configs" / f"{name}.yaml").read_text())
    return twin


@EVERY
def test_recipe_and_its_yaml_have_equal_settings(name: str) -> None:
    recipe, twin = load(RECIPES / f"{name}.py"), twin_of(name)
    policy_class = POLICY_REGISTRY.get(twin["policy"])
    assert policy_class is policy_class_of(recipe)
    config_class = policy_class.config_class
    assert resolve(config_class, twin["model"]["cfg"]) == resolve(config_class, recipe.CONFIG)
    data = {"env_id": recipe.ENV_ID, "num_envs": recipe.NUM_ENVS, "seed": 0, "max_env_step": recipe.MAX_ENV_STEP}
    data |= {key: getattr(recipe, key.upper()) for key in ARGUMENTS if hasattr(recipe, key.upper())}
    assert (twin["data"], twin["seed_everything"]) == (data, 0)
    assert twin["trainer"]["logger"]["init_args"] == {"save_dir": "runs", "name": name}
    callbacks = [one["init_args"] for one in twin["trainer"].get("callbacks", [])]
    assert callbacks == ([recipe.SELF_PLAY] if hasattr(recipe, "SELF_PLAY") else [])
    text = (RECIPES / f"{name}.py").read_text()
    assert f'TensorBoardLogger("runs", name="{name}")' in text
    assert len(text.splitlines()) <= 60


def test_every_short_recipe_is_known() -> None:
    assert set(SMALL) <= set(PACKAGES)


@EVERY
def test_recipe_trains_and_ends_with_the_return_and_the_best_checkpoint(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needs(name)
    monkeypatch.chdir(tmp_path)
    recipe = load(RECIPES / f"{name}.py")
    for key, value in SMALL.get(name, {}).items():
        *sections, last = key.split(".")
        place = recipe.CONFIG
        for section in sections:
            place = place[section]
        place[last] = value
    monkeypatch.setattr(sys, "argv", [name, "--max-env-step", "1"])  # one round
    recipe.main()
    score, best = capsys.readouterr().out.strip().splitlines()[-2:]
    assert re.fullmatch(r"mean return of (20 greedy episodes|200 greedy games): -?\d+\.\d+", score)
    assert Path(best.removeprefix("best checkpoint: ")).is_file()


@EVERY
def test_yaml_trains_from_the_command_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs(name)
    monkeypatch.chdir(tmp_path)
    short = ["--data.max_env_step", "1", "--model.cfg.eval.evaluator.n_episode", "2"]
    for key, value in SMALL.get(name, {}).items():
        short += [f"--model.cfg.{key}", str(value)]
    main(["fit", "--config", str(RECIPES / "configs" / f"{name}.yaml"), *short])
    (file,) = tmp_path.rglob("last.ckpt")
    assert file.parents[2].name == name


def results(policy: Any, games: int, seat: int, opponent: Any = "random") -> dict[str, float]:
    """Return the shares of games of tic-tac-toe that a policy wins, draws and loses."""
    env, returns = GameEnv("tictactoe_v3", opponent, seat), []
    for game in range(games):
        (obs, _), ended = env.reset(seed=game), False
        while not ended:
            obs, reward, ended, _, _ = env.step(policy.predict(obs))
        returns.append(reward)
    return {name: float(np.mean(np.equal(returns, value))) for name, value in (("won", 1), ("drawn", 0), ("lost", -1))}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", ["0", "1", "2"])
def test_tic_tac_toe_is_won_against_random_moves_and_mostly_drawn_with_a_perfect_player(
    seed: str, tmp_path: Path
) -> None:
    needs("dqn_tictactoe")
    output = run("dqn_tictactoe.py", tmp_path, "--seed", seed)
    policy = load_policy(tmp_path / output.strip().splitlines()[-1].removeprefix("best checkpoint: "))
    shares = [results(policy, 100, seat) for seat in (0, 1)]
    assert (shares[0]["won"] + shares[1]["won"]) / 2 > 0.9, shares
    against_perfect = [results(policy, 50, seat, perfect) for seat in (0, 1)]
    assert [one["won"] for one in against_perfect] == [0, 0]
    assert sum(one["drawn"] for one in against_perfect) / 2 > 0.8, against_perfect
