"""The private names of torch and Lightning that this package uses, all in this file.

Each part says why no public name does, and what happens where the name is missing. They were checked with torch 2.13
and Lightning 2.6.6, which ``constraints.txt`` has. What only saves time also says how much: the CPU time of a workload
without it, as a share of the time with it (``benchmarks/workload.py``, runs in turns in one process, one thread).

``tests/utils/test_private_api.py`` finds private names in other files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from operator import is_
from typing import Any
from weakref import WeakKeyDictionary

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.model_helpers import _restricted_classmethod
from torch import Tensor, nn
from torch.autograd import Variable
from torch.optim import Optimizer
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = [
    "TorchDispatchMode",
    "pytree",
]  # ``torch.utils`` has no public name for them; without them the import of this module fails

# ---------------------------------------------------------------------- Lightning

LOGGER_CONNECTOR = "_logger_connector"
"""Attribute of a Trainer through which Lightning's monitors log; if it is renamed, they log over rounds."""
TRAINER = "_trainer"
"""Attribute of a module that holds its Trainer, where ``module.trainer`` may raise; without it, no fit is seen."""
INSTANTIATOR = "_instantiator"
"""Key of a checkpoint's hyper-parameters that names a function to call; if it is renamed, none is called here."""
only_on_class = _restricted_classmethod
"""Decorator of Lightning's ``load_from_checkpoint``, which refuses calls on an instance. Without it, imports fail."""


def starts_processes(launcher: Any) -> bool:
    """Return whether a launcher spawns or forks its ranks. The class has no public name; without it, imports fail."""
    return isinstance(launcher, _MultiProcessingLauncher)


def checkpoint_option(callback: Any, name: str, default: Any) -> Any:
    """Return an argument of a ``ModelCheckpoint``, which has no public name for some; the default if it is missing."""
    return getattr(callback, f"_{name}", default)


def observe_checkpoint(trainer: Trainer, note: Callable[[str | None], None]) -> None:
    """Call ``note`` with the path from which a Trainer resumes as soon as it has chosen it; None without one.

    Lightning sets ``Trainer.ckpt_path`` only after the loggers have begun their runs. It has no public hook before.
    Where the method is missing, ``note`` is never called.
    """
    connector: Any = trainer._checkpoint_connector
    choose = getattr(type(connector), "_select_ckpt_path", None)

    def chosen(*args: Any, **kwargs: Any) -> Any:
        path = choose(connector, *args, **kwargs)  # type: ignore[misc]
        note(None if path is None else str(path))
        return path

    if choose is not None:
        connector._select_ckpt_path = chosen


def set_attribute(module: LightningModule, name: str, value: Any) -> None:
    """Set an attribute of a module.

    Lightning sets the name of the current hook 20 times in a round, and torch examines each attribute that is set. With
    that, and with the hooks of ``call_batch_hook``, W1 takes 0.4 to 5 % longer, compiled, in five runs. Where the name
    is missing, it does.
    """
    if name == "_current_fx_name":
        vars(module)[name] = value
    else:
        LightningModule.__setattr__(module, name, value)


def call_batch_hook(module: Any, hook_name: str, *args: Any) -> Any:
    """Call a hook of the transfer of a batch, unless the policy's learner knows that it has no effect."""
    if module.learner.keeps_batches and module._trainer is not None and module._trainer.state.fn is TrainerFn.FITTING:
        return args[0]
    return LightningModule._call_batch_hook(module, hook_name, *args)


# ---------------------------------------------------------------------- optimizers and gradients

ADAM: Any = getattr(torch, "_fused_adam_", None)
"""The kernel of a fused Adam; None if it is missing, then ``optimizer.step`` is called. See ``FusedAdam``."""
ADAMW: Any = getattr(torch, "_fused_adamw_", None)
"""The same for AdamW."""


def has_step_hooks(optimizer: Optimizer) -> bool:
    """Return whether hooks of a user are called around ``optimizer.step``; there is no public way to see them."""
    own: Any = optimizer
    return bool(own._optimizer_step_pre_hooks or own._optimizer_step_post_hooks)


def can_skip_on_device(optimizer: Optimizer) -> bool:
    """Return whether an optimizer skips a step by itself where ``found_inf`` is 1, as a ``GradScaler`` asks for.

    It has no public name. Where it is missing, each step on a GPU waits for the check of its gradient.
    """
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


ENGINE: Any = getattr(Variable, "_execution_engine", None)
UNSCALE: Any = getattr(torch, "_amp_foreach_non_finite_check_and_unscale_", None)
_ONE = torch.ones(())


def backward(loss: Tensor, inputs: Sequence[Tensor]) -> None:
    """Accumulate the gradients of a loss, a scalar, in ``grad`` of some parameters.

    Networks that the loss passes through, but that are not trained, cost nothing. The engine is called without the
    checks of ``loss.backward(inputs=inputs)``, which is used where it is missing: then W1 takes 5 % longer.
    """
    if ENGINE is None:
        loss.backward(inputs=list(inputs))
        return
    ENGINE.run_backward((loss,), (torch.ones_like(loss),), False, False, tuple(inputs), True, accumulate_grad=True)


def note_non_finite(tensors: Sequence[Tensor], found: Tensor) -> Tensor:
    """Set ``found``, a scalar, to 1 if a tensor contains a non-finite value, and return it.

    This is the function of ``GradScaler``, which also multiplies the tensors by a scale, here 1. Where it is missing,
    the tensors are added up: then W1 takes 5 % longer, and 20 % with ``get_total_norm``.
    """
    if UNSCALE is None:
        return found.masked_fill_(~torch.stack([tensor.sum() for tensor in tensors]).sum().isfinite(), 1.0)
    UNSCALE(tensors, found, _ONE if found.device.type == "cpu" else torch.ones((), device=found.device))
    return found


_COPY_ALL: Any = getattr(torch, "_foreach_copy_", None)


def copy_tensors(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy tensors into others of the same shapes, in one launch on a GPU; one by one if torch lacks the function."""
    if _COPY_ALL is not None and targets:
        _COPY_ALL(targets, sources)
    else:
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)


# ---------------------------------------------------------------------- modules

MODULES = "_modules"
"""Attribute in which an ``nn.Module`` keeps its submodules by name."""
MODULE_DICTS = (MODULES, "_parameters", "_buffers")
"""Attributes in which an ``nn.Module`` keeps its parts; without them a policy cannot be exported."""
HOOKS_OF_ALL = [
    getattr(nn.modules.module, f"_global_{kind}_hooks")
    for kind in ("forward", "forward_pre", "backward", "backward_pre")
]
"""Hooks of all modules of the process, by their ids; torch changes these dicts in place."""


def has_forward_hooks(module: nn.Module) -> bool:
    """Return whether a call of a module calls hooks of it; torch has no public way to see them."""
    return bool(module._forward_pre_hooks or module._forward_hooks)


def is_plain(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """Return whether a call of a layer does nothing but compute: its class is exactly ``kind``, and it has no hooks."""
    own = layer.__dict__
    return type(layer) is kind and not (
        own["_forward_pre_hooks"]
        or own["_forward_hooks"]
        or own["_backward_hooks"]
        or own["_backward_pre_hooks"]
        or "forward" in own
        or "_compiled_call_impl" in own
        or any(HOOKS_OF_ALL)
    )


def linear_weights(layer: nn.Module) -> tuple[Tensor, Tensor | None] | None:
    """Return the weight and the bias of a plain ``nn.Linear``, which need not be called; None for all other layers.

    The weights of a pruned or spectrally normalised layer are computed by a hook, so it is called, as is a layer that
    has replaced a linear one. If all are called, W1 takes 2 to 3 % longer.
    """
    weights = layer._parameters
    if not is_plain(layer, nn.Linear) or "weight" not in weights or "bias" not in weights:
        return None  # without these keys, they are not parameters any more
    return weights["weight"], weights["bias"]  # type: ignore[return-value]


def tensor_dicts(module: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parameters and the buffers of a module by name, each in the dict that the module itself reads.

    Compiled code finds the present tensors there. ``getattr`` finds them too, and takes ten times as long.
    """
    return module._parameters, module._buffers


_TENSORS: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()


def tensors_of(module: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """Return what ``parameters()`` and ``buffers()`` of a module give, without a walk while nothing in it is replaced.

    The walk calls ten functions for each submodule: without the dicts in which a module keeps its parts, W3 takes 0.2
    to 1.3 % longer, in four runs.
    """
    found, dicts, parts = _TENSORS.get(module, (None, [], []))
    now = list(chain.from_iterable(map(dict.values, dicts)))
    if not now or len(now) != len(parts) or not all(map(is_, now, parts)):
        dicts = [getattr(one, name) for one in module.modules() for name in MODULE_DICTS]
        parts, found = (
            list(chain.from_iterable(map(dict.values, dicts))),
            (list(module.parameters()), list(module.buffers())),
        )
        _TENSORS[module] = found, dicts, parts
    return found  # type: ignore[no-any-return]


# ---------------------------------------------------------------------- machine code for a function of tensors
#
# ``torch.compile`` needs several times as long for the same graph, because it interprets the bytecode of the function,
# and its checks before each call take as long as an update of a small network. Here the function is run once on tensors
# without data, which records its operators, and their graph is compiled. ``make_fx``, ``FakeTensorMode`` and
# ``compile_fx_inner`` are not public. An error in any of them means that updates run eagerly.

Function = Callable[..., list[Any]]

OPTIONS = {"fallback_random": True}  # random numbers are those of eager code
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


def compiled(
    function: Function, tensors: Sequence[Tensor], sized: Sequence[bool]
) -> tuple[list[int], Callable[[list[Tensor]], Sequence[Any]]]:
    """Return the indices of the arguments that a function reads, and compiled code, which takes these in a list."""
    from torch._subclasses import FakeTensorMode  # importing the compiler takes a second
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    fake_mode = FakeTensorMode(shape_env=ShapeEnv())
    fakes = [_fake(fake_mode, tensor, is_sized) for tensor, is_sized in zip(tensors, sized, strict=True)]
    with fake_mode, torch._guards.tracing(torch._guards.TracingContext(fake_mode)):
        graph = _trace(function, fakes, any(sized))
        used = _drop_unused_inputs(graph)
        return used, _compile(graph, [fakes[index] for index in used])


def _fake(mode: Any, tensor: Tensor, is_sized: bool) -> Any:
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

    sizes = [DimDynamic.STATIC] * tensor.ndim
    if is_sized and tensor.ndim > 0:
        sizes[0] = DimDynamic.DUCK
    return mode.from_tensor(tensor, symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes))


def _trace(function: Function, fakes: list[Any], has_sizes: bool) -> torch.fx.GraphModule:
    from torch._inductor import config
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    without_mutations = torch.func.functionalize(function, remove="mutations")
    mode: Any = "symbolic" if has_sizes else "real"  # the tensors are fake already
    with config.patch(OPTIONS):
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
    with config.patch(OPTIONS | CPU_OPTIONS if is_on_cpu else OPTIONS), torch.no_grad():
        code: Any = compile_fx_inner(graph, fakes, cpp_wrapper=is_on_cpu, is_inference=True)
    if is_on_cpu:
        return getattr(code, "current_callable", code)  # type: ignore[no-any-return]
    return torch.no_grad()(code)  # type: ignore[no-any-return] # products write to memory, which weights must not record
