"""The gradient of a loss in compiled code; everything after it is the same as in an eager update.

A loss is compiled with its backward pass and the norm of the gradient as one graph. The optimizer's step stays outside:
a fused Adam is one kernel already, and without it the graph is a third of the size, which takes a third of the time to
compile. So any optimizer works, and its state does not depend on whether an update is compiled.
"""

from __future__ import annotations

import functools
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value

from lightning_ding import nested
from lightning_ding.utils.compiled import (
    MOST_CODES,
    Batch,
    Compiled,
    CompiledFunction,
    Place,
    has_one_length,
    nest,
    paths_of,
    read,
    structure_of,
)
from lightning_ding.utils.private_api import pytree, tensor_dicts

logger = logging.getLogger(__name__)

LossFunction = Callable[[Any], tuple[Tensor, dict[str, Any]]]  # of a typed minibatch
AUTO_UPDATES = 20_000  # from which on compile="auto" compiles, see docs/results.md
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
ACTING = ("_forward_collect", "_logit", "_distribution", "_draw", "_to_env")  # methods that compiled acting is made of
SMALLEST = 64  # trained numbers; compiling a loss takes seconds, and saves nothing for a temperature


class Differentiated(NamedTuple):
    """The result of a loss whose gradient was computed."""

    loss: Tensor
    """A scalar."""
    norm: Tensor
    """Norm of the gradient of all parameters together, a scalar."""
    report: dict[str, Any]
    """Values that the loss reports."""


class Compiler:
    """Computes gradients in compiled code, and warns if that does not work.

    Args:
        module: The policy.
        graphs: Whether calls of compiled code on a CUDA device are CUDA graphs.
    """

    def __init__(self, module: nn.Module, graphs: bool = False) -> None:
        self._module = module
        self.graphs = graphs
        self._gradients: dict[Any, CompiledGradient | None] = {}
        self._parts: dict[Any, CompiledPart] = {}
        self.functions: dict[Any, CompiledFunction] = {}
        """Functions of the policy and of its envs without gradient."""
        self._acts: bool | None = None  # whether it acts by compiled code; None before the first time
        self._has_failed = False

    @property
    def seconds(self) -> float:
        """Time that compiling has taken so far, with the first update of each kind."""
        made = [*self._gradients.values(), *self.functions.values(), *self._parts.values()]
        return sum(one.seconds for one in made if one is not None)

    def differentiate(
        self, loss: LossFunction, batch: Batch, parameters: Sequence[Tensor], direct: bool
    ) -> Differentiated | None:
        """Set ``grad`` of each parameter as ``loss(batch)[0].backward()`` does; None if that has to be done eagerly.

        Args:
            loss: A function of tensors only.
            batch: The argument of ``loss``.
            parameters: The parameters of ``module`` that are trained; ``grad`` of others does not change.
            direct: Whether Lightning's hooks of an update can be skipped; compiled code cannot call them.
        """
        if self._has_failed:
            return None
        if not direct:
            self._give_up("a callback, a profiler or the precision takes part in each update")
            return None
        try:
            key = getattr(loss, "__func__", loss), id(parameters[0]), len(parameters)
            if key not in self._gradients:
                is_small = sum(parameter.numel() for parameter in parameters) < SMALLEST
                self._gradients[key] = (
                    None if is_small else CompiledGradient(self._module, loss, parameters, self.graphs)
                )
            gradient = self._gradients[key]
            return None if gradient is None else gradient(batch)
        except Exception as error:  # whatever the compiler stumbles over; an error of the loss itself comes again
            self._give_up(f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}")
            return None

    def call(self, method: Callable[..., Any], obs: Any, sized: bool = False, **settings: Tensor) -> Any:
        """Return the result of a method of the policy, by compiled code where that works.

        Args:
            method: A function of tensors and of the policy's tensors, without gradient, which changes nothing.
            obs: Its argument, nested tensors.
            sized: Whether the leading axis of ``obs`` may have any length, with one code.
            settings: Further arguments.
        """
        key: Any = method.__func__  # type: ignore[attr-defined]
        function = self.functions.get(key)
        if function is None:
            caller = _Caller(self._module, functools.partial(_with_settings, method))
            run = functools.partial(_call_with, caller)
            name, owned = f"calls of {key.__qualname__}", dict(_owned_tensors(caller))
            function = self.functions[key] = CompiledFunction(name, run, owned, sized, self.graphs)
        found = function({"obs": obs, "settings": settings})
        return method(obs, **settings) if found is None else found

    def part(self, function: Callable[..., Any]) -> CompiledPart:
        """Return a method that is called often in a loss, such as one step of a loop, in code compiled once.

        A policy that has such parts sets ``compiles_losses`` to False: its losses run eagerly and call them.
        """
        key = function.__func__, id(function.__self__)  # type: ignore[attr-defined]
        if key not in self._parts:
            self._parts[key] = CompiledPart(function)
        return self._parts[key]

    def act(self, obs: Any, settings: Mapping[str, Any]) -> Any:
        """Return what ``_collect`` of the policy does, by compiled code if acting consists of this package's methods.

        Args:
            obs: B observations as tensors.
            settings: Arguments of ``_forward_collect``: numbers and tensors.
        """
        policy: Any = self._module
        if self._acts is None:
            own = [name for name in ACTING if not _is_of_package(policy, name)]
            self._acts = getattr(policy, "compiles_acting", False) and not own
            if own:
                rank_zero_info(f"acting is not compiled, because {type(policy).__name__} has its own {', '.join(own)}")
        if not self._acts:
            return policy._collect(obs, **settings)
        policy._require_field("collect")
        return policy._action_selector(self._act, obs, policy.device, **settings)

    def _act(self, obs: Any, **settings: Any) -> Any:
        policy: Any = self._module
        given: dict[str, Any] = {
            name: value if isinstance(value, Tensor) else torch.full((), value, device=policy.device)
            for name, value in settings.items()
        }
        return self.call(policy._forward_collect, obs, **given)

    def _give_up(self, reason: str) -> None:
        self._has_failed = True
        logger.warning("compile=True, but updates run eagerly: %s", reason)


def automatic_compiler(policy: Any, known: Compiler | None, num_ranks: int) -> Compiler | None:
    """Return a compiler if compiling pays in the run that begins, else None; log which it is, and why.

    The choice follows from the config alone, and not from a clock, so that equal runs stay equal.

    Args:
        policy: A :class:`Policy` with its network.
        known: The compiler of an earlier fit, which is used again.
        num_ranks: Number of ranks that train.
    """
    updates = expected_updates(policy, num_ranks)
    convolves = policy.device.type == "cpu" and any(isinstance(module, CONVOLUTIONS) for module in policy.modules())
    pays = updates is not None and updates >= AUTO_UPDATES and not convolves
    if updates is None:
        reason = "the length of the run is not known; max_env_step or max_train_iter limits it"
    elif convolves:
        reason = "on a CPU, compiled convolutions are not faster"
    else:
        reason = f"the run makes about {updates:,} updates, and compiling pays from {AUTO_UPDATES:,} on"
    rank_zero_info(f"compile='auto': updates run {'compiled' if pays else 'eagerly'}, because {reason}")
    return (known or Compiler(policy)) if pays else None


def expected_updates(policy: Any, num_ranks: int) -> int | None:
    """Return how many updates a run makes until its budget is spent; None if that is not known.

    Args:
        policy: A :class:`Policy`.
        num_ranks: Number of ranks that train; ``n_sample`` is collected on each.
    """
    progress, n_sample = policy.progress, policy.n_sample
    if progress.budget is None or progress.axis == "train_iter":
        return progress.budget  # type: ignore[no-any-return]
    if n_sample is None:  # whole episodes, of unknown lengths
        return None
    return progress.budget * policy.update_per_collect // (n_sample * num_ranks)  # type: ignore[no-any-return]


class CompiledPart:
    """A function of tensors in compiled code, with gradient; eager code, after a warning, where that does not work.

    Args:
        function: Takes and returns tensors.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._name, self._eager = function.__qualname__, function
        self._run: Callable[..., Any] = torch.compile(function, dynamic=False)
        self._is_new = True
        self.seconds = 0.0
        """Time of the first call, without its backward pass."""

    def __call__(self, *tensors: Tensor) -> Any:
        """Return what the function returns."""
        if not self._is_new:
            return self._run(*tensors)
        self._is_new, begin = False, time.perf_counter()
        rank_zero_info(f"compiling {self._name}; the first time on a machine takes some seconds")
        try:
            return self._run(*tensors)
        except Exception as error:  # whatever the compiler stumbles over; an error of the function comes again
            reason = (str(error).strip().splitlines() or [""])[0]
            logger.warning("compile=True, but %s runs eagerly: %s: %s", self._name, type(error).__name__, reason)
            self._run = self._eager
            return self._run(*tensors)
        finally:
            self.seconds += time.perf_counter() - begin


class CompiledGradient:
    """Computes a loss and its gradient in compiled code; the result equals that of eager code up to rounding.

    A batch of another structure is compiled again. So is a batch of another shape, once: that code takes batches of any
    length. Where the tensors of a batch have different lengths, each combination is compiled, up to ``MOST_CODES``;
    further ones are left to eager code. Python values that the loss reads, such as a config's, are constants.

    Args:
        module: Holds every parameter and buffer that the loss reads.
        loss: A function of tensors.
        parameters: The parameters whose gradient is computed.
        graphs: Whether calls on a CUDA device are CUDA graphs.
    """

    def __init__(
        self, module: nn.Module, loss: LossFunction, parameters: Sequence[Tensor], graphs: bool = False
    ) -> None:
        self._name, self._graphs = getattr(loss, "__name__", "a loss"), graphs
        self._caller = _Caller(module, loss)
        self._parameters = list(parameters)
        self._codes_of: Counter[Any] = Counter()  # by structure
        self._has_warned = False
        self._code: dict[Any, _Code] = {}
        self._latest: _Code | None = None
        self.seconds = 0.0
        """Time that compiling has taken so far."""

    def __call__(self, batch: Batch) -> Differentiated | None:
        """Set ``grad`` of the parameters, and return the loss, the norm of the gradient and the loss's report.

        Args:
            batch: The argument of the loss.

        Returns:
            None if there is no code for batches like this one, and as many codes as there may be.
        """
        form: list[Any] = []
        leaves = read(batch, form)
        code = self._latest
        if code is None or code.form != form or code.kind != self._kind:
            code = self._latest = self._code_for(batch)
        return None if code is None else code(leaves)

    def _code_for(self, batch: Batch) -> _Code | None:
        """Return code for batches like this one, compiled now if there is none; None after ``MOST_CODES`` codes."""
        structure, lengths = structure_of(batch), tuple([len(leaf) for leaf in nested.leaves(batch) if leaf.ndim])
        code = self._code.get((structure, lengths)) or self._code.get((structure, has_one_length(lengths)))
        if code is None and self._codes_of[structure] >= MOST_CODES:
            self._warn()
        elif code is None or code.kind != self._kind:
            code = self._compiled(batch, structure, lengths)
        return code

    def _warn(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            text = "updates with %s are compiled for %d shapes of batches; those with other shapes run eagerly"
            logger.warning(text, self._name, MOST_CODES)

    @property
    def _kind(self) -> Any:
        """The properties of parameters that ``double()``, ``to(device)`` and autocast contexts change."""
        first = self._parameters[0]
        return first.dtype, first.device, torch.is_autocast_enabled(first.device.type)

    def _compiled(self, batch: Batch, structure: Any, lengths: tuple[int, ...]) -> _Code:
        is_general = structure in self._codes_of and has_one_length(lengths)
        begin = time.perf_counter()
        rank_zero_info(f"compiling an update with {self._name}; the first time on a machine takes some seconds")
        code = _Code(self._caller, self._parameters, batch, self._kind, is_general, self._graphs)
        key = structure, True if is_general else lengths
        self._codes_of[structure] += key not in self._code
        self._code[key] = code
        seconds = time.perf_counter() - begin
        rank_zero_info(f"compiled an update with {self._name} in {seconds:.1f} s")
        self.seconds += seconds
        return code


class _Code:
    """Compiled code for batches of one structure.

    Args:
        caller: Reads tensors of the policy and of the batch.
        parameters: The parameters whose gradient is computed.
        batch: An example.
        kind: Description of the tensors of the policy.
        is_general: Whether batches may have another length.
        graphs: Whether calls on a CUDA device are CUDA graphs.
    """

    def __init__(
        self,
        caller: _Caller,
        parameters: list[Tensor],
        batch: Batch,
        kind: Any,
        is_general: bool,
        graphs: bool,
    ) -> None:
        self.kind = kind
        self.form: list[Any] = []
        read(batch, self.form)
        self._report: Any = None
        self._report_names: tuple[str, ...] | None = None  # of a report that is a flat dict of tensors
        owned, paths = dict(_owned_tensors(caller)), list(paths_of(batch))
        state = {name: owner[key].detach() for name, (owner, key) in owned.items()}
        name_of = {id(owner[key]): name for name, (owner, key) in owned.items()}
        names = [name_of[id(parameter)] for parameter in parameters]
        self._is_read = _which_are_read(caller, state, names, batch)
        trained = [name for name, is_read in zip(names, self._is_read, strict=True) if is_read]
        layouts = {name: _layout(state[name]) for name in trained}  # a fused optimizer reads both in order of memory
        self._parameters = parameters

        def differentiate(*tensors: Tensor) -> list[Any]:
            given = {name: tensor.detach() for name, tensor in zip(owned, tensors, strict=False)}
            arguments = nest(paths, tensors[len(owned) :])

            def loss_of(some: dict[str, Tensor]) -> Any:
                return functional_call(caller, given | some, (arguments,))

            gradients, (loss, report) = grad_and_value(loss_of, has_aux=True)({name: given[name] for name in trained})
            found = [gradients[name].contiguous(memory_format=layouts[name]) for name in trained]
            norm = torch.stack([gradient.square().sum() for gradient in found]).sum().sqrt()
            reported, self._report = pytree.tree_flatten(report)
            is_flat = type(report) is dict and all(isinstance(value, Tensor) for value in report.values())
            self._report_names = tuple(report) if is_flat else None
            return [*found, loss.detach(), norm, *reported]

        leaves = [leaf.contiguous() for leaf in nested.leaves(batch)]
        sized = [False] * len(owned) + [is_general] * len(leaves)
        self._compiled = Compiled(differentiate, [*state.values(), *leaves], sized, len(owned), graphs)
        places = list(owned.values())
        self._owned = [places[place] for place in self._compiled.used if place < len(owned)]
        self._places = [place - len(owned) for place in self._compiled.used if place >= len(owned)]

    def __call__(self, leaves: Sequence[Tensor]) -> Differentiated:
        """Set ``grad`` of the parameters for the leaves of a batch, and return the rest."""
        tensors = [owner[name] for owner, name in self._owned]
        tensors += [leaves[place].contiguous() for place in self._places]
        made = iter(self._compiled(tensors))
        for parameter, is_read in zip(self._parameters, self._is_read, strict=True):
            parameter.grad = next(made) if is_read else None
        loss, norm = next(made), next(made)
        names = self._report_names
        report = (
            pytree.tree_unflatten(list(made), self._report) if names is None else dict(zip(names, made, strict=True))
        )
        return Differentiated(loss, norm, report)


class _Caller(nn.Module):
    """A module whose ``forward`` is a loss, so that it can be called with other parameters than its own."""

    def __init__(self, module: nn.Module, loss: LossFunction) -> None:
        super().__init__()
        self.module = module
        self.loss = loss

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Any]]:
        """Return the loss of a batch, a scalar, and its metrics."""
        return self.loss(batch)


def _with_settings(method: Callable[..., Any], batch: Batch) -> Any:
    return method(batch["obs"], **batch.get("settings", {}))


def _call_with(caller: _Caller, batch: Batch, given: dict[str, Tensor]) -> Any:
    return functional_call(caller, given, (batch,))


def _is_of_package(policy: Any, name: str) -> bool:
    """Return whether a method of a policy, if it has one of this name, is this package's."""
    method = getattr(type(policy), name, None)
    return name not in vars(policy) and (
        method is None or method.__module__.startswith(f"{__package__.split('.')[0]}.")
    )


def _which_are_read(caller: _Caller, state: dict[str, Tensor], names: Sequence[str], batch: Batch) -> list[bool]:
    """Return for each named parameter whether the loss depends on it, from an eager pass that changes nothing."""
    copied = {name: tensor.clone() for name, tensor in state.items()}
    inputs = [copied[name].requires_grad_() for name in names]
    with torch.enable_grad():
        loss, _ = functional_call(caller, copied, (batch,))
    return [gradient is not None for gradient in torch.autograd.grad(loss, inputs, allow_unused=True)]


def _layout(parameter: Tensor) -> torch.memory_format:
    for layout in (torch.contiguous_format, torch.channels_last):
        if parameter.is_contiguous(memory_format=layout):
            return layout
    raise ValueError(f"parameters must be contiguous, got one with strides {parameter.stride()}")


def _owned_tensors(module: nn.Module) -> Iterator[tuple[str, Place]]:
    """Yield the name of each parameter and buffer of a module, and the dict with the key where it is found."""
    seen: set[int] = set()
    for prefix, below in module.named_modules():
        owners = tensor_dicts(below)
        for owner, name, tensor in [(one, *item) for one in owners for item in one.items()]:
            if tensor is not None and id(tensor) not in seen:
                seen.add(id(tensor))
                yield f"{prefix}.{name}", (owner, name)
