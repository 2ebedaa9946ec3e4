"""The buffer that keeps the transitions of a model next to those of the env."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from lightning_ding.worker.buffer import ImaginationReplayBuffer
from lightning_ding.worker.buffer.imagination import ImaginedTransitions


def rewards(*values: float) -> dict[str, torch.Tensor]:
    return {"reward": torch.tensor(values), "terminated": torch.zeros(len(values), dtype=torch.bool)}


def test_the_last_calls_stay_whatever_their_sizes() -> None:
    imagined = ImaginedTransitions()
    for call in ((1.0, 2.0, 3.0), (4.0,), (5.0, 6.0)):
        imagined.push(rewards(*call), retain=2)
    assert imagined.state()[0]["reward"].tolist() == [4.0, 5.0, 6.0]
    assert len(imagined) == 3
    imagined.push(rewards(7.0), retain=1)
    assert imagined.state()[0]["reward"].tolist() == [7.0]


def test_draws_are_uniform() -> None:
    imagined = ImaginedTransitions()
    imagined.push(rewards(0.0, 1.0, 2.0, 3.0), retain=1)
    drawn = imagined.sample(10, 400, np.random.default_rng(0))
    assert drawn["reward"].shape == (10, 400)
    counts = np.bincount(drawn["reward"].long().flatten())
    assert (abs(counts - 1000) < 150).all()


def test_the_state_has_both_kinds_of_transitions(tmp_path: Path) -> None:
    config = {"type": "imagination", "replay_buffer_size": 10}
    buffer, other, merged = (ImaginationReplayBuffer(config, seed=seed) for seed in range(3))
    buffer.push({"reward": np.arange(4.0), "env_id": np.zeros(4, dtype=int)})
    buffer.imagined.push(rewards(8.0, 9.0), retain=2)
    buffer.imagined.env_step = 7
    buffer.save_data(tmp_path / "buffer.safetensors")
    other.load_data(tmp_path / "buffer.safetensors")
    assert other.transitions()["reward"].tolist() == [0.0, 1.0, 2.0, 3.0]
    for one in (buffer, other):
        one.imagined.push(rewards(10.0), retain=2)
    assert other.imagined.state()[0]["reward"].tolist() == [8.0, 9.0, 10.0]
    assert other.imagined.state()[1] == buffer.imagined.state()[1] == {"sizes": [2, 1], "env_step": 7}
    assert torch.equal(other.sample(4)["reward"], buffer.sample(4)["reward"])
    merged.load_files([tmp_path / "buffer.safetensors"] * 2, np.random.SeedSequence(0))
    assert merged.count() == 8
    assert len(merged.imagined) == 0
    assert merged.imagined.env_step is None  # the model is trained again at once
    other.clear()
    assert len(other.imagined) == 0
