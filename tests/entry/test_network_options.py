"""The options of the network reach it from YAML and from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
import yaml

from lightning_ding.config import deep_merge
from lightning_ding.entry.lightning_cli import main

gym.register("TestImageBandit-v0", "tests.toys.bandits:BanditEnv", kwargs={"observation": "image"})


def test_options_of_the_encoder_come_from_yaml_and_from_the_command_line(
    small: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = {"encoder": "impala", "encoder_hidden_size_list": None, "encoder_kwargs": {"feature_size": 8}}
    logger = {"class_path": "lightning.pytorch.loggers.CSVLogger", "init_args": {"save_dir": "runs"}}
    flags = {"accelerator": "cpu", "logger": logger, "enable_progress_bar": False, "enable_model_summary": False}
    data = {"env_id": "TestImageBandit-v0", "num_envs": 2, "max_env_step": 16}
    settings = {"policy": "dqn", "model": {"cfg": deep_merge(small, {"model": model})}, "data": data}
    Path("run.yaml").write_text(yaml.safe_dump({**settings, "trainer": flags}))
    section = "--model.cfg.model"
    options = [f"{section}.encoder_kwargs.channels", "[4, 5]", f"{section}.layer_norm", "true"]
    main(["fit", "--config", "run.yaml", *options, f"{section}.activation", "silu"])

    (file,) = Path("runs").rglob("last.ckpt")
    saved = torch.load(file, weights_only=True)
    found = saved["hyper_parameters"]["cfg"]["model"]
    assert found["encoder_kwargs"] == {"feature_size": 8, "channels": [4, 5]}
    assert (found["encoder"], found["activation"], found["layer_norm"]) == ("impala", "silu", True)
    weights = saved["state_dict"]
    assert weights["model.encoder.convolutions.1.weight"].shape == (5, 4, 3, 3)
    assert weights["model.encoder.linear.norms.0.weight"].shape == (8,)
