"""Random inputs, and files with the values of all cases: written by the scripts ``make_ding_*.py``, read by tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

Values = dict[str, Tensor]


def normal(rng: np.random.Generator, *shape: int) -> Tensor:
    """Return standard normal numbers in double precision."""
    return torch.from_numpy(rng.standard_normal(shape))


def randomise(network: nn.Module, rng: np.random.Generator) -> None:
    """Draw all parameters."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.from_numpy(rng.uniform(-1, 1, tuple(parameter.shape))))


def store_cases(cases: Mapping[str, Callable[[np.random.Generator], Values]], path: str) -> None:
    """Compute all cases and write them to a file.

    Args:
        cases: Functions by the names of their cases; each gets random numbers with its place as the seed.
        path: File with the ending .safetensors.
    """
    torch.set_default_dtype(torch.float64)
    values: Values = {}
    for number, (name, case) in enumerate(cases.items()):
        values |= {f"{name}/{key}": one for key, one in case(np.random.default_rng(number)).items()}
    stored = {key: one.detach().clone().contiguous() for key, one in values.items()}
    save_file(stored, path, metadata={"DI-engine": "0.5.3"})
    print(f"{len(stored)} tensors of {len(cases)} cases in {path}")


def parts_of(file: str) -> Callable[[str, str], Values]:
    """Return a function that returns the tensors ``case/name/...`` of a file of this folder."""
    stored = load_file(Path(__file__).with_name(file))

    def part(case: str, name: str) -> Values:
        prefix = f"{case}/{name}/"
        return {key.removeprefix(prefix): value for key, value in stored.items() if key.startswith(prefix)}

    return part
