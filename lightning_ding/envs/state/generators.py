"""The random number generators that all envs in a process share: those of Python, numpy and torch."""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np

from lightning_ding.envs.state.codec import from_plain, to_plain

State = dict[str, Any]


def seed_generators(seed: int) -> None:
    """Seed the generators of this process; that of torch if torch is imported."""
    first, second = np.random.SeedSequence(seed).generate_state(2).tolist()
    random.seed(first)
    np.random.seed(second)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(first)


def read_generators() -> State:
    """Return the states of the generators of this process."""
    version, words, gauss = random.getstate()
    state: State = {"python": [version, np.asarray(words, dtype=np.uint32), gauss]}
    torch = sys.modules.get("torch")
    state |= {"numpy": np.random.get_state(legacy=False)}
    state |= {"torch": None if torch is None else torch.get_rng_state().numpy()}
    return {name: to_plain(one, name) for name, one in state.items()}


def load_generators(state: State) -> None:
    """Restore what ``read_generators`` returned."""
    version, words, gauss = from_plain(state["python"])
    random.setstate((version, tuple(words.tolist()), gauss))
    np.random.set_state(from_plain(state["numpy"]))
    torch, saved = sys.modules.get("torch"), from_plain(state["torch"])
    if torch is not None and saved is not None:
        torch.set_rng_state(torch.from_numpy(saved))
