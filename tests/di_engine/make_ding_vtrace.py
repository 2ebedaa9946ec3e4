"""Compute V-trace losses of DI-engine on random numbers, and store them for ``test_same_sequences``.

Run it in an environment with DI-engine 0.5.3:

    python tests/di_engine/make_ding_vtrace.py tests/di_engine/ding_vtrace.safetensors

Names in the file: ``case/in/name`` and ``case/out/name``. Everything is in double precision. The unrolls have no ends
of episodes, because DI-engine's function takes none.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

STEPS, WIDTH, ACTIONS = 5, 4, 3
OPTIONS: dict[str, dict[str, float]] = {
    "usual": {"gamma": 0.875, "lambda_": 0.9375},
    "bounded": {"gamma": 0.875, "lambda_": 0.75, "rho_clip_ratio": 1.5, "c_clip_ratio": 0.75, "rho_pg_clip_ratio": 2.0},
}
Values = dict[str, Tensor]


def inputs(kind: str) -> Values:
    """Return the outputs of both policies, actions, values, rewards and weights."""
    generator = torch.Generator().manual_seed(len(kind))

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    given = {"value": draw(STEPS + 1, WIDTH), "reward": draw(STEPS, WIDTH), "weight": draw(STEPS, WIDTH).exp()}
    given |= {name: draw(STEPS, WIDTH, ACTIONS) for name in ("logit", "old_logit")}
    given |= {name: draw(STEPS, WIDTH, ACTIONS).mul(0.3).exp() for name in ("sigma", "old_sigma")}
    is_discrete = kind == "discrete"
    action = torch.randint(0, ACTIONS, (STEPS, WIDTH), generator=generator)
    return given | {"action": action if is_discrete else draw(STEPS, WIDTH, ACTIONS)}


def losses(kind: str, options: dict[str, float]) -> tuple[Values, Values]:
    """Return what goes into DI-engine's function, and its losses and their gradients."""
    from ding.rl_utils import vtrace as ding

    given = inputs(kind)
    logit, value = given["logit"].clone().requires_grad_(), given["value"].clone().requires_grad_()
    outputs: tuple[Any, Any] = (logit, given["old_logit"])
    if kind == "continuous":
        outputs = ({"mu": logit, "sigma": given["sigma"]}, {"mu": given["old_logit"], "sigma": given["old_sigma"]})
    data = ding.vtrace_data(*outputs, given["action"], value, given["reward"], given["weight"])
    found = getattr(ding, f"vtrace_error_{kind}_action")(data, **options)
    (found.policy_loss + found.value_loss).backward()
    made = dict(zip(found._fields, found, strict=True))
    made |= {"logit_gradient": logit.grad, "value_gradient": value.grad}
    return given, {name: one.detach().clone() for name, one in made.items()}


if __name__ == "__main__":
    stored: Values = {}
    for kind in ("discrete", "continuous"):
        for name, options in OPTIONS.items():
            for side, values in zip(("in", "out"), losses(kind, options), strict=True):
                stored |= {f"{kind}_{name}/{side}/{key}": one.contiguous() for key, one in values.items()}
    save_file(stored, sys.argv[1])
