"""The switch riddle: its rules, and the exact returns of its best strategy and of strategies without memory."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lightning_ding.envs.teams import SwitchRiddle

DAYS, AGENTS = 6, 3
Strategy = Callable[[int, bool, int], int]
"""The action of an agent in the room: by the day from 1, whether it has been there before, and the switch."""


def exact(strategy: Strategy) -> float:
    """Return the mean return over all 3^6 orders in which agents enter the room."""
    total = 0.0
    for order in itertools.product(range(AGENTS), repeat=DAYS):
        switch, visited = 0, set()
        for day, agent in enumerate(order, 1):
            action = strategy(day, agent in visited, switch)
            visited.add(agent)
            if action == 2:
                total += 1 if len(visited) == AGENTS else -1
                break
            switch = action
    return total / float(AGENTS**DAYS)


def best(day: int, was_there: bool, switch: int) -> int:
    if day == 1 or was_there:
        return switch
    return 2 if switch else 1


def _without_memory(if_off: int, if_on: int) -> Strategy:
    return lambda day, was_there, switch: if_on if switch else if_off


def test_best_return_is_reached_by_the_known_strategy() -> None:
    assert SwitchRiddle().best_return == pytest.approx(20 / 27)
    assert exact(best) == pytest.approx(20 / 27)


def test_strategies_without_memory_stay_below() -> None:
    returns = [exact(_without_memory(*actions)) for actions in itertools.product(range(3), repeat=2)]
    assert max(returns) == 0.0  # an agent that ever tells is wrong more often than right


def test_best_return_without_memory_has_a_role_for_each_agent() -> None:
    def value(actions: tuple[tuple[int, ...], ...], day: int = 1, switch: int = 0, visited: int = 0) -> float:
        total = 0.0
        for agent in range(AGENTS):
            seen, action = visited | 1 << agent, actions[agent][switch]
            if action == 2:
                total += 1 if seen == 0b111 else -1
            elif day < DAYS:
                total += value_of(actions, day + 1, action, seen)
        return total / AGENTS

    value_of = functools.lru_cache(None)(value)
    each = list(itertools.product(range(3), repeat=2))  # the action of an agent for a switch that is off or on
    assert max(value(actions) for actions in itertools.product(each, repeat=AGENTS)) == pytest.approx(115 / 729)


def test_episodes_follow_the_rules() -> None:
    env = SwitchRiddle()
    rng = np.random.default_rng(0)
    ends: list[float] = []
    for episode in range(200):
        obs, _ = env.reset(seed=episode)
        day, switch, visited, is_over = 1, 0, set[int](), False
        while not is_over:
            inside = int(obs["agent_state"][:, 0].argmax())
            visited.add(inside)
            assert obs["agent_state"][inside].tolist() == [1, switch]
            assert obs["agent_state"].sum() == 1 + switch
            state = [day / DAYS, *(float(one in visited) for one in range(3)), switch]
            assert obs["global_state"][:5].tolist() == pytest.approx(state)
            assert obs["action_mask"].reshape(3, 3)[inside].all()
            assert obs["action_mask"].sum() == 5
            action: Any = np.zeros(3, np.int64)
            action[inside] = rng.choice(3, p=[0.4, 0.4, 0.2])
            obs, reward, is_over, truncated, _ = env.step(action)
            assert not truncated
            if action[inside] == 2:
                assert (is_over, reward) == (True, 1.0 if len(visited) == 3 else -1.0)
            else:
                assert (is_over, reward) == (day == DAYS, 0.0)
                switch = int(action[inside])
            day += 1
        ends.append(reward)
    assert set(ends) == {-1.0, 0.0, 1.0}


def test_number_of_agents_is_checked() -> None:
    with pytest.raises(ValueError, match="num_agents must be >= 2, got 1"):
        SwitchRiddle(1)
