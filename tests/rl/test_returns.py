"""Returns and advantages of rollouts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lightning_ding.rl import (
    RunningMeanStd,
    combine_moments,
    discounted_return,
    gae,
    lambda_return,
    moments,
    time_major,
)


def column(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float32).unsqueeze(1)


def flags(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.bool).unsqueeze(1)


def slow_gae(rows: dict[str, Tensor], gamma: float, lam: float) -> Tensor:
    """Return the advantages of one env's rows (S,), each from its own sum of errors to the end of its sequence."""
    advantages = []
    for start in range(len(rows["reward"])):
        total, weight = 0.0, 1.0
        for step in range(start, len(rows["reward"])):
            bootstrap = 0.0 if rows["terminated"][step] else gamma * rows["next_value"][step].item()
            total += weight * (rows["reward"][step].item() + bootstrap - rows["value"][step].item())
            weight *= gamma * lam
            if rows["ended"][step]:
                break
        advantages.append(total)
    return torch.tensor(advantages)


def slow_return(rows: dict[str, Tensor], gamma: float) -> Tensor:
    """Return the rewards-to-go of one env's rows (S,), each from its own sum."""
    returns = []
    for start in range(len(rows["reward"])):
        total, weight = 0.0, 1.0
        for step in range(start, len(rows["reward"])):
            total += weight * rows["reward"][step].item()
            weight *= gamma
            if rows["ended"][step]:
                total += 0.0 if rows["terminated"][step] else weight * rows["next_value"][step].item()
                break
        returns.append(total)
    return torch.tensor(returns)


def slow_lambda_return(rows: dict[str, Tensor], gamma: float, lam: float) -> Tensor:
    """Return the lambda-returns of one env's rows (S,), each as the weighted sum of all its n-step returns.

    The weight of the return of n steps is (1 - lambda) lambda^(n-1), and lambda^(n-1) if the sequence ends there.
    """
    returns = []
    for start in range(len(rows["reward"])):
        total, rewards = 0.0, 0.0
        for steps, step in enumerate(range(start, len(rows["reward"])), start=1):
            rewards += gamma ** (steps - 1) * rows["reward"][step].item()
            value = 0.0 if rows["terminated"][step] else rows["next_value"][step].item()
            is_last = bool(rows["ended"][step])
            total += (1.0 if is_last else 1 - lam) * lam ** (steps - 1) * (rewards + gamma**steps * value)
            if is_last:
                break
        returns.append(total)
    return torch.tensor(returns)


def random_rows(seed: int, steps: int = 30, envs: int = 4) -> dict[str, Tensor]:
    """Return tables (T, N) with terminations and truncations at random."""
    generator = torch.Generator().manual_seed(seed)
    rows = {name: torch.randn(steps, envs, generator=generator) for name in ("reward", "value", "next_value")}
    kind = torch.rand(steps, envs, generator=generator)
    rows["terminated"], rows["ended"] = kind < 0.15, kind < 0.3
    rows["ended"][-1] = True
    return rows


def test_gae_of_three_steps_by_hand() -> None:
    # gamma 0.5, lambda 0.5: delta = [1 + 1 - 1, 2 + 2 - 2, 3 + 4 - 3] = [1, 2, 4];
    # A2 = 4, A1 = 2 + 0.25 * 4 = 3, A0 = 1 + 0.25 * 3 = 1.75
    ended, never = flags(0, 0, 1), flags(0, 0, 0)
    advantage = gae(column(1, 2, 3), column(1, 2, 3), column(2, 4, 8), never, ended, 0.5, 0.5)
    assert advantage.flatten().tolist() == [1.75, 3.0, 4.0]


def test_gae_does_not_bootstrap_from_a_terminal_observation_whatever_its_value() -> None:
    # delta = [1 + 1 - 1, 2 + 0 - 2] = [1, 0]
    last = flags(0, 1)
    advantage = gae(column(1, 2), column(1, 2), column(2, float("nan")), last, last, 0.5, 0.5)
    assert advantage.flatten().tolist() == [1.0, 0.0]


def test_gae_bootstraps_at_a_truncation_and_ignores_the_next_episode() -> None:
    # delta = [1 + 1 - 1, 100 + 0 - 0] = [1, 100]
    advantage = gae(column(1, 100), column(1, 0), column(2, 0), flags(0, 0), flags(1, 1), 0.5, 0.5)
    assert advantage.flatten().tolist() == [1.0, 100.0]


def test_gae_stops_at_a_termination_that_is_not_marked_as_an_end() -> None:
    advantage = gae(column(1, 100), column(0, 0), column(0, 0), flags(1, 1), flags(0, 1), 0.5, 0.5)
    assert advantage.flatten().tolist() == [1.0, 100.0]


def test_gae_takes_flags_that_are_numbers() -> None:
    rows = random_rows(0)
    as_numbers = {name: x.float() for name, x in rows.items()}
    assert_close(
        gae(**as_numbers, discount_factor=0.9, gae_lambda=0.8), gae(**rows, discount_factor=0.9, gae_lambda=0.8)
    )


def test_gae_is_detached_and_leaves_its_arguments_alone() -> None:
    rows: dict[str, Any] = random_rows(0)
    copies = {name: x.clone() for name, x in rows.items()}
    advantage = gae(**{**rows, "value": rows["value"].clone().requires_grad_()}, discount_factor=0.9, gae_lambda=0.8)
    assert not advantage.requires_grad
    assert_close(rows, copies)


@pytest.mark.parametrize(("gamma", "lam"), [(0.9, 0.8), (1.0, 1.0), (0.9, 0.0), (0.0, 0.8)])
@pytest.mark.parametrize("seed", range(3))
def test_gae_equals_the_slow_loop(seed: int, gamma: float, lam: float) -> None:
    rows = random_rows(seed)
    expected = [slow_gae({name: x[:, env] for name, x in rows.items()}, gamma, lam) for env in range(4)]
    got = gae(**rows, discount_factor=gamma, gae_lambda=lam)
    assert_close(got, torch.stack(expected, dim=1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_gae_of_envs_with_rows_of_different_number_equals_the_slow_loop_of_each(seed: int) -> None:
    table = random_rows(seed, steps=20)
    lengths = [20, 7, 1, 13]
    rows = [(step, env) for step in range(20) for env in range(4) if step < lengths[env]]
    steps, envs = torch.tensor(rows).unbind(1)
    flat = {name: x[steps, envs] for name, x in table.items()}
    episode = torch.nn.functional.pad(table["ended"].cumsum(0), (0, 0, 1, 0))[:-1]
    sequences = time_major(envs, episode[steps, envs])
    laid_out = {name: sequences.lay_out(x) for name, x in flat.items()} | {"ended": sequences.ended}
    got = sequences.flatten(gae(**laid_out, discount_factor=0.9, gae_lambda=0.8))
    for env in range(4):
        own = {name: x[envs == env] for name, x in flat.items()}
        own["ended"][-1] = True
        assert_close(got[envs == env], slow_gae(own, 0.9, 0.8), rtol=1e-5, atol=1e-5)


def test_discounted_return_of_three_steps_by_hand() -> None:
    # gamma 0.5: R2 = 4, R1 = 2 + 2 = 4, R0 = 1 + 2 = 3
    last = flags(0, 0, 1)
    returns = discounted_return(column(1, 2, 4), column(9, 9, float("nan")), last, last, 0.5)
    assert returns.flatten().tolist() == [3.0, 4.0, 4.0]


def test_discounted_return_bootstraps_at_a_truncation() -> None:
    # gamma 0.5: R1 = 2 + 0.5 * 8 = 6, R0 = 1 + 3 = 4; the value 9 is not at an end
    returns = discounted_return(column(1, 2), column(9, 8), flags(0, 0), flags(0, 1), 0.5)
    assert returns.flatten().tolist() == [4.0, 6.0]


def test_discounted_return_takes_one_value_for_all() -> None:
    returns = discounted_return(column(1, 2), torch.zeros(()), flags(0, 0), flags(0, 1), 0.5)
    assert returns.flatten().tolist() == [2.0, 2.0]


@pytest.mark.parametrize("seed", range(3))
def test_discounted_return_equals_the_slow_loop(seed: int) -> None:
    rows = random_rows(seed)
    expected = [slow_return({name: x[:, env] for name, x in rows.items()}, 0.9) for env in range(4)]
    got = discounted_return(rows["reward"], rows["next_value"], rows["terminated"], rows["ended"], 0.9)
    assert_close(got, torch.stack(expected, dim=1), rtol=1e-5, atol=1e-5)


def test_running_moments_are_those_of_all_items_together() -> None:
    x = 1e4 + torch.randn(100, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    running = RunningMeanStd((3,))
    for part in x.split([1, 40, 0, 59]):
        running.update(part)
    assert_close(running.mean, x.mean(0), rtol=1e-12, atol=0)
    assert_close(running.std, x.std(0, correction=0), rtol=1e-9, atol=0)
    assert running.count.item() == 100


def test_running_numbers_may_come_in_any_shape() -> None:
    running = RunningMeanStd()
    running.update(torch.tensor([[1.0, 3.0], [5.0, 7.0]]))
    # mean 4; variance (9 + 1 + 1 + 9) / 4 = 5
    assert_close(torch.stack([running.mean, running.std**2]), torch.tensor([4.0, 5.0], dtype=torch.float64))


def test_standard_deviation_is_1_before_anything_differs() -> None:
    running = RunningMeanStd()
    before = running.std.item()
    running.update(torch.full((5,), 3.0))
    assert (before, running.std.item()) == (1.0, 1.0)


def test_moments_of_nothing_change_nothing() -> None:
    full, nothing = moments(torch.tensor([1.0, 3.0])), moments(torch.tensor([]))
    assert_close(combine_moments(*full, *nothing), full)
    assert_close(combine_moments(*nothing, *full), full)
    assert_close(combine_moments(*nothing, *nothing), nothing)


def test_running_moments_are_saved_with_the_module() -> None:
    running, restored = RunningMeanStd(), RunningMeanStd()
    running.update(torch.tensor([1.0, 3.0]))
    restored.load_state_dict(running.state_dict())
    running.update(torch.tensor([8.0]))
    restored.update(torch.tensor([8.0]))
    assert_close(restored.state_dict(), running.state_dict())


def test_root_mean_square_is_that_of_all_items_and_one_where_there_is_nothing_to_divide_by() -> None:
    running = RunningMeanStd()
    assert running.root_mean_square.item() == 1
    running.update(torch.tensor([3.0, 3.0]))
    assert running.root_mean_square.item() == pytest.approx(3.0)  # its standard deviation is 0
    running.update(torch.tensor([1.0, 5.0]))
    assert running.root_mean_square.item() == pytest.approx(11**0.5)  # (9 + 9 + 1 + 25) / 4
    zeros = RunningMeanStd()
    zeros.update(torch.zeros(5))
    assert zeros.root_mean_square.item() == 1


def test_lambda_return_of_three_steps_by_hand() -> None:
    # gamma 0.5, lambda 0.5: G2 = 4 + 0.5 * 8 = 8, G1 = 2 + 0.5 * (0.5 * 4 + 0.5 * 8) = 5,
    # G0 = 1 + 0.5 * (0.5 * 2 + 0.5 * 5) = 2.75
    returns = lambda_return(column(1, 2, 4), column(2, 4, 8), flags(0, 0, 0), flags(0, 0, 1), 0.5, 0.5)
    assert returns.flatten().tolist() == [2.75, 5.0, 8.0]


def test_lambda_return_does_not_bootstrap_from_a_terminal_observation_whatever_its_value() -> None:
    # G1 = 2, G0 = 1 + 0.5 * (0.5 * 4 + 0.5 * 2) = 2.5
    last = flags(0, 1)
    returns = lambda_return(column(1, 2), column(4, float("nan")), last, last, 0.5, 0.5)
    assert returns.flatten().tolist() == [2.5, 2.0]


def test_lambda_return_bootstraps_at_a_truncation_and_ignores_the_next_episode() -> None:
    # G0 = 1 + 0.5 * 2, whatever lambda is; G1 = 100 + 0
    returns = lambda_return(column(1, 100), column(2, 0), flags(0, 0), flags(1, 1), 0.5, 0.9)
    assert returns.flatten().tolist() == [2.0, 100.0]


def test_lambda_return_stops_at_a_termination_that_is_not_marked_as_an_end() -> None:
    returns = lambda_return(column(1, 100), column(7, 0), flags(1, 1), flags(0, 1), 0.5, 0.5)
    assert returns.flatten().tolist() == [1.0, 100.0]


@pytest.mark.parametrize(("gamma", "lam"), [(0.9, 0.8), (1.0, 1.0), (0.9, 0.0), (0.0, 0.8), (0.9, 1.0)])
@pytest.mark.parametrize("seed", range(3))
def test_lambda_return_equals_the_sum_over_returns_of_all_lengths(seed: int, gamma: float, lam: float) -> None:
    rows = random_rows(seed)
    del rows["value"]
    expected = [slow_lambda_return({name: x[:, env] for name, x in rows.items()}, gamma, lam) for env in range(4)]
    got = lambda_return(**rows, discount_factor=gamma, lambda_=lam)
    assert_close(got, torch.stack(expected, dim=1), rtol=1e-5, atol=1e-5)


def test_lambda_return_is_the_advantage_and_the_value_of_one_critic() -> None:
    rows = random_rows(0)
    rows["next_value"] = torch.where(rows["ended"], rows["next_value"], torch.roll(rows["value"], -1, 0))
    advantage = gae(**rows, discount_factor=0.9, gae_lambda=0.8)
    value = rows.pop("value")
    assert_close(lambda_return(**rows, discount_factor=0.9, lambda_=0.8), advantage + value, rtol=1e-5, atol=1e-5)


def test_lambda_return_is_detached_and_leaves_its_arguments_alone() -> None:
    rows = random_rows(0)
    del rows["value"]
    copies = {name: x.clone() for name, x in rows.items()}
    given: dict[str, Any] = {**rows, "next_value": rows["next_value"].clone().requires_grad_()}
    assert not lambda_return(**given, discount_factor=0.9, lambda_=0.8).requires_grad
    assert_close(rows, copies)


def test_lambda_return_takes_flags_that_are_numbers() -> None:
    rows = random_rows(0)
    del rows["value"]
    as_numbers = {name: x.float() for name, x in rows.items()}
    expected = lambda_return(**rows, discount_factor=0.9, lambda_=0.8)
    assert_close(lambda_return(**as_numbers, discount_factor=0.9, lambda_=0.8), expected)
