"""The serial entries of DI-engine: training, continuing, evaluating, and their command line."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import yaml
from gymnasium import spaces
from torch import nn

from lightning_ding import entry
from lightning_ding.checkpoints import last_checkpoint
from lightning_ding.config import deep_merge
from lightning_ding.di_engine.serial import eval as evaluate, make, serial_pipeline, serial_pipeline_onpolicy
from lightning_ding.entry.cli import main
from lightning_ding.envs import BaseEnv, BaseEnvTimestep
from lightning_ding.policy import DQNPolicy, PPOPolicy
from tests.di_engine.pairs import small_pair
from tests.processes import run_ranks_of_torchrun

SCRIPT = Path(__file__).with_name("serial_ranks_script.py")


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def result_of(folder: str = "run") -> dict[str, Any]:
    result: dict[str, Any] = json.loads((Path(folder) / "result.json").read_text())
    return result


def test_entries_are_those_of_the_package_and_have_dings_positions() -> None:
    names = ["input_cfg", "seed", "env_setting", "model", "max_train_iter", "max_env_step"]
    assert list(inspect.signature(entry.serial_pipeline).parameters) == [*names, "dynamic_seed"]
    assert list(inspect.signature(entry.serial_pipeline_onpolicy).parameters) == names
    weights = ["state_dict", "load_path", "replay_path"]
    assert list(inspect.signature(entry.eval).parameters) == [*names[:4], *weights]
    with pytest.raises(AttributeError, match="no attribute 'serial_pipelin'"):
        _ = entry.serial_pipelin


def test_training_returns_the_policy_and_writes_below_exp_name(tmp_path: Path) -> None:
    policy = serial_pipeline(small_pair("dqn"), max_train_iter=8)
    assert isinstance(policy, DQNPolicy)
    assert policy.progress.train_iter >= 8
    result = result_of()
    assert (result["train_iter"], result["env_step"]) == (policy.progress.train_iter, policy.progress.env_step)
    assert result["stop"] is False
    assert result["eval_value"] >= 8
    assert [one.name for one in tmp_path.iterdir()] == ["run"]
    assert {one.name for one in Path("run").iterdir()} == {"ckpt", "config.yaml", "log", "result.json"}
    assert Path("run/ckpt/best.ckpt").is_file()
    assert list(Path("run/log/serial").glob("events.out.tfevents.*"))
    assert yaml.safe_load(Path("run/config.yaml").read_text())["policy"] == "dqn"


def test_same_seed_gives_the_same_weights() -> None:
    runs = [serial_pipeline(small_pair("dqn"), seed, max_train_iter=4).state_dict() for seed in (1, 1, 2)]
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0])
    assert any(not torch.equal(runs[0][name], runs[2][name]) for name in runs[0])


def test_run_in_an_existing_folder_gets_the_time_in_its_name(tmp_path: Path) -> None:
    for _ in range(2):
        serial_pipeline(small_pair("dqn"), max_train_iter=1)
    first, second = sorted(one.name for one in tmp_path.iterdir())
    assert first == "run"
    assert second.startswith("run_2")
    assert (Path(second) / "ckpt").is_dir()
    assert (
        yaml.safe_load((Path(second) / "config.yaml").read_text())["trainer"]["logger"]["init_args"]["save_dir"]
        == second
    )


def test_run_ends_at_the_stop_value() -> None:
    serial_pipeline(small_pair("dqn", stop_value=5), max_env_step=10_000)
    result = result_of()
    assert result["stop"] is True
    assert result["env_step"] < 1000


def test_run_ends_at_the_limit_of_env_steps() -> None:
    policy = serial_pipeline(small_pair("dqn"), max_env_step=200)
    assert 200 <= policy.progress.env_step < 200 + 16


def test_rollouts_are_learned_from_by_the_other_entry() -> None:
    policy = serial_pipeline_onpolicy(small_pair("ppo"), max_env_step=64)
    assert isinstance(policy, PPOPolicy)
    assert policy.progress.env_step == 64


@pytest.mark.parametrize(
    ("train", "kind", "other"),
    [(serial_pipeline, "ppo", "serial_pipeline_onpolicy"), (serial_pipeline_onpolicy, "dqn", "serial_pipeline")],
)
def test_entry_of_the_other_kind_of_policy_is_named(train: Any, kind: str, other: str) -> None:
    with pytest.raises(ValueError, match=rf"\({other} trains the others\), got '{kind}'"):
        train(small_pair(kind))
    assert list(Path().iterdir()) == []


class Network(nn.Module):
    """A network of a user."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, obs: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logit": self.layer(obs)}


def test_own_network_is_trained() -> None:
    network = Network()
    before = network.layer.weight.detach().clone()
    policy = serial_pipeline(small_pair("dqn"), 0, None, network, 4)
    assert policy.model is network
    assert not torch.equal(network.layer.weight, before)
    assert not Path("run/config.yaml").exists()


class Corridor(BaseEnv):
    """An env with DI-engine's interface: the reward of ten steps is given by the config."""

    observation_space = spaces.Box(0.0, 10.0, (1,), np.float32)
    action_space = spaces.Discrete(2)
    reward_space = spaces.Box(0.0, 10.0, (1,), np.float32)

    def reset(self) -> Any:
        self.steps = 0
        return np.zeros(1, np.float32)

    def step(self, action: Any) -> Any:
        self.steps += 1
        done = self.steps == 10
        return BaseEnvTimestep(np.full(1, self.steps, np.float32), np.array([self._cfg.reward]), done, {})

    def seed(self, seed: int, dynamic_seed: bool = True) -> None: ...

    def close(self) -> None: ...


def test_env_setting_replaces_the_envs_of_the_config() -> None:
    setting = (Corridor, [{"reward": 1.0}] * 2, [{"reward": 3.0}] * 2)
    policy = serial_pipeline(small_pair("dqn", stop_value=100), 0, setting, None, 8)
    assert policy.config.model.obs_shape == 1
    assert result_of()["eval_value"] == 30.0  # 10 steps with the reward of the evaluation's config


def test_training_continues_exactly_where_it_stopped() -> None:
    whole = serial_pipeline(small_pair("dqn"), 5, max_train_iter=12).state_dict()
    main_config, create_config = small_pair("dqn")
    cut = deep_merge(main_config, {"exp_name": "cut", "policy": {"learn": {"resume_training": True}}})
    serial_pipeline((cut, create_config), 5, max_train_iter=6)
    continued = serial_pipeline((cut, create_config), 5, max_train_iter=12).state_dict()
    assert all(torch.equal(continued[name], whole[name]) for name in whole)
    assert sorted(one.name for one in Path().iterdir()) == ["cut", "run"]


def test_training_continues_from_the_checkpoint_of_the_config() -> None:
    policy = serial_pipeline(small_pair("dqn"), max_train_iter=6)
    file = str(last_checkpoint(Path("run/ckpt")))
    learn = {"resume_training": True, "learner": {"hook": {"load_ckpt_before_run": file}}}
    continued = serial_pipeline(small_pair("dqn", {"learn": learn}), max_train_iter=7)
    assert continued.progress.train_iter > policy.progress.train_iter


def test_weights_to_start_from_are_loaded_without_counters() -> None:
    first = serial_pipeline(small_pair("dqn"), 0, max_train_iter=6)
    hook = {"load_ckpt_before_run": "run/ckpt/best.ckpt"}
    learn = {"learning_rate": 1e-30, "learner": {"hook": hook}}
    second = serial_pipeline(small_pair("dqn", {"learn": learn}), 1, max_train_iter=1)
    best = torch.load("run/ckpt/best.ckpt", weights_only=True)["state_dict"]
    assert second.progress.train_iter < first.progress.train_iter
    assert all(torch.equal(second.state_dict()[name], best[name]) for name in best if name.startswith("model."))


# ---------------------------------------------------------------------------------------------------- evaluation


def test_mistakes_are_named() -> None:
    Path("a.pth.tar").touch()
    learn = {"resume_training": True, "learner": {"hook": {"load_ckpt_before_run": "a.pth.tar"}}}
    with pytest.raises(ValueError, match=r"load_ckpt_before_run must be a checkpoint of this package \(\*.ckpt\)"):
        serial_pipeline(small_pair("dqn", {"learn": learn}))
    hook = {"load_ckpt_before_run": "missing.ckpt"}
    with pytest.raises(ValueError, match=r"there is no file 'missing\.ckpt'"):
        serial_pipeline(small_pair("dqn", {"learn": {"learner": {"hook": hook}}}))
    with pytest.raises(ValueError, match=r"load_path must be given, or policy\.learn\.learner\.load_path"):
        evaluate(small_pair("dqn"))


def test_evaluation_of_a_checkpoint_a_state_and_a_path_of_the_config_agree() -> None:
    policy = serial_pipeline(small_pair("dqn"), max_train_iter=6)
    torch.save({"state_dict": policy.state_dict()}, "last.ckpt")
    scores = {
        evaluate(small_pair("dqn"), 7, load_path="last.ckpt"),
        evaluate(small_pair("dqn"), 7, None, None, policy.state_dict()),
        evaluate(small_pair("dqn"), 7, state_dict=policy.eval_mode.state_dict()),
        evaluate(small_pair("dqn", {"learn": {"learner": {"load_path": "last.ckpt"}}}), 7),
        evaluate(small_pair("dqn", {"load_path": "last.ckpt"}), 7),
    }
    assert len(scores) == 1
    assert 8 <= scores.pop() <= 200


def test_evaluation_reads_the_weights() -> None:
    setting = (Corridor, [{"reward": 1.0}], [{"reward": 2.0}])
    policy, _ = make(
        __import__("lightning_ding.di_engine.translate", fromlist=["translate"]).translate(small_pair("dqn"))
    )
    policy.build(Corridor.observation_space, Corridor.action_space)
    assert evaluate(small_pair("dqn"), 0, setting, None, policy.state_dict()) == 20.0
    wrong = {name: value for name, value in policy.state_dict().items() if "head" not in name}
    with pytest.raises(RuntimeError, match="Missing key"):
        evaluate(small_pair("dqn"), 0, setting, None, wrong)


# ---------------------------------------------------------------------------------------------------- command line

FILE = """
exp_name = "{name}"
main_config = dict(
    exp_name=exp_name,
    env=dict(collector_env_num=2, evaluator_env_num=2, n_evaluator_episode=2),
    policy=dict(
        cuda=False, discont_factor=0.5, learn=dict(batch_size=8), random_collect_size=16, collect=dict(n_sample=16),
        eval=dict(evaluator=dict(eval_freq=4)),
    ),
)
create_config = dict(env=dict(type="cartpole"), env_manager=dict(type="base"), policy=dict(type="{kind}"))
"""


def config_file(kind: str = "dqn") -> str:
    text = FILE.format(name="run", kind=kind)
    Path("cartpole_config.py").write_text(text if kind == "dqn" else text.replace("random_collect_size=16, ", ""))
    return "cartpole_config.py"


def test_command_trains_and_prints_each_key_once(capsys: pytest.CaptureFixture[str]) -> None:
    main(["serial", "-c", config_file(), "-s", "3", "--train-iter", "4"])
    lines = capsys.readouterr().out.splitlines()
    assert lines.count("policy.learn.batch_size -> model.cfg.learn.batch_size") == 1
    assert lines.count("policy.cuda -> trainer.accelerator = 'cpu'") == 1
    (warning,) = (line for line in lines if line.startswith("warning"))
    assert warning.startswith("warning: policy.discont_factor = 0.5 is not read by dqn; did you mean 'policy.discount")
    assert yaml.safe_load(Path("run/config.yaml").read_text())["seed_everything"] == 3


def test_command_takes_several_seeds_and_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    main(["serial", "-c", config_file(), "-s", "3", "-s", "4", "--exp-name", "mine", "--train-iter", "1"])
    assert sorted(one.name for one in Path().glob("mine*")) == ["mine_seed3", "mine_seed4"]
    assert capsys.readouterr().out.count("policy.cuda ->") == 1


def test_command_chooses_the_entry_by_the_policy(capsys: pytest.CaptureFixture[str]) -> None:
    main(["serial", "-c", config_file("ppo"), "--env-step", "16"])
    assert result_of()["env_step"] == 16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-m", "serial_onpolicy"], "error: --mode must be 'serial' for dqn, got 'serial_onpolicy'"),
        (["--load-path", "a.ckpt"], "error: --load-path must be None: it belongs to -m eval, got 'a.ckpt'"),
        (["-m", "paralel"], "error: argument -m/--mode: invalid choice: 'paralel'"),
        (["-c", "missing.py"], "error: input_cfg must be a Python file with main_config and create_config"),
    ],
)
def test_wrong_command_is_one_line(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["serial", "-c", config_file(), *options])
    (line,) = capsys.readouterr().err.splitlines()
    assert end.value.code == 2
    assert line.startswith(message)


def test_command_evaluates_a_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    main(["serial", "-c", config_file(), "--train-iter", "4"])
    main(["serial", "-c", config_file(), "-m", "eval", "--load-path", "run/ckpt/best.ckpt"])
    assert capsys.readouterr().out.splitlines()[-1].startswith("mean return: ")


def test_command_converts_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    main(["convert", config_file(), "--out", "new", "-s", "5", "--env-step", "1000"])
    assert capsys.readouterr().out.splitlines()[-1] == (
        "written: new/cartpole_config.yaml and new/cartpole_config_recipe.py"
    )
    content = yaml.safe_load(Path("new/cartpole_config.yaml").read_text())
    assert (content["seed_everything"], content["data"]["max_env_step"]) == (5, 1000)
    compile(Path("new/cartpole_config_recipe.py").read_text(), "recipe", "exec")
    with pytest.raises(SystemExit):
        main(["convert", config_file(), "--out", "new"])
    assert "a folder without cartpole_config.yaml, or --force" in capsys.readouterr().err
    main(["convert", config_file(), "--out", "new", "--force"])
    assert yaml.safe_load(Path("new/cartpole_config.yaml").read_text())["seed_everything"] == 0


OWN = """
import numpy as np
from gymnasium import spaces
from lightning_ding.envs import BaseEnv, BaseEnvTimestep
from lightning_ding.registry import ENV_REGISTRY

@ENV_REGISTRY.register("env_of_a_file", force_overwrite=True)
class Corridor(BaseEnv):
    observation_space = spaces.Box(0.0, 10.0, (1,), np.float32)
    action_space = spaces.Discrete(2)
    reward_space = spaces.Box(0.0, 10.0, (1,), np.float32)
    def reset(self):
        self.steps = 0
        return np.zeros(1, np.float32)
    def step(self, action):
        self.steps += 1
        return BaseEnvTimestep(np.full(1, self.steps, np.float32), np.array([1.0]), self.steps == 10, {})
    def seed(self, seed, dynamic_seed=True): ...
    def close(self): ...
"""


def test_env_that_a_config_file_defines_is_used() -> None:
    file = config_file()
    Path(file).write_text(OWN + Path(file).read_text().replace('type="cartpole"', 'type="env_of_a_file"'))
    policy = serial_pipeline(file, max_train_iter=4)
    assert policy.config.model.obs_shape == 1
    assert result_of()["eval_value"] == 10.0
    assert not Path("run/config.yaml").exists()  # no other file can import the env


def test_ranks_of_torchrun_train_the_same_weights(tmp_path: Path) -> None:
    run_ranks_of_torchrun(SCRIPT, folder=tmp_path)
    one, other = (torch.load(f"weights_{rank}.pt", weights_only=True) for rank in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert [folder.name for folder in tmp_path.iterdir() if folder.is_dir()] == ["run"]
    assert result_of()["env_step"] == 2 * 16 * 5  # both ranks: 16 random ones, and 4 rounds


class Filmed(Corridor):
    """Notes the folder of its videos."""

    folders: ClassVar[list[str]] = []

    def enable_save_replay(self, replay_path: str) -> None:
        self.folders.append(replay_path)


def test_evaluation_films_its_envs() -> None:
    setting = (Filmed, [{"reward": 1.0}], [{"reward": 2.0}] * 2)
    policy = serial_pipeline(small_pair("dqn", replay_path="of_config"), 0, setting, None, 1)
    assert Filmed.folders == []
    state = policy.state_dict()
    assert evaluate(small_pair("dqn"), 0, setting, None, state, None, "videos") == 20.0
    assert set(Filmed.folders) == {"videos"}
    evaluate(small_pair("dqn", replay_path="of_config"), 0, setting, state_dict=state)
    assert set(Filmed.folders) == {"videos", "of_config"}
