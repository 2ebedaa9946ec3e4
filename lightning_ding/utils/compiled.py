"""Functions of nested tensors in compiled code, without gradient, and the forms of what they are given.

A function is compiled when it is called for the first time, and again for arguments of another form.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from lightning_ding.utils.private_api import Function, compiled, pytree

logger = logging.getLogger(__name__)

Batch = dict[str, Any]
Place = tuple[dict[str, Any], str]  # a dict and the key of a tensor in it
MOST_CODES = 8  # compiled for one function; each takes seconds


class Compiled:
    """A compiled function of tensors.

    Args:
        function: Takes tensors, and returns a list of tensors and None. It may read no other tensors.
        tensors: Example arguments; all later ones have their types, devices, shapes and strides.
        sized: Whether the leading axis of each argument may have another length; equal lengths stay equal.
        fixed: How many of the first arguments stay in their memory from call to call, such as weights.
        graphs: Whether calls are CUDA graphs, if all arguments are on a CUDA device and have fixed lengths.
    """

    def __init__(
        self, function: Function, tensors: Sequence[Tensor], sized: Sequence[bool], fixed: int, graphs: bool = False
    ) -> None:
        self.used, self._code = compiled(function, tensors, sized)
        """Indices of the arguments that the function reads."""
        is_on_device = self.used and all(tensors[index].device.type == "cuda" for index in self.used)
        if graphs and is_on_device and not any(sized):
            from lightning_ding.utils.cuda_graphs import CudaGraphs

            self._code = CudaGraphs(self._code, [index < fixed for index in self.used])

    def __call__(self, tensors: list[Tensor]) -> Sequence[Any]:
        """Return what the function returns for the arguments with the indices ``used``; the list is emptied."""
        return self._code(tensors)


class _Code(NamedTuple):
    run: Compiled
    owned: list[Place]  # which the code reads
    places: list[int]  # of the leaves of the arguments that it reads
    names: tuple[str, ...] | None  # of a result that is a flat dict
    result: Any  # form of the result


class CompiledFunction:
    """A function in compiled code; its results equal those of the function up to rounding.

    Random numbers of torch's global generators are the same as without compiling. Python values that the function reads
    are constants until ``forget`` is called.

    Args:
        name: Description of the function, for the log.
        function: Takes a nested dict of tensors, and tensors by the names in ``owned``; returns nested tensors. It
            changes nothing else.
        owned: Where further tensors that it reads are found at each call.
        sized: Whether all arguments have the same leading axis, of any length; one code serves all of them.
        graphs: Whether calls on a CUDA device are CUDA graphs.
    """

    def __init__(
        self,
        name: str,
        function: Callable[[Batch, dict[str, Tensor]], Any],
        owned: Mapping[str, Place] | None = None,
        sized: bool = False,
        graphs: bool = False,
    ) -> None:
        self._name, self._function, self._owned, self._sized = name, function, dict(owned or {}), sized
        self._graphs = graphs
        self._codes: dict[Any, _Code] = {}
        self._times_forgotten = 0
        self.has_failed = False
        """Whether all calls are left to eager code."""
        self.seconds = 0.0
        """Time that compiling has taken so far."""

    def __call__(self, batch: Batch) -> Any:
        """Return the result for some arguments; None if there is no code for them, and they are left to eager code."""
        form: list[Any] = []
        leaves = read(batch, form)
        lengths = tuple([leaf.shape[0] for leaf in leaves if leaf.ndim])
        if self.has_failed or (self._sized and not has_one_length(lengths)):
            return None
        first = next((owner[key] for owner, key in self._owned.values()), leaves[0])
        kind = first.dtype, first.device, torch.is_autocast_enabled(first.device.type)
        key = kind, structure_of(batch) if self._sized else tuple(form)
        code = self._codes.get(key) or self._compiled(key, batch)
        if code is None:
            return None
        tensors = [owner[name] for owner, name in code.owned]
        made = code.run(tensors + [leaves[place].contiguous() for place in code.places])
        if code.names is not None:
            return dict(zip(code.names, made, strict=True))
        return pytree.tree_unflatten(list(made), code.result)

    def forget(self) -> None:
        """Compile again at the next call, because a Python value that the function may read has changed."""
        self._times_forgotten += bool(self._codes)
        self._codes.clear()
        if self._times_forgotten > MOST_CODES and not self.has_failed:
            self.give_up(f"a value that they may read has changed more than {MOST_CODES} times")

    def give_up(self, reason: str) -> None:
        """Leave all later calls to eager code, and say why."""
        self.has_failed = True
        logger.warning("compile=True, but %s run eagerly: %s", self._name, reason)

    def _compiled(self, key: Any, batch: Batch) -> _Code | None:
        begin = time.perf_counter()
        rank_zero_info(f"compiling {self._name}; the first time on a machine takes some seconds")
        try:
            if len(self._codes) == MOST_CODES:
                raise RuntimeError(f"it was called with more than {MOST_CODES} forms of arguments")
            code = self._codes[key] = self._code_for(batch)
        except Exception as error:  # whatever the compiler stumbles over; an error of the function comes again
            self.give_up(f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}")
            return None
        seconds = time.perf_counter() - begin
        rank_zero_info(f"compiled {self._name} in {seconds:.1f} s")
        self.seconds += seconds
        return code

    def _code_for(self, batch: Batch) -> _Code:
        state, paths = [owner[key].detach() for owner, key in self._owned.values()], list(paths_of(batch))
        number, leaves = len(state), [leaf.contiguous() for leaf in read(batch, [])]
        found: list[Any] = [None, None]

        def flat(*tensors: Tensor) -> list[Any]:
            given = dict(zip(self._owned, tensors, strict=False))
            result = self._function(nest(paths, tensors[number:]), given)
            parts, found[0] = pytree.tree_flatten(result)
            is_flat = type(result) is dict and all(isinstance(value, Tensor) for value in result.values())
            found[1] = tuple(result) if is_flat else None
            return parts

        sized = [False] * number + [self._sized] * len(leaves)
        with torch.no_grad():
            run = Compiled(flat, [*state, *leaves], sized, number, self._graphs)
        places = list(self._owned.values())
        owned = [places[place] for place in run.used if place < number]
        return _Code(run, owned, [place - number for place in run.used if place >= number], found[1], found[0])


def read(batch: Batch, form: list[Any]) -> list[Tensor]:
    """Return the leaves of a batch, and add to ``form`` its names and the shapes and types of its leaves."""
    leaves: list[Tensor] = []
    form.append(len(batch))
    for name, value in batch.items():
        if isinstance(value, dict):
            form.append(name)
            leaves += read(value, form)
        else:
            form.append((name, value.shape, value.dtype))
            leaves.append(value)
    return leaves


def has_one_length(lengths: tuple[int, ...]) -> bool:
    """Return whether code for batches of any length can take this one; the compiler takes 0 and 1 as constants."""
    return lengths[:1] > (1,) and len(set(lengths)) == 1


def structure_of(batch: Any) -> Any:
    """Return what batches of another length have in common with this one."""
    if isinstance(batch, dict):
        return tuple([(name, structure_of(below)) for name, below in batch.items()])
    return batch.dtype, batch.shape[1:]


def paths_of(batch: Batch) -> Iterator[tuple[str, ...]]:
    """Yield the keys that lead to each leaf, in the order of :func:`nested.leaves`."""
    for name, below in batch.items():
        if isinstance(below, dict):
            yield from ((name, *path) for path in paths_of(below))
        else:
            yield (name,)


def nest(paths: list[tuple[str, ...]], leaves: Sequence[Tensor]) -> Batch:
    """Return the batch with these leaves."""
    batch: Batch = {}
    for (*path, name), leaf in zip(paths, leaves, strict=True):
        below = batch
        for key in path:
            below = below.setdefault(key, {})
        below[name] = leaf
    return batch
