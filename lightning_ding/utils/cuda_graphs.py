"""Compiled code on a CUDA device as CUDA graphs: one launch for a call, instead of one for each of its kernels.

Only ``compile="cuda_graphs"`` uses them: the first result of each graph is checked, and later ones are not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_ding.utils.private_api import copy_tensors

logger = logging.getLogger(__name__)

Code = Callable[[list[Tensor]], Sequence[Any]]  # it empties the list
MOST_GRAPHS = 8  # of one code; each holds memory for its arguments and results


class CudaGraphs:
    """Calls of a function of CUDA tensors as graphs, one for each combination of shapes.

    A graph reads the memory in which its arguments were when it was recorded. Weights stay there, because optimizers
    and ``load_state_dict`` write into them; where they have moved, another graph is recorded. All other arguments are
    copied there. Results are copied, because the next call writes over them.

    The first result of each graph, and the state of the random numbers after it, are compared with those of the
    function. Where they differ, or where recording fails, the function is called as it is, and a warning says so.
    Otherwise the first call returns the graph's result, too: it may differ by rounding, because matrix products may be
    computed in another way, and a resumed run records its graphs at other calls.

    Args:
        code: The function.
        is_fixed: Whether each argument stays in its memory from call to call.
        record: Records a call, and returns what repeats it and its results; None for ``torch.cuda.graph``.
    """

    def __init__(self, code: Code, is_fixed: Sequence[bool], record: Any = None) -> None:
        self._code, self._is_fixed, self._record = code, list(is_fixed), record or _record
        self._graphs: dict[Any, tuple[Callable[[], Any], list[Tensor], list[Any]]] = {}
        self._is_off = False

    def __call__(self, tensors: list[Tensor]) -> Sequence[Any]:
        """Return what the function returns; the list is emptied."""
        if self._is_off:
            return self._code(tensors)
        pairs = list(zip(tensors, self._is_fixed, strict=True))
        key = tuple([one.data_ptr() if is_fixed else one.shape for one, is_fixed in pairs])
        if key not in self._graphs:
            return self._first_call(key, tensors)
        replay, arguments, results = self._graphs[key]
        _copy_by_type(arguments, [one for one, is_fixed in pairs if not is_fixed])
        tensors.clear()
        replay()
        return _copied(results)

    def _first_call(self, key: Any, tensors: list[Tensor]) -> Sequence[Any]:
        """Return what the function returns, and record a graph for later calls."""
        if len(self._graphs) == MOST_GRAPHS:
            self._turn_off(f"it was called in more than {MOST_GRAPHS} ways")
            return self._code(tensors)
        static = [one if is_fixed else one.clone() for one, is_fixed in zip(tensors, self._is_fixed, strict=True)]
        arguments = [one for one, is_fixed in zip(static, self._is_fixed, strict=True) if not is_fixed]
        unchanged, before = [one.clone() for one in arguments], _random()  # the function may write to an argument
        expected, after = _copied(self._code(tensors)), _random()
        try:
            replay, results = self._record(self._code, static)
            _set_random(before)
            _copy_by_type(arguments, unchanged)
            replay()
            found = [*results, *_random()]
            difference = _difference([*expected, *after], found, len(expected))
            if difference is None:
                self._graphs[key] = replay, arguments, list(results)
                return _copied(results)
            self._turn_off(difference)
        except Exception as error:  # whatever cannot be recorded
            self._turn_off(f"{type(error).__name__}: {error}".splitlines()[0])
        _set_random(after)
        return expected

    def _turn_off(self, reason: str) -> None:
        self._is_off = True
        self._graphs.clear()
        logger.warning("compiled code runs without CUDA graphs, because %s", reason)


def _record(code: Code, tensors: Sequence[Tensor]) -> tuple[Callable[[], Any], Sequence[Any]]:
    """Record a call of a function on the current CUDA device, and return what repeats it, and its results."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):  # kernels are loaded, and memory is reserved, before anything is recorded
        for _ in range(2):
            code(list(tensors))
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        results = code(list(tensors))
    return graph.replay, results


def _random() -> list[Tensor]:
    """Return the states of torch's global generators of the CPU and of the current device."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if torch.cuda.is_available() else [])]


def _set_random(states: Sequence[Tensor]) -> None:
    torch.set_rng_state(states[0])
    for state in states[1:]:
        torch.cuda.set_rng_state(state)


def _copied(results: Sequence[Any]) -> list[Any]:
    found = [torch.empty_like(one) if isinstance(one, Tensor) else one for one in results]
    tensors = [(new, one) for new, one in zip(found, results, strict=True) if isinstance(one, Tensor)]
    _copy_by_type([new for new, _ in tensors], [one for _, one in tensors])
    return found


def _copy_by_type(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy tensors into others, those of one type in one launch; torch copies a mixture one by one."""
    groups: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        group = groups.setdefault(target.dtype, ([], []))
        group[0].append(target)
        group[1].append(source)
    for group in groups.values():
        copy_tensors(*group)


def _difference(expected: Sequence[Any], found: Sequence[Any], number: int) -> str | None:
    """Describe how the results of a graph differ from those of its function; wait for the device.

    Args:
        expected: Results of the function, then the states of the generators.
        found: The same of the graph.
        number: Number of results.

    Returns:
        The first difference as text; None if there is none but rounding.
    """
    for index, (one, other) in enumerate(zip(expected, found, strict=True)):
        if not isinstance(one, Tensor) or not isinstance(other, Tensor):
            is_same = one is other or one == other
        elif one.is_floating_point():
            is_same = torch.allclose(one, other, rtol=1e-3, atol=1e-5, equal_nan=True)
        else:
            is_same = one.equal(other)
        if not is_same and index >= number:
            return "a graph drew other random numbers"
        if not is_same:
            form = f" of shape {tuple(one.shape)}" if isinstance(one, Tensor) else ""
            return f"a graph gave another result: number {index} of {number}{form}"
    return None
