"""The recurrent core: a sequence gives the numbers of its single steps, and the state is zero at an episode's start."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lightning_ding.model import DRQN, RecurrentCore, RecurrentVAC

KINDS = pytest.mark.parametrize(("kind", "layers"), [("lstm", 1), ("lstm", 2), ("gru", 1), ("gru", 2)])


def core_and_data(kind: str, layers: int) -> tuple[RecurrentCore, Tensor, Tensor]:
    torch.manual_seed(0)
    core = RecurrentCore(3, kind, hidden_size=5, num_layers=layers)
    return core, torch.randn(6, 4, 3), torch.randn(4, core.state_size)


def step_by_step(core: RecurrentCore, x: Tensor, state: Tensor, starts: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return outputs and last state of one step of one sequence at a time."""
    outputs = torch.zeros(*x.shape[:2], core.output_size)
    last = state.clone()
    for column in range(x.shape[1]):
        of_one = state[column : column + 1]
        for step in range(len(x)):
            if starts is not None and starts[step, column]:
                of_one = torch.zeros_like(of_one)
            output, of_one = core(x[step : step + 1, column : column + 1], of_one)
            outputs[step, column] = output[0, 0]
        last[column] = of_one[0]
    return outputs, last


@KINDS
def test_a_sequence_gives_the_numbers_of_its_single_steps(kind: str, layers: int) -> None:
    core, x, state = core_and_data(kind, layers)
    for found, expected in zip(core(x, state), step_by_step(core, x, state), strict=True):
        assert_close(found, expected)


@KINDS
def test_no_start_inside_is_the_same_as_none_given(kind: str, layers: int) -> None:
    core, x, state = core_and_data(kind, layers)
    for found, expected in zip(core(x, state, torch.zeros(6, 4)), core(x, state), strict=True):
        assert_close(found, expected)


@KINDS
def test_the_state_is_zero_before_each_start(kind: str, layers: int) -> None:
    core, x, state = core_and_data(kind, layers)
    starts = torch.tensor([[0, 1, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 1], [1, 0, 0, 0]]).bool()
    for found, expected in zip(core(x, state, starts), step_by_step(core, x, state, starts), strict=True):
        assert_close(found, expected)
    before = core(x, state)[0]
    assert_close(core(x, state, starts)[0][:, 2], before[:, 2])  # without a start
    assert bool((core(x, state, starts)[0][2:, 0] != before[2:, 0]).any())


@KINDS
def test_residual_core_adds_its_input_to_the_output(kind: str, layers: int) -> None:
    torch.manual_seed(0)
    core = RecurrentCore(5, kind, hidden_size=5, num_layers=layers, residual=True)
    plain = RecurrentCore(5, kind, hidden_size=5, num_layers=layers)
    plain.load_state_dict(core.state_dict())
    x, state = torch.randn(6, 4, 5), torch.randn(4, core.state_size)
    starts = torch.zeros(6, 4)
    starts[3] = 1
    for given in (None, starts):
        (found, after), (output, expected) = core(x, state, given), plain(x, state, given)
        assert_close(found, output + x)
        assert_close(after, expected)
    with pytest.raises(ValueError, match=r"core\.hidden_size must be the number of features, 5, with core\.residual"):
        RecurrentCore(5, kind, hidden_size=4, residual=True)


def test_state_of_an_lstm_with_open_gates_is_the_sum_of_its_inputs_since_the_start() -> None:
    core = RecurrentCore(1, "lstm", hidden_size=1)
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.zero_()
        core.rnn.bias_ih_l0[:] = torch.tensor([100.0, 100.0, 0.0, 100.0])  # gates i, f, o are 1
        core.rnn.weight_ih_l0[2] = 1.0  # the new cell input is tanh(x)
    x = torch.tensor([0.5, 1.0, -2.0]).view(3, 1, 1)
    starts = torch.tensor([[False], [False], [True]])
    output, state = core(x, torch.tensor([[9.0, 0.25]]), starts)
    cells = [0.25 + math.tanh(0.5), 0.25 + math.tanh(0.5) + math.tanh(1.0), math.tanh(-2.0)]
    assert_close(output.flatten(), torch.tensor([math.tanh(cell) for cell in cells]))
    assert_close(state, torch.tensor([[math.tanh(cells[2]), cells[2]]]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"type": "rnn"}, "core.type"), ({"hidden_size": 0}, "core.hidden_size"), ({"num_layers": 0}, "core.num_layers")],
)
def test_arguments_out_of_range_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RecurrentCore(3, **arguments)


def test_no_gradient_reaches_the_burn_in_of_sequences_that_have_one() -> None:
    torch.manual_seed(0)
    network = DRQN(obs_shape=3, action_shape=2, core={"hidden_size": 5})
    obs, state = torch.randn(6, 2, 3, requires_grad=True), torch.randn(2, network.state_size, requires_grad=True)
    values = network.after_burn_in(obs, state, 2, has_none=torch.tensor([False, True]))
    assert_close(values, network(obs, state)["logit"])
    values[2:].sum().backward()
    assert obs.grad is not None
    assert state.grad is not None
    assert obs.grad[:2, 0].abs().sum() == 0
    assert obs.grad[2:, 0].abs().sum() > 0
    assert obs.grad[:2, 1].abs().sum() > 0
    assert state.grad[0].abs().sum() == 0
    assert state.grad[1].abs().sum() > 0


@pytest.mark.parametrize("share_encoder", [True, False])
def test_actor_critic_gives_the_numbers_of_single_steps(share_encoder: bool) -> None:
    torch.manual_seed(0)
    network = RecurrentVAC(obs_shape=3, action_shape=2, core={"hidden_size": 5}, share_encoder=share_encoder)
    assert network.state_size == network.first_state(1).shape[1] == (10 if share_encoder else 20)
    obs, state = torch.randn(4, 2, 3), torch.randn(2, network.state_size)
    starts = torch.tensor([[False, False], [True, False], [False, False], [False, True]])
    output = network(obs, state, starts)
    for step in range(4):
        single = network.act(obs[step], state * ~starts[step].unsqueeze(1))
        rows = slice(2 * step, 2 * step + 2)
        assert_close((single["logit"], single["value"]), (output["logit"][rows], output["value"][rows]))
        state = single["state"]
    assert_close(output["state"], state)


def test_critic_with_its_own_core_does_not_see_the_state_of_the_actor() -> None:
    torch.manual_seed(0)
    network = RecurrentVAC(obs_shape=3, action_shape=2, core={"hidden_size": 5}, share_encoder=False)
    obs, state = torch.randn(2, 3), torch.randn(2, 20)
    other = torch.cat([torch.randn(2, 10), state[:, 10:]], dim=1)
    found, changed = network.act(obs, state), network.act(obs, other)
    assert_close(found["value"], changed["value"])
    assert bool((found["logit"] != changed["logit"]).any())
