"""Novelty against loops over single envs and neighbours, after algorithm 1 of Badia et al. 2020."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from lightning_ding import rl

ENVS, SIZE, K = 3, 4, 2


class SlowMemory:
    """The same with lists, one env after the other; all statistics of a step are updated before its rewards."""

    def __init__(self, size: int) -> None:
        self.size, self.kept = size, [list[Any]() for _ in range(ENVS)]
        self.distances: list[float] = []
        self.errors: list[float] = []

    def rewards(self, rows: list[int], embedding: Any, error: Any) -> list[float]:
        nearest = []
        for place, row in enumerate(rows):
            square = sorted(float((embedding[place] - one).square().sum()) for one in self.kept[row][-self.size :])
            nearest.append(square[:K] if len(square) >= K else None)
        self.distances += [one for found in nearest if found for one in found]
        self.errors += error.tolist()
        mean_error = sum(self.errors) / len(self.errors)
        deviation = math.sqrt(sum((one - mean_error) ** 2 for one in self.errors) / len(self.errors))
        rewards = []
        for place, found in enumerate(nearest):
            if found is None:
                rewards.append(0.0)
                continue
            mean = sum(self.distances) / len(self.distances)
            kernels = [1e-4 / (max(one / mean - 0.008, 0) + 1e-4) for one in found]
            similarity = math.sqrt(sum(kernels)) + 1e-3
            alpha = 1 + (float(error[place]) - mean_error) / max(deviation, 1e-11)
            rewards.append(0.0 if similarity > 8 else min(max(alpha, 1), 5) / similarity)
        return rewards


@pytest.mark.parametrize("size", [100, 5])
def test_memory_equals_a_loop_over_envs_and_neighbours(size: int) -> None:
    torch.manual_seed(0)
    memory, slow = rl.EpisodicMemory(K, size), SlowMemory(size)
    for step in range(12):
        rows = [2, 0] if step % 4 == 3 else [0, 1, 2]
        now, then = torch.randn(2, len(rows), SIZE, dtype=torch.float64)
        if step % 3 == 2:
            then[0] = now[0] + 1e-6  # as if the env stood still
        is_first = torch.tensor([step == 0 or (step == 7 and row == 2) for row in rows])
        for row, one, first in zip(rows, now, is_first, strict=True):
            slow.kept[row] = [*([] if first else slow.kept[row]), one]
        error = torch.rand(len(rows), dtype=torch.float64)
        memory.add(torch.tensor(rows), now, is_first)
        found = memory.rewards(torch.tensor(rows), then, error)
        assert_close(found, torch.tensor(slow.rewards(rows, then, error), dtype=torch.float64), rtol=1e-8, atol=1e-10)
    assert float(found.max()) > 1


def test_memory_continues_from_its_state_with_equal_rewards() -> None:
    torch.manual_seed(0)
    memory, other = rl.EpisodicMemory(K), rl.EpisodicMemory(K)
    rows, steps = torch.arange(ENVS), torch.randn(160, ENVS, SIZE)

    def follow(one: rl.EpisodicMemory, until: range) -> list[torch.Tensor]:
        found = []
        for step in until:
            one.add(rows, steps[step], torch.full((ENVS,), step == 0))
            found.append(one.rewards(rows, steps[step + 1], steps[step, :, 0].abs()))
        return found

    follow(memory, range(70))
    other.load_state_dict(memory.state_dict(), torch.device("cpu"))
    first, second = follow(memory, range(70, 159)), follow(other, range(70, 159))
    assert torch.equal(torch.stack(first), torch.stack(second))
    assert float(torch.stack(first).min()) > 0


def test_values_that_are_not_finite_have_no_reward_and_leave_the_statistics() -> None:
    memory, rows = rl.EpisodicMemory(1), torch.tensor([0, 1])
    memory.add(rows, torch.zeros(2, 1), torch.tensor([True, True]))
    before = memory.rewards(rows, torch.ones(2, 1), torch.tensor([1.0, 2.0]))
    broken = memory.rewards(rows, torch.tensor([[math.nan], [1.0]]), torch.tensor([math.inf, 1.0]))
    assert broken[0] == 0
    assert all(bool(one.isfinite().all()) for one in memory.state_dict().values())
    assert bool(torch.isfinite(memory.rewards(rows, torch.ones(2, 1), torch.tensor([1.0, 2.0]))).all())
    assert bool((before > 0).all())


def test_weights_and_discount_factors_are_those_of_appendix_a() -> None:
    number, beta = 7, 0.3
    expected = [beta / (1 + math.exp(-10 * (2 * j - (number - 2)) / (number - 2))) for j in range(number)]
    expected[0], expected[-1] = 0.0, beta
    assert_close(rl.exploration_weights(number, beta), torch.tensor(expected))
    share = [j / (number - 1) for j in range(number)]
    gammas = [1 - 0.003 ** (1 - one) * 0.01**one for one in share]
    assert_close(rl.exploration_discounts(number, 0.997, 0.99), torch.tensor(gammas))
    assert rl.exploration_weights(2, beta).tolist() == pytest.approx([0.0, beta])


def test_factor_of_each_sequence_changes_only_its_own_targets() -> None:
    torch.manual_seed(0)
    reward, value, mask = torch.randn(6, 3), torch.randn(7, 3), torch.ones(6, 3)
    ends, gammas = torch.zeros(6, 3), torch.tensor([0.5, 0.9, 0.99])
    together = rl.sequence_targets(reward, ends, mask, value, gammas, 3)
    for column, gamma in enumerate(gammas.tolist()):
        parts = [x[:, [column]] for x in (reward, ends, mask, value)]
        alone = rl.sequence_targets(parts[0], parts[1], parts[2], parts[3], gamma, 3)
        assert_close(together[:, [column]], alone)
