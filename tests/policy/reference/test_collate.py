"""Lists of dicts as batches and back."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lightning_ding.policy import (
    default_collate,
    default_decollate,
    default_preprocess_learn,
    single_env_forward_wrapper,
)

Pair = namedtuple("Pair", ["left", "right"])


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ([torch.zeros(2, 3)] * 4, torch.zeros(4, 2, 3)),
        ([torch.tensor([1.0]), torch.tensor([2.0])], torch.tensor([1.0, 2.0])),
        ([torch.tensor(1), torch.tensor(2)], torch.tensor([1, 2])),
        ([np.array([1, 2]), np.array([3, 4])], torch.tensor([[1, 2], [3, 4]])),
        ([np.float32(1), np.float32(2)], torch.tensor([1.0, 2.0])),
        ([1.5, 2.5], torch.tensor([1.5, 2.5])),
        ([3, 4], torch.tensor([3, 4])),
        ([True, False], torch.tensor([True, False])),
        (["a", "b"], ["a", "b"]),
        ([None, None], [None, None]),
        ([[0, 1], [2, 3]], [torch.tensor([0, 2]), torch.tensor([1, 3])]),
        ([{"a": {"b": 1.0}}, {"a": {"b": 2.0}}], {"a": {"b": torch.tensor([1.0, 2.0])}}),
        ([{"collate_ignore_ids": 1}, {"collate_ignore_ids": 2}], {"collate_ignore_ids": [1, 2]}),
    ],
)
def test_items_become_one_with_a_leading_axis(batch: Any, expected: Any) -> None:
    found = default_collate(batch)
    assert_close(found, expected) if isinstance(expected, Tensor) else None
    assert str(found) == str(expected)


def test_tensors_of_one_number_keep_their_axis_if_asked() -> None:
    batch = [{"reward": torch.tensor([1.0])}, {"reward": torch.tensor([2.0])}]
    assert default_collate(batch)["reward"].shape == (2,)
    assert default_collate(batch, cat_1dim=False)["reward"].shape == (2, 1)


def test_a_namedtuple_stays_one() -> None:
    found = default_collate([Pair(1.0, 2), Pair(3.0, 4)])
    assert_close(found.left, torch.tensor([1.0, 3.0]))
    assert_close(found.right, torch.tensor([2, 4]))


@pytest.mark.parametrize("batch", [[], [object()]])
def test_items_that_cannot_be_joined_are_refused(batch: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=r"(batch|an item) must be "):
        default_collate(batch)


def test_a_batch_becomes_a_list_of_items() -> None:
    batch = {"action": torch.tensor([1, 0]), "logit": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "prev_state": ["x", "y"]}
    first, second = default_decollate(batch)
    assert_close(first["action"], torch.tensor([1]))
    assert_close(second["logit"], torch.tensor([3.0, 4.0]))
    assert (first["prev_state"], second["prev_state"]) == ("x", "y")


def test_a_list_of_batches_becomes_tuples() -> None:
    first, second = default_decollate([torch.tensor([1, 2]), torch.tensor([3, 4])])
    assert ([one.item() for one in first], [one.item() for one in second]) == ([1, 3], [2, 4])


def test_distributions_become_nothing_and_others_are_refused() -> None:
    assert default_decollate(torch.distributions.Normal(torch.zeros(2), torch.ones(2))) == [None, None]
    with pytest.raises(TypeError, match="batch must be a tensor, a mapping or a sequence, got str"):
        default_decollate("no")


def samples(**more: Any) -> list[dict[str, Any]]:
    made = []
    for row in range(3):
        one = {"obs": torch.full((2,), float(row)), "action": torch.tensor([row]), "reward": torch.tensor([row + 0.5])}
        made.append({**one, "done": row == 2} | {name: value[row] for name, value in more.items()})
    return made


def test_samples_become_a_minibatch() -> None:
    batch = default_preprocess_learn(samples(value=[torch.tensor([1.0])] * 3))
    assert_close(batch["action"], torch.tensor([0, 1, 2]))
    assert_close(batch["reward"], torch.tensor([0.5, 1.5, 2.5]))
    assert_close(batch["done"], torch.tensor([0.0, 0.0, 1.0]))
    assert batch["value"].shape == (3,)
    assert batch["weight"] is None


def test_continuous_actions_keep_their_axis() -> None:
    batch = default_preprocess_learn([{**one, "action": torch.tensor([0.5])} for one in samples()])
    assert (batch["action"].shape, batch["reward"].shape) == ((3, 1), (3,))


def test_ends_are_ignored_if_asked() -> None:
    assert_close(default_preprocess_learn(samples(), ignore_done=True)["done"], torch.zeros(3))


@pytest.mark.parametrize("name", ["IS", "priority_IS"])
def test_weights_come_with_the_priorities(name: str) -> None:
    batch = default_preprocess_learn(
        samples(**{name: [0.5, 1.0, 0.25]}), use_priority_IS_weight=True, use_priority=True
    )
    assert_close(batch["weight"], torch.tensor([0.5, 1.0, 0.25]))
    with pytest.raises(ValueError, match="use_priority_IS_weight must be False without use_priority"):
        default_preprocess_learn(samples(**{name: [0.5, 1.0, 0.25]}), use_priority_IS_weight=True)


def test_rewards_of_several_steps_come_step_by_step() -> None:
    rows = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]), torch.tensor([5.0, 6.0])]
    data = [{**one, "reward": row} for one, row in zip(samples(), rows, strict=True)]
    batch = default_preprocess_learn(data, use_nstep=True)
    assert_close(batch["reward"], torch.tensor([[1.0, 3.0, 5.0], [2.0, 4.0, 6.0]]))
    assert default_preprocess_learn(samples(), use_nstep=True)["reward"].shape == (1, 3)
    agents = [{**one, "reward": torch.zeros(4, 2)} for one in samples()]
    assert default_preprocess_learn(agents, use_nstep=True)["reward"].shape == (2, 3, 4)


def test_one_env_is_played_with_a_function() -> None:
    act = single_env_forward_wrapper(lambda data: {0: {"action": data[0].argmax().reshape(1)}})
    action = act(np.array([0.0, 2.0, 1.0]))
    assert (action.shape, action.item()) == ((), 1)
