"""CUDA graphs with a recorder that calls the function again, as a graph does; the last test needs a CUDA device."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_ding.datamodules import RolloutDataModule
from lightning_ding.policy.base import compile as compile_module
from lightning_ding.policy.base.compile import Compiler
from lightning_ding.utils import compiled
from lightning_ding.utils.cuda_graphs import MOST_GRAPHS, CudaGraphs
from tests.datamodules.test_tensor_mode import set_up, short, trainer


def noisy(tensors: list[Tensor]) -> list[Tensor]:
    """Return weight * x + noise, and the sum of x."""
    weight, x = tensors
    tensors.clear()
    return [weight * x + torch.rand_like(x), x.sum()]


class Recorder:
    """Repeats a call with the tensors that were recorded, and writes to the results that were recorded."""

    def __init__(self, error: str = "", added: float = 0.0, draws: bool = True) -> None:
        self.recorded: list[Sequence[Tensor]] = []
        self.error, self.added, self.draws = error, added, draws

    def __call__(self, code: Any, tensors: Sequence[Tensor]) -> tuple[Callable[[], None], list[Tensor]]:
        if self.error:
            torch.rand(3)
            raise RuntimeError(self.error)
        self.recorded.append(tensors)
        results = code(list(tensors))

        def replay() -> None:
            state = torch.get_rng_state()
            for old, new in zip(results, code(list(tensors)), strict=True):
                old.copy_(new + self.added)
            if not self.draws:  # each replay has the same random numbers
                torch.set_rng_state(state)

        return replay, results


def check_equal_calls(graphs: CudaGraphs, calls: list[tuple[Tensor, Tensor]]) -> None:
    """Check that calls give what the function gives, with the same random numbers, and stay as they are."""
    torch.manual_seed(0)
    want = [noisy([weight, x]) for weight, x in calls]
    torch.manual_seed(0)
    found = [graphs([weight, x]) for weight, x in calls]
    for one, other in zip(want, found, strict=True):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])


def test_calls_equal_those_of_the_function() -> None:
    recorder, weight = Recorder(), torch.tensor(2.0)
    graphs = CudaGraphs(noisy, [True, False], recorder)
    check_equal_calls(graphs, [(weight, torch.arange(3.0) + step) for step in range(4)])
    assert len(recorder.recorded) == 1
    assert recorder.recorded[0][0] is weight


def test_weights_that_change_in_their_memory_are_seen_and_moved_ones_are_recorded_again() -> None:
    recorder, weight, x = Recorder(), torch.tensor(2.0), torch.ones(3)
    graphs = CudaGraphs(noisy, [True, False], recorder)
    for _ in range(2):
        graphs([weight, x])
    weight.mul_(10)
    check_equal_calls(graphs, [(weight, x)])
    assert len(recorder.recorded) == 1
    moved = torch.tensor(7.0)
    check_equal_calls(graphs, [(moved, x), (moved, x + 1), (weight, x)])
    assert len(recorder.recorded) == 2


def test_the_first_call_returns_the_result_of_the_graph_so_that_a_resumed_run_has_the_same_bits() -> None:
    x = torch.tensor([1.0])
    graphs = CudaGraphs(lambda tensors: [tensors.pop() * 2], [False], Recorder(added=1e-5))  # another order of sums
    first, later = graphs([x])[0], graphs([x])[0]
    assert torch.equal(first, later)
    assert first.item() > 2


def test_a_function_may_write_to_its_arguments(caplog: pytest.LogCaptureFixture) -> None:
    def doubles(tensors: list[Tensor]) -> list[Tensor]:
        (x,) = tensors
        tensors.clear()
        return [x.mul_(2) + 1]

    graphs = CudaGraphs(doubles, [False], Recorder())
    with caplog.at_level(logging.WARNING, logger="lightning_ding"):
        assert [graphs([torch.tensor([value])])[0].item() for value in (1.0, 2.0, 3.0)] == [3.0, 5.0, 7.0]
    assert not caplog.records


def test_each_shape_has_its_graph_up_to_a_number_of_them(caplog: pytest.LogCaptureFixture) -> None:
    recorder, weight = Recorder(), torch.tensor(2.0)
    graphs = CudaGraphs(noisy, [True, False], recorder)
    check_equal_calls(graphs, [(weight, torch.ones(size)) for size in (1, 2, 1, 2)])
    assert len(recorder.recorded) == 2
    with caplog.at_level(logging.WARNING, logger="lightning_ding"):
        check_equal_calls(graphs, [(weight, torch.ones(size)) for size in range(1, MOST_GRAPHS + 4)])
    assert len(recorder.recorded) == MOST_GRAPHS
    assert ["in more than 8 ways" in line.message for line in caplog.records] == [True]


@pytest.mark.parametrize(
    ("recorder", "text"),
    [
        (Recorder(error="operation not permitted"), "RuntimeError: operation not permitted"),
        (Recorder(added=1.0), "another result: number 0 of 2 of shape (3,)"),
        (Recorder(draws=False), "drew other random numbers"),
    ],
    ids=["error", "wrong result", "same random numbers"],
)
def test_what_cannot_be_recorded_is_called_as_it_is(
    recorder: Recorder, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    graphs, weight = CudaGraphs(noisy, [True, False], recorder), torch.tensor(2.0)
    with caplog.at_level(logging.WARNING, logger="lightning_ding"):
        check_equal_calls(graphs, [(weight, torch.arange(3.0) + step) for step in range(3)])
    assert [text in line.message for line in caplog.records] == [True]


@pytest.mark.parametrize("compiles", [True, "auto", "cuda_graphs"])
def test_graphs_are_recorded_only_where_the_config_says_so(compiles: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[bool] = []

    class NotCompiled:
        def __init__(self, function: Any, tensors: Any, sized: Any, fixed: int, graphs: bool = False) -> None:
            given.append(graphs)
            raise RuntimeError("eager code does it")

    for module in (compiled, compile_module):
        monkeypatch.setattr(module, "Compiled", NotCompiled)
    policy = short(compile=compiles)
    if compiles == "auto":
        policy.updater.compiler = Compiler(policy)  # as in a long run
    datamodule = set_up(policy, "tensor", "CartPole-v1")
    datamodule._start()
    policy.training_step(datamodule._next_round(), 0)
    datamodule.close()
    assert given == [compiles == "cuda_graphs"] * 4  # acting, env steps, values and the loss


def test_graphs_need_a_cuda_device() -> None:
    datamodule = RolloutDataModule("CartPole-v1", num_envs=2, max_env_step=8)
    with pytest.raises(ValueError, match="compile must be True, False or 'auto' on the device cpu, got 'cuda_graphs'"):
        trainer().fit(short(compile="cuda_graphs"), datamodule)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_graphs_on_a_device(caplog: pytest.LogCaptureFixture) -> None:
    weight = torch.tensor(2.0, device="cuda")
    graphs = CudaGraphs(noisy, [True, False])
    for _ in range(2):
        check_equal_calls(graphs, [(weight, torch.arange(3.0, device="cuda") + step) for step in range(4)])
        weight.mul_(3)
    assert len(graphs._graphs) == 1
    assert not caplog.records
