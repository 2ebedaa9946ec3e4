"""Symptoms of runs that do not learn."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.proofs import PROOFS
from lightning_ding.callbacks.diagnosis import CHECKS, PAGE, Diagnosis
from lightning_ding.config import to_dict
from lightning_ding.entry.doctor import HEALTHY
from lightning_ding.registry import POLICY_REGISTRY
from lightning_ding.utils.run_facts import Facts, facts_of

ROOT = Path(__file__).parents[2]
STORED: dict[str, dict[str, Any]] = json.loads((ROOT / "docs" / "results" / "vitals.json").read_text())
LATE = {"step": 80_000.0}
DISCOUNTED = Facts(discount_factor=0.99, budget=100_000, num_envs=4)


def found(facts: Facts, row: dict[str, float], rows: int = 5) -> list[str]:
    """Return the symptoms of a run that has the same row again and again."""
    diagnosis = Diagnosis(facts)
    return [one.name for _ in range(rows) for one in diagnosis.see(row)]


CASES: dict[str, tuple[Facts, dict[str, float], Facts, dict[str, float]]] = {
    # a run with the symptom, and one that just lacks it
    "constant_observations": (Facts(), {"learn/obs_changing": 0.0}, Facts(), {"learn/obs_changing": 0.01}),
    "large_steps": (Facts(learning_rate=1.0), {}, Facts(learning_rate=0.01), {}),
    "short_horizon": (
        *(Facts(discount_factor=0.5), {"collect/length_mean": 22.0}),
        *(Facts(discount_factor=0.9), {"collect/length_mean": 200.0}),
    ),
    "rewards_too_small": (
        *(DISCOUNTED, {"learn/reward_abs_max": 1e-4, **LATE}),
        *(dataclasses.replace(DISCOUNTED, normalises_rewards=True), {"learn/reward_abs_max": 1e-4, **LATE}),
    ),
    "rewards_too_large": (
        *(DISCOUNTED, {"learn/reward_mean": -300.0, "learn/reward_std": 20.0}),
        *(dataclasses.replace(DISCOUNTED, scales_values=True), {"learn/reward_mean": -300.0, "learn/reward_std": 20.0}),
    ),
    "values_out_of_reach": (
        # rewards of at most 1 and a horizon of 100: 100 is the largest value, 300 with the margin
        *(DISCOUNTED, {"learn/value_mean": -290.0, "learn/value_std": 20.0, "learn/reward_abs_max": 1.0}),
        *(DISCOUNTED, {"learn/value_mean": -270.0, "learn/value_std": 20.0, "learn/reward_abs_max": 1.0}),
    ),
    "jumping_policy": (Facts(), {"learn/approx_kl": 1.5}, Facts(), {"learn/approx_kl": 0.3}),
    "random_actor": (
        *(DISCOUNTED, {"learn/entropy_share": 0.98, **LATE}),
        *(DISCOUNTED, {"learn/entropy_share": 0.98, "step": 50_000.0}),
    ),
    "saturated_actions": (
        *(Facts(), {"learn/saturated_actions": 1.0, "learn/action_spread": 0.0}),
        *(Facts(), {"learn/saturated_actions": 1.0, "learn/action_spread": 1.0}),
    ),
    "dead_units": (Facts(), {"learn/dead_units": 0.98}, Facts(), {"learn/dead_units": 0.97}),
    "greedy_worse_than_collected": (
        *(DISCOUNTED, {"eval/return_mean": 10.0, "collect/return_mean": 100.0, **LATE}),
        *(DISCOUNTED, {"eval/return_mean": 100.0, "collect/return_mean": 10.0, **LATE}),
    ),
    "endless_episodes": (
        *(DISCOUNTED, {"progress/episode": 0.0, "step": 20_000.0}),
        *(dataclasses.replace(DISCOUNTED, time_limit=10_000), {"progress/episode": 0.0, "step": 20_000.0}),
    ),
    "short_time_limit": (
        *(dataclasses.replace(DISCOUNTED, time_limit=50), {"collect/length_mean": 50.0}),
        *(dataclasses.replace(DISCOUNTED, time_limit=50), {"collect/length_mean": 20.0}),
    ),
}


def test_every_symptom_has_a_case() -> None:
    assert {*CASES, "lost_policy"} == {check.find.__name__ for check in CHECKS}


@pytest.mark.parametrize("name", CASES)
def test_a_symptom_is_found_once_and_not_in_a_run_that_just_lacks_it(name: str) -> None:
    facts, row, other_facts, other_row = CASES[name]
    assert found(facts, row) == [name]
    assert found(other_facts, other_row) == []


@pytest.mark.parametrize(
    "check", [one for one in CHECKS if one.find.__name__ in CASES], ids=lambda check: check.find.__name__
)
def test_a_symptom_has_to_last(check: Any) -> None:
    facts, row, *_ = CASES[check.find.__name__]
    assert found(facts, row, check.rows - 1) == []


def test_a_healthy_row_starts_the_count_again_and_one_without_the_metric_does_not() -> None:
    bad, healthy, other = {"learn/dead_units": 1.0}, {"learn/dead_units": 0.5}, {"time/x": 1.0}
    diagnosis = Diagnosis(Facts())
    assert [one for row in (bad, healthy, bad, other) for one in diagnosis.see(row)] == []
    assert [one.name for one in diagnosis.see(bad)] == ["dead_units"]


def test_the_evidence_and_the_page_are_in_the_line() -> None:
    (symptom,) = Diagnosis(Facts(discount_factor=0.5)).see({"collect/length_mean": 22.0})
    assert str(symptom) == (
        "short_horizon: the discount factor 0.5 looks 2.0 steps ahead, and episodes have 22 steps "
        "(collect/length_mean): what happens later does not count; see docs/guides/not_learning.md#short-horizon"
    )


def test_a_rare_large_reward_is_remembered() -> None:
    diagnosis = Diagnosis(DISCOUNTED)
    diagnosis.see({"learn/reward_abs_max": 1.0, "step": 1_000.0})
    values = {"learn/value_mean": 2.0, "learn/value_std": 0.1, "learn/reward_abs_max": 1e-3, **LATE}
    assert [one for _ in range(5) for one in diagnosis.see(values)] == []


def lost(returns: list[float], facts: Facts = DISCOUNTED, spread: float = math.nan) -> list[str]:
    """Return the evidence that the policy was lost, of a run with these evaluations late in its budget."""
    diagnosis = Diagnosis(facts)
    rows = [{"eval/return_mean": one, "learn/action_std": spread, **LATE} for one in returns]
    return [one.evidence for row in rows for one in diagnosis.see(row) if one.name == "lost_policy"]


def test_a_policy_that_was_far_better_for_five_evaluations_is_named() -> None:
    # evaluations from 100 to 1,000: a third of their range is 300
    evidence = "evaluations return 699, and returned 1000 before (eval/return_mean)"
    assert lost([100.0, 1_000.0, *[699.0] * 4]) == []
    assert lost([100.0, 1_000.0, *[700.0] * 9]) == []
    assert lost([100.0, 1_000.0, *[699.0] * 4, 701.0, *[699.0] * 4]) == []
    assert lost([100.0, 1_000.0, *[699.0] * 5]) == [evidence]
    assert lost([100.0, 1_000.0, *[699.0] * 9], Facts()) == []  # without a budget no row is late
    assert lost([1_000.0, 100.0, *[699.0] * 5]) == [evidence]
    assert lost([50.0, 100.0, *[83.0] * 9]) == [evidence.replace("699", "83").replace("1000", "100")]
    assert lost([51.0, 100.0, *[60.0] * 9]) == []  # a range of less than half of the best may be noise
    assert lost([100.0, 1_000.0, *[699.0] * 5], spread=0.03) == [evidence]
    assert lost([100.0, 1_000.0, *[699.0] * 5], spread=0.007) == [
        evidence + ", and actions have a standard deviation of 0.007 half ranges"
    ]


def test_an_evaluation_that_is_not_finite_is_no_best_one() -> None:
    assert len(lost([100.0, math.inf, math.nan, 1_000.0, *[699.0] * 5])) == 1
    assert lost([100.0, math.inf, *[1_000.0] * 9]) == []


def test_a_restored_diagnosis_remembers_the_best_evaluation() -> None:
    first, second = Diagnosis(DISCOUNTED), Diagnosis(DISCOUNTED)
    for score in (100.0, 1_000.0):
        first.see({"eval/return_mean": score})
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert [one.name for _ in range(5) for one in second.see({"eval/return_mean": 500.0, **LATE})] == ["lost_policy"]


def test_a_time_limit_of_hundreds_of_steps_is_long_enough_for_every_discount() -> None:
    facts = dataclasses.replace(DISCOUNTED, discount_factor=0.9999)
    assert found(dataclasses.replace(facts, time_limit=499), {"collect/length_mean": 499.0}) == ["short_time_limit"]
    assert found(dataclasses.replace(facts, time_limit=500), {"collect/length_mean": 500.0}) == []


def test_what_is_not_finite_is_no_evidence() -> None:
    row = {"learn/value_mean": float("nan"), "learn/value_std": 1.0, "learn/reward_abs_max": float("inf"), **LATE}
    assert found(DISCOUNTED, row) == []


def test_a_restored_diagnosis_repeats_nothing_and_goes_on_counting() -> None:
    row, bad = {"learn/dead_units": 1.0}, {"learn/obs_changing": 0.0}
    first, second = Diagnosis(Facts()), Diagnosis(Facts())
    assert [one.name for one in first.see(bad)] == ["constant_observations"]
    assert first.see(row) == []  # the first of two rows
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.see(bad) == []
    assert [one.name for one in second.see(row)] == ["dead_units"]


def test_a_heavy_entropy_makes_a_less_random_actor_suspicious() -> None:
    row = {"learn/entropy_share": 0.94, **LATE}
    assert found(DISCOUNTED, row) == []
    assert found(dataclasses.replace(DISCOUNTED, entropy_weight=1.0), row) == ["random_actor"]
    assert found(dataclasses.replace(DISCOUNTED, entropy_weight=1.0, entropy_is_chosen=True), row) == []


def test_facts_are_read_from_the_config_and_the_arguments_of_the_datamodule() -> None:
    ppo = to_dict(POLICY_REGISTRY.get("ppo").config_class())
    data = {"env_id": "CartPole-v1", "num_envs": 8, "max_env_step": 5_000, "wrappers": [{"time_limit": {"x": 100}}]}
    of_ppo = Facts(0.99, 3e-4, 5_000, num_envs=8, time_limit=100, scales_values=True)
    assert facts_of(ppo, data) == of_ppo
    sac = to_dict(POLICY_REGISTRY.get("sac").config_class())
    of_sac = facts_of(sac, {"env_id": "Pendulum-v1", "max_train_iter": 9, "train_wrappers": ["sign_reward"]})
    assert (of_sac.time_limit, of_sac.budget, of_sac.axis) == (200, 9, "train_iter")
    assert of_sac.entropy_is_chosen
    assert of_sac.changes_rewards


def test_what_only_a_config_of_a_user_means_is_not_known() -> None:
    learn = {"learning_rate": {"actor": 1e-3}, "entropy_weight": {"start": 1.0}, "adv_norm": True, 3: None}
    odd = {"discount_factor": [0.9, 0.99], "m_alpha": "auto", "learn": learn}
    assert facts_of(odd, {}) == Facts()
    assert facts_of({"discount_factor": [0.9, 0.99]}, {}).horizon is None
    sql = {"cfg_type": "SQLPolicyDict", "learn": {"alpha": "auto"}, "model": {"action_shape": 4}}
    assert facts_of(sql, {}).bonus == pytest.approx(math.log(4))


def test_a_dead_critic_alone_is_no_symptom() -> None:
    assert found(DISCOUNTED, {"learn/dead_units": 0.0, "learn/dead_units_critic": 1.0, **LATE}) == []


def test_sgd_has_no_usual_learning_rate() -> None:
    assert facts_of({"learn": {"learning_rate": 1.0, "optimizer": {"type": "sgd"}}}, {}).learning_rate is None


# ---------------------------------------------------------------------- no false alarm


EXPECTED = {"dqn_mountaincar": ["dead_units"], "dqfd_cartpole": ["lost_policy"]}
"""Symptoms of a baseline that is published because it never reaches the goal, and of a run that ends below its bar."""


def names_found(run: dict[str, Any]) -> list[str]:
    """Return the symptoms in the rows of a recorded run."""
    columns = run["columns"]
    rows = [
        {key: column[row] for key, column in columns.items() if column[row] is not None}
        for row in range(len(columns["step"]))
    ]
    diagnosis = Diagnosis(Facts(**run["facts"]))
    return [one.name for row in rows for one in diagnosis.see(row)]


def is_whole(name: str) -> bool:
    return int(STORED[name]["budget"]) == PROOFS[name].budget


def test_recorded_runs_are_as_many_as_the_decisions_say() -> None:
    assert (len(STORED), sum(map(is_whole, STORED)), len(PROOFS)) == (51, 44, 133)


@pytest.mark.parametrize("name", STORED)
def test_a_recorded_run_has_no_symptom_but_those_that_are_expected(name: str) -> None:
    assert names_found(STORED[name]) == EXPECTED.get(name, [])
    assert any("learn/grad_norm" in column for column in STORED[name]["columns"])


CONFIGS = sorted((ROOT / "recipes" / "configs").glob("*.yaml"))


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.stem)
def test_no_recipe_has_a_symptom_before_it_starts(file: Path) -> None:
    settings = yaml.safe_load(file.read_text())
    if "policy" not in settings or not isinstance(settings["policy"], str):
        pytest.skip("a distributed run")
    given = (settings.get("model") or {}).get("cfg") or {}
    cfg = to_dict(POLICY_REGISTRY.get(settings["policy"]).config_class())
    merged = {**cfg, **given, "learn": {**cfg.get("learn", {}), **given.get("learn", {})}}
    facts = facts_of(merged, settings.get("data") or {})
    longest = {"collect/length_mean": float(facts.time_limit or 100), "step": 1.0}
    assert found(facts, longest) == []


# ---------------------------------------------------------------------- the pages


def test_every_symptom_has_a_section_in_the_page() -> None:
    headings = re.findall(r"^#+ (.+)$", (ROOT / PAGE).read_text(), re.MULTILINE)
    anchors = {heading.lower().replace(" ", "-") for heading in headings}
    assert {check.find.__name__.replace("_", "-") for check in CHECKS} <= anchors


def test_every_metric_with_a_usual_value_is_explained() -> None:
    page = (ROOT / "docs" / "guides" / "reading_metrics.md").read_text()
    rows = dict(re.findall(r"^\| `(learn/\w+)` \|.*\| ([^|]+) \|$", page, re.MULTILINE))
    assert {name: rows.get(name) for name in HEALTHY} == HEALTHY
