"""The policies of the zoo are those of the experiments of their names, as they are now."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors import safe_open

from benchmarks import learn
from benchmarks.proofs import PROOFS
from lightning_ding.config import resolve, to_dict
from lightning_ding.registry import POLICY_REGISTRY
from lightning_ding.zoo import policies

LEARN = Path(__file__).parents[2] / "docs" / "results" / "learn"


@pytest.mark.parametrize("name", sorted(policies()))
def test_a_policy_of_the_zoo_has_the_config_and_the_return_of_its_experiment(name: str) -> None:
    found = policies()[name]
    with safe_open(found.file, "pt") as file:
        header = json.loads(file.metadata()["lightning_ding"])
    given = PROOFS[name].config()
    expected = learn.as_json(to_dict(resolve(POLICY_REGISTRY.get(found.policy).config_class, given)))
    made, model = header["cfg"], expected.pop("model")  # of the model, more was set when the env was known
    del expected["cfg_type"]
    assert {key: made[key] for key in expected} == expected
    assert {key: made["model"][key] for key in given.get("model", {})} == {
        key: model[key] for key in given.get("model", {})
    }
    runs = {run["seed"]: run for run in learn.read(name, LEARN)["ours"]["runs"]}
    assert found.mean_return == round(runs[found.seed]["last"], 3)
    assert found.command == f"python -m benchmarks.ship {name} --seed {found.seed}"
