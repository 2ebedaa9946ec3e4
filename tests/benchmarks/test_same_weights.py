"""The command that compares the weights of two commits notices every bit, and what is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import lightning_ding.policy  # noqa: F401 - registers the algorithms
from benchmarks import same_weights
from benchmarks.same_weights import Results, compare, difference, report
from benchmarks.same_weights_run import CASES, check_tree, digest, digests, merged
from lightning_ding.registry import POLICY_REGISTRY

ROOT = Path(__file__).parents[2]
ONE = {"a": "float32[2] 12", "b": "int64[] 34"}


def test_one_bit_the_dtype_and_the_shape_are_part_of_a_digest() -> None:
    tensor = torch.ones(4)
    other = tensor.clone()
    other.view(torch.int32)[2] ^= 1

    assert digest(tensor) == digest(torch.ones(4))
    found = [digest(one) for one in (tensor, other, tensor.view(torch.int32), tensor.view(2, 2), tensor.bfloat16())]
    assert len(set(found)) == len(found)


def test_nested_states_are_digested_by_path() -> None:
    found = digests("optimizer 0", {0: {"step": torch.tensor(3.0), "rate": 0.5}, 1: [True]})

    assert found == {
        "optimizer 0/0/step": digest(torch.tensor(3.0)),
        "optimizer 0/0/rate": "0.5",
        "optimizer 0/1/0": "True",
    }


def test_first_tensor_that_differs_is_named() -> None:
    assert difference(ONE, dict(ONE)) is None
    assert difference(ONE, {**ONE, "b": "int64[] 35"}) == (
        "b: int64[] 34 in the base commit, int64[] 35 here (1 of 2 differ)"
    )


def test_a_tensor_that_is_missing_or_new_is_a_difference() -> None:
    assert difference(ONE, {"a": ONE["a"]}) == "b: int64[] 34 in the base commit, missing here (1 of 2 differ)"
    assert difference({"a": ONE["a"]}, ONE) == "b: missing in the base commit, int64[] 34 here (1 of 2 differ)"


def test_a_step_that_failed_is_a_difference_even_if_it_failed_in_both_trees() -> None:
    assert difference(None, ONE) == "failed in the base commit"
    assert difference(ONE, {}) == "failed in this tree"
    verdicts = compare({}, {}, {}, ["dqn"])
    assert verdicts == {("dqn", "start"): "failed in the base commit and this tree"}


def test_checkpoints_of_the_base_commit_must_give_what_it_gave_itself(capsys: pytest.CaptureFixture[str]) -> None:
    same: Results = {("dqn", step): ONE for step in ("start", "continue", "load")}
    from_base: Results = {("dqn", "continue"): {**ONE, "a": "float32[2] 13"}}

    verdicts = compare(same, same, from_base, ["dqn"])

    assert not report(verdicts, {"dqn": "about it"})
    printed = capsys.readouterr().out
    assert "dqn, base continue: a: float32[2] 12 in the base commit, float32[2] 13 here (1 of 2 differ)" in printed
    assert "dqn, base load: failed in this tree" in printed
    assert "3 of 5 comparisons are the same" in printed
    assert report(compare(same, same, same, ["dqn"]), {"dqn": "about it"})


def test_a_package_from_elsewhere_is_refused(tmp_path: Path) -> None:
    check_tree(ROOT)
    with pytest.raises(RuntimeError, match="lightning_ding must be imported from"):
        check_tree(tmp_path)


def test_every_algorithm_has_a_case() -> None:
    ours = {name for name in POLICY_REGISTRY if POLICY_REGISTRY.get(name).__module__.startswith("lightning_ding.")}
    assert {case.type for case in CASES.values()} == ours - {"dt"}  # which collects nothing


def test_later_configs_win() -> None:
    assert merged({"a": {"b": 1, "c": 2}}, {"a": {"c": 3}}, {"d": {}}) == {"a": {"b": 1, "c": 3}, "d": {}}


def test_a_base_that_is_no_commit_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["same_weights", "--base", "no-such-commit"])
    with pytest.raises(SystemExit) as ended:
        same_weights.main()
    assert ended.value.code == 2
    assert "--base must be a commit, got 'no-such-commit'" in capsys.readouterr().err


@pytest.mark.slow
def test_this_commit_trains_the_weights_of_this_commit() -> None:
    command = [sys.executable, "-m", "benchmarks.same_weights", "--base", "HEAD", "--cases", "c51", "loop"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all 6 comparisons are the same" in done.stdout
