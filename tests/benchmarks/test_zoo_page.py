"""The page of the zoo has every YAML file, and the returns of runs with its settings."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks import learn, offline, zoo_page
from benchmarks.proofs import NUM_ENVS, PROOFS, RECIPES, Run, load
from lightning_ding.config import deep_merge, resolve
from lightning_ding.registry import POLICY_REGISTRY

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
ENTRIES = {entry.name: entry for entry in zoo_page.entries(RESULTS)}
COMPARISONS = ("lstm_t_maze",)
"""Experiments that only show another setting of the same env and recipe; a user would not train them."""
TRAINED = [name for name, entry in ENTRIES.items() if not entry.is_offline]


def yaml_of(name: str) -> dict[str, Any]:
    run: dict[str, Any] = yaml.safe_load((ROOT / "recipes" / "configs" / f"{name}.yaml").read_text())
    return run


def test_page_is_what_the_script_writes() -> None:
    assert (ROOT / "docs" / "zoo.md").read_text() == zoo_page.page(RESULTS), "run python -m benchmarks.zoo_page"


def test_every_yaml_of_one_process_is_an_entry() -> None:
    files = {file.stem for file in (ROOT / "recipes" / "configs").glob("*.yaml")}
    assert set(ENTRIES) == {name for name in files if not name.startswith("parallel_")}
    assert len(ENTRIES) >= 46


def test_algorithm_of_an_entry_is_the_longest_one_that_its_name_starts_with() -> None:
    names = ["ppo_cartpole", "ppo_offpolicy_cartpole", "sac_lunarlander_continuous", "dqn_connect_four"]
    assert [zoo_page.algorithm_of(name) for name in names] == ["ppo", "ppo_offpolicy", "sac", "dqn"]


@pytest.mark.parametrize("name", TRAINED)
def test_runs_of_an_entry_have_the_settings_of_its_yaml(name: str) -> None:
    run, proof = yaml_of(name), PROOFS.get(zoo_page.PROOF_OF.get(name, name))
    if proof is None:  # no proof has been published
        return
    assert (run["data"]["env_id"], run["data"]["max_env_step"]) == (proof.env_id, proof.budget)
    config_class = POLICY_REGISTRY.get(run["policy"]).config_class
    whole_run = {"eval": {"evaluator": {"stop_value": None}}}
    expected = resolve(config_class, deep_merge(run["model"]["cfg"], whole_run))
    assert resolve(config_class, proof.config()) == expected
    data = learn.as_json(learn.data_arguments(proof)) | {"num_envs": getattr(load(proof.recipe), "NUM_ENVS", NUM_ENVS)}
    kept_apart = {"env_id", "max_env_step", "seed", "demonstrations"}
    assert {key: value for key, value in run["data"].items() if key not in kept_apart} == data


@pytest.mark.parametrize("name", [name for name in PROOFS if PROOFS[name].overrides or PROOFS[name].data])
def test_every_experiment_with_other_settings_than_its_recipe_has_a_yaml(name: str) -> None:
    proof = PROOFS[name]
    is_comparison = proof.is_ceiling or proof.has_defaults or name in COMPARISONS
    assert is_comparison or name in zoo_page.PROOF_OF.values() or (RECIPES / "configs" / f"{name}.yaml").is_file()


def test_row_has_the_interquartile_mean_its_interval_and_the_number_of_seeds() -> None:
    entry = zoo_page.Entry("dqn_cartpole", "dqn", "CartPole-v1", 50_000, [10.0, 20.0, 60.0], [60.0] * 3, False)
    assert entry.row() == (
        "| [dqn_cartpole](../recipes/configs/dqn_cartpole.yaml) | [dqn](algorithms/dqn.md) | CartPole-v1 "
        "| 30.0 [10.0, 60.0] | 60.0 [60.0, 60.0] | 3 | 50,000 |"
    )
    assert "| not yet | not yet | 0 |" in zoo_page.Entry("x", "dqn", "CartPole-v1", 1, [], [], False).row()
    assert "| CartPole-v1 | 9.00 | 1 | 1 |" in zoo_page.Entry("x", "bc", "CartPole-v1", 1, [9.0], [], True).row()


def test_runs_with_other_settings_are_left_out(tmp_path: Path) -> None:
    run: Run = {"seed": 0, "seconds": 1.0, "best": 9.0, "curve": [(10, 1.0, 9.0)]}
    learn.save("dqn_cartpole", 50_000, "ours", run, tmp_path)
    assert [one["best"] for one in zoo_page.runs_of("dqn_cartpole", tmp_path)] == [9.0]
    file = tmp_path / "dqn_cartpole.json"
    record = json.loads(file.read_text())
    file.write_text(json.dumps(record | {"budget": 10}))
    assert zoo_page.runs_of("dqn_cartpole", tmp_path) == []
    record["ours"]["config"]["nstep"] = 5
    file.write_text(json.dumps(record))
    assert zoo_page.runs_of("dqn_cartpole", tmp_path) == []


def test_runs_on_data_sets_with_other_settings_are_left_out() -> None:
    settings = offline.settings_of("bc", "ours")
    runs = [{"return": 1.0, "config": settings}, {"return": 2.0, "config": settings | {"updates": 1}}]
    assert zoo_page.offline_returns("bc", {"bc": [*runs, {"return": 3.0, "side": "tianshou"}]}) == [1.0]
    assert zoo_page.offline_returns("dt", {}) == []


def test_options_name_the_data_sets_that_entries_need() -> None:
    options = {name: entry.data for name, entry in ENTRIES.items() if entry.data}
    assert options["bc_pendulum"] == "--data.dataset runs/offline/pendulum.npz"
    assert options["dqfd_cartpole"] == "--data.demonstrations runs/offline/cartpole_best.npz"
    assert options["gail_cartpole"] == "--model.cfg.reward_model.data_path runs/offline/cartpole_expert.npz"
    assert len(options) == 21
    listed = re.findall(r"^\* (\w+): `(\S+ \S+)`$", zoo_page.page(RESULTS), flags=re.MULTILINE)
    assert dict(listed) == options
