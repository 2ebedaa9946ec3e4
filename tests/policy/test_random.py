"""The random player: uniform over what is legal, complete modes, and no data unless it is asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from lightning_ding.envs import Timestep
from lightning_ding.policy.random import random_collect_mode, random_eval_mode
from lightning_ding.utils.modes import CollectMode, EvalMode


def shares(actions: torch.Tensor) -> list[float]:
    return (torch.bincount(actions) / len(actions)).tolist()


@pytest.mark.parametrize("mode_of", [random_collect_mode, random_eval_mode])
def test_actions_are_uniform(mode_of: Any) -> None:
    actions = mode_of(spaces.Discrete(4), seed=0).forward(torch.zeros(8000, 3))["action"]

    assert actions.shape == (8000,)
    assert shares(actions) == pytest.approx([0.25] * 4, abs=0.03)


def test_masked_actions_are_uniform_over_the_legal_ones() -> None:
    mask = torch.tensor([[1, 0, 1, 1]]).repeat(9000, 1)
    actions = random_eval_mode(spaces.Discrete(4), seed=0).forward({"board": torch.zeros(9000, 2), "action_mask": mask})

    assert shares(actions["action"]) == pytest.approx([1 / 3, 0, 1 / 3, 1 / 3], abs=0.03)


def test_actions_count_from_where_the_space_does() -> None:
    mode = random_eval_mode(spaces.Discrete(2, start=5), seed=0)
    legal = torch.tensor([[0, 1], [1, 0]])

    assert set(mode.forward(torch.zeros(50, 1))["action"].tolist()) == {5, 6}
    assert mode.forward({"action_mask": legal})["action"].tolist() == [6, 5]


def test_multi_discrete_actions_are_legal_in_every_dimension() -> None:
    mode = random_eval_mode(spaces.MultiDiscrete([2, 3]), seed=0)
    mask = torch.tensor([[0, 1, 1, 0, 1]]).repeat(100, 1)

    free, masked = mode.forward(torch.zeros(100, 1))["action"], mode.forward({"action_mask": mask})["action"]

    assert free.shape == masked.shape == (100, 2)
    assert {tuple(row) for row in free.tolist()} == {(a, b) for a in range(2) for b in range(3)}
    assert {tuple(row) for row in masked.tolist()} == {(1, 0), (1, 2)}


def test_box_actions_fill_the_box() -> None:
    space = spaces.Box(np.array([-1, 2], np.float32), np.array([1, 4], np.float32))
    actions = random_eval_mode(space, seed=0).forward(torch.zeros(2000, 1))["action"]

    assert actions.dtype == torch.float32
    assert actions.mean(0).tolist() == pytest.approx([0, 3], abs=0.1)
    assert actions.amin(0).tolist() == pytest.approx([-1, 2], abs=0.05)


def test_seed_decides_the_actions() -> None:
    mask = torch.ones(6, 50)

    def drawn(seed: int) -> list[int]:
        mode = random_eval_mode(spaces.Discrete(50), seed)
        outputs = [mode.forward(obs) for obs in (torch.zeros(9, 1), {"action_mask": mask}, torch.zeros(2, 1))]
        return torch.cat([output["action"] for output in outputs]).tolist()

    assert drawn(1) == drawn(1) != drawn(2)


def test_observations_by_env_are_answered_by_env() -> None:
    obs = {7: {"action_mask": torch.tensor([0, 1])}, 3: {"action_mask": torch.tensor([1, 0])}}
    output = random_collect_mode(spaces.Discrete(2)).forward(obs)

    assert {env_id: one["action"].item() for env_id, one in output.items()} == {7: 1, 3: 0}


def test_arguments_of_other_policies_are_taken() -> None:
    assert len(random_collect_mode(spaces.Discrete(2)).forward(torch.zeros(3, 1), eps=0.5)["action"]) == 3


def test_transition_holds_what_any_policys_does() -> None:
    mode = random_collect_mode(spaces.Discrete(2))
    nothing = np.zeros(1, bool)
    timestep = Timestep(torch.ones(1), np.ones(1), nothing, ~nothing, {}, ~nothing, nothing)
    transition = mode.process_transition(torch.zeros(1), {"action": torch.tensor([1])}, timestep)

    assert {name: value.tolist() for name, value in transition.items()} == {
        "obs": [0],
        "action": [1],
        "reward": [1],
        "next_obs": [1],
        "terminated": [False],
        "truncated": [True],
    }
    assert mode.get_train_sample(transition) is transition


def test_modes_are_complete() -> None:
    collect, evaluate = random_collect_mode(spaces.Discrete(2)), random_eval_mode(spaces.Discrete(2))

    assert isinstance(collect, CollectMode)
    assert isinstance(evaluate, EvalMode)
    for mode in (collect, evaluate):
        assert all(callable(member) for member in mode)
        mode.reset([0])
        mode.reset()
        mode.load_state_dict(mode.state_dict())


def test_collectors_keep_no_data_of_it_unless_collect_data_is_set() -> None:
    mode = random_collect_mode(spaces.Discrete(2))
    assert mode.get_attribute("collect_data") is False

    mode.set_attribute("collect_data", True)

    assert mode.get_attribute("collect_data") is True
    with pytest.raises(NotImplementedError, match="a random player has no attribute 'n_sample'"):
        mode.get_attribute("n_sample")


def test_multi_binary_actions_are_legal_in_every_dimension() -> None:
    mode = random_eval_mode(spaces.MultiBinary(2), seed=0)
    mask = torch.tensor([[0, 1, 1, 1]]).repeat(100, 1)

    free, masked = mode.forward(torch.zeros(100, 1))["action"], mode.forward({"action_mask": mask})["action"]

    assert {tuple(row) for row in free.tolist()} == {(a, b) for a in range(2) for b in range(2)}
    assert {tuple(row) for row in masked.tolist()} == {(1, 0), (1, 1)}
    assert free.dtype == masked.dtype == torch.int64


def test_hybrid_actions_are_random_in_both_parts() -> None:
    space = spaces.Dict({"action_type": spaces.Discrete(2, start=3), "action_args": spaces.Box(0, 1, (1,))})
    action = random_eval_mode(space, seed=0).forward(torch.zeros(50, 1))["action"]
    assert set(action["action_type"].tolist()) == {3, 4}
    assert action["action_args"].shape == (50, 1)


def kept_action(space: spaces.Space[Any], action: Any) -> Any:
    nothing = np.zeros(1, bool)
    timestep = Timestep(torch.ones(1), np.ones(1), nothing, nothing, {}, ~nothing, nothing)
    return random_collect_mode(space).process_transition(torch.zeros(1), {"action": action}, timestep)["action"]


def test_transition_of_a_random_player_counts_actions_from_0() -> None:
    space = spaces.MultiDiscrete([2, 2], start=[1, 5])
    assert kept_action(space, torch.tensor([[2, 5]])).tolist() == [[1, 0]]
    hybrid = spaces.Dict({"action_type": spaces.Discrete(2, start=3), "action_args": spaces.Box(0, 1, (1,))})
    kept = kept_action(hybrid, {"action_type": torch.tensor([4]), "action_args": torch.zeros(1, 1)})
    assert kept["action_type"].tolist() == [1]


def test_actions_of_several_axes_keep_their_shape() -> None:
    space = spaces.MultiDiscrete(np.array([[2, 1], [1, 2]]), start=np.array([[0, 5], [7, 0]]))
    mode, mask = random_eval_mode(space, seed=0), torch.tensor([[0, 1, 1, 1, 0, 1]])

    assert mode.forward({"action_mask": mask})["action"].tolist() == [[[1, 5], [7, 1]]]
    assert space.contains(mode.forward(torch.zeros(1, 1))["action"][0].numpy())
    assert kept_action(space, torch.tensor([[[1, 5], [7, 1]]])).tolist() == [[[1, 0], [0, 1]]]
