"""Models of Stable-Baselines3 act here as there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightning_ding.policy import load_policy
from tests.sb3.make_models import SPACES, STEPS, WIDE
from tests.sb3.stored import expected, inputs, make_zip


def act(policy: Any, obs: Any, steps: int) -> Any:
    """Return greedy actions; with memory, of rows that follow each other."""
    actor = policy.actor()
    if not actor.has_memory:
        return actor(obs)
    return np.stack([actor(row) for row in obs.reshape(steps, -1, *obs.shape[1:])])


@pytest.mark.parametrize("name", SPACES)
def test_loaded_model_takes_the_actions_of_the_original(name: str, tmp_path: Path) -> None:
    policy = load_policy(make_zip(name, tmp_path))
    actions, there = act(policy, inputs(name), STEPS), expected(name)
    assert len(actions) in (1000, STEPS)
    if SPACES[name][1] == WIDE:
        np.testing.assert_allclose(actions, there, rtol=0, atol=1e-5)
        assert len(np.unique(there)) > 100
    else:
        assert (actions == there).all()
        assert len(np.unique(there, axis=0 if there.ndim > 1 else None)) > 1
