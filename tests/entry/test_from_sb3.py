"""The command ``from-sb3``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from lightning_ding.entry.cli import main
from lightning_ding.policy import PPOPolicy, load_policy
from tests.sb3.stored import expected, inputs, make_zip
from tests.sb3.test_load import STATISTICS, assert_same

ENTRY = """
CartPole-v1: &cartpole
  n_envs: 2
  n_timesteps: !!float 64
  policy: 'MlpPolicy'
  normalize: true
  n_steps: 16
  batch_size: 8
  n_epochs: 2
  learning_rate: lin_0.001
  policy_kwargs: "dict(net_arch=dict(pi=[8], vf=[4]), colour=1)"
Acrobot-v1:
  <<: *cartpole
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_command_writes_a_checkpoint_that_acts_as_the_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["from-sb3", str(make_zip("ppo_box", folder)), str(STATISTICS)])
    assert capsys.readouterr().out == "written: policy.ckpt\n"
    policy = load_policy("policy.ckpt")
    assert isinstance(policy, PPOPolicy)
    assert_same("ppo_box", policy.predict(inputs("ppo_box")), expected("normalised"))


def test_command_writes_safetensors(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["from-sb3", str(make_zip("sac_dict", folder)), "--output", "new/policy.safetensors"])
    assert capsys.readouterr().out == "written: new/policy.safetensors\n"
    assert_same("sac_dict", load_policy("new/policy.safetensors").predict(inputs("sac_dict")), expected("sac_dict"))


def test_run_file_trains_the_policy_further(folder: Path) -> None:
    torch.manual_seed(0)
    (folder / "toy_steps.py").write_text(
        "from tests.sb3.test_load import Toy\n\n\ndef make():\n    return Toy('ppo_discrete')\n"
    )
    main(["from-sb3", str(make_zip("ppo_discrete", folder)), "--run", "run.yaml"])
    content: dict[str, Any] = yaml.safe_load(Path("run.yaml").read_text())
    assert content["model"]["cfg"]["model"] == {
        "activation": "tanh",
        "actor_hidden_size_list": [],
        "critic_hidden_size_list": [5],
    }
    assert content["data"] == {"env_id": "NAME", "num_envs": 1, "max_env_step": 100_000}
    content["data"] |= {"env_id": "toy_steps.make", "max_env_step": 8}
    content["trainer"] |= {"accelerator": "cpu", "logger": False, "limit_val_batches": 0, "default_root_dir": "runs"}
    content["model"]["cfg"]["learn"]["learning_rate"] = 1e-9
    Path("run.yaml").write_text(yaml.safe_dump(content))
    main(["fit", "--config", "run.yaml"])
    (last,) = Path("runs").rglob("last.ckpt")
    policy = load_policy(last)
    assert policy.progress.env_step == 8
    assert_same("ppo_discrete", policy.predict(inputs("ppo_discrete")), expected("ppo_discrete"))


def test_spaces_of_the_env_are_used(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = make_zip("ppo_box", folder, observation_space={":type:": "own"})
    with pytest.raises(SystemExit):
        main(["from-sb3", str(file)])
    assert "or --env_id to the command" in capsys.readouterr().err
    (folder / "toy_spaces.py").write_text(
        "from tests.sb3.make_models import Spaces\n\n\ndef make():\n    return Spaces('ppo_box')\n"
    )
    main(["from-sb3", str(file), "--env_id", "toy_spaces.make"])
    assert_same("ppo_box", load_policy("policy.ckpt").predict(inputs("ppo_box")), expected("ppo_box"))


def test_entry_of_the_zoo_is_a_run_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "ppo.yml").write_text(ENTRY)
    main(["from-sb3", "--zoo", "ppo.yml", "Acrobot-v1"])
    page = capsys.readouterr().out
    assert page.startswith("# lightning-ding fit --config run.yaml\n")
    assert "# Without equivalent: policy_kwargs.colour: there is no such option of the network here\n" in page
    content = yaml.safe_load(page)
    data = {"env_id": "Acrobot-v1", "max_env_step": 64, "norm_obs": True, "norm_reward": True, "num_envs": 2}
    assert content["data"] == data
    cfg = content["model"]["cfg"]
    assert cfg["collect"] == {"n_sample": 32}
    assert cfg["model"] == {"activation": "tanh", "actor_hidden_size_list": [8], "critic_hidden_size_list": [4]}
    assert cfg["learn"]["lr_scheduler"] == {"type": "linear"}
    Path("run.yaml").write_text(page)
    trainer = ["--trainer.accelerator", "cpu", "--trainer.logger", "false", "--trainer.limit_val_batches", "0"]
    main(["fit", "--config", "run.yaml", *trainer, "--trainer.default_root_dir", "runs"])
    (last,) = Path("runs").rglob("last.ckpt")
    assert load_policy(last).progress.env_step == 64


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.zip"], "model must be the path of a model.zip, got 'missing.zip'"),
        (["ppo.yml"], "path must be a model.zip of Stable-Baselines3, got 'ppo.yml'"),
        (["--zoo", "missing.yml", "CartPole-v1"], "cannot read the zoo's file 'missing.yml'"),
        (["--zoo", "ppo.yml", "CartPole-v2"], "the zoo's file has no entry for 'CartPole-v2'; did you mean"),
        (["--zoo", "ppo.yml", "CartPole-v1", "--output", "a"], "output must be left out with --zoo"),
        (["--zoo", "trpo.yml", "CartPole-v1"], "the name of the zoo's file must be one of a2c"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("ppo.yml", "trpo.yml"):
        (folder / name).write_text(ENTRY)
    with pytest.raises(SystemExit) as end:
        main(["from-sb3", *arguments])
    (line,) = capsys.readouterr().err.splitlines()
    assert end.value.code == 2
    assert line.startswith(f"error: {message}")
