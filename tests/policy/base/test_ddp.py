"""The comparison of the weights of the ranks is exact."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lightning_ding.policy.base import ddp
from lightning_ding.policy.base.ddp import first_difference


def first_difference_of(mine: Tensor, other: Tensor, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """Return what a rank with weights ``mine`` finds, while another one has ``other``."""
    sent: list[Tensor] = []
    monkeypatch.setattr(ddp, "gather_rows", lambda row: sent.append(row) or row[None])  # type: ignore[func-returns-value]
    first_difference([("same", torch.ones(3)), ("weight", other)])
    monkeypatch.setattr(ddp, "gather_rows", lambda row: torch.stack([row, *sent]))
    return first_difference([("same", torch.ones(3)), ("weight", mine)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_a_difference_of_one_bit_is_found_in_any_type(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.tensor([[6e4, -6e4, 6e4], [1e-3, 0.0, float("nan")]], dtype=dtype).T  # not contiguous
    other = weight.clone()
    assert first_difference_of(weight, other, monkeypatch) is None
    other[0, 1] = torch.nextafter(other[0, 1], torch.ones((), dtype=dtype))
    assert first_difference_of(weight, other, monkeypatch) == "weight"


def test_differences_that_cancel_in_a_sum_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.tensor([1.0, 1.5, -3.0])
    other = torch.tensor([1.0 + 2**-23, 1.5 - 2**-23, -3.0])
    assert weight.double().sum() == other.double().sum()
    assert first_difference_of(weight, other, monkeypatch) == "weight"
    assert first_difference_of(weight, weight.clone(), monkeypatch) is None


def test_the_order_of_adding_up_makes_no_difference() -> None:
    weight = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    assert ddp.checksum(weight).item() == ddp.checksum(weight.flip(0)).item()
