"""The reports of updates, sorted into groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.worker.learner.toy_policy import FakePolicy, batch_of, learner_of, policy_of


@pytest.mark.parametrize(
    "value",
    [
        3.0,
        3,
        np.float32(3),
        np.int64(3),
        torch.tensor(3.0),
        torch.tensor([3]),
        [3.0],
        np.array([1.0, 5.0]),
        torch.tensor([1.0, 5.0]),
    ],
)
def test_log_buffer_takes_every_kind_of_number(value: Any) -> None:
    learner = learner_of(FakePolicy({"total_loss": value}), hook={"log_show_after_iter": 1})
    learner.train([])

    assert float(learner.log_buffer["scalar"]["total_loss"]) == 3.0
    assert learner.monitor == {"total_loss_avg": 3.0}


@pytest.mark.parametrize("value", ["three", None, [], {"a": 1.0}, torch.zeros(0)])
def test_log_buffer_refuses_other_types_and_names_the_entry(value: Any) -> None:
    with pytest.raises(TypeError, match="'some_value' must be a number, or an array of them, to be reported, got"):
        learner_of(FakePolicy({"some_value": value})).train([])


def test_log_buffer_sorts_by_the_group_in_brackets() -> None:
    report = {"a": 1.0, "[scalars]b": {"x": 2, "y": 3.0}, "x[histogram]c": [1.0, 2.0]}
    learner = learner_of(FakePolicy(report))
    learner.train([])

    buffer = learner.log_buffer
    assert (buffer["scalar"], buffer["scalars"]) == ({"a": 1.0}, {"b": {"x": 2.0, "y": 3.0}})
    assert {name: value.tolist() for name, value in buffer["histogram"].items()} == {"c": [1.0, 2.0]}


@pytest.mark.parametrize(("key", "value"), [("[scalars]b", 2.0), ("[histogram]b", "text")])
def test_log_buffer_refuses_a_group_of_another_form(key: str, value: Any) -> None:
    with pytest.raises(TypeError, match=r"'\[\w+\]b' must be"):
        learner_of(FakePolicy({key: value})).train([])


def test_log_buffer_holds_means_over_the_updates_of_an_iteration_and_all_their_histograms() -> None:
    one = {"a": 1.0, "[scalars]b": {"x": 2.0}, "[histogram]c": [1.0]}
    other = {"a": 4.0, "[scalars]b": {"x": 4.0, "y": 5.0}, "[histogram]c": torch.tensor([[2.0], [3.0]])}
    learner = learner_of(FakePolicy([one, other]))
    learner.train([])

    buffer = learner.log_buffer
    assert (buffer["scalar"]["a"], buffer["scalars"]["b"]) == (2.5, {"x": 3.0, "y": 5.0})
    assert buffer["histogram"]["c"].tolist() == [1.0, 2.0, 3.0]


def test_log_buffer_holds_the_last_iteration_only() -> None:
    learner = learner_of(FakePolicy({"a": 1.0}, {"b": 2.0}))
    learner.train([])
    learner.train([])

    assert learner.log_buffer["scalar"] == {"b": 2.0}


def test_log_buffer_asks_the_policy_for_what_it_monitors_and_does_not_report() -> None:
    learner = learner_of(policy_of())
    learner.train(batch_of(1))

    assert learner.log_buffer["scalar"]["cur_lr"] == 5e-4
