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
from lightning_ding.policy import DTPolicy, NGUPolicy, R2D2Policy, R2D3Policy
from tests.di_engine import make_ding_sequences as script
from tests.di_engine.make_ding_sequences import (
    BURN_IN,
    CONTEXT,
    GAMMA,
    LAMBDA1,
    LAMBDA2,
    LEARNED,
    MARGIN,
    NEIGHBOURS,
    NSTEP,
    ONE_STEP,
    POLICIES,
    SCALE,
    Window,
)
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
    theirs_rescales(monkeypatch)
    policy = recurrent(R2D2Policy, case, {"value_rescale": case == "r2d2_rescaled"}, discount_factor=GAMMA)
    check_sequences(policy, case, sequences_of(case))


def theirs_rescales(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the functions that rescale values DI-engine's slope."""
    for name in ("value_rescale", "value_unscale"):
        monkeypatch.setattr(rl, name, partial(getattr(rl, name), slope=SLOPE))


def recurrent(policy_class: Any, case: str, learn: dict[str, Any], model: Any = None, **config: Any) -> Any:
    """Return a policy with the weights of a case."""
    core = {"type": "gru", "hidden_size": HIDDEN}
    shapes = {"obs_shape": OBS, "action_shape": ACTIONS, "core": core, "encoder_hidden_size_list": [HIDDEN]}
    shapes |= {"dueling": False, "activation": "tanh", **(model or {})}
    sizes = {"burnin_step": BURN_IN, "learn_unroll_len": LEARNED, "nstep": NSTEP, **config}
    policy = policy_class({**sizes, "learn": learn, "model": shapes})
    for network, name in ((policy.model, "model"), (policy.target_model, "target")):
        load(nn.ModuleList([network.encoder, network.head]), part(case, name))
    return policy


def sequences_of(case: str) -> dict[str, Any]:
    """Return the minibatch of a case."""
    given = part(case, "in")
    batch: Any = {name: given[name] for name in ("action", "reward", "terminated", "IS")}
    batch |= {"obs": given["obs"][:-1], "next_obs": given["obs"][1:], "recurrent_state": given["state"]}
    batch |= {"mask": torch.ones_like(given["terminated"]), "is_first": torch.zeros(len(given["IS"]), dtype=torch.bool)}
    return batch | {"priority": torch.ones(len(given["IS"]))}  # type: ignore[no-any-return]


def check_sequences(policy: Any, case: str, batch: dict[str, Any]) -> None:
    """Check the loss of a minibatch and its gradients."""
    loss, _ = policy.loss(batch)
    check(loss, part(case, "out")["loss"])
    loss.backward()
    check_gradients(nn.ModuleList([policy.model.encoder, policy.model.head]), part(case, "out"))


@pytest.mark.parametrize("case", ["r2d3", "r2d3_rescaled"])
def test_loss_of_r2d3_equals_ding(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With rescaled values DI-engine takes the margin for the weight of the one-step loss, and the other way round."""
    theirs_rescales(monkeypatch)
    rescales = case == "r2d3_rescaled"
    margin, one_step = (ONE_STEP, MARGIN) if rescales else (MARGIN, ONE_STEP)
    weights = {"lambda1": LAMBDA1, "lambda2": LAMBDA2, "lambda3": 0.0, "lambda_one_step_td": one_step}
    learn = {"value_rescale": rescales, "margin_function": margin, **weights}
    policy = recurrent(R2D3Policy, case, learn, discount_factor=GAMMA)
    check_sequences(policy, case, sequences_of(case) | {"is_expert": part(case, "in")["is_expert"].bool()})


def test_loss_of_ngu_and_its_discount_factors_equal_ding(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs_rescales(monkeypatch)
    policy = recurrent(NGUPolicy, "ngu", {}, {"num_policies": POLICIES})
    batch, number = sequences_of("ngu"), part("ngu", "in")["policy"]
    check(rl.exploration_discounts(POLICIES, 0.997, 0.99), part("ngu", "out")["gammas"])
    batch["recurrent_state"] = torch.cat([batch["recurrent_state"], number[:, None].double()], 1)
    check_sequences(policy, "ngu", batch | {"intrinsic_reward": torch.zeros_like(batch["reward"])})


def test_episodic_novelty_equals_ding_for_its_distances() -> None:
    """DI-engine's distances are not squared, and their running mean begins with 1e-4 distances of 0."""
    embeddings, total, number = part("novelty", "in")["embeddings"], 0.0, 1e-4
    for step, theirs in enumerate(part("novelty", "out")["episodic"], NEIGHBOURS):
        distance = (embeddings[:step] - embeddings[step]).norm(dim=1).sort().values[:NEIGHBOURS]
        total, number = total + float(distance.sum()), number + NEIGHBOURS
        check(rl.episodic_novelty(distance[None] * number / total)[0], theirs)


def test_rewards_of_ngu_equal_ding_for_policies_between_the_first_and_the_last() -> None:
    given = part("novelty", "in")
    config = {"model": {"obs_shape": OBS, "action_shape": ACTIONS, "num_policies": POLICIES}}
    policy: Any = NGUPolicy(config)
    intrinsic = rl.intrinsic_reward(given["episodic"], given["lifelong"], 5.0)
    state = torch.arange(1, POLICIES - 1).double()[:, None]
    batch = {"reward": given["reward"].T, "intrinsic_reward": intrinsic.T, "recurrent_state": state}
    check(policy._rewards(batch)[:-1].T, part("novelty", "out")["reward"])


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
