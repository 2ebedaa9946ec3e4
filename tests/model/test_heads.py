"""Heads: features in, action values out."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch.nn.utils import vector_to_parameters
from torch.testing import assert_close

from lightning_ding.model import DiscreteHead, DuelingHead, MultiHead
from lightning_ding.model.heads import full_precision


def test_discrete_head_without_hidden_layers_is_linear() -> None:
    # (1, 2): 1 * 1 - 1 * 2 + 0.5 = -0.5, which no activation cuts;  2 * 1 + 0 * 2 - 1 = 1
    head = DiscreteHead(2, 2, hidden_size=7)
    vector_to_parameters(torch.tensor([1.0, -1.0, 2.0, 0.0, 0.5, -1.0]), head.parameters())
    assert head(torch.tensor([[1.0, 2.0]])).tolist() == [[-0.5, 1.0]]


def test_discrete_head_activates_its_hidden_layers_and_not_its_output() -> None:
    # hidden relu(x), relu(-x); output 2 h0 - 3 h1 + 1:  x = 2 gives 5, x = -2 gives -5
    head = DiscreteHead(1, 1, hidden_size=2, layer_num=1)
    vector_to_parameters(torch.tensor([1.0, -1.0, 0.0, 0.0, 2.0, -3.0, 1.0]), head.parameters())
    assert head(torch.tensor([[2.0], [-2.0]])).tolist() == [[5.0], [-5.0]]


def test_dueling_head_adds_the_value_to_the_advantages_without_their_mean() -> None:
    # features (1, 2): A = (1, 2, 3), mean 2;  V = 3 * 1 + 1 * 2 + 5 = 10;  Q = 10 + A - 2 = (9, 10, 11)
    head = DuelingHead(2, 3, hidden_size=7, layer_num=0)
    vector_to_parameters(torch.tensor([1.0, 0, 0, 1, 1, 1, 0, 0, 0]), head.advantage.parameters())
    vector_to_parameters(torch.tensor([3.0, 1.0, 5.0]), head.value.parameters())
    assert head(torch.tensor([[1.0, 2.0]])).tolist() == [[9.0, 10.0, 11.0]]


def test_dueling_head_takes_the_mean_of_each_row_on_its_own() -> None:
    # the mean over actions of Q is V, whatever the advantages are
    head, features = DuelingHead(3, 4, hidden_size=5), torch.randn(6, 3)
    assert_close(head(features).mean(1, keepdim=True), head.value(features), rtol=1e-5, atol=1e-6)


def test_dueling_head_ignores_a_constant_added_to_all_advantages() -> None:
    head, features = DuelingHead(3, 4, hidden_size=5), torch.randn(6, 3)
    before = head(features)
    list(head.advantage.parameters())[-1].data += 7.0
    assert_close(head(features), before, rtol=1e-5, atol=1e-5)


def test_dueling_head_has_one_hidden_layer_in_each_stream_unless_asked() -> None:
    # advantage 3 -> 5 -> 4 and value 3 -> 5 -> 1, weight and bias each
    shapes = [tuple(p.shape) for p in DuelingHead(3, 4, hidden_size=5).parameters()]
    assert shapes == [(5, 3), (5,), (4, 5), (4,), (5, 3), (5,), (1, 5), (1,)]


def test_multi_head_gives_the_values_of_each_head_in_order() -> None:
    heads = [DiscreteHead(1, 1, 2), DiscreteHead(1, 2, 2)]
    vector_to_parameters(torch.tensor([2.0, 1.0]), heads[0].parameters())
    vector_to_parameters(torch.tensor([1.0, -1.0, 0.0, 0.0]), heads[1].parameters())
    assert [q.tolist() for q in MultiHead(heads)(torch.tensor([[3.0]]))] == [[[7.0]], [[3.0, -3.0]]]


def test_multi_head_trains_the_parameters_of_all_heads() -> None:
    # 2 parameters in each of 3 linear heads
    assert len(list(MultiHead([DiscreteHead(1, 1, 2) for _ in range(3)]).parameters())) == 6


BASE: dict[str, Any] = {"input_size": 3, "action_size": 2, "hidden_size": 4, "layer_num": 1, "activation": "relu"}
CHANGES: dict[str, Any] = {"input_size": 4, "action_size": 3, "hidden_size": 5, "layer_num": 2, "activation": "gelu"}
CHANGES["layer_norm"] = True
OF_DISCRETE = {"hidden_size_list": [5, 6]}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_half_precision_becomes_32_bits_and_the_rest_stays(dtype: torch.dtype) -> None:
    x = torch.ones(2, dtype=dtype)
    is_half = dtype in (torch.bfloat16, torch.float16)
    assert full_precision(x).dtype == (torch.float32 if is_half else dtype)
    assert is_half or full_precision(x) is x


def fingerprint(head_class: Any, arguments: dict[str, Any]) -> list[Any]:
    """Return the shapes of the parameters and the values of one row of features."""
    torch.manual_seed(0)
    head = head_class(**arguments)
    values = head(torch.ones(1, arguments["input_size"]))
    return [*(tuple(p.shape) for p in head.parameters()), *values.flatten().tolist()]


OPTIONS = [(DiscreteHead, CHANGES | OF_DISCRETE), (DuelingHead, CHANGES)]


@pytest.mark.parametrize(("head_class", "changes"), OPTIONS)
def test_the_options_above_are_all_that_a_head_has(head_class: Any, changes: dict[str, Any]) -> None:
    assert set(changes) == set(inspect.signature(head_class).parameters)


@pytest.mark.parametrize(
    ("head_class", "option", "value"),
    [(one, name, value) for one, changes in OPTIONS for name, value in changes.items()],
)
def test_every_option_of_a_head_changes_its_values_or_its_size(head_class: Any, option: str, value: Any) -> None:
    before, again = fingerprint(head_class, BASE), fingerprint(head_class, BASE)
    after = fingerprint(head_class, {**BASE, option: value})
    assert (before == again, before == after) == (True, False)
