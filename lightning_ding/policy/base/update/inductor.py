"""Machine code for a function of tensors, made by TorchInductor without TorchDynamo.

``torch.compile`` needs several times as long for the same graph, because it interprets the bytecode of the function,
and its checks before each call take as long as an update of a small network. Here the function is run once on tensors
without data, which records its operators, and their graph is compiled. What this needs is not public in torch:
``make_fx``, ``FakeTensorMode``, ``functionalize`` and ``compile_fx_inner`` (tested with torch 2.13). An error in any of
them means that updates run eagerly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Function = Callable[..., list[Any]]

CPU_OPTIONS: dict[str, Any] = {
    "cpp_wrapper": True,  # kernels and matrix products are called from C++, and compiled in one file
    "cpp_cache_precompile_headers": False,  # it takes longer than compiling two functions without it
    "cpp.vec_isa_ok": True,  # otherwise test programs are compiled to see what the processor can do
}


def _product_and_bias(bias: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    """Return ``bias + left @ right`` as two operators.

    As one, the bias is first copied to each row of the result, and the product is added to it. Apart, the bias is added
    in the loop that applies the activation. The compiler would join a matrix product to its bias again, but not a
    product of a batch.
    """
    if beta != 1 or alpha != 1:
        return NotImplemented
    if left.ndim == 3:
        return torch.bmm(left, right) + bias
    return torch.bmm(left.unsqueeze(0), right.unsqueeze(0)).squeeze(0) + bias


APART: dict[Any, Any] = {
    torch.ops.aten.addmm.default: _product_and_bias,
    torch.ops.aten.baddbmm.default: _product_and_bias,
}


class Compiled:
    """A compiled function of tensors.

    Args:
        function: Takes tensors, and returns a list of tensors and None. It may read no other tensors.
        tensors: Example arguments; all later ones have their types, devices, shapes and strides.
        sized: Whether the leading axis of each argument may have another length; equal lengths stay equal.
    """

    def __init__(self, function: Function, tensors: Sequence[Tensor], sized: Sequence[bool]) -> None:
        from torch._subclasses import FakeTensorMode  # importing the compiler takes a second
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        fake_mode = FakeTensorMode(shape_env=ShapeEnv())
        fakes = [_fake(fake_mode, tensor, is_sized) for tensor, is_sized in zip(tensors, sized, strict=True)]
        with fake_mode, torch._guards.tracing(torch._guards.TracingContext(fake_mode)):
            graph = _trace(function, fakes, any(sized))
            self.used = _drop_unused_inputs(graph)
            """Indices of the arguments that the function reads."""
            self._code = _compile(graph, [fakes[index] for index in self.used])

    def __call__(self, tensors: list[Tensor]) -> Sequence[Any]:
        """Return what the function returns for the arguments with the indices ``used``; the list is emptied."""
        made: Sequence[Any] = self._code(tensors)
        return made


def _fake(mode: Any, tensor: Tensor, is_sized: bool) -> Any:
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

    sizes = [DimDynamic.STATIC] * tensor.ndim
    if is_sized and tensor.ndim > 0:
        sizes[0] = DimDynamic.DUCK
    return mode.from_tensor(tensor, symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes))


def _trace(function: Function, fakes: list[Any], has_sizes: bool) -> torch.fx.GraphModule:
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    without_mutations = torch.func.functionalize(function, remove="mutations")
    mode: Any = "symbolic" if has_sizes else "real"  # the tensors are fake already
    table = select_decomp_table() | APART
    return make_fx(without_mutations, decomposition_table=table, tracing_mode=mode)(*fakes)


def _drop_unused_inputs(graph: torch.fx.GraphModule) -> list[int]:
    graph.graph.eliminate_dead_code()
    inputs = graph.graph.find_nodes(op="placeholder")
    used = [index for index, node in enumerate(inputs) if node.users]
    for node in inputs:
        if not node.users:
            graph.graph.erase_node(node)
    graph.recompile()
    return used


def _compile(graph: torch.fx.GraphModule, fakes: list[Any]) -> Callable[[list[Tensor]], Any]:
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner

    output: Any = graph.graph.output_node()
    output.meta["user_visible_output_idxs"] = list(range(len(output.args[0])))  # otherwise strides could change
    is_on_cpu = all(fake.device.type == "cpu" for fake in fakes)
    with config.patch(CPU_OPTIONS if is_on_cpu else {}), torch.no_grad():
        code: Any = compile_fx_inner(graph, fakes, cpp_wrapper=is_on_cpu, is_inference=True)
    return code  # type: ignore[no-any-return]
