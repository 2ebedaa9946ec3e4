"""Every recipe: its settings are those of its YAML file, and a round of both trains."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from benchmarks import offline
from lightning_ding.config import resolve
from lightning_ding.entry.collect import collect
from lightning_ding.entry.lightning_cli import main
from lightning_ding.envs import GameEnv
from lightning_ding.policy import Policy, load_policy
from lightning_ding.registry import POLICY_REGISTRY
from tests import processes
from tests.toys.players import perfect

RECIPES = Path(__file__).parents[2] / "recipes"
CARTPOLE = {
    "dqn": 475,
    "c51": 450,
    "qrdqn": 475,
    "rainbow": 450,
    "mdqn": 450,
    "sql": 450,
    "sqn": 450,
    "sqil": 475,
    "dqfd": 475,
    "iqn": 450,
    "fqf": 450,
    "discrete_sac": 200,
    "r2d2": 400,
    "dreamerv3": 450,
    "r2d3": 195,
    "recurrent_ppo": 400,
    "ppo": 475,
    "ppg": 475,
    "trpo": 475,
    "ppo_offpolicy": 450,
    "ppg_offpolicy": 450,
    "impala": 450,
    "acer": 450,
    "pqn": 475,
    "a2c": 450,
    "pg": 400,
}
TEAM_Q = ("iql_ma", "vdn", "qmix", "wqmix", "qtran", "madqn")
TEAMS = {name: f"{name}_two_step" for name in ("mappo", "ippo", "recurrent_mappo", "happo", "coma", "mat", *TEAM_Q)}
TEAMS |= {name: f"{name}_cover" for name in ("maddpg", "masac")}
"""The recipes of teams, which learn the two-step game or a game on a line, and their YAML files."""
PENDULUM = {
    "bdq": -250,
    "ddpg": -200,
    "td3": -200,
    "pdqn": -200,
    "sac": -200,
    "d4pg": -200,
    "tqc": -200,
    "redq": -200,
    "mbpo": -200,
    "tdmpc2": -200,
    "crossq": -200,
    "xqc": -200,
    "bro": -200,
    "td7": -200,
    "rlpd": -200,
}
REWARDED = {"rnd": -150, "icm": -150, "gail": 450, "her": 0.9, "ngu": 0.9}  # reward models and hindsight
REWARDED |= dict.fromkeys(("trex", "drex", "guided_cost", "red", "pdeil", "pwil"), 450)
BARS = CARTPOLE | PENDULUM | REWARDED | {"recurrent_ppo_t_maze": 1.0}
"""The mean return of 20 greedy episodes, or the share that reach their goal, that each recipe has to reach."""
PACKAGES = {
    "dqn_acrobot": "gymnasium",
    "dqn_connect_four": "pettingzoo",
    "dqn_minatar": "minatar",
    "dqn_pong": "ale_py",
    "dqn_tictactoe": "pettingzoo",
    "dreamerv3_swingup": "dm_control",
    "ippo_foraging": "lbforaging",
    "iql_ma_switch_riddle": "gymnasium",
    "mappo_simple_spread": "mpe2",
    "ppo_lunarlander": "Box2D",
    "ppo_minatar": "minatar",
    "ppo_minigrid": "minigrid",
    "recurrent_mappo_switch_riddle": "gymnasium",
    "recurrent_ppo_t_maze": "gymnasium",
    "sac_bipedalwalker": "Box2D",
    "crossq_mujoco": "mujoco",
    "ppo_mujoco": "mujoco",
    "sac_lunarlander_continuous": "Box2D",
    "sac_mountaincar_continuous": "gymnasium",
    "sac_simba": "dm_control",
    "sac_mujoco": "mujoco",
    "td3_mujoco": "mujoco",
    "tdmpc2_walker": "dm_control",
    "tqc_fetch_reach": "gymnasium_robotics",
    "tqc_lunarlander_continuous": "Box2D",
    "tqc_mujoco": "mujoco",
    "xqc_hopper": "mujoco",
}
"""The recipes for other envs, most of them of optional packages, and the package that each needs to train."""
OFFLINE = {name: f"{name}_pendulum" for name in ("bc", "td3_bc", "iql", "awac", "cql", "calql", "edac", "bcq")}
OFFLINE |= {name: f"{name}_cartpole" for name in ("discrete_cql", "dt")}
"""The recipes that train on a data set, and their YAML files."""
TWINS = {name: f"{name}_cartpole" for name in CARTPOLE} | {name: f"{name}_pendulum" for name in PENDULUM} | OFFLINE
TWINS |= TEAMS
TWINS |= {
    "rnd": "rnd_mountaincar",
    "icm": "icm_mountaincar",
    "gail": "gail_cartpole",
    "her": "her_bitflip",
    "ngu": "ngu_corridor",
}
TWINS |= {name: f"{name}_cartpole" for name in ("trex", "drex", "guided_cost", "red", "pdeil", "pwil")}
TWINS |= {name: name for name in PACKAGES}
OTHER_TASKS = {
    *(f"ppo_{name}" for name in ("hopper", "walker2d", "ant", "double_pendulum", "swimmer")),
    *(f"ppo_minigrid_{name}" for name in ("unlock", "key_corridor")),
    *(f"ppo_minatar_{game}" for game in ("asterix", "freeway", "seaquest", "space_invaders")),
    *(f"sac_{name}" for name in ("halfcheetah", "walker2d")),
    *(f"sac_simba_{name}" for name in ("cheetah", "swingup", "reacher")),
    *("dqn_lunarlander", "mappo_simple_tag", "mappo_speaker_listener", "mbpo_inverted_pendulum", "ppo_pendulum"),
}
"""YAML files of a recipe's other tasks; tests/benchmarks/test_zoo_page.py compares them with their experiments."""
DATA = {"sqil": "demos.npz", "dqfd": "demos.npz", "r2d3": "demos.npz", "rlpd": "pendulum.npz"}
OF_REWARDS = {
    "gail": "expert.npz",
    "guided_cost": "expert.npz",
    "red": "expert.npz",
    "pdeil": "expert.npz",
    "pwil": "expert.npz",
}
OF_REWARDS |= {"trex": "ranked.npz", "drex": "ranked.npz"}
"""The recipes whose file is an option of their reward model."""
DATA |= OF_REWARDS
DATA |= {name: offline.file_of(offline.ALGORITHMS[name]).name for name in OFFLINE}
"""The recipes that take data, and their file."""
ARGUMENTS = (
    *("num_envs", "max_env_step", "max_train_iter", "env_kwargs", "eval_env_kwargs", "wrappers"),
    *("norm_obs", "norm_reward", "demonstration_share"),
)
"""Arguments of a datamodule that a recipe may have as a constant, in capitals."""
SHORT = {"eval.evaluator.max_episode_steps": 20}
SMALL: dict[str, dict[str, Any]] = {  # options of a short run
    "dqfd": {"learn.per_train_iter_k": 10},
    "r2d3": {"learn.per_train_iter_k": 10},
    "dqn_acrobot": {"eval.evaluator.max_episode_steps": 4},
    "dqn_minatar": {"random_collect_size": 100},
    "dqn_pong": {
        "random_collect_size": 32,
        "learn.batch_size": 4,
        "eval.evaluator.max_episode_steps": 4,
        "eval.evaluator.n_episode": 2,
    },
    "sac_bipedalwalker": {"random_collect_size": 64},
    **{f"{name}_mujoco": {"random_collect_size": 300} for name in ("crossq", "sac", "tqc")},
    "sac_lunarlander_continuous": {"random_collect_size": 300},
    "sac_simba": {"random_collect_size": 300},
    "td3_mujoco": {"random_collect_size": 300, "eval.evaluator.max_episode_steps": 100},
    "tdmpc2_walker": {
        "random_collect_size": 300,
        "plan.num_samples": 64,
        "plan.iterations": 1,
        "eval.evaluator.n_episode": 2,
    },
    "tqc_lunarlander_continuous": {"random_collect_size": 300},
    "xqc_hopper": {"random_collect_size": 300},
}
SCORE = re.compile(
    r"(mean return of ((?:20|100|200) greedy episodes|200 greedy games)"
    r"|share of 50 greedy episodes that reach their goal): "
    r"(-?\d+\.\d+)"
)

EVERY = pytest.mark.parametrize("name", TWINS)


def load(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def twin_of(name: str) -> dict[str, Any]:
    twin: dict[str, Any] = yaml.safe_load((RECIPES / "configs" / f"{TWINS[name]}.yaml").read_text())
    return twin


def needs(name: str) -> None:
    """Skip the test if the package of a recipe is missing."""
    if find_spec(PACKAGES.get(name, "torch")) is None:
        pytest.skip(f"needs the package {PACKAGES[name]}, which an extra installs")


def arguments_of(name: str, folder: Path) -> list[str]:
    """Return what the command line of a recipe needs; a recipe with data gets some of a random policy."""
    if name not in DATA:
        return []
    env_id, n_episode = ("Pendulum-v1", 2) if "pendulum" in TWINS[name] else ("CartPole-v1", 20)
    file = Path(DATA[name]).with_suffix(".npz").name
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
    assert {name for name in files if name.endswith(".py")} == {"__init__.py", *(f"{name}.py" for name in TWINS)}
    of_recipes = {f"{name}.yaml" for name in TWINS.values()}
    assert {name for name in files if name.endswith(".yaml")} == of_recipes | {f"{name}.yaml" for name in OTHER_TASKS}
    assert set(SMALL) <= set(TWINS)


def test_every_algorithm_has_a_recipe() -> None:
    ours = {name for name in POLICY_REGISTRY if POLICY_REGISTRY.get(name).__module__.startswith("lightning_ding.")}
    assert ours == {*CARTPOLE, *PENDULUM, *TEAMS, *OFFLINE, "ngu"}


@EVERY
def test_recipe_is_short_and_has_the_settings_of_its_yaml(name: str) -> None:
    recipe, twin, text = load(RECIPES / f"{name}.py"), twin_of(name), (RECIPES / f"{name}.py").read_text()
    policy_class = POLICY_REGISTRY.get(twin["policy"])
    assert policy_class is policy_class_of(recipe)
    config_class = policy_class.config_class
    assert resolve(config_class, twin["model"]["cfg"]) == resolve(config_class, recipe.CONFIG)
    data = {"env_id": recipe.ENV_ID, "seed": 0}
    data |= {key: getattr(recipe, key.upper()) for key in ARGUMENTS if hasattr(recipe, key.upper())}
    if name in DATA and name not in OF_REWARDS:
        data["dataset" if name in OFFLINE else "demonstrations"] = DATA[name]
    assert (twin["data"], twin["seed_everything"]) == (data, 0)
    assert twin["trainer"]["logger"]["init_args"] == {"save_dir": "runs", "name": TWINS[name]}
    assert f'TensorBoardLogger("runs", name="{TWINS[name]}")' in text
    callbacks = [one["init_args"] for one in twin["trainer"].get("callbacks", [])]
    assert callbacks == ([recipe.SELF_PLAY] if hasattr(recipe, "SELF_PLAY") else [])
    assert len(text.splitlines()) <= 60


@EVERY
def test_recipe_trains_and_ends_with_the_return_and_the_best_checkpoint(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needs(name)
    monkeypatch.chdir(tmp_path)
    limit = "--max-train-iter" if name in OFFLINE else "--max-env-step"
    monkeypatch.setattr(sys, "argv", [name, *arguments_of(name, tmp_path), limit, "1"])  # one round
    recipe = load(RECIPES / f"{name}.py")
    for key, value in {**SHORT, **SMALL.get(name, {})}.items():
        *sections, last = key.split(".")
        place = recipe.CONFIG
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    recipe.main()
    score, end = capsys.readouterr().out.strip().splitlines()[-2:]
    found = SCORE.fullmatch(score)
    assert found is not None
    if name in OFFLINE:
        assert re.fullmatch(r"mean return in the data: -?\d+\.\d", end)
        return
    assert float(found[3]) < 0 or name not in PENDULUM
    file = Path(end.removeprefix("best checkpoint: "))
    assert file.is_file()
    assert list(file.parents[1].glob("events.out.tfevents.*"))


@EVERY
def test_yaml_trains_from_the_command_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs(name)
    monkeypatch.chdir(tmp_path)
    data = arguments_of(name, tmp_path)  # the YAML file has the name of the file, the data set of dt in another form
    limit = ["--data.dataset", *data, "--data.max_train_iter"] if name in OFFLINE else ["--data.max_env_step"]
    short = [*limit, "1", "--model.cfg.eval.evaluator.n_episode", "2"]
    short += [f"--model.cfg.{key}={value}" for key, value in {**SHORT, **SMALL.get(name, {})}.items()]
    main(["fit", "--config", str(RECIPES / "configs" / f"{TWINS[name]}.yaml"), *short])
    if name in OFFLINE:
        assert [file.parent.name for file in tmp_path.rglob("run.ckpt")] == ["last-10"]
    (file,) = tmp_path.rglob("last.ckpt")
    assert file.parents[2].name == TWINS[name]
    twin, state = twin_of(name), torch.load(file, weights_only=True)
    assert state["progress"]["train_iter"] >= 1
    assert resolve(POLICY_REGISTRY.get(twin["policy"]).config_class, state["hyper_parameters"]["cfg"])
    has_model = any(key.startswith("reward_model.") for key in state["state_dict"])
    assert has_model == ("type" in twin["model"]["cfg"].get("reward_model", {}))


def test_recipe_is_a_program(tmp_path: Path) -> None:
    output = run("dqn.py", tmp_path, "--max-env-step", "600")
    assert "mean return of 20 greedy episodes" in output
    assert "env steps" in output  # the progress bar


def test_recipes_are_no_package() -> None:
    done = subprocess.run([sys.executable, "-c", "import recipes"], cwd=RECIPES.parent, capture_output=True, text=True)
    assert "recipes are scripts" in done.stderr


def test_option_of_the_command_line_reaches_the_reward_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    short = ["--data.max_env_step", "1", "--model.cfg.eval.evaluator.n_episode", "2"]
    short += ["--model.cfg.reward_model.hidden_size_list", "[7]"]
    main(["fit", "--config", str(RECIPES / "configs" / "icm_mountaincar.yaml"), *short])
    (file,) = tmp_path.rglob("last.ckpt")
    state = torch.load(file, weights_only=True)
    assert state["state_dict"]["reward_model.encoder.layers.0.weight"].shape == (7, 2)
    assert state["hyper_parameters"]["cfg"]["reward_model"]["hidden_size_list"] == [7]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", ["0", "1", "2"])
@pytest.mark.parametrize("name", BARS)
def test_recipe_reaches_its_return(name: str, seed: str, tmp_path: Path) -> None:
    data = [str(tmp_path / DATA[name])] if name in DATA else []
    if name == "rlpd":
        run("sac.py", tmp_path, "--max-env-step", "3000")
        collect(next(tmp_path.rglob("last.ckpt")), data[0], 250)
    elif name == "trex":
        collect(None, data[0], 200, random=True, env_id="CartPole-v1")
    elif data:
        run("dqn.py", tmp_path)
        noise = (1.0, 0.75, 0.5, 0.25, 0.0) if name == "drex" else ()
        number = 10 if name in OF_REWARDS else 20
        collect(next(tmp_path.rglob("best.ckpt")), data[0], number, greedy=True, noise=noise)
    output = run(f"{name}.py", tmp_path, *data, "--seed", seed)
    found = SCORE.fullmatch(output.strip().splitlines()[-2])
    assert found is not None
    assert float(found[3]) >= BARS[name]


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
