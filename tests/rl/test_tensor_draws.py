"""Actions and noise that are drawn on the device have the distributions of those drawn as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from lightning_ding import rl

MANY = 12_000
CPU = torch.device("cpu")


def shares(actions: Tensor, size: int) -> Tensor:
    return actions.bincount(minlength=size) / len(actions)


def test_epsilon_greedy_actions_have_the_probabilities_of_the_definition() -> None:
    torch.manual_seed(0)
    q = torch.tensor([[1.0, 3.0, -torch.inf, 2.0]]).expand(MANY, 4)
    found = shares(rl.epsilon_greedy_tensor(q, 0.3), 4)
    torch.testing.assert_close(found, torch.tensor([0.1, 0.8, 0.0, 0.1]), atol=0.015, rtol=0)
    assert (rl.epsilon_greedy_tensor(q, 0.0) == 1).all()
    assert shares(rl.epsilon_greedy_tensor(q, 1.0), 4)[1] < 0.36


def test_rows_explore_on_their_own() -> None:
    torch.manual_seed(0)
    q = torch.zeros(MANY, 2).index_fill_(1, torch.tensor([0]), 1.0)
    explored = rl.epsilon_greedy_tensor(q, 0.5) == 1
    assert 0.23 < explored.float().mean() < 0.27


def test_draws_are_those_of_the_global_generator() -> None:
    draws = rl.TensorDraws("cpu")
    torch.manual_seed(3)
    found = draws.standard_normal((2, 3)), draws.random([4])
    torch.manual_seed(3)
    assert torch.equal(found[0], torch.randn(2, 3))
    assert torch.equal(found[1], torch.rand(4))


def test_noise_of_tensors_is_scaled_and_clipped_as_that_of_arrays() -> None:
    torch.manual_seed(0)
    found = rl.gaussian_noise((MANY, 1), 0.2, rl.TensorDraws("cpu"), (-0.3, 0.3))  # type: ignore[arg-type]
    torch.manual_seed(0)
    assert torch.equal(torch.as_tensor(found), (torch.randn(MANY, 1) * 0.2).clamp(-0.3, 0.3))


@pytest.mark.parametrize(
    ("space", "shape"),
    [
        (spaces.Discrete(3, start=5), ()),
        (spaces.MultiDiscrete([2, 4], start=[1, -1]), (2,)),
        (spaces.MultiBinary(3), (3,)),
        (spaces.Box(np.array([-2, 0.1], np.float32), np.array([6, 0.3], np.float32)), (2,)),
        (spaces.Box(-1, 2, (2,), np.int32), (2,)),
    ],
    ids=lambda one: type(one).__name__,
)
def test_random_actions_are_uniform_in_their_space(space: spaces.Space[Any], shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    found = rl.random_tensor_actions(space, MANY, torch.zeros(MANY, 1), CPU)
    assert found.shape == (MANY, *shape)
    assert all(space.contains(one.astype(space.dtype)) for one in found[:200].numpy())
    flat = found.reshape(MANY, -1)
    if flat.is_floating_point():
        assert isinstance(space, spaces.Box)
        low, high = torch.from_numpy(space.low), torch.from_numpy(space.high)
        torch.testing.assert_close(((flat - low) / (high - low)).mean(0), torch.full((2,), 0.5), atol=0.02, rtol=0)
        assert flat.dtype == torch.float32
    else:
        for part in flat.unbind(1):
            counts = shares(part - part.min(), 1)
            torch.testing.assert_close(counts, torch.full_like(counts, 1 / len(counts)), atol=0.02, rtol=0)
        assert flat.dtype == torch.int64


def test_random_actions_are_legal() -> None:
    mask = torch.tensor([[1, 0, 1], [0, 1, 0]]).repeat(MANY, 1)
    found = rl.random_tensor_actions(spaces.Discrete(3, start=1), 2 * MANY, {"action_mask": mask}, CPU)
    assert set(found[1::2].tolist()) == {2}
    torch.testing.assert_close(shares(found[::2] - 1, 3), torch.tensor([0.5, 0.0, 0.5]), atol=0.02, rtol=0)


def test_mask_of_several_dimensions_and_of_a_hybrid_action() -> None:
    mask = torch.tensor([[0, 1, 1, 0, 0]]).expand(50, 5)
    found = rl.random_tensor_actions(spaces.MultiDiscrete([2, 3]), 50, {"action_mask": mask}, CPU)
    assert set(map(tuple, found.tolist())) == {(1, 0)}
    hybrid = spaces.Dict({"action_type": spaces.Discrete(2), "action_args": spaces.Box(-1, 1, (3,))})
    both = rl.random_tensor_actions(hybrid, 50, {"action_mask": mask[:, :2]}, CPU)
    assert set(both["action_type"].tolist()) == {1}
    assert both["action_args"].shape == (50, 3)


def test_space_without_bounds_is_refused() -> None:
    with pytest.raises(TypeError, match="a Box with finite bounds"):
        rl.random_tensor_actions(spaces.Box(-np.inf, 1, (2,)), 2, None, CPU)
