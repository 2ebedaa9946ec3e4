"""Seeds of everything random in a run, and the state of random number generators as tensors and builtins."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np
import torch

Purpose = Literal["collector_envs", "exploration", "replay", "validate", "test", "demonstrations"]


class Seeds:
    """Seeds by purpose, independent of each other and different on every rank.

    Args:
        seed: Seed of the run, >= 0.
        rank: Global rank, so that two ranks see different data.
        env_step: Env steps made so far, so that a resumed run does not repeat its first episodes.

    Example:
        >>> Seeds(0, rank=0).of("replay").generate_state(1) == Seeds(0, rank=1).of("replay").generate_state(1)
        array([False])
    """

    def __init__(self, seed: int, rank: int = 0, env_step: int = 0) -> None:
        self._key = (seed, rank, env_step)

    def of(self, purpose: Purpose) -> np.random.SeedSequence:
        """Return the seed of the training envs, of exploration, or for drawing minibatches or demonstrations."""
        return np.random.SeedSequence([*self._key, get_args(Purpose).index(purpose)])

    def evaluation(self, stage: Literal["validate", "test"]) -> int:
        """Return the seed of the evaluation's episodes, the same on every rank."""
        return int(np.random.SeedSequence([self._key[0], get_args(Purpose).index(stage)]).generate_state(1)[0])


def rng_state(exploration: np.random.Generator) -> dict[str, Any]:
    """Return the states of the global generators of Python, numpy and torch, and of the policy's generator."""
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
    """Restore the states that ``rng_state`` returned; for CUDA, only those of devices that exist here."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for device, saved in zip(range(devices), state["cuda"], strict=False):
        torch.cuda.set_rng_state(saved, device)
    exploration.bit_generator.state = state["exploration"]
