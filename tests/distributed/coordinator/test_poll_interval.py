"""Waiting times that the coordinator sends to waiting workers."""

from __future__ import annotations

import pytest

from lightning_ding.distributed.coordinator.sample_ratio import LONGEST, SHORTEST, PollInterval
from tests.distributed.coordinator.coordinating import Clock


def test_the_wait_is_a_share_of_the_mean_interval_within_bounds() -> None:
    clock = Clock()
    pace = PollInterval(clock)
    assert pace.wait(0.5) == SHORTEST
    for clock.now in (1.0, 1.04, 1.08):
        pace.note()
    assert pace.wait(0.5) == pytest.approx(0.02)
    clock.now += 0.09
    pace.note()
    assert pace.wait(1.0) == pytest.approx(0.05)  # 0.04 + 0.2 * (0.09 - 0.04)
    clock.now += 1000
    pace.note()
    assert pace.wait(1.0) == LONGEST
