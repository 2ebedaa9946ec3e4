"""The networks of MADDPG and SAC of teams against DI-engine's, with its weights; ``make_ding_maqac.py`` made the file.

DI-engine's critics get a global state of each agent, which is what the agent sees and the global state of the team.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.testing import assert_close

from lightning_ding.model import TeamQAC

FILE = Path(__file__).parent / "ding_maqac.safetensors"
AGENTS, SEEN, STATE, ACTIONS = 3, 5, 6, 2
FIRST = {"discrete": "actor.2.Q.0.0", "regression": "actor.2.main.0", "reparameterization": "actor.2.main.0"}
LAST = {
    "discrete": ("actor.2.Q.1.0",),
    "regression": ("actor.2.last",),
    "reparameterization": ("actor.2.mu", "actor.2.log_sigma_layer"),
}


def stored(case: str) -> dict[str, Tensor]:
    return {name.removeprefix(f"{case}/"): one for name, one in load_file(FILE).items() if name.startswith(f"{case}/")}


def with_their_weights(case: Any, data: dict[str, Tensor]) -> TeamQAC:
    """Return our network, whose critics see 5 numbers of an agent and 1 of the state, with DI-engine's weights."""
    sizes = {"encoder_hidden_size_list": [7, 7], "critic_hidden_size_list": [8, 8], "agent_id": False}
    options: dict[str, Any] = {"critic_input": "state", "twin_critic": True, "action_values": case == "discrete"}
    model: Any = TeamQAC(AGENTS, SEEN, STATE - SEEN, ACTIONS, case, **sizes, **options).double()  # type: ignore[arg-type]
    actor = [*model.actor.encoder.layers.net.layers, model.actor.head.net.layers[0]]
    with torch.no_grad():
        for layer, names in zip(actor, [("actor.0",), (FIRST[case],), LAST[case]], strict=True):
            layer.weight.copy_(torch.cat([data[f"weights/{name}.weight"] for name in names]))
            layer.bias.copy_(torch.cat([data[f"weights/{name}.bias"] for name in names]))
        head = ("0", "2.Q.0.0", "2.Q.1.0") if case == "discrete" else ("0", "2.main.0", "2.last")
        for number, name in enumerate(head):
            for critic in range(2):
                path = f"weights/critic.{critic}.{name}"
                model.critic.net.weights[number][critic] = data[f"{path}.weight"].T
                model.critic.net.biases[number][critic] = data[f"{path}.bias"]
    return model  # type: ignore[no-any-return]


@pytest.mark.parametrize("case", FIRST)
def test_networks_equal_those_of_di_engine(case: str) -> None:
    data = stored(case)
    model = with_their_weights(case, data)
    output = model.compute_actor({"agent_state": data["in/agent_state"]})
    if case == "reparameterization":
        assert_close(output["mu"], data["out/mu"])
        assert_close(output["log_sigma"].exp(), data["out/sigma"])
    else:
        assert_close(output["logit" if case == "discrete" else "action"], data["out/actor"])
    seen, state = data["in/global_state"].split([SEEN, STATE - SEEN], -1)
    q = model.compute_critic({"agent_state": seen, "global_state": state}, data["in/action"])["q_value"]
    assert_close(q, data["out/q"])
