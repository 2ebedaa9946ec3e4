from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from lightning_ding.policy.base.saved_spaces import from_plain, to_plain
from tests.algorithms.test_spaces import DISCRETE, HYBRID, INTEGERS, OBSERVATIONS

SPACES: list[spaces.Space[Any]] = [
    *OBSERVATIONS.values(),
    *DISCRETE.values(),
    HYBRID,
    INTEGERS,
    spaces.Box(0, 255, (4, 84, 84), np.uint8),
    spaces.Box(np.array([-1.0, -np.inf]), np.array([np.inf, 0.1]), dtype=np.float64),
    spaces.Box(-0.1, 0.3, (2, 3), np.float32),
    spaces.Discrete(3, start=1, dtype=np.int32),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_space_is_the_same_after_writing_it_as_json(space: spaces.Space[Any]) -> None:
    text = json.dumps(to_plain(space), allow_nan=False)
    found = from_plain(json.loads(text))
    assert found == space
    assert found.dtype == space.dtype


def test_bounds_of_an_image_are_one_number() -> None:
    assert to_plain(spaces.Box(0, 255, (4, 84, 84), np.uint8)) == {
        "type": "Box",
        "low": 0,
        "high": 255,
        "shape": [4, 84, 84],
        "dtype": "uint8",
    }


def test_other_spaces_are_refused() -> None:
    with pytest.raises(TypeError, match=r"must be made of Box, .* got Text"):
        to_plain(spaces.Text(3))
    with pytest.raises(ValueError, match=r"must be one of .*'Box'.*, got 'Text'"):
        from_plain({"type": "Text"})
