"""Losses and gradients of the policies that learn from sequences equal DI-engine's; ``make_ding_sequences`` has those.

Shapes: T steps, B sequences.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from lightning_ding import rl
from lightning_ding.model.gtrxl import GRUGate, RelativeAttention, relative_shift, sinusoids
from lightning_ding.policy import DTPolicy, R2D2Policy
from tests.di_engine import make_ding_sequences as script
from tests.di_engine.make_ding_sequences import BURN_IN, CONTEXT, GAMMA, LEARNED, NSTEP, SCALE, Window
from tests.di_engine.stored import parts_of
from tests.di_engine.tiny_networks import ACTIONS, HIDDEN, OBS

pytestmark = pytest.mark.usefixtures("double_precision")

part = parts_of("ding_sequences.safetensors")
SLOPE = 0.01  # of DI-engine's rescaled values; that of the paper, 0.001, is ours
Values = dict[str, Tensor]


def load(network: nn.Module, numbered: Values) -> None:
    """Set the parameters, which are stored in their order."""
    parameters = list(network.parameters())
    assert len(parameters) == len(numbered)
    for number, parameter in enumerate(parameters):
        parameter.data = numbered[str(number)].clone()


def check(ours: Any, theirs: Tensor) -> None:
    assert_close(ours.detach(), theirs, rtol=1e-5, atol=1e-9, check_dtype=False)


def check_gradients(network: nn.Module, theirs: Values) -> None:
    for number, parameter in enumerate(network.parameters()):
        assert parameter.grad is not None
        check(parameter.grad, theirs[f"gradient.{number}"])


@pytest.mark.parametrize("case", ["r2d2", "r2d2_rescaled"])
def test_loss_of_r2d2_with_a_burn_in_equals_ding(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("value_rescale", "value_unscale"):
        monkeypatch.setattr(rl, name, partial(getattr(rl, name), slope=SLOPE))
    core = {"type": "gru", "hidden_size": HIDDEN}
    model = {"obs_shape": OBS, "action_shape": ACTIONS, "core": core, "encoder_hidden_size_list": [HIDDEN]}
    learn = {"value_rescale": case == "r2d2_rescaled"}
    sizes = {"burnin_step": BURN_IN, "learn_unroll_len": LEARNED, "nstep": NSTEP, "discount_factor": GAMMA}
    policy = R2D2Policy({**sizes, "learn": learn, "model": {**model, "dueling": False, "activation": "tanh"}})
    load(policy.model, part(case, "model"))
    load(policy.target_model, part(case, "target"))
    given, theirs = part(case, "in"), part(case, "out")
    batch: Any = {name: given[name] for name in ("action", "reward", "terminated", "IS")}
    batch |= {"obs": given["obs"][:-1], "next_obs": given["obs"][1:], "recurrent_state": given["state"]}
    batch |= {"mask": torch.ones_like(given["terminated"]), "is_first": torch.zeros(len(given["IS"]), dtype=torch.bool)}
    loss, _ = policy.loss(batch | {"priority": torch.ones(len(given["IS"]))})
    check(loss, theirs["loss"])
    loss.backward()
    check_gradients(policy.model, theirs)


class OurWindow(Window):
    """The network of the script in our form."""

    def forward(self, obs: Any, action: Any, return_to_go: Any, timestep: Any) -> Any:
        return {"logit": self.outputs(obs, action, return_to_go, timestep)}


@pytest.mark.parametrize("case", ["dt", "dt_continuous"])
def test_loss_of_the_decision_transformer_equals_ding_but_for_its_divisor(case: str) -> None:
    """DI-engine divides by the real steps of a minibatch, this project by all of its steps."""
    is_continuous = case == "dt_continuous"
    network = OurWindow(is_continuous)
    load(network, part(case, "model"))
    kind = "continuous" if is_continuous else "discrete"
    model = {"obs_shape": OBS, "action_shape": network.actions, "action_space": kind}
    policy = DTPolicy({"context_len": CONTEXT, "rtg_scale": SCALE, "model": model}, model=network)
    given, theirs = part(case, "in"), part(case, "out")
    loss, _ = policy.loss({name: value.transpose(0, 1) for name, value in given.items()})
    loss = loss / given["mask"].double().mean()
    check(loss, theirs["loss"])
    loss.backward()
    check_gradients(network, theirs)


def test_gate_of_gtrxl_equals_ding() -> None:
    weight, given = part("gtrxl_gate", "model"), part("gtrxl_gate", "in")
    gate = GRUGate(HIDDEN, 0.0)
    gate.load_state_dict(
        {
            "of_output.weight": torch.cat([weight[f"W{name}.weight"] for name in "rzg"]),
            "of_input.weight": torch.cat([weight[f"U{name}.weight"] for name in "rz"]),
            "of_reset.weight": weight["Ug.weight"],
            "bias": weight["bg"],
        }
    )
    check(gate(given["x"], given["y"]), part("gtrxl_gate", "out")["gated"])


def visible_keys() -> Tensor:
    """Return which keys DI-engine's queries attend to: all that are not later."""
    return torch.ones(script.QUERIES, script.KEYS).tril(script.KEYS - script.QUERIES).bool()


def test_relative_shift_of_gtrxl_equals_ding_where_keys_are_not_later() -> None:
    shifted = relative_shift(part("gtrxl_shift", "in")["score"])
    check(shifted * visible_keys(), part("gtrxl_shift", "out")["shifted"])


def test_attention_of_gtrxl_equals_ding() -> None:
    weight, rows = part("gtrxl_attention", "model"), part("gtrxl_attention", "in")["rows"]
    theirs = part("gtrxl_attention", "out")
    attention = RelativeAttention(HIDDEN, script.HEADS, script.HEAD_SIZE)
    names = {"query": "attention_q", "key_value": "attention_kv", "position": "project_pos", "output": "project"}
    state = {
        f"{ours}.{kind}": weight[f"{name}.0.{kind}"] for ours, name in names.items() for kind in ("weight", "bias")
    }
    del state["position.bias"]  # the same for all keys, so without effect
    attention.load_state_dict(state | {"content_bias": weight["u"], "position_bias": weight["v"]})
    positions = sinusoids(script.KEYS, HIDDEN, rows)
    check(positions, theirs["positions"])
    visible = visible_keys().expand(rows.shape[1], -1, -1)
    check(attention(rows, script.QUERIES, positions, visible), theirs["seen"])
