"""Commands for trained policies of the user's module: its policy class, and its encoder."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from lightning import Trainer, seed_everything

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.entry.cli import main
from lightning_ding.entry.evaluate import evaluate
from lightning_ding.entry.trained import env_of_run
from lightning_ding.policy import DQNPolicy, load_policy
from tests.docs.pages import as_before
from tests.policy.saved import write_checkpoint

MODULE = """
import gymnasium
import torch
from lightning_ding.policy import DQNPolicy
from lightning_ding.registry import BUFFER_REGISTRY, ENCODER_REGISTRY, POLICY_REGISTRY
from lightning_ding.worker import NaiveReplayBuffer


def make_pole(max_episode_steps):
    return gymnasium.make("CartPole-v1", max_episode_steps=max_episode_steps)


@BUFFER_REGISTRY.register("own_buffer")
class OwnBuffer(NaiveReplayBuffer):
    '''A buffer by another name.'''


@ENCODER_REGISTRY.register("own_linear")
class LinearEncoder(torch.nn.Linear):
    def __init__(self, obs_shape, hidden_size_list=None, activation="relu"):
        super().__init__(obs_shape, 8)
        self.output_size = 8


@POLICY_REGISTRY.register("own_dqn")
class OwnDQN(DQNPolicy):
    '''DQN by another name.'''
"""
SPACES = (spaces.Box(-5, 5, (4,), np.float32), spaces.Discrete(2))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a folder with files of two policies and the module that they need, which is not imported."""
    (tmp_path / "own_classes.py").write_text(MODULE)
    with as_before(tmp_path, monkeypatch):
        own = importlib.import_module("own_classes")
        encoded = DQNPolicy({"model": {"encoder": "own_linear"}}).build(*SPACES)
        for name, policy in (("encoder", encoded), ("policy", own.OwnDQN({}).build(*SPACES))):
            write_checkpoint(policy, tmp_path / f"{name}.ckpt")
            policy.export(tmp_path / f"{name}.safetensors", "safetensors")
    with as_before(tmp_path, monkeypatch):
        assert "own_classes" not in sys.modules
        yield tmp_path


COMMANDS = {
    "evaluate": ["--episodes", "1", "--env_id", "CartPole-v1"],
    "enjoy": ["--video", "own.gif", "--env_id", "CartPole-v1"],
    "export": ["--format", "safetensors", "--output", "copy.safetensors"],
    "collect": ["--out", "own.npz", "--episodes", "1", "--env_id", "CartPole-v1"],
}
"""Commands that take a checkpoint, and options of a tiny use of each."""
UNREGISTERED = {
    "encoder.ckpt": "no encoder is registered as 'own_linear'",
    "encoder.safetensors": "no encoder is registered as 'own_linear'",
    "policy.ckpt": "the checkpoint is of the policy class 'OwnDQN', which is not registered",
    "policy.safetensors": "no policy is registered as 'own_dqn'",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_command_uses_classes_of_the_module_that_it_imports(command: str, folder: Path) -> None:
    for file in UNREGISTERED if command == "export" else ["encoder.ckpt"]:  # whose loading is that of all commands
        main([command, file, *COMMANDS[command], "--import_names", "own_classes"])


@pytest.mark.parametrize("command", COMMANDS)
def test_unregistered_class_is_one_line_that_names_the_option(
    command: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file, message in UNREGISTERED.items():
        with pytest.raises(SystemExit) as end:
            main([command, file, *COMMANDS[command]])
        (line,) = capsys.readouterr().err.splitlines()
        assert end.value.code == 2
        assert line.startswith(f"error: {message}")
        assert line.endswith("import_names (--import_names MODULE) imports a module of yours that registers it")
        assert "own_classes" not in sys.modules


def test_modules_are_imported_before_the_name_of_a_policy_is_looked_up(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--policy", "own_dqn", "--import_names", "json", "--import_names", "own_classes", "--json"]
    main(["evaluate", "policy.ckpt", *COMMANDS["evaluate"], *options])
    found = json.loads(capsys.readouterr().out)
    assert found["policy"] == "OwnDQN"
    assert evaluate("policy.ckpt", 1, env_id="CartPole-v1", policy="own_classes.OwnDQN")["returns"] == found["returns"]


def test_missing_module_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command, options in COMMANDS.items():
        with pytest.raises(SystemExit):
            main([command, "policy.ckpt", *options, "--import_names", "own_clases"])
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: import_names: cannot import 'own_clases'")


def test_loading_in_python_needs_the_import_first(folder: Path) -> None:
    with pytest.raises(KeyError, match="policy class 'OwnDQN', which is not registered"):
        load_policy("policy.ckpt")
    importlib.import_module("own_classes")
    assert type(load_policy("policy.ckpt")).__name__ == "OwnDQN"


BUFFERED = {"other": {"replay_buffer": {"type": "own_buffer", "import_names": ["own_classes"]}}}


def test_module_in_the_config_of_a_file_is_not_imported_unless_the_user_names_it(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    policy = DQNPolicy(BUFFERED).build(*SPACES)
    write_checkpoint(policy, folder / "buffer.ckpt")
    policy.export(folder / "buffer.safetensors", "safetensors")
    for file in ("buffer.ckpt", "buffer.safetensors"):
        options = ["export", file, "--format", "safetensors", "--output", f"copy_of_{file}"]
        main(options)
        assert "the file names the module 'own_classes' (other.replay_buffer.import_names), which the" in caplog.text
        assert "own_classes" not in sys.modules
        assert load_policy(f"copy_of_{file}").config.other.replay_buffer.import_names == ()
        main([*options, "--import_names", "own_classes"])
        assert load_policy(f"copy_of_{file}").config == policy.config
        del sys.modules["own_classes"]
        caplog.clear()


def test_run_with_classes_of_its_config_is_resumed_exactly(folder: Path) -> None:
    cfg = {**BUFFERED, "learn": {"batch_size": 4}, "collect": {"n_sample": 4}, "random_collect_size": 4}
    quiet: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}

    def fit(steps: int, root: str, file: Path | None = None) -> Any:
        sys.modules.pop("own_classes", None)
        seed_everything(0, verbose=False)
        policy = DQNPolicy(cfg)
        data = ReplayDataModule("CartPole-v1", num_envs=1, max_env_step=steps, seed=0)
        Trainer(accelerator="cpu", default_root_dir=root, **quiet).fit(policy, data, ckpt_path=file, weights_only=True)
        return policy

    whole = fit(24, "whole")
    fit(12, "halves")
    half = next(Path("halves").rglob("last.ckpt"))
    resumed = fit(24, "halves", half)
    assert resumed.progress.env_step == 24
    pairs: Any = zip(whole.parameters(), resumed.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_function_that_makes_the_env_of_a_file_is_called_only_if_the_user_names_its_module(folder: Path) -> None:
    policy = DQNPolicy({}).build(*SPACES)
    saved = torch.load(write_checkpoint(policy, folder / "env.ckpt"), weights_only=True)
    arguments = {"env_id": "own_classes.make_pole", "env_kwargs": {"max_episode_steps": 3}}
    torch.save({**saved, "datamodule_hyper_parameters": arguments}, "env.ckpt")
    with pytest.raises(KeyError, match=r"the file makes its env with 'own_classes\.make_pole'"):
        evaluate("env.ckpt", 2)
    assert "own_classes" not in sys.modules
    assert evaluate("env.ckpt", 2, import_names=["own_classes"])["lengths"] == [3, 3]


ENVS: dict[str, dict[str, Any]] = {
    "lightning_ding.envs.partly_observed:CartPoleNoVelocity-v1": {},
    "lightning_ding.envs.make_atari": {"game": "ALE/Pong-v5"},
    "lightning_ding.envs.bit_flip.BitFlipEnv": {"n_bits": 3},
    "pettingzoo:tictactoe_v3": {"opponent": "random"},
    "pettingzoo:mpe2.simple_spread_v3": {"N": 2, "team_reward": "mean"},
    "lbforaging:Foraging-8x8-2p-2f-coop-v3": {"team_reward": "mean"},
    "lightning_ding.envs.teams.SwitchRiddle": {"num_agents": 3},
    "gymnasium.envs.classic_control.CartPoleEnv": {},
    "CartPole-v1": {},
}


@pytest.mark.parametrize("env_id", ENVS)
def test_env_of_this_package_or_of_an_imported_module_needs_no_option(env_id: str) -> None:
    wrappers = ["flatten", {"time_limit": {"max_episode_steps": 4}}, "gymnasium.wrappers.FlattenObservation"]
    found = env_of_run({"env_id": env_id, "env_kwargs": ENVS[env_id], "wrappers": wrappers})
    assert (found.env, found.env_kwargs) == (env_id, ENVS[env_id])


def test_tensor_envs_that_have_no_other_mode_are_played_as_such() -> None:
    assert env_of_run({"env_id": "vmas:balance", "mode": "tensor"}).mode == "tensor"
    assert env_of_run({"env_id": "CartPole-v1", "mode": "tensor"}).mode == "sync"
