from __future__ import annotations

from typing import Any

import pytest
import torch
from gymnasium import spaces

from lightning_ding.utils import teams

SEEN = spaces.Dict({"agent_state": spaces.Box(-1, 1, (3, 4))})


def test_shapes_of_a_team() -> None:
    assert teams.team_shapes(SEEN, spaces.MultiDiscrete([5, 2, 3]), "qmix")["action_shape"] == (5, 2, 3)
    assert teams.team_shapes(SEEN, spaces.Box(-1, 1, (3, 2)), "mappo")["action_shape"] == 2
    known = spaces.Dict({**SEEN.spaces, "global_state": spaces.Box(-1, 1, (7,))})
    assert teams.team_shapes(known, spaces.MultiDiscrete([5, 5, 5]), "qmix")["global_obs_shape"] == 7


@pytest.mark.parametrize("action", [spaces.Discrete(3), spaces.MultiDiscrete([5, 5]), spaces.Box(-1, 1, (2, 2))])
def test_other_spaces_are_refused(action: spaces.Space[Any]) -> None:
    with pytest.raises(TypeError, match="qmix needs"):
        teams.team_shapes(SEEN, action, "qmix")


def test_legal_actions_of_agents_with_different_numbers_of_actions() -> None:
    obs = {"agent_state": torch.zeros(1, 2, 4), "action_mask": torch.tensor([[1, 0, 0, 1, 1]])}
    legal: Any = teams.legal_actions(obs, (2, 3))
    assert legal.int().tolist() == [[[1, 0, 0], [0, 1, 1]]]
    del obs["action_mask"]
    legal = teams.legal_actions(obs, (2, 3))
    assert legal.int().tolist() == [[[1, 1, 0], [1, 1, 1]]]
    assert teams.legal_actions(obs, (3, 3)) is None


def test_state_alive_and_rewards_where_the_env_gives_none() -> None:
    seen = torch.arange(8.0).view(2, 2, 2)
    batch: dict[str, Any] = {"reward": torch.tensor([1.0, 2.0]), "next_obs": {"agent_state": seen}}
    assert teams.global_state({"agent_state": seen}).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert teams.alive({"agent_state": seen}).tolist() == [[1, 1], [1, 1]]
    assert teams.agent_rewards(batch).tolist() == [[1, 1], [2, 2]]
    batch["next_obs"]["agent_reward"] = torch.tensor([[3.0, 0.0], [1.0, 1.0]])
    assert teams.agent_rewards(batch).tolist() == [[3, 0], [1, 1]]
