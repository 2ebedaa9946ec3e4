"""The state of random number generators as tensors and builtins."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def rng_state(exploration: np.random.Generator) -> dict[str, Any]:
    """Return the states of python's, numpy's and torch's global generators and of the policy's own."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": [version, list(words), gauss],
        "numpy": [name, torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, cached],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "exploration": exploration.bit_generator.state,
    }


def set_rng_state(state: Mapping[str, Any], exploration: np.random.Generator) -> None:
    """Set the generators to what ``rng_state`` returned; of CUDA devices those that are there as well."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for device, saved in zip(range(devices), state["cuda"], strict=False):
        torch.cuda.set_rng_state(saved, device)
    exploration.bit_generator.state = state["exploration"]
