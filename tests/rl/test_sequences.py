"""Rows of a rollout as a time-major table."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lightning_ding.rl import Sequences, time_major


def layout(env_id: list[int], episode_id: list[int]) -> Sequences:
    return time_major(torch.tensor(env_id), torch.tensor(episode_id))


def rows(count: int) -> Tensor:
    return torch.arange(count)


def test_rows_in_step_major_order_are_laid_out_without_a_copy() -> None:
    sequences, x = layout([0, 1, 0, 1, 0, 1], [0, 1, 0, 2, 0, 2]), rows(6)
    table = sequences.lay_out(x)
    assert (table.tolist(), table.data_ptr()) == ([[0, 1], [2, 3], [4, 5]], x.data_ptr())
    assert sequences.ended.tolist() == [[False, True], [False, False], [True, True]]
    assert bool(sequences.valid.all())
    assert sequences.flatten(table).tolist() == x.tolist()


def test_columns_of_different_length_are_padded_with_their_last_row() -> None:
    # env 0 has rows 0, 2, 3; env 1 has row 1 alone
    sequences = layout([0, 1, 0, 0], [0, 1, 0, 0])
    assert sequences.lay_out(rows(4)).tolist() == [[0, 1], [2, 1], [3, 1]]
    assert sequences.valid.tolist() == [[True, True], [True, False], [True, False]]
    assert sequences.ended.tolist() == [[False, True], [False, True], [True, True]]


def test_episodes_one_after_the_other_are_one_column_for_each_env() -> None:
    # env 3: episodes 0 (rows 0, 1) and 2 (rows 4, 5, 6); env 1: episode 1 (rows 2, 3); columns in the order 1, 3
    sequences = layout([3, 3, 1, 1, 3, 3, 3], [0, 0, 1, 1, 2, 2, 2])
    assert sequences.lay_out(rows(7)).tolist() == [[2, 0], [3, 1], [3, 4], [3, 5], [3, 6]]
    assert sequences.ended.tolist() == [[False, False], [True, True], [True, False], [True, False], [True, True]]


def test_one_env_is_one_column() -> None:
    sequences = layout([0, 0, 0], [0, 0, 1])
    assert (sequences.lay_out(rows(3)).tolist(), sequences.ended.tolist()) == (
        [[0], [1], [2]],
        [[False], [True], [True]],
    )


@pytest.mark.parametrize("env_id", [[1, 0, 1, 0], [0, 0, 1, 1], [2, 5, 2, 5], [-1, 0, -1, 0], [0, -1, 0, -1]])
def test_every_order_of_whole_columns_gives_each_env_its_own_column(env_id: list[int]) -> None:
    sequences = layout(env_id, [0, 0, 0, 0])
    envs = sequences.lay_out(torch.tensor(env_id))
    assert_close(envs, torch.tensor(sorted(set(env_id))).expand(2, 2))
    assert bool((sequences.lay_out(rows(4)).diff(dim=0) > 0).all())


@pytest.mark.parametrize("seed", range(5))
def test_flatten_gives_rows_back_in_their_order(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    env_id = torch.randint(0, 4, (50,), generator=generator)
    sequences = time_major(env_id, torch.zeros(50))
    x = torch.randn(50, 3, 2, generator=generator)
    assert_close(sequences.flatten(sequences.lay_out(x)), x)
    assert int(sequences.valid.sum()) == 50
