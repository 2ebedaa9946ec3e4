"""Compute outputs of DI-engine's networks of MADDPG and SAC of teams, and store them for ``test_same_maqac``.

Run it in an environment with DI-engine 0.5.3:

    python tests/di_engine/make_ding_maqac.py tests/di_engine/ding_maqac.safetensors

Names in the file: ``case/weights/name``, ``case/in/name`` and ``case/out/name``. Everything is in double precision.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from safetensors.torch import save_file

ROWS, AGENTS, SEEN, STATE, ACTIONS = 4, 3, 5, 6, 2


def values(model: Any, is_discrete: bool) -> dict[str, torch.Tensor]:
    """Return the weights of a network, its inputs and its outputs by name."""
    obs = {"agent_state": torch.randn(ROWS, AGENTS, SEEN), "global_state": torch.randn(ROWS, AGENTS, STATE)}
    obs["action_mask"] = torch.ones(ROWS, AGENTS, ACTIONS)
    action = torch.rand(ROWS, AGENTS, ACTIONS) * 2 - 1
    found = {f"weights/{name}": one.detach().clone() for name, one in model.state_dict().items()}
    found |= {f"in/{name}": one for name, one in {**obs, "action": action}.items()}
    actor = model({"obs": obs} if is_discrete else obs, mode="compute_actor")
    logit = actor.get("logit", actor.get("action"))
    parts = {"mu": logit[0], "sigma": logit[1]} if isinstance(logit, list) else {"actor": logit}
    q = model({"obs": obs, "action": action}, mode="compute_critic")["q_value"]
    return (
        found | {f"out/{name}": one.detach() for name, one in parts.items()} | {"out/q": torch.stack(list(q)).detach()}
    )


def main(path: str) -> None:
    """Write the file."""
    from ding.model.template.maqac import ContinuousMAQAC, DiscreteMAQAC

    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"actor_head_hidden_size": 7, "critic_head_hidden_size": 8, "twin_critic": True}
    cases = {"discrete": DiscreteMAQAC(SEEN, STATE, ACTIONS, **sizes)}
    for kind in ("regression", "reparameterization"):
        cases[kind] = ContinuousMAQAC(SEEN, STATE, ACTIONS, kind, **sizes)
    stored: dict[str, Any] = {}
    for case, model in cases.items():
        stored |= {f"{case}/{name}": one.contiguous() for name, one in values(model, case == "discrete").items()}
    save_file(stored, path)


if __name__ == "__main__":
    main(sys.argv[1])
