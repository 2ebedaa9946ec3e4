"""How many torch threads an update is fastest with, by the size of the network: the limit of ``TorchThreads``.

    python -m benchmarks.threads                # the machine otherwise idle
    python -m benchmarks.threads --busy 1       # while another process computes all the time

An update is forward and backward of an MLP with two hidden layers and a step of fused Adam, with minibatches of 256.
Numbers of threads are measured in turns; each row is the median of the turns.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

WIDTHS = (64, 256, 512, 1024, 2048, 4096)
BATCH, INPUTS = 256, 24
TURNS, SECONDS = 7, 0.5  # turns of each number of threads, and their length


def make_update(width: int) -> tuple[int, nn.Module, torch.optim.Optimizer]:
    """Return the number of parameters, the network and its optimizer."""
    layers = [nn.Linear(INPUTS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)]
    network = nn.Sequential(*layers)
    return sum(one.numel() for one in network.parameters()), network, torch.optim.Adam(network.parameters(), fused=True)


def milliseconds(network: nn.Module, optimizer: torch.optim.Optimizer, n_thread: int) -> float:
    """Return the mean time of an update with a number of torch threads."""
    torch.set_num_threads(n_thread)
    obs, count, start = torch.randn(BATCH, INPUTS), 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < SECONDS:
        optimizer.zero_grad()
        network(obs).square().mean().backward()
        optimizer.step()
        count += 1
    return 1000 * spent / count


def _compute() -> None:
    torch.set_num_threads(1)
    matrix = torch.randn(256, 256)
    while True:
        matrix = torch.tanh(matrix @ matrix)


@contextmanager
def other_work(processes: int) -> Iterator[None]:
    """Keep cores busy with other processes."""
    started = [multiprocessing.get_context("spawn").Process(target=_compute, daemon=True) for _ in range(processes)]
    for process in started:
        process.start()
    try:
        yield
    finally:
        for process in started:
            process.terminate()


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--busy", type=int, default=0, help="other processes that compute all the time")
    options = parser.parse_args()
    every = os.cpu_count() or 1
    print(f"| width | parameters | ms, 1 thread | ms, {every} threads | ratio |\n|--:|--:|--:|--:|--:|")
    with other_work(options.busy):
        for width in WIDTHS:
            size, network, optimizer = make_update(width)
            turns = [[milliseconds(network, optimizer, n) for n in (1, every)] for _ in range(TURNS)]
            one, many = (statistics.median(column) for column in zip(*turns, strict=True))
            print(f"| {width} | {size:,} | {one:.2f} | {many:.2f} | {one / many:.2f} |", flush=True)


if __name__ == "__main__":
    main()
