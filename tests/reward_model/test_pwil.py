"""Primal Wasserstein imitation against a slow oracle and DI-engine's rewards, and what it keeps of episodes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lightning_ding.policy import create_policy
from lightning_ding.reward_model import PWILConfig, PWILRewardModel
from lightning_ding.reward_model.pwil import couple
from tests.reward_model.cases import fit, make as make_run

EXPERT = torch.tensor([[0.0, 1.0], [1.0, 0.0], [2.0, 2.0], [-1.0, 1.0], [0.5, -1.0]])
EXPERT_ACTION = torch.tensor([[0.5], [-0.5], [0.25], [0.75], [-1.0]])
SEEN = torch.tensor([[0.5, 0.5], [1.0, -1.0], [0.0, 2.0], [2.0, 1.5]])
ACTION = torch.tensor([[0.0], [-0.5], [1.0], [0.0]])


def make(**keys: Any) -> Any:
    section = {"obs_shape": 2, "action_shape": 1, "action_space": "continuous"}
    model = PWILRewardModel(PWILConfig(data_path="unused", **keys), section, 0.9)
    model.take_expert(EXPERT, EXPERT_ACTION)
    return model


def steps(rows: slice = slice(None), env: int = 0, episode: int = 0) -> dict[str, Tensor]:
    """Return some of the steps above, all of one episode."""
    ids = {"env_id": torch.full((4,), env)[rows], "episode_id": torch.full((4,), episode)[rows]}
    return {"obs": SEEN[rows], "action": ACTION[rows], **ids}


def oracle(distances: Any, horizon: int) -> list[float]:
    """Return the costs of the steps of an episode by algorithm 1, one piece of weight after the other."""
    left, costs = [1 / len(distances[0])] * len(distances[0]), []
    for row in distances:
        weight, cost = 1 / horizon, 0.0
        while weight > 1e-12:
            nearest = min((k for k in range(len(left)) if left[k] > 1e-12), key=lambda k: row[k])
            piece = min(weight, left[nearest])
            cost, weight, left[nearest] = cost + piece * row[nearest], weight - piece, left[nearest] - piece
        costs.append(cost)
    return costs


@pytest.mark.parametrize("horizon", [4, 9])
def test_rewards_are_those_of_one_piece_of_weight_after_the_other(horizon: int) -> None:
    model, joined = make(alpha=2.0, beta=1.5, horizon=horizon), torch.cat([EXPERT, EXPERT_ACTION], 1).numpy()
    scaled, deviation = torch.cat([SEEN, ACTION], 1).numpy(), joined.std(0)
    distances = [[np.linalg.norm((one - atom) / deviation) for atom in joined] for one in scaled]
    factor = 1.5 * horizon / math.sqrt(3)
    expected = [2.0 * math.exp(-factor * cost) for cost in oracle(distances, horizon)]
    assert_close(model.rewards_of(steps()), torch.tensor(expected), rtol=1e-4, atol=1e-7)


def test_rewards_are_those_of_ding_with_its_distance() -> None:
    """DI-engine 0.5.3's ``PwilRewardModel`` computed them, of a round of 4 steps with beta 0.5, in its own distance.

    For the third and the fourth step it has 3.954639 and 4.296855: a step of the expert that was used up by one step
    counts fully again for the next ones.
    """
    model = make(beta=0.5, horizon=4)

    def distance(joined: Tensor) -> Tensor:
        differences = (joined[:, None] - torch.cat([EXPERT, EXPERT_ACTION], 1)).square()
        return differences[..., :2].mean(-1) + differences[..., 2:].mean(-1)

    model.distance = distance
    found = model.rewards_of(steps())
    assert_close(found[:2], torch.tensor([4.327977657318115, 4.454736232757568]))
    assert (found[2:] < torch.tensor([3.954639196395874, 4.296855449676514])).all()


def test_weight_is_taken_from_the_nearest_steps_that_have_some_left() -> None:
    distance, left = torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[0.0, 0.25, 0.75]], dtype=torch.float64)
    cost, after = couple(distance, left, 0.5)
    assert (cost.item(), after.tolist()) == (0.25 * 2 + 0.25 * 4, [[0.0, 0.0, 0.5]])
    cost, _ = couple(distance, torch.zeros_like(left), 0.5)
    assert cost.item() == math.inf


def test_pieces_of_episodes_side_by_side_are_matched_each_for_itself() -> None:
    whole, model = make(horizon=4).rewards_of(steps()), make(horizon=4)
    one, other = steps(slice(0, 2)), steps(slice(0, 2), env=3, episode=7)
    together = {name: torch.stack([one[name], other[name]], 1).flatten(0, 1) for name in one}  # in turn
    assert_close(model.rewards_of(together), whole[:2].repeat_interleave(2))
    again = make(horizon=4)
    again.load_rank_state(model.rank_state())
    for which in (model, again):
        assert_close(which.rewards_of(steps(slice(2, 4), env=3, episode=7)), whole[2:])
    assert_close(model.rewards_of(steps(episode=8)), whole)  # a new episode begins with all weights


def test_steps_after_the_horizon_have_no_reward() -> None:
    assert make(horizon=2).rewards_of(steps())[2:].tolist() == [0.0, 0.0]


def test_stored_transitions_have_the_rewards_that_they_got_once(tmp_path: Path) -> None:
    policy, datamodule = make_run("dqn_pwil", tmp_path)
    fit(policy, datamodule, tmp_path, 1)
    stored = datamodule.buffer.transitions()["reward"]  # type: ignore[attr-defined]
    assert stored.unique().numel() > 10
    assert 0 <= stored.min() < stored.max() <= 5
    assert len(policy.updater.optimizers) == 1


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"reward_model": {"alpha": 0.0}}, "reward_model.alpha must be > 0, got 0.0"),
        ({"reward_model": {"horizon": 0}}, "reward_model.horizon must be >= 1, got 0"),
        ({"reward_model": {"learning_rate": 0.1}}, "reward_model.learning_rate must be left at its default .* 0.1"),
        ({"model": {"obs_shape": [4, 8, 8]}}, "model.obs_shape must be a number with reward_model.type 'pwil', got"),
    ],
)
def test_mistakes_are_named(config: dict[str, Any], message: str) -> None:
    section = {"type": "pwil", "data_path": "unused", **config.get("reward_model", {})}
    model = {"obs_shape": 4, "action_shape": 2, **config.get("model", {})}
    with pytest.raises(ValueError, match=message):
        create_policy({"type": "dqn", "model": model, "reward_model": section})
