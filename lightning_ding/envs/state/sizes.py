"""The sizes of the parts of a state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from lightning_ding.envs.state.codec import from_plain
from lightning_ding.envs.state.memo import size_of


def state_sizes(state: Mapping[str, Any]) -> Counter[str]:
    """Return the approximate number of bytes of each attribute in a state of ``env_state``, summed over the envs."""
    sizes: Counter[str] = Counter()
    for label, coded in state.get("surroundings", {}).get("values", {}).items():
        sizes[label] += size_of(coded)
    layers = [layer for one in state.get("envs", ()) for layer in one]
    for layer in [*layers, *state.get("wrappers", ()), *([state["core"]] if "core" in state else ())]:
        for name, coded in layer.get("attributes", {}).items():
            sizes[f"{layer['class']}.{name}"] += size_of(coded)
        if "asked" in layer:
            processes = list(_processes(layer))
            for one in processes:
                sizes.update(state_sizes(one))
            if not processes:
                sizes[f"{layer['class']}.state_dict()"] += size_of(layer["asked"])
    return sizes


def _processes(layer: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the states of env processes."""
    if layer["class"] == "ProcessVectorEnv":
        yield from from_plain(layer["asked"])["processes"]
