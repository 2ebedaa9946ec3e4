"""Fixtures of the tests that compare with numbers of DI-engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def double_precision() -> Iterator[None]:
    """Compute in double precision, as the scripts did, so that rounding hides no difference."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
