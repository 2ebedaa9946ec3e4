"""The prioritised sequence buffer: which sequences it draws, and what it returns of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lightning_ding.worker import create_buffer

LENGTHS = (6, 3, 8)


def filled(lengths: tuple[int, ...] = LENGTHS, ends: bool = True, **options: Any) -> Any:
    """Return a buffer with one env's episodes, whose observations are the numbers of the steps."""
    config = {"type": "prioritised_sequence", "replay_buffer_size": 50, "sequence_length": 4, "alpha": 1.0, **options}
    config = {name: value for name, value in config.items() if value is not None}
    buffer: Any = create_buffer(config, seed=0)
    step = np.concatenate([np.arange(length) for length in lengths])
    episode = np.repeat(np.arange(len(lengths)), lengths)
    number = 100 * episode + step
    size = np.array(lengths)[episode]
    buffer.push(
        {
            "obs": number[:, None].astype(np.float32),
            "next_obs": number[:, None].astype(np.float32) + 1,
            "reward": np.ones(len(step), dtype=np.float32),
            "terminated": (step == size - 1) & ends,
            "truncated": np.zeros(len(step), dtype=bool),
            "env_id": np.zeros(len(step), dtype=int),
            "episode_id": episode,
            "recurrent_state": np.stack([number, -number], 1).astype(np.float32),
            "is_first": step == 0,
        }
    )
    return buffer


def starts(batch: Any) -> list[int]:
    return batch["obs"][0, :, 0].int().tolist()  # type: ignore[no-any-return]


def test_sequences_follow_their_episode_and_repeat_its_last_step() -> None:
    batch = filled().sample(64)
    for column, start in enumerate(starts(batch)):
        left = LENGTHS[start // 100] - start % 100
        expected = [start + min(step, left - 1) for step in range(4)]
        assert batch["obs"][:, column, 0].int().tolist() == expected
        assert batch["mask"][:, column].tolist() == [step < left for step in range(4)]
    assert len(set(starts(batch))) > 10


@pytest.mark.parametrize("num_batches", [None, 3])
def test_state_and_number_of_a_sequence_are_those_of_its_first_step(num_batches: int | None) -> None:
    batch = filled().sample(5, num_batches=num_batches)
    leading = (5,) if num_batches is None else (3, 5)
    first = batch["obs"].select(-3, 0)[..., 0]
    assert batch["recurrent_state"].shape == (*leading, 2)
    assert torch.equal(batch["recurrent_state"], torch.stack([first, -first], -1))
    assert torch.equal(batch["is_first"], first % 100 == 0)
    for name in ("IS", "priority", "replay_unique_id", "replay_buffer_idx"):
        assert batch[name].shape == leading
    assert batch["reward"].shape == batch["mask"].shape == (*leading[:-1], 4, 5)


def test_sequences_are_drawn_by_the_priority_of_their_first_step_and_weighed() -> None:
    buffer = filled(beta=1.0, anneal_step=0)
    batch = buffer.sample(17)
    assert sorted(starts(batch)) == [*range(6), *range(100, 103), *range(200, 208)]  # one of each 17th of the weight
    chosen = batch["obs"][0, :, 0]
    priority = torch.where(chosen == 4, 30.0, torch.where(chosen == 201, 10.0, 1e-5))
    buffer.update({**batch, "priority": priority})
    many = buffer.sample(400)
    found = torch.tensor(starts(many))
    assert {name: int((found == name).sum()) for name in (4, 201)} == {4: 300, 201: 100}
    ratio = float(many["IS"][found == 201][0] / many["IS"][found == 4][0])
    assert ratio == pytest.approx(3.0, rel=1e-3)


def test_steps_whose_episode_ends_within_the_burn_in_leave_the_draws_unless_they_are_first() -> None:
    buffer = filled(burn_in=3)
    found = {start for _ in range(20) for start in starts(buffer.sample(32))}
    assert found == {0, 1, 2, 100, 200, 201, 202, 203, 204}
    assert buffer.count() == 9
    other: Any = create_buffer(buffer.config, seed=1)
    other.load_state_dict(buffer.state_dict())
    assert other.count() == 9
    assert {start for _ in range(20) for start in starts(other.sample(32))} == found


def test_uniform_sequences_begin_with_a_whole_burn_in_or_with_their_episode() -> None:
    buffer = filled(type="sequence", burn_in=3, alpha=None)
    assert {start for _ in range(20) for start in starts(buffer.sample(32))} == {0, 1, 2, 100, 200, 201, 202, 203, 204}
    batch = buffer.sample(5, sequence=6)
    assert batch["recurrent_state"].shape == (5, 2)
    assert batch["recurrent_state"][:, 0].int().tolist() == starts(batch)
    assert len(buffer.sample(2, as_list=True)[0]) == 4


def test_steps_whose_followers_are_not_there_yet_stay() -> None:
    buffer = filled((6,), ends=False, burn_in=3)
    assert {start for _ in range(20) for start in starts(buffer.sample(32))} == set(range(6))
    assert buffer.count() == 6


def test_arguments_of_a_draw_replace_the_config() -> None:
    batch = filled().sample(8, sequence=6, burn_in=2)
    assert batch["mask"].shape == (6, 8)
    assert not batch["learn_mask"][:2].any()
    assert torch.equal(batch["learn_mask"][2:], batch["mask"][2:])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sequence": 2, "burn_in": 2}, r"sequence must be above burn_in \(2\)"),
        ({"as_list": True}, "as_list must be False"),
    ],
)
def test_arguments_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        filled().sample(4, **options)


def test_dropped_episodes_are_not_drawn() -> None:
    buffer = filled()
    buffer.drop_episodes([0, 2])
    assert set(starts(buffer.sample(3))) == {100, 101, 102}
