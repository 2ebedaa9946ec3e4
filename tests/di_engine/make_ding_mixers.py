"""Compute DI-engine's mixers of QMIX, WQMIX and QTRAN on random numbers, and store them for ``test_same_mixers``.

Run it in an environment with DI-engine 0.5.3:

    python tests/di_engine/make_ding_mixers.py tests/di_engine/ding_mixers.safetensors

Names in the file: ``case/in/name``, ``case/out/name`` and ``case/weight/name``. Everything is in double precision.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

STEPS, ROWS, AGENTS, STATE, ACTIONS = 2, 5, 3, 4, 6
Values = dict[str, Tensor]


def qmix() -> tuple[nn.Module, Values, Values]:
    from ding.model.template.qmix import Mixer

    mixer = Mixer(AGENTS, STATE, mixing_embed_dim=5, hypernet_embed=7).double()
    given = {"value": 2 * torch.randn(STEPS, ROWS, AGENTS), "state": torch.randn(STEPS, ROWS, STATE)}
    return mixer, given, {"total": mixer(given["value"], given["state"])}


def wqmix() -> tuple[nn.Module, Values, Values]:
    from ding.model.template.wqmix import MixerStar

    mixer = MixerStar(AGENTS, STATE, mixing_embed_dim=5).double()
    given = {"value": 2 * torch.randn(STEPS, ROWS, AGENTS), "state": torch.randn(STEPS, ROWS, STATE)}
    return mixer, given, {"total": mixer(given["value"], given["state"])}


def qtran() -> tuple[nn.Module, Values, Values]:
    from ding.model.template.qtran import QTran

    network: Any = QTran(AGENTS, 3, STATE, ACTIONS, hidden_size_list=[8], embedding_size=5).double()
    kept: Values = {}
    network._q_network.register_forward_hook(lambda _, __, output: kept.update(feature=output["hidden_state"]))
    obs = {"agent_state": torch.randn(STEPS, ROWS, AGENTS, 3), "global_state": torch.randn(STEPS, ROWS, STATE)}
    obs["action_mask"] = torch.ones(STEPS, ROWS, AGENTS, ACTIONS)
    action = torch.randint(ACTIONS, (STEPS, ROWS, AGENTS))
    state = [[None] * AGENTS for _ in range(ROWS)]
    output = network({"obs": obs, "action": action, "prev_state": state}, single_step=False)
    given = {"feature": kept["feature"].reshape(STEPS, ROWS, AGENTS, -1), "action": action}
    given |= {"state": obs["global_state"]}
    return network, given, {"total": output["total_q"], "of_state": output["vs"]}


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    stored: Values = {}
    for number, case in enumerate((qmix, wqmix, qtran)):
        torch.manual_seed(number)
        network, given, found = case()
        parts = {"in": given, "out": found, "weight": dict(network.state_dict())}
        for side, values in parts.items():
            stored |= {
                f"{case.__name__}/{side}/{name}": value.detach().contiguous().clone()
                for name, value in values.items()
                if not name.startswith("_q_network")
            }
    save_file(stored, sys.argv[1])
