"""The graph that is handed to the compiler."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lightning_ding.utils import private_api

X, WEIGHT, BIAS = torch.randn(5, 3), torch.randn(3, 2), torch.randn(2)
XS, WEIGHTS, BIASES = torch.randn(4, 5, 3), torch.randn(4, 3, 2), torch.randn(4, 1, 2)


def operators_of(function: Any, tensors: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return the operators of a function's graph, after a check that the graph computes the same."""
    graphs: list[torch.fx.GraphModule] = []

    def kept(graph: torch.fx.GraphModule, fakes: list[Any]) -> Any:
        graphs.append(graph)
        return lambda given: graph(*given)

    monkeypatch.setattr(private_api, "_compile", kept)
    made = private_api.Compiled(function, tensors, [False] * len(tensors))(tensors)
    assert_close(made[0], function(*tensors)[0])
    return {str(node.target) for node in graphs[0].graph.nodes if node.op == "call_function"}


def test_product_and_bias_are_two_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    one = operators_of(lambda b, x, w: [torch.addmm(b, x, w)], [BIAS, X, WEIGHT], monkeypatch)
    assert {"aten.bmm.default", "aten.add.Tensor"} <= one
    assert "aten.addmm.default" not in one
    several = operators_of(lambda b, x, w: [torch.baddbmm(b, x, w)], [BIASES, XS, WEIGHTS], monkeypatch)
    assert several == {"aten.bmm.default", "aten.add.Tensor"}


def test_scaled_product_stays_one_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    one = operators_of(lambda b, x, w: [torch.addmm(b, x, w, alpha=2)], [BIAS, X, WEIGHT], monkeypatch)
    assert one == {"aten.addmm.default"}
    several = operators_of(lambda b, x, w: [torch.baddbmm(b, x, w, beta=0.5)], [BIASES, XS, WEIGHTS], monkeypatch)
    assert several == {"aten.baddbmm.default"}
