"""Compute losses and targets of sb3-contrib or Tianshou on random numbers, and store them for ``test_peer_losses``.

Run it from the root of the repository in an environment with sb3-contrib 2.9.2 or Tianshou 2.0.1:

    python -m tests.rl.make_peer_losses sb3_contrib tests/rl/sb3_contrib_losses.safetensors
    python -m tests.rl.make_peer_losses tianshou tests/rl/tianshou_losses.safetensors

Names in the file: ``case/in/name`` and ``case/out/name``. Everything is in double precision.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

ROWS, CRITICS, PREDICTED, TARGETS, ALPHA, GAMMA = 6, 4, 5, 7, 0.3, 0.875
SUBSET = [2, 0]  # critics of REDQ's target
Values = dict[str, Tensor]


def normal(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(2 * rng.standard_normal(shape))


def tqc(rng: np.random.Generator) -> tuple[Values, Values]:
    from sb3_contrib.common.utils import quantile_huber_loss

    given = {"quantile": normal(rng, CRITICS, ROWS, PREDICTED).requires_grad_(), "target": normal(rng, ROWS, TARGETS)}
    quantile, target = given["quantile"].transpose(0, 1), given["target"].unsqueeze(1)
    loss = quantile_huber_loss(quantile, target, sum_over_quantiles=False)
    loss.backward()
    return given, {"loss": loss, "gradient": given["quantile"].grad}


def qrdqn(rng: np.random.Generator) -> tuple[Values, Values]:
    from sb3_contrib.common.utils import quantile_huber_loss

    given = {"quantile": normal(rng, ROWS, PREDICTED).requires_grad_(), "target": normal(rng, ROWS, TARGETS)}
    loss = quantile_huber_loss(given["quantile"], given["target"], sum_over_quantiles=True)
    loss.backward()
    return given, {"loss": loss, "gradient": given["quantile"].grad}


def redq(rng: np.random.Generator) -> tuple[Values, Values]:
    from tianshou.algorithm.modelfree.redq import REDQ

    given = {"q": normal(rng, CRITICS, ROWS), "log_prob": normal(rng, ROWS)}
    algorithm: Any = SimpleNamespace(ensemble_size=CRITICS, subset_size=len(SUBSET), target_mode="min")
    algorithm.critic_old, algorithm.alpha = lambda obs, action: given["q"].clone(), SimpleNamespace(value=ALPHA)
    drawn = SimpleNamespace(act=None, log_prob=given["log_prob"])
    with mock.patch("numpy.random.choice", return_value=np.array(SUBSET)):
        value = REDQ._target_q_compute_value(algorithm, SimpleNamespace(obs=None), drawn)
    return given, {"value": value}


CASES: dict[str, dict[str, Callable[[np.random.Generator], tuple[Values, Values]]]] = {
    "sb3_contrib": {"tqc": tqc, "qrdqn": qrdqn},
    "tianshou": {"redq": redq},
}


def main(peer: str, path: str) -> None:
    """Compute all cases of a peer and write them to a file."""
    torch.set_default_dtype(torch.float64)
    stored: Values = {}
    for number, (name, case) in enumerate(CASES[peer].items()):
        for side, values in zip(("in", "out"), case(np.random.default_rng(number)), strict=True):
            stored |= {f"{name}/{side}/{key}": one.detach().clone().contiguous() for key, one in values.items()}
    save_file(stored, path)
    print(f"{len(stored)} tensors in {path}")


if __name__ == "__main__":
    main(*sys.argv[1:])
