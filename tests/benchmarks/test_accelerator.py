"""Speeds on a GPU and on its host."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from benchmarks import accelerator, contest


@pytest.mark.parametrize("name", ["dqn", "ppo"])
def test_the_speed_is_that_of_the_whole_workload(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, first = accelerator.WORKLOADS[name]
    small = dataclasses.replace(whole, env_steps=first)
    fitted: list[str] = []
    seconds = iter([1.0, 4.0])

    def fit(policy: object, datamodule: object, accelerator: str) -> dict[str, float]:
        fitted.append(accelerator)
        return {"env_steps": 100.0, "seconds": next(seconds)}

    monkeypatch.setitem(accelerator.WORKLOADS, name, (small, first))
    monkeypatch.setattr(contest, "fit", fit)
    assert accelerator.speed(name, "gpu") == 25.0
    assert fitted == ["gpu", "gpu"]


def test_only_workloads_of_tensor_envs_run_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(accelerator, "speed", lambda name, accelerator="cpu", compile=False: 1.0 + bool(compile))
    monkeypatch.setattr(accelerator, "find_spec", lambda name: None)
    told = {"device", "torch"}
    assert {side: value for side, value in accelerator.measured("ppo").items() if side not in told} == {
        "cpu": 1.0,
        "gpu": 1.0,
    }
    found = accelerator.measured("tensors")
    assert set(found) - told == set(accelerator.SIDES)
    assert found["gpu_graphs"] == 2.0


def test_the_table_has_a_row_for_each_workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "speeds.json").write_text(json.dumps({"ppo": {"cpu": 9596.4, "gpu": 3546.7, "device": "a GPU"}}))
    monkeypatch.setattr(accelerator, "RESULT", tmp_path / "speeds.json")
    assert accelerator.table().splitlines()[-1] == "| ppo | 9,596 | 3,547 | - | - | - | a GPU |"
