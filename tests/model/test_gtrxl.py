"""The transformer core: a slow oracle, single steps, what a step may attend to, and the options."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from lightning_ding.model import DRQN, GTrXLCore, RecurrentVAC
from lightning_ding.model.core import create_core
from lightning_ding.policy import create_policy

SIZES: dict[str, Any] = {"hidden_size": 4, "num_layers": 2, "num_heads": 2, "memory_length": 3}
STEPS, BATCH, INPUTS = 8, 3, 5
STARTS = torch.zeros(STEPS, BATCH, dtype=torch.bool)
STARTS[0, 1] = STARTS[3, 1] = STARTS[4, 1] = STARTS[6, 2] = True


def core_and_data(**changes: Any) -> tuple[GTrXLCore, Tensor, Tensor]:
    """Return a core with random weights, features, and states whose memories hold 3, 2 and 0 steps."""
    torch.manual_seed(0)
    core = GTrXLCore(INPUTS, **{**SIZES, **changes})
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape))
    _, state = core(torch.randn(3, BATCH, INPUTS), core.first_state(BATCH))
    _, two = core(torch.randn(2, BATCH, INPUTS), core.first_state(BATCH))
    state = torch.stack([state[0], two[1], torch.zeros_like(state[2])]).detach()
    return core, torch.randn(STEPS, BATCH, INPUTS), state


# ---------------------------------------------------------------------- the oracle: lists of vectors, one at a time


def linear(layer: nn.Linear, x: Tensor) -> Tensor:
    output = (layer.weight * x).sum(1)
    return output if layer.bias is None else output + layer.bias


def normalised(layer: nn.LayerNorm, x: Tensor) -> Tensor:
    centred = x - x.mean()
    return centred / (centred.square().mean() + layer.eps).sqrt() * layer.weight + layer.bias


def gated(gate: Any, x: Tensor, y: Tensor) -> Tensor:
    size = len(x)
    w, u = gate.of_output.weight, gate.of_input.weight
    reset = torch.sigmoid(w[:size] @ y + u[:size] @ x)
    update = torch.sigmoid(w[size : 2 * size] @ y + u[size:] @ x - gate.bias)
    new = torch.tanh(w[2 * size :] @ y + gate.of_reset.weight @ (reset * x))
    return (1 - update) * x + update * new


def embedding_of(distance: int, size: int) -> Tensor:
    angles = [distance / 10000 ** (2 * i / size) for i in range(size // 2)]
    return torch.tensor([math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles])


def attended(attention: Any, rows: list[Tensor]) -> Tensor:
    """Return what the last row sees of all rows."""
    number, size = attention.heads
    seen = []
    for head in range(number):
        part = slice(head * size, head * size + size)
        query = linear(attention.query, rows[-1])[part]
        scores, values = [], []
        for index, row in enumerate(rows):
            key, value = linear(attention.key_value, row).chunk(2)
            place = linear(attention.position, embedding_of(len(rows) - 1 - index, len(row)))[part]
            score = (query + attention.content_bias[head]) @ key[part]
            score = score + (query + attention.position_bias[head]) @ place
            scores.append(score / math.sqrt(size))
            values.append(value[part])
        weights = torch.stack(scores).exp() / torch.stack(scores).exp().sum()
        seen.append(sum(weight * value for weight, value in zip(weights, values, strict=True)))
    return linear(attention.output, torch.cat(seen))


def oracle(core: Any, x: Tensor, state: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs and the last state, of one sequence at a time and with a list as the memory."""
    layers, length, size = core.memory_shape
    outputs, states = [], []
    for column in range(x.shape[1]):
        stored = state[column, 1:].view(layers, length, size)
        count = int(state[column, 0])
        memory = [list(stored[layer, length - count :]) for layer in range(layers)]
        for step in range(len(x)):
            if starts[step, column]:
                memory = [[] for _ in range(layers)]
            row = linear(core.embedding, x[step, column])
            for layer, block in enumerate(core.layers):
                memory[layer].append(row)
                seen = attended(block.attention, [normalised(block.attention_norm, one) for one in memory[layer]])
                row = gated(block.attention_gate, row, seen.clamp(min=0))
                first, second = block.mlp.layers
                hidden = linear(first, normalised(block.mlp_norm, row)).clamp(min=0)
                row = gated(block.mlp_gate, row, linear(second, hidden).clamp(min=0))
                memory[layer] = memory[layer][-length:]
            outputs.append(row)
        kept = len(memory[0])
        missing = [torch.zeros(size)] * (length - kept)
        states.append(torch.cat([torch.tensor([float(kept)]), *[one for part in memory for one in missing + part]]))
    return torch.stack(outputs).view(x.shape[1], len(x), size).transpose(0, 1), torch.stack(states)


@pytest.mark.parametrize("changes", [{}, {"head_size": 3}, {"num_layers": 1, "memory_length": 1}, {"num_heads": 1}])
def test_sequence_has_the_numbers_of_a_slow_oracle(changes: dict[str, Any]) -> None:
    core, x, state = core_and_data(**changes)
    if changes.get("memory_length") == 1:
        state[:, 0] = state[:, 0].clamp(max=1)
    output, last = core(x, state, STARTS)
    expected, expected_last = oracle(core, x, state, STARTS)
    assert_close(output, expected, atol=1e-5, rtol=1e-5)
    assert_close(last, expected_last, atol=1e-5, rtol=1e-5)
    assert_close(core(x, state)[0], oracle(core, x, state, torch.zeros_like(STARTS))[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("starts", [None, STARTS])
@pytest.mark.parametrize("memory_length", [3, 20])
def test_single_steps_have_the_numbers_of_the_sequence(starts: Tensor | None, memory_length: int) -> None:
    core, x, state = core_and_data(memory_length=memory_length)
    output, last = core(x, state, starts)
    for step in range(STEPS):
        if starts is not None:
            state = state.masked_fill(starts[step][:, None], 0.0)
        single, state = core(x[step : step + 1], state)
        assert_close(single[0], output[step], atol=1e-5, rtol=1e-5)
    assert_close(state, last, atol=1e-5, rtol=1e-5)


def test_state_counts_the_steps_of_its_episode_and_is_zero_elsewhere() -> None:
    core, x, state = core_and_data()
    assert state[:, 0].tolist() == [3, 2, 0]
    _, last = core(x[:7], state, STARTS[:7])
    assert last[:, 0].tolist() == [3, 3, 1]
    memory = last[:, 1:].unflatten(1, core.memory_shape)
    assert memory[2, :, :2].abs().sum() == 0
    assert bool((memory[2, :, 2] != 0).all())
    assert core.first_state(2).abs().sum() == 0


def test_no_step_depends_on_an_earlier_episode_nor_on_steps_that_left_the_memory() -> None:
    core, x, state = core_and_data(num_layers=1)
    state.requires_grad_()
    x.requires_grad_()
    output, _ = core(x, state, STARTS)
    of_x, of_state = torch.autograd.grad(output[5].square().sum(), (x, state))
    touched = [of_x[:, column].abs().sum(1).gt(0).nonzero().flatten().tolist() for column in range(BATCH)]
    assert touched == [[2, 3, 4, 5], [4, 5], [2, 3, 4, 5]]
    assert of_state.abs().sum() == 0
    _, of_state = torch.autograd.grad(core(x, state, STARTS)[0][1].square().sum(), (x, state))
    seen = of_state[:, 1:].unflatten(1, core.memory_shape)[:, 0].abs().sum(2).gt(0)
    assert seen.tolist() == [[False, True, True], [False] * 3, [False] * 3]


def test_what_the_memory_holds_besides_valid_steps_is_not_seen() -> None:
    core, x, state = core_and_data()
    other = state.clone()
    other[1, 1:].unflatten(0, core.memory_shape)[:, 0] = 100.0  # it holds two steps of three
    assert_close(core(x, other)[0], core(x, state)[0])


def test_a_large_bias_of_the_gates_makes_layers_the_identity() -> None:
    core: Any
    core, x, state = core_and_data(gate_bias=2.0)
    layers: Any = GTrXLCore(3, 4, num_heads=2).layers
    assert [layer.mlp_gate.bias.tolist() for layer in layers] == [[2.0] * 4]
    with torch.no_grad():
        for layer in core.layers:
            layer.attention_gate.bias.fill_(1e4)
            layer.mlp_gate.bias.fill_(1e4)
    assert_close(core(x, state)[0], core.embedding(x))


def test_features_as_wide_as_the_layers_have_no_embedding() -> None:
    assert isinstance(GTrXLCore(4, **SIZES).embedding, nn.Identity)
    assert isinstance(GTrXLCore(3, **SIZES).embedding, nn.Linear)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 5}, r"core\.hidden_size must be an even number >= 2 with core\.type 'gtrxl', got 5"),
        (
            {"num_heads": 3},
            r"core\.hidden_size must be a multiple of core\.num_heads, 3, without core\.head_size, got 4",
        ),
        ({"num_heads": 0, "head_size": 2}, r"core\.num_heads must be >= 1, got 0"),
        ({"head_size": 0}, r"core\.head_size must be >= 1 or None, got 0"),
        ({"memory_length": 0}, r"core\.memory_length must be >= 1, got 0"),
        ({"num_layers": 0}, r"core\.num_layers must be >= 1, got 0"),
        ({"residual": True}, r"core\.residual must be false with core\.type 'gtrxl'"),
    ],
)
def test_arguments_out_of_range_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        create_core(3, {"type": "gtrxl", **SIZES, **changes})


def test_no_gradient_reaches_the_burn_in_of_sequences_that_have_one() -> None:
    torch.manual_seed(0)
    network = DRQN(obs_shape=3, action_shape=2, core={"type": "gtrxl", **SIZES, "memory_length": 6})
    obs, state = torch.randn(6, 2, 3, requires_grad=True), network.first_state(2)
    values = network.after_burn_in(obs, state, 2, has_none=torch.tensor([False, True]))
    assert_close(values, network(obs, state)["logit"])
    values[2:].sum().backward()
    assert obs.grad is not None
    touched = obs.grad.abs().sum(2).gt(0)
    assert touched[:, 0].tolist() == [False] * 2 + [True] * 4
    assert bool(touched[:, 1].all())


@pytest.mark.parametrize("share_encoder", [True, False])
def test_actor_critic_gives_the_numbers_of_single_steps(share_encoder: bool) -> None:
    torch.manual_seed(0)
    core = {"type": "gtrxl", **SIZES}
    network = RecurrentVAC(obs_shape=INPUTS, action_shape=2, core=core, share_encoder=share_encoder)
    assert network.state_size == (25 if share_encoder else 50)
    obs, state = torch.randn(STEPS, BATCH, INPUTS), network.first_state(BATCH)
    output = network(obs, state, STARTS)
    for step in range(STEPS):
        single = network.act(obs[step], state * ~STARTS[step].unsqueeze(1))
        rows = slice(BATCH * step, BATCH * step + BATCH)
        assert_close(single["logit"], output["logit"][rows], atol=1e-5, rtol=1e-5)
        assert_close(single["value"], output["value"][rows], atol=1e-5, rtol=1e-5)
        state = single["state"]
    assert_close(output["state"], state, atol=1e-5, rtol=1e-5)


def test_orthogonal_initialisation_leaves_the_core() -> None:
    core = {"type": "gtrxl", **SIZES}
    network = RecurrentVAC(obs_shape=INPUTS, action_shape=2, core=core, share_encoder=False)
    before = {name: one.clone() for name, one in network.state_dict().items()}
    network.init_orthogonally()
    same = {name for name, one in network.state_dict().items() if bool((one == before[name]).all())}
    assert {name for name in before if ".core." in name} <= same
    assert {name for name in before if name.endswith("weight")} - same == {
        name for name in before if ".core." not in name and name.endswith("weight")
    }


@pytest.mark.parametrize("name", ["r2d2", "recurrent_ppo"])
@pytest.mark.parametrize(
    ("core", "message"),
    [
        ({"num_heads": 2}, r"model\.core\.num_heads must be None with type 'lstm', got 2"),
        ({"type": "gru", "memory_length": 2}, r"model\.core\.memory_length must be None with type 'gru', got 2"),
        ({"type": "gru", "head_size": 2}, r"model\.core\.head_size must be None with type 'gru', got 2"),
        ({"gate_bias": 0.0}, r"model\.core\.gate_bias must be None with type 'lstm', got 0\.0"),
        ({"type": "gtrxl", "residual": True}, r"model\.core\.residual must be false with type 'gtrxl', got True"),
        ({"type": "gtrxl", "memory_length": 0}, r"model\.core\.memory_length must be >= 1 or None, got 0"),
    ],
)
def test_options_of_another_core_are_refused(name: str, core: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        create_policy({"type": name, "model": {"core": core}})
