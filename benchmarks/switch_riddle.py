"""How a team with a perfect memory learns what the switch of ``SwitchRiddle`` means: Monte Carlo control with tables.

    python -m benchmarks.switch_riddle                     # seeds 0 to 7, some seconds
    python -m benchmarks.switch_riddle --seeds 10 11 --steps 1000000

No network has to learn what to remember here: an agent in the room knows the day, how often it has been there before,
the switch, and how it found and left the switch the last time. All agents share one table of action values, which
follow the return of the whole episode. They explore with a probability of 0.1. Each line of the output is a seed: the
exact return of the greedy policy over all 729 orders of visits, after each tenth of the env steps.

The best return is 20/27, or 0.741. Policies that never read the switch have 390/729, or 0.535, at most, as far as a
search found.

Shapes: B episodes, 3 agents, 6 days.
"""

from __future__ import annotations

import argparse
import itertools
from typing import NamedTuple

import torch
from torch import Tensor

AGENTS, DAYS, TELL = 3, 6, 2
STATES = DAYS * DAYS * 2 * 3 * 3
"""Days, earlier visits, the switch, and how an agent found and left it the last time, or that it did not."""
ORDERS = torch.tensor(list(itertools.product(range(AGENTS), repeat=DAYS)))
"""Who is in the room on each day, all 729 cases, (729, 6)."""
_INSIDE = torch.nn.functional.one_hot(ORDERS, AGENTS)
_BEFORE = _INSIDE.cumsum(1) - _INSIDE
VISITS = (_BEFORE * _INSIDE).sum(-1)
"""How often the agent in the room has been there before, (729, 6)."""
COMPLETE = (_INSIDE.cumsum(1) > 0).all(-1)
"""Whether all have been in the room, (729, 6)."""


class Visit(NamedTuple):
    """What happened on a day of B episodes."""

    state: Tensor
    """Number of what the agent in the room knows."""
    action: Tensor
    """0 and 1 set the switch, 2 tells."""
    is_running: Tensor
    """Whether the episode had not ended before."""


def play(table: Tensor, orders: Tensor, epsilon: float = 0.0) -> tuple[list[Visit], Tensor]:
    """Play episodes, and return the visits of each day and the returns, shape (B,).

    Args:
        table: Values of actions, shape (STATES, 3).
        orders: Row of ``ORDERS`` for each episode, shape (B,).
        epsilon: Probability of a random action.
    """
    count = len(orders)
    switch, returns = torch.zeros(count, dtype=torch.long), torch.zeros(count)
    running = torch.ones(count, dtype=torch.bool)
    found, left = torch.zeros(2, count, AGENTS, dtype=torch.long)  # 0 for never, else 1 + the switch
    visits = []
    for day in range(DAYS):
        agent = ORDERS[orders, day].unsqueeze(1)
        known = day * DAYS + VISITS[orders, day]
        state = ((known * 2 + switch) * 3 + left.gather(1, agent)[:, 0]) * 3 + found.gather(1, agent)[:, 0]
        action = table[state].argmax(1)
        if epsilon:
            action = torch.where(torch.rand(count) < epsilon, torch.randint(TELL + 1, (count,)), action)
        visits.append(Visit(state, action, running))
        tells = running & (action == TELL)
        returns = torch.where(tells, torch.where(COMPLETE[orders, day], 1.0, -1.0), returns)
        running = running & ~tells
        is_on = (action == 1).long()
        found, left = found.scatter(1, agent, switch.unsqueeze(1) + 1), left.scatter(1, agent, is_on.unsqueeze(1) + 1)
        switch = torch.where(running, is_on, switch)
    return visits, returns


def learn(seed: int, steps: int, epsilon: float = 0.1, rate: float = 0.01, batch: int = 256) -> list[float]:
    """Return the exact returns of the greedy policy, after each tenth of the env steps.

    Args:
        seed: Seed of the first table, the orders and the exploration.
        steps: Env steps, all days of all episodes.
        epsilon: Probability of a random action.
        rate: Step size of a value for each of its visits.
        batch: Episodes between two changes of the table.
    """
    torch.manual_seed(seed)
    table, done, curve = torch.randn(STATES, TELL + 1) * 0.1, 0, list[float]()
    values, every = table.view(-1), torch.arange(len(ORDERS))
    while done < steps:
        visits, returns = play(table, torch.randint(len(ORDERS), (batch,)), epsilon)
        for visit in visits:
            cell, seen = (visit.state * (TELL + 1) + visit.action)[visit.is_running], returns[visit.is_running]
            number = torch.zeros_like(values).index_add_(0, cell, torch.ones_like(seen))
            mean = torch.zeros_like(values).index_add_(0, cell, seen) / number.clamp(min=1)
            values += (1 - (1 - rate) ** number) * (mean - values)
            done += len(cell)
        if done * 10 >= steps * (len(curve) + 1):
            curve.append(round(float(play(table, every)[1].mean()), 3))
    return curve


def main() -> None:
    """Learn with each seed, and print the curves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(8)), help="seeds of the runs")
    parser.add_argument("--steps", type=int, default=500_000, help="env steps of a run")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for seed in options.seeds:
        print(seed, *learn(seed, options.steps), flush=True)


if __name__ == "__main__":
    main()
