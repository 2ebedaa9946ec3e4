from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml

from lightning_ding.config import resolve
from lightning_ding.entry.collect import collect
from lightning_ding.entry.lightning_cli import main
from lightning_ding.policy import Policy
from lightning_ding.registry import POLICY_REGISTRY
from tests import processes

RECIPES = Path(__file__).parents[2] / "recipes"
CARTPOLE = {
    "dqn": 475,
    "c51": 450,
    "qrdqn": 475,
    "rainbow": 450,
    "mdqn": 450,
    "sql": 450,
    "sqil": 475,
    "dqfd": 475,
    "iqn": 450,
    "fqf": 450,
    "discrete_sac": 200,
    "r2d2": 400,
    "recurrent_ppo": 400,
    "ppo": 475,
    "ppo_offpolicy": 450,
    "impala": 450,
    "a2c": 450,
    "pg": 400,
}
PENDULUM = {
    "ddpg": -200,
    "td3": -200,
    "sac": -200,
    "d4pg": -200,
    "tqc": -200,
    "redq": -200,
    "crossq": -200,
    "rlpd": -200,
}
BARS = CARTPOLE | PENDULUM
"""The mean return of 20 greedy episodes that each recipe has to reach, see test_recipe_reaches_its_return."""
DEMONSTRATED = {"sqil": "demos.npz", "dqfd": "demos.npz", "rlpd": "pendulum.npz"}
"""The recipes that take demonstrations, and their file."""
FEW_UPDATES = {"dqfd.py": {"per_train_iter_k": 10}}
"""Options for a short run of a recipe that makes many updates before it collects."""
TWINS = {f"{name}.py": f"{name}_{'cartpole' if name in CARTPOLE else 'pendulum'}.yaml" for name in BARS}
OFFLINE = {name: f"{name}_pendulum.yaml" for name in ("bc", "td3_bc", "iql", "awac", "cql", "calql")}
OFFLINE |= {name: f"{name}_cartpole.yaml" for name in ("discrete_cql", "dt")}
"""The recipes that train on a data set, see test_offline_recipes.py."""
REWARDED = {name: f"{name}_mountaincar.yaml" for name in ("rnd", "icm")}
REWARDED |= {"gail": "gail_cartpole.yaml", "her": "her_bitflip.yaml"}
"""The recipes of reward models and of hindsight, see test_reward_recipes.py."""
PACKAGES = {
    "dqn_acrobot": "gymnasium",
    "dqn_connect_four": "pettingzoo",
    "dqn_minatar": "minatar",
    "dqn_pong": "ale_py",
    "dqn_tictactoe": "pettingzoo",
    "ppo_lunarlander": "Box2D",
    "ppo_minigrid": "minigrid",
    "sac_bipedalwalker": "Box2D",
    "sac_hopper": "mujoco",
    "sac_lunarlander_continuous": "Box2D",
    "td3_halfcheetah": "mujoco",
    "tqc_lunarlander_continuous": "Box2D",
}
"""The recipes for other envs, most of them of optional packages, and the package that each needs, see
test_packaged_recipes.py."""

EVERY = pytest.mark.parametrize("name", TWINS)


def load(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def twin_of(name: str) -> dict[str, Any]:
    twin: dict[str, Any] = yaml.safe_load((RECIPES / "configs" / TWINS[name]).read_text())
    return twin


def arguments_of(name: str, folder: Path) -> list[str]:
    """Return what the command line of a recipe needs; a recipe with demonstrations gets some of a random policy."""
    if name.removesuffix(".py") not in DEMONSTRATED:
        return []
    file = DEMONSTRATED[name.removesuffix(".py")]
    env_id, n_episode = ("Pendulum-v1", 1) if file == "pendulum.npz" else ("CartPole-v1", 10)
    collect(None, str(folder / file), n_episode, random=True, env_id=env_id)
    return [file]


def policy_class_of(recipe: ModuleType) -> type[Policy[Any]]:
    """Return the policy that a recipe imports."""
    (found,) = (one for one in vars(recipe).values() if isinstance(one, type) and issubclass(one, Policy))
    return found


def run(name: str, folder: Path, *options: str) -> str:
    """Run a recipe as a user does, and return what it prints."""
    return processes.run(RECIPES / name, *options, folder=folder)


def test_every_recipe_and_every_yaml_is_known_here() -> None:
    files = {file.name for file in RECIPES.rglob("*.*") if not file.name.startswith("parallel_")}
    assert {name for name in files if name.endswith(".py")} - {"__init__.py"} == {
        *TWINS,
        *(f"{name}.py" for name in (*OFFLINE, *REWARDED, *PACKAGES)),
    }
    assert {name for name in files if name.endswith(".yaml")} == {
        *TWINS.values(),
        *OFFLINE.values(),
        *REWARDED.values(),
        *(f"{name}.yaml" for name in PACKAGES),
    }


def test_every_algorithm_has_a_recipe() -> None:
    assert len(BARS) >= 10
    ours = {name for name in POLICY_REGISTRY if POLICY_REGISTRY.get(name).__module__.startswith("lightning_ding.")}
    assert ours == {*BARS, *OFFLINE}


@EVERY
def test_recipe_is_short(name: str) -> None:
    assert len((RECIPES / name).read_text().splitlines()) <= 60


@EVERY
def test_recipe_and_its_yaml_have_equal_settings(name: str) -> None:
    recipe, twin = load(RECIPES / name), twin_of(name)
    policy_class = POLICY_REGISTRY.get(twin["policy"])
    assert policy_class is policy_class_of(recipe)
    cfg, config_class = twin["model"]["cfg"], policy_class.config_class
    assert resolve(config_class, cfg) == resolve(config_class, recipe.CONFIG)
    data = {"env_id": recipe.ENV_ID, "num_envs": recipe.NUM_ENVS, "seed": 0, "max_env_step": recipe.MAX_ENV_STEP}
    file = DEMONSTRATED.get(name.removesuffix(".py"))
    data |= {} if file is None else {"demonstrations": file}
    assert (twin["data"], twin["seed_everything"]) == (data, 0)
    name_of_runs = TWINS[name].removesuffix(".yaml")
    assert twin["trainer"]["logger"]["init_args"] == {"save_dir": "runs", "name": name_of_runs}
    assert f'TensorBoardLogger("runs", name="{name_of_runs}")' in (RECIPES / name).read_text()


@EVERY
def test_recipe_trains_and_ends_with_the_return_and_the_best_checkpoint(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, *arguments_of(name, tmp_path), "--max-env-step", "1"])  # one round
    recipe = load(RECIPES / name)
    recipe.CONFIG["learn"].update(FEW_UPDATES.get(name, {}))
    recipe.main()
    score, best = capsys.readouterr().out.strip().splitlines()[-2:]
    found = re.fullmatch(r"mean return of 20 greedy episodes: (-?\d+\.\d)", score)
    assert found is not None
    assert (float(found[1]) < 0) == (name.removesuffix(".py") in PENDULUM)
    file = Path(best.removeprefix("best checkpoint: "))
    assert file.is_file()
    assert list(file.parents[1].glob("events.out.tfevents.*"))


@EVERY
def test_yaml_trains_from_the_command_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments_of(name, tmp_path)
    short = ["--data.max_env_step", "1", "--model.cfg.eval.evaluator.n_episode", "2"]
    short += [f"--model.cfg.learn.{key}={value}" for key, value in FEW_UPDATES.get(name, {}).items()]
    main(["fit", "--config", str(RECIPES / "configs" / TWINS[name]), *short])
    (file,) = tmp_path.rglob("last.ckpt")
    assert file.parents[2].name == TWINS[name].removesuffix(".yaml")
    state = torch.load(file, weights_only=True)
    assert state["progress"]["train_iter"] >= 1
    assert resolve(POLICY_REGISTRY.get(name.removesuffix(".py")).config_class, state["hyper_parameters"]["cfg"])


def test_recipe_is_a_program(tmp_path: Path) -> None:
    output = run("dqn.py", tmp_path, "--max-env-step", "600")
    assert "mean return of 20 greedy episodes" in output
    assert "env steps" in output  # the progress bar


def test_recipes_are_no_package() -> None:
    done = subprocess.run([sys.executable, "-c", "import recipes"], cwd=RECIPES.parent, capture_output=True, text=True)
    assert "recipes are scripts" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", ["0", "1", "2"])
@EVERY
def test_recipe_reaches_its_return(name: str, seed: str, tmp_path: Path) -> None:
    demonstrations = []
    if name == "rlpd.py":
        run("sac.py", tmp_path, "--max-env-step", "3000")
        demonstrations = [str(tmp_path / "pendulum.npz")]
        collect(next(tmp_path.rglob("last.ckpt")), demonstrations[0], 250)
    elif name.removesuffix(".py") in DEMONSTRATED:
        run("dqn.py", tmp_path)
        demonstrations = [str(tmp_path / "best.npz")]
        collect(next(tmp_path.rglob("best.ckpt")), demonstrations[0], 20, greedy=True)
    output = run(name, tmp_path, *demonstrations, "--seed", seed)
    assert float(output.strip().splitlines()[-2].split()[-1]) >= BARS[name.removesuffix(".py")]
