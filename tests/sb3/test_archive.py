"""Forged and damaged models of Stable-Baselines3 are refused, whatever they claim to hold."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_ding.policy import load_policy
from lightning_ding.sb3 import archive
from lightning_ding.sb3.archive import is_archive, read_archive
from tests.sb3.make_models import write_zip
from tests.sb3.stored import make_zip, models, weights_of

BOX = {":type:": "<class 'gymnasium.spaces.box.Box'>", "dtype": "float32", "low": "0.0", "high": "1.0"}
DISCRETE = {":type:": "<class 'gymnasium.spaces.discrete.Discrete'>", "n": "100000000000"}


def squeezed(folder: Path, data: str, content: Any) -> Path:
    """Write a compressed model, whose weights are a compressed archive too."""
    inner, file = io.BytesIO(), folder / "model.zip"
    torch.save(content, inner)
    stored = zipfile.ZipFile(inner)
    smaller = io.BytesIO()
    with zipfile.ZipFile(smaller, "w", zipfile.ZIP_DEFLATED) as target:
        for name in stored.namelist():
            target.writestr(name, stored.read(name))
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as target:
        target.writestr("data", data)
        target.writestr("policy.pth", smaller.getvalue())
    return file


@pytest.mark.parametrize("part", ["data", "policy.pth"])
def test_content_that_is_far_larger_than_the_file_is_not_read(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "FREE", 100_000)
    data = " " * 3_000_000 + "{}" if part == "data" else "{}"
    weights = {} if part == "data" else {"x": torch.zeros(1_000_000)}
    with pytest.raises(ValueError, match=r"would have [34]0\d+ bytes, more than \d+ for a file of this size"):
        read_archive(squeezed(tmp_path, data, weights))
    assert read_archive(squeezed(tmp_path, "{}", {"x": torch.ones(3)})).weights["x"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(1, 1).expand(1_000_000, 1_000_000),
        torch.empty(2, device="meta"),
        torch.eye(3).to_sparse(),
        torch.zeros(2, dtype=torch.complex64),
        "text",
    ],
    ids=["expanded", "meta", "sparse", "complex", "text"],
)
def test_weights_that_are_no_plain_tensors_are_refused(tensor: Any, tmp_path: Path) -> None:
    weights: dict[str, Any] = {**weights_of("ppo_box"), "value_net.weight": tensor}
    file = write_zip(tmp_path / "model.zip", models()["ppo_box"]["data"], weights, {})
    with pytest.raises(ValueError, match=r"path must be a model\.zip .*entries that are no tensors.*value_net\.weight"):
        load_policy(file)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@pytest.mark.parametrize("file", ["policy.pth", "pytorch_variables.pth"])
def test_tensor_with_numbers_that_are_not_finite_is_named(file: str, number: float, tmp_path: Path) -> None:
    weights = {name: tensor.clone() for name, tensor in weights_of("ppo_box").items()}
    bias, variables = weights["action_net.bias"], {"log_ent_coef": torch.zeros(1)}
    (bias if file == "policy.pth" else variables["log_ent_coef"])[0] = number
    path = write_zip(tmp_path / "model.zip", models()["ppo_box"]["data"], weights, variables)
    broken = "action_net.bias" if file == "policy.pth" else "log_ent_coef"
    with pytest.raises(ValueError, match=rf"{file} has NaN or infinite numbers in the tensor '{broken}'"):
        load_policy(path)


@pytest.mark.parametrize("name", [5, "mlp_extractor.policy_net.\N{SUPERSCRIPT TWO}"])
def test_odd_names_of_weights_are_refused(name: Any, tmp_path: Path) -> None:
    weights: dict[Any, Tensor] = {**weights_of("ppo_box"), name: torch.zeros(1)}
    file = write_zip(tmp_path / "model.zip", models()["ppo_box"]["data"], weights, {})
    with pytest.raises(ValueError, match=r"no tensors of numbers in memory: \['5'\]|the weights of the model must be"):
        load_policy(file)


def test_bias_of_another_size_than_its_weight_is_named(tmp_path: Path) -> None:
    weights = {**weights_of("ppo_box"), "action_net.bias": torch.zeros(())}
    file = write_zip(tmp_path / "model.zip", models()["ppo_box"]["data"], weights, {})
    with pytest.raises(ValueError, match=r"the layer 'action_net' of the model must be a weight and a bias"):
        load_policy(file)


def test_damaged_archive_is_named(tmp_path: Path) -> None:
    file = squeezed(tmp_path, json.dumps(models()["ppo_box"]["data"]), weights_of("ppo_box"))
    content = bytearray(file.read_bytes())
    content[60:90] = b"\xff" * 30
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"path must be a model\.zip .*Error -3 while decompressing"):
        load_policy(file)
    assert is_archive(file)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"observation_space": {**BOX, "_shape": [100_000, 30_000]}}, "3000000000 entries are too many"),
        ({"action_space": DISCRETE}, "100000000000 entries are too many"),
        ({"observation_space": {**BOX, "_shape": [1], "low": "1" * 60_000 + "x"}}, "is no array of numbers"),
    ],
)
def test_spaces_of_unreasonable_size_are_refused_at_once(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        load_policy(make_zip("ppo_box", tmp_path, **changes))


def test_schedule_that_is_no_number_is_not_read(tmp_path: Path) -> None:
    policy = load_policy(make_zip("ppo_box", tmp_path, batch_size={"value_schedule": "ConstantSchedule(val=e)"}))
    assert policy.config.learn.batch_size == 64  # the default


def test_loaded_policy_does_not_begin_with_random_steps(tmp_path: Path) -> None:
    assert load_policy(make_zip("sac", tmp_path)).has_loaded_weights
