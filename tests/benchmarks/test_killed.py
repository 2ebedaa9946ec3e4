"""Killing and resuming: random moments, what is counted, and how runs are compared, with toy sides."""

from __future__ import annotations

import functools
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import killed
from benchmarks.killed_job import Job, greedy_returns, newest_first

BUDGET, EVERY, SEED = 600, 100, 7


def train(exact: bool, folder: Path) -> None:
    """Run a toy whose weights are a sum over its steps; unless ``exact``, it resumes with another sum and no buffer."""
    saved = folder / "saved.json"
    step, value = json.loads(saved.read_text()) if saved.exists() else (0, 0.0)
    row = {"env_step": step, "buffer": step if exact else 0, "unreadable": 0}
    row["updates"] = max(0, step - 1_000) // 4
    with (folder / "starts.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    lost = 0.0 if exact or not step else 0.5
    while step < BUDGET:
        for name in ["steps", "updates"] if step % 4 == 0 else ["steps"]:
            with (folder / name).open("ab", 0) as count:
                count.write(b".")
        step, value = step + 1, value + step % 7 - lost
        if step % EVERY == 0:
            hidden = folder / "hidden.json"
            hidden.write_text(json.dumps([step, value]))
            hidden.replace(saved)
        time.sleep(0.001)
    np.save(folder / "weights.npy", np.array([value, 1.0], np.float32))
    result = {"version": "1", "torch": "2", "env": "toy", "returns": [value, value]}
    (folder / "result.json").write_text(json.dumps(result))


def fail(folder: Path) -> None:
    raise ValueError("no such library")


@pytest.fixture(autouse=True)
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A toy run is over in a second."""
    monkeypatch.setattr(killed, "LONGEST", 0.005)


def run_side(tmp_path: Path, kind: str, kills: int = 3) -> dict[str, Any]:
    side = functools.partial(train, kind == "exact")
    return killed.compare(side, tmp_path / "runs", BUDGET, EVERY, kills, SEED)


def test_moments_are_different_steps_in_order_and_the_same_for_the_same_seed() -> None:
    moments = killed.random_moments(10, 20_000, seed=3)
    steps = [step for step, _ in moments]
    assert steps == sorted(set(steps))
    assert steps[0] > 0
    assert steps[-1] < 20_000
    assert len(steps) == 10
    assert all(0.0 <= delay <= killed.LONGEST for _, delay in moments)
    assert moments == killed.random_moments(10, 20_000, seed=3) != killed.random_moments(10, 20_000, seed=4)


def test_moments_are_uniform_over_the_budget() -> None:
    steps = [step for seed in range(400) for step, _ in killed.random_moments(10, 1_000, seed)]
    assert np.histogram(steps, 4, (0, 1_000))[0] == pytest.approx(1_000, rel=0.12)


def test_side_that_saves_everything_has_the_same_weights_and_has_repeated_steps(tmp_path: Path) -> None:
    row = run_side(tmp_path, "exact")
    assert row["kills"] == len(row["killed_at"]) == 3
    assert len(row["resumed"]) == 4
    assert row["difference_repeated"] == row["difference_killed"] == 0.0
    assert row["return"]["killed"] == row["return"]["whole"]
    assert row["lost"] == []
    assert row["unreadable_checkpoints"] == 0
    assert row["env_steps"]["whole"] == row["env_steps"]["again"] == 600
    assert row["updates"]["whole"] == 150
    assert 600 <= row["env_steps"]["killed"] <= 600 + 3 * 100
    # A start repeats what the one before made after its checkpoint.
    resumed, made = [one["env_step"] for one in row["resumed"]], [0, *row["killed_at"]]
    ends = [start + late - early for start, early, late in zip(resumed, made, made[1:], strict=False)]
    assert resumed[1:] == [end // 100 * 100 for end in ends]


def test_side_that_loses_its_buffer_is_found_out(tmp_path: Path) -> None:
    row = run_side(tmp_path, "lossy")
    assert row["difference_repeated"] == 0.0
    assert row["difference_killed"] > 1.0
    assert row["lost"] == ["buffer"]
    assert row["return"]["killed"] < row["return"]["whole"]


def test_finished_unbroken_runs_in_a_folder_are_used_and_killed_ones_are_not(tmp_path: Path) -> None:
    first = run_side(tmp_path, "exact", kills=1)
    second = run_side(tmp_path, "exact", kills=1)
    assert second["seconds"]["whole"] == first["seconds"]["whole"]
    assert second["env_steps"]["whole"] == 600
    assert len(second["resumed"]) == 2
    assert second["kills"] == 1


def test_run_that_fails_ends_with_its_log(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)ended with 1:.*no such library"):
        killed.compare(fail, tmp_path / "runs", BUDGET, EVERY, 1, SEED)


def test_what_is_missing_after_a_resume_is_named() -> None:
    whole = {"env_step": 5_000, "buffer": 5_000, "updates": 1_000}
    assert killed.lost_by(killed.with_expectations([whole]), slack=50) == []
    for name, lost in (("buffer", "buffer"), ("updates", "optimizer")):
        assert killed.lost_by(killed.with_expectations([whole | {name: 0}]), slack=50) == [lost]
    begun = {"env_step": 0, "buffer": 0, "updates": 0}
    assert killed.lost_by(killed.with_expectations([begun]), slack=50) == []


def test_updates_that_an_empty_buffer_delayed_are_not_missing_from_the_optimizer() -> None:
    starts = [
        {"env_step": step, "buffer": step, "updates": (step - 1_000) // 4 - 16 * i}
        for i, step in enumerate(range(2_000, 9_000, 1_000))
    ]
    assert killed.lost_by(killed.with_expectations(starts), slack=50) == []
    assert killed.lost_by(killed.with_expectations([*starts, starts[-1] | {"updates": 0}]), slack=50) == ["optimizer"]


def test_difference_is_zero_only_for_equal_bits(tmp_path: Path) -> None:
    for name, weights in (("one", [1.0, 0.0]), ("same", [1.0, 0.0]), ("other", [1.0, 0.25])):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "weights.npy", np.array(weights, np.float32))
    assert killed.difference(tmp_path / "one", tmp_path / "same") == 0.0
    assert killed.difference(tmp_path / "one", tmp_path / "other") == 0.25


def test_table_has_a_row_for_each_side(tmp_path: Path) -> None:
    row = run_side(tmp_path, "exact", kills=1)
    killed.store(tmp_path / "killed.json", "toy", row)
    killed.store(tmp_path / "killed.json", "other", row | {"difference_killed": 0.5, "lost": ["buffer"]})
    lines = killed.table(json.loads((tmp_path / "killed.json").read_text())).splitlines()
    assert len(lines) == 4
    assert len({line.count("|") for line in lines}) == 1
    assert lines[2].startswith("| toy 1 | 600 / ")
    assert "0 (same bits) / 0 (same bits)" in lines[2]
    assert "0 (same bits) / 0.5" in lines[3]
    assert "| buffer |" in lines[3]


def test_epsilon_falls_over_half_of_the_budget_and_newest_checkpoints_are_first(tmp_path: Path) -> None:
    job = Job(tmp_path, 20_000, 1_000, 0)
    assert [job.epsilon(step) for step in (0, 5_000, 10_000, 20_000)] == pytest.approx([1.0, 0.525, 0.05, 0.05])
    paths = [Path(f"model_{step}_steps.zip") for step in (1_000, 10_000, 2_000)]
    found = newest_first(paths, lambda path: int(path.stem.split("_")[1]))
    assert [path.stem.split("_")[1] for path in found] == ["10000", "2000", "1000"]


def test_greedy_returns_take_values_and_actions() -> None:
    import torch

    values = greedy_returns(lambda obs: torch.tensor([[0.0, 1.0]]), "CartPole-v1")
    actions = greedy_returns(lambda obs: torch.tensor([1]), "CartPole-v1")
    assert values == actions
    assert len(values) == 20
    assert max(values) < 15
    swings = greedy_returns(lambda obs: torch.zeros(1, 1), "Pendulum-v1")
    assert all(value < 0.0 for value in swings)
