"""Compute DI-engine's mixers of QMIX, WQMIX and QTRAN, and losses of MADQN, on random numbers.

Stores them for ``test_same_mixers``.

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


def madqn() -> tuple[nn.Module, Values, Values]:
    """Compute both losses as the policy does, with ``nstep`` 1; each agent has a global state."""
    from ding.model.template.madqn import MADQN
    from ding.rl_utils import v_1step_td_data, v_1step_td_error

    online, target = (MADQN(AGENTS, 3, ACTIONS, [8], 3 + STATE).double() for _ in range(2))
    given = {"action": torch.randint(ACTIONS, (STEPS, ROWS, AGENTS))}
    given |= {"reward": torch.randn(STEPS, ROWS), "done": (torch.rand(STEPS, ROWS) < 0.3).double()}
    seen, state = torch.randn(STEPS + 1, ROWS, AGENTS, 3), torch.randn(STEPS + 1, ROWS, STATE)
    known = torch.cat([seen, state.unsqueeze(2).expand(-1, -1, AGENTS, -1)], -1)

    def outputs(network: nn.Module, first: int, action: Any, cooperation: bool) -> Values:
        part = slice(first, first + STEPS)
        obs = {"agent_state": seen[part], "global_state": known[part]}
        obs["action_mask"] = torch.ones(STEPS, ROWS, AGENTS, ACTIONS)
        data = {"obs": obs, "prev_state": [[None] * AGENTS for _ in range(ROWS)]}
        data |= {} if action is None else {"action": action}
        return network(data, cooperation=cooperation, single_step=False)  # type: ignore[no-any-return]

    following, losses = outputs(target, 1, None, True), []
    given["following"] = following["logit"]
    for name, cooperation in (("logit", False), ("cooperation", True)):
        output = outputs(online, 0, given["action"], cooperation)
        given[name] = output["logit"]
        columns = output["total_q"], following["total_q"].detach(), given["reward"], given["done"], None
        losses.append(v_1step_td_error(v_1step_td_data(*columns), 0.9)[0])
    return nn.Identity(), given, {"loss": sum(losses), "cooperation_loss": losses[1]}


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    stored: Values = {}
    for number, case in enumerate((qmix, wqmix, qtran, madqn)):
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
