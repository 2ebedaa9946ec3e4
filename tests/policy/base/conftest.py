from __future__ import annotations

import pytest

from lightning_ding.policy import DQNPolicy
from tests.policy.base.small_dqn import make_policy


@pytest.fixture
def policy() -> DQNPolicy:
    """Return a small policy."""
    return make_policy()
