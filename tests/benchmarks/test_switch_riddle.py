"""The batched switch riddle: its returns are those of the env, and its learner finds a use for the switch."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks.switch_riddle import DAYS, ORDERS, STATES, learn, play
from lightning_ding.envs.teams import SwitchRiddle


def known_protocol() -> torch.Tensor:
    """Return a table of the best policy: the first visitor leaves the switch off, a newcomer sets it on or tells."""
    table = torch.zeros(STATES, 3)
    for state in range(STATES):
        switch, (day, visits) = state // 9 % 2, divmod(state // 18, DAYS)
        is_new = visits == 0 and day > 0
        table[state, 2 if is_new and switch else 1 if is_new or switch else 0] = 1
    return table


def test_known_protocol_has_the_best_return() -> None:
    visits, returns = play(known_protocol(), torch.arange(len(ORDERS)))
    assert returns.mean().item() == pytest.approx(SwitchRiddle().best_return)
    assert len(visits) == DAYS


def test_returns_are_those_of_the_env(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    table, some = torch.randn(STATES, 3) - torch.tensor([0.0, 0.0, 1.5]), torch.arange(0, len(ORDERS), 7)
    visits, returns = play(table, some)
    env = SwitchRiddle()
    for row, order in enumerate(some.tolist()):
        days = itertools.chain(ORDERS[order].tolist(), itertools.repeat(0))
        drawn = SimpleNamespace(integers=lambda _, days=days: next(days))
        monkeypatch.setattr(SwitchRiddle, "np_random", drawn)
        obs, _ = env.reset()
        total, is_over, day = 0.0, False, 0
        while not is_over:
            inside, switch = ORDERS[order, day], visits[day].state[row] // 9 % 2
            assert obs["agent_state"][inside].tolist() == [1, switch]
            action = np.full(3, int(visits[day].action[row]))
            obs, reward, is_over, _, _ = env.step(action)
            total, day = total + reward, day + 1
        assert total == returns[row]


def test_learner_finds_more_than_policies_that_never_read_the_switch() -> None:
    assert max(learn(3, 200_000)) > 390 / 729 + 0.05
