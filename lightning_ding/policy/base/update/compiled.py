"""A whole update as one compiled graph: loss, gradient, clipping and Adam or AdamW.

``loss.backward()`` and ``optimizer.step()`` cannot be compiled together without a break in between (torch 2.13); the
functional forms of both can. The optimizer's own state tensors are used, so checkpoints are those of an eager run.
"""

from __future__ import annotations

import logging
import re
import time
import types
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value
from torch.optim.adam import adam

from lightning_ding import nested
from lightning_ding.policy.base.trainer import count_optimizer_step
from lightning_ding.policy.base.update.fused_adam import SMALLEST_EPS, STATE, DenormalsAreZero, is_same
from lightning_ding.policy.base.update.gradient_clipping import NO_CLIP, GradClip, clip_gradients
from lightning_ding.policy.base.update.non_finite import NonFiniteGuard, OnNonFinite

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

from lightning_ding.ranks import on_all_ranks, world_size

logger = logging.getLogger(__name__)

Batch = dict[str, Any]
LossFunction = Callable[[Batch], tuple[Tensor, dict[str, Any]]]


class RanksDisagreeError(RuntimeError):
    """Some ranks have made a compiled step and others could not, so none can continue."""


class Compiler:
    """Makes updates in compiled code, and warns if that does not work.

    Args:
        module: The policy.
        guard: Checks for non-finite values.
    """

    def __init__(self, module: nn.Module, guard: NonFiniteGuard) -> None:
        self._module = module
        self._guard = guard
        self._updates: dict[Any, CompiledUpdate] = {}
        self._has_failed = False
        self._checked_for: Any = None

    @property
    def seconds(self) -> float:
        """Time that compiling has taken so far, with the first update of each kind."""
        return sum(update.seconds for update in self._updates.values())

    def minimise(
        self,
        loss: LossFunction,
        batch: Batch,
        optimizer: torch.optim.Optimizer,
        clip: GradClip,
        trainer: Trainer | None,
        direct: bool,
        updates: int | None = None,
    ) -> dict[str, Any] | None:
        """Make an update, and return the loss's report; None if it has to be made eagerly.

        Args:
            loss: A function of tensors only.
            batch: The argument of ``loss``; with ``updates``, several of them along a leading axis.
            optimizer: The optimizer that steps.
            clip: How the gradient is clipped.
            trainer: The Trainer of the current fit, whose ``global_step`` is counted; None outside a fit.
            direct: Whether Lightning's hooks of an update can be skipped; compiled code cannot call them.
            updates: Number of updates to make in one piece, which is faster; None for one.

        Raises:
            NonFiniteError: If the guard does.
        """
        if self._has_failed:
            return None
        if (trainer, direct) != self._checked_for:
            self._checked_for = (trainer, direct)
            if not on_all_ranks(trainer is None or direct):
                self._give_up("a callback, a profiler or the precision takes part in each update")
                return None
        try:
            update = self._update(loss, optimizer, clip)
            torch.clear_autocast_cache()  # it may contain weights from before an eager update of this round
            made = update(batch, updates, self._guard.stopped(update.device))
        except RanksDisagreeError:
            raise
        except Exception as error:  # whatever the compiler stumbles over; an error of the loss itself comes again
            self._give_up(f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}")
            return None
        if trainer is not None:
            for _ in range(updates or 1):
                count_optimizer_step(trainer)
        self._guard.take(update.names, made.numbers, made.stopped, optimizer)
        return made.report

    def _update(self, loss: LossFunction, optimizer: torch.optim.Optimizer, clip: GradClip) -> CompiledUpdate:
        key = (getattr(loss, "__func__", loss), id(optimizer), clip)
        if key not in self._updates:
            self._updates[key] = CompiledUpdate(self._module, loss, optimizer, clip, self._guard.mode)
        return self._updates[key]

    def _give_up(self, reason: str) -> None:
        self._has_failed = True
        logger.warning("compile=True, but updates run eagerly: %s", reason)


class Made(NamedTuple):
    """The result of a compiled update, or of U of them."""

    report: dict[str, Any]
    """The report of the last update's loss."""
    numbers: Tensor
    """The loss, then the square of the norm of each of P gradients, shape (1 + P,) or (U, 1 + P)."""
    stopped: Tensor
    """Whether all further updates are skipped, a scalar, 0 or 1."""


class CompiledUpdate:
    """Makes an update in compiled code; the result equals that of eager code up to rounding.

    A batch of another structure is compiled again, and so is its second shape. Python values that the loss reads, such
    as a config's, are constants.

    Args:
        module: Holds every parameter of the optimizer.
        loss: A function of tensors that reads the parameters from ``module``.
        optimizer: An Adam or AdamW.
        clip: How the gradient is clipped.
        on_non_finite: ``"warn"`` makes every update; ``"skip_update"`` skips those whose loss or gradient is not
            finite, and ``"raise"`` all later ones too.

    Raises:
        TypeError: If the optimizer is another one than Adam or AdamW, or uses ``amsgrad`` or several groups.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: LossFunction,
        optimizer: torch.optim.Optimizer,
        clip: GradClip = NO_CLIP,
        on_non_finite: OnNonFinite = "raise",
    ) -> None:
        groups = optimizer.param_groups
        kinds = (torch.optim.Adam, torch.optim.AdamW)
        if type(optimizer) not in kinds or len(groups) != 1 or groups[0]["amsgrad"]:
            allowed = "only torch.optim.Adam and AdamW with one group and no amsgrad can be compiled"
            raise TypeError(f"{allowed}, got {optimizer}")
        self._optimizer = optimizer
        self._group = groups[0]
        self._clip = clip
        self._on_non_finite = on_non_finite
        self._loss = getattr(loss, "__name__", "a loss")
        self._caller = _Caller(module, loss)
        names = {parameter: name for name, parameter in self._caller.named_parameters()}
        self._trained = [parameter for parameter in self._group["params"] if parameter.requires_grad]
        self._names = [names[parameter] for parameter in self._trained]
        self.names = [name.removeprefix("module.") for name in self._names]
        """Names of the parameters in the module."""
        self._without_denormals = DenormalsAreZero() if self._group["eps"] >= SMALLEST_EPS else nullcontext()
        self._rate: float | None = None
        self._lr = torch.tensor(0.0)
        self._known_state: Any = None
        self._parameters: list[Tensor] = []
        self._state: list[list[Tensor]] = [[], [], []]
        self._kinds: Any = None  # of the tensors of parameters and optimizer
        self.seconds = 0.0
        """Time that compiling has taken so far."""

    def _begin(self) -> None:
        """Forget all compiled code."""
        can_filter = hasattr(torch.compiler, "keep_tensor_guards_unsafe")
        options: dict[str, Any] = {"guard_filter_fn": _guards_of_batches} if can_filter else {}
        if self._trained[0].device.type == "cpu":
            options["cpp_wrapper"] = True  # kernels called from C++, not from Python

        def compiled(method: Any) -> Any:
            return torch.compile(fullgraph=True, options=dict(options))(_own(method))  # torch takes entries out

        self._several, self._whole = compiled(self._updates), compiled(self._update)
        self._first_half, self._second_half = compiled(self._gradients), compiled(self._step)
        self._known: dict[Any, set[Any]] = {}  # shapes by structure

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        device: torch.device = self._trained[0].device
        return device

    def __call__(self, batch: Batch, updates: int | None, stopped: Tensor) -> Made:
        """Make an update, or several on minibatches along a leading axis.

        Args:
            batch: The argument of the loss.
            updates: Number of updates; None for one on a minibatch without the axis.
            stopped: Whether to skip them all, a scalar, 0 or 1.
        """
        self._take_state()
        shapes = self._known.setdefault(_structure(batch), set())
        shape = tuple(leaf.shape for leaf in nested.leaves(batch))
        if shape in shapes or len(shapes) >= 2:  # the third shape of a structure and all later ones share their code
            return self._run(batch, updates, stopped, is_new=False)
        begin, what = time.perf_counter(), f"{updates or 1} update{'s' if (updates or 1) > 1 else ''} with {self._loss}"
        rank_zero_info(f"compiling {what}; the first time on a machine takes up to a minute")
        made = self._run(batch, updates, stopped, is_new=True)
        shapes.add(shape)
        seconds = time.perf_counter() - begin
        rank_zero_info(f"compiled {what} in {seconds:.1f} s")
        self.seconds += seconds
        return made

    def _run(self, batch: Batch, updates: int | None, stopped: Tensor, is_new: bool) -> Made:
        if world_size() == 1:
            run = self._whole if updates is None else self._several
            with nullcontext() if is_new else self._without_denormals:  # the compiler computes with doubles
                return Made(*run(self._parameters, self._state, self._lr, stopped, batch))
        call = self._together if is_new else _call
        gradients, loss, report = call(self._first_half, self._parameters, batch)
        flat = torch.cat([*(gradient.reshape(-1) for gradient in gradients), loss.reshape(1)])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        *parts, loss = flat.split([*(gradient.numel() for gradient in gradients), 1])
        averaged = [part.view_as(gradient) for part, gradient in zip(parts, gradients, strict=True)]
        try:
            step = (self._parameters, self._state, self._lr, stopped, averaged, loss.reshape(()))
            with nullcontext() if is_new else self._without_denormals:
                made = call(self._second_half, *step)
        except Exception as error:
            raise RanksDisagreeError(
                f"compile must be False here: a rank could not compile its step, {error}"
            ) from error
        return Made(report, *made)

    @staticmethod
    def _together(function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a compiled function for the first time, or raise on all ranks: one alone would reduce other tensors."""
        error: Exception | None = None
        try:
            made = function(*arguments)
        except Exception as found:  # whatever the compiler stumbles over
            error = found
        if on_all_ranks(error is None):
            return made
        raise error or RuntimeError("another rank could not compile")

    # ------------------------------------------------------------------ the compiled function

    def _update(
        self, parameters: list[Tensor], state: list[list[Tensor]], lr: Tensor, stopped: Tensor, batch: Batch
    ) -> tuple[dict[str, Any], Tensor, Tensor]:
        gradients, loss, report = self._gradients(parameters, batch)
        return report, *self._step(parameters, state, lr, stopped, gradients, loss)

    def _updates(
        self, parameters: list[Tensor], state: list[list[Tensor]], lr: Tensor, stopped: Tensor, batch: Batch
    ) -> tuple[dict[str, Any], Tensor, Tensor]:
        table = []
        for number in range(nested.length(batch)):
            report, numbers, stopped = self._update(parameters, state, lr, stopped, nested.index(batch, number))
            table.append(numbers)
        return report, torch.stack(table), stopped

    def _gradients(self, parameters: list[Tensor], batch: Batch) -> tuple[list[Tensor], Tensor, dict[str, Any]]:
        def loss(named: dict[str, Tensor]) -> Any:
            return functional_call(self._caller, named, (batch,))

        named = dict(zip(self._names, parameters, strict=True))
        gradients, (value, report) = grad_and_value(loss, has_aux=True)(named)
        return [gradients[name] for name in self._names], value.detach(), report

    @torch.no_grad()
    def _step(
        self,
        parameters: list[Tensor],
        state: list[list[Tensor]],
        lr: Tensor,
        stopped: Tensor,
        gradients: list[Tensor],
        loss: Tensor,
    ) -> tuple[Tensor, Tensor]:
        squares = torch.stack([gradient.square().sum() for gradient in gradients])
        numbers = torch.cat([loss.reshape(1), squares])
        is_left_out = (stopped > 0) | ~numbers.sum().isfinite()
        gradients = [gradient.clone() for gradient in gradients]  # the compiler removes the copies
        clip_gradients(gradients, self._clip, squares.sum().sqrt())
        if self._on_non_finite == "warn":
            self._adam(parameters, state, lr, gradients)
            return numbers, stopped
        tensors = [*parameters, *(tensor for kind in state for tensor in kind)]
        before = [tensor.clone() for tensor in tensors]
        self._adam(parameters, state, lr, gradients)
        for tensor, old in zip(tensors, before, strict=True):
            tensor.copy_(torch.where(is_left_out, old, tensor))
        return numbers, is_left_out.float() if self._on_non_finite == "raise" else stopped

    def _adam(self, parameters: list[Tensor], state: list[list[Tensor]], lr: Tensor, gradients: list[Tensor]) -> None:
        group, (first, second, steps) = self._group, state
        beta1, beta2 = group["betas"]
        fixed = {"beta1": beta1, "beta2": beta2, "weight_decay": group["weight_decay"], "eps": group["eps"]}
        kind = {"foreach": True, "capturable": True, "amsgrad": False, "maximize": group["maximize"]}
        if type(self._optimizer) is torch.optim.AdamW:
            kind["decoupled_weight_decay"] = True
        exact = [step.double() for step in steps]  # eager code corrects the bias of the moments in double precision too
        adam(parameters, gradients, first, second, [], exact, lr=lr, **kind, **fixed)
        for step, new in zip(steps, exact, strict=True):
            step.copy_(new)

    # ------------------------------------------------------------------ state

    def _take_state(self) -> None:
        """Find the tensors of parameters and optimizer, which loading a checkpoint or a move to a device replaces."""
        parameters, states = self._trained, self._optimizer.state
        rate = float(self._group["lr"])
        if rate != self._rate:
            self._rate = rate
            self._lr = torch.tensor(rate, dtype=torch.float64, device=parameters[0].device)
        known = states.get(parameters[0])
        if (
            self._parameters
            and is_same(self._known_state, known)
            and self._parameters[0].data_ptr() == parameters[0].data_ptr()
        ):
            return
        for parameter in parameters:
            if not states[parameter]:
                states[parameter]["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                states[parameter]["exp_avg"] = torch.zeros_like(parameter)
                states[parameter]["exp_avg_sq"] = torch.zeros_like(parameter)
            states[parameter]["step"] = _with_own_memory(states[parameter]["step"])
        self._parameters = [parameter.detach() for parameter in parameters]
        self._state = [[states[p][name] for p in parameters] for name in STATE]
        self._known_state = (states[parameters[0]], *(tensors[0] for tensors in self._state))
        self._lr = self._lr.to(parameters[0].device)
        tensors = [*self._parameters, *(tensor for kind in self._state for tensor in kind)]
        kinds = [(tensor.dtype, tensor.device, tensor.shape, tensor.stride()) for tensor in tensors]
        if kinds != self._kinds:
            self._kinds = kinds
            self._begin()


class _Caller(nn.Module):
    """A module whose ``forward`` is a loss, so that it can be called with other parameters than its own."""

    def __init__(self, module: nn.Module, loss: LossFunction) -> None:
        super().__init__()
        self.module = module
        self.loss = loss

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Any]]:
        """Return the loss of a batch, a scalar, and its metrics."""
        return self.loss(batch)


def _own(method: Any) -> Any:
    """Return a method with a separate code object.

    torch stores compiled code by code object, and distinguishes two users of one by guards, which are skipped here.
    """
    function = method.__func__
    code, variables = function.__code__.replace(), function.__globals__
    copied = types.FunctionType(code, variables, function.__name__, function.__defaults__, function.__closure__)
    return types.MethodType(copied, method.__self__)


def _with_own_memory(step: Tensor) -> Tensor:
    """Return a number of steps that shares no memory: the compiler treats inputs that share memory in a slower way."""
    return step if step.untyped_storage().nbytes() == step.nbytes else step.clone()


def _guards_of_batches(entries: Any) -> list[bool]:
    """Return which guards the compiler keeps: those of the tensors of a batch.

    Checking all guards took a third of an update. Those of parameters and of the optimizer's state are not needed,
    because :meth:`CompiledUpdate._take_state` sees when these tensors are replaced.
    """
    kept: list[bool] = torch.compiler.keep_tensor_guards_unsafe(entries)
    return [keep and not _OWN_TENSORS.match(entry.name) for keep, entry in zip(kept, entries, strict=True)]


_OWN_TENSORS = re.compile(r"(parameters|state|lr|stopped)\b")


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def _structure(batch: Any) -> Any:
    if isinstance(batch, dict):
        return tuple((name, _structure(below)) for name, below in batch.items())
    return batch.dtype, batch.ndim
