"""What SAC sends to envs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from lightning_ding.policy import SACPolicy

BOX = spaces.Box(-2.0, 6.0, (1,), np.float32)


@pytest.mark.parametrize("mode", ["_forward_collect", "_forward_eval"])
def test_actions_are_squashed_into_the_bounds(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = SACPolicy().build(spaces.Box(-1, 1, (3,)), BOX)
    outputs = {"mu": torch.tensor([[0.5], [9.0]]), "log_sigma": torch.full((2, 1), -50.0)}
    model: Any = policy.model
    monkeypatch.setattr(model, "compute_actor", lambda obs: outputs)
    action = getattr(policy, mode)(torch.zeros(2, 3))["action"]
    assert action.flatten().tolist() == pytest.approx([2 + 4 * np.tanh(0.5), 6.0], abs=1e-5)
