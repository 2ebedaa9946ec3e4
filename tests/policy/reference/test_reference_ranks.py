from __future__ import annotations

from pathlib import Path

import torch
from torch.testing import assert_close

from tests.policy.reference.ranks_script import learn, samples_of
from tests.processes import run_two_ranks

SCRIPT = Path(__file__).with_name("ranks_script.py")


def test_two_ranks_learn_as_one_from_all_their_samples(tmp_path: Path) -> None:
    run_two_ranks(SCRIPT, tmp_path)
    first, second = (torch.load(tmp_path / f"rank_{rank}.pt", weights_only=True) for rank in range(2))
    expected = learn(samples_of(0) + samples_of(1), multi_gpu=False)  # the mean of eight is that of two means of four
    for of_first, of_second in zip(first, second, strict=True):
        for name, value in expected.items():
            assert torch.equal(of_first[name], of_second[name])
            assert_close(of_first[name], value)
    assert not torch.equal(
        expected["head.value.layers.0.weight"], learn(samples_of(0), False)["head.value.layers.0.weight"]
    )
