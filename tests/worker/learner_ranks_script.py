"""What learners do together on two gloo ranks, started by conftest.py: python learner_ranks_script.py FOLDER.

Each rank writes what it saw to FOLDER/rank_R.json.
"""

from __future__ import annotations

import datetime
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from lightning_ding.utils.modes import LearnMode
from lightning_ding.worker import BaseLearner, LearnerAggregator
from lightning_ding.worker.learner import LogReduceHook
from lightning_ding.worker.log import WorkerLog

fork = multiprocessing.get_context("fork")  # the imports are made once
OFF = {"log_show_after_iter": False, "save_ckpt_after_iter": False, "save_ckpt_after_run": False}


def mode_of(forward: Callable[[Any], Any], batch_size: int = 1) -> LearnMode:
    """Return a learn mode of nothing but a forward."""

    def attribute(name: str) -> Any:
        if name == "batch_size":
            return batch_size
        raise NotImplementedError(name)

    def nothing(*_: Any) -> Any:
        return {}

    return LearnMode(forward, nothing, str, lambda: ["total_loss"], attribute, nothing, nothing, nothing)


def learner_of(forward: Callable[[Any], Any], batch_size: int = 1, **kwargs: Any) -> BaseLearner:
    return BaseLearner({"hook": {**OFF, "log_reduce_after_iter": False}}, mode_of(forward, batch_size), **kwargs)


def error_of(function: Callable[[], Any]) -> str:
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def reduce(rank: int) -> dict[str, Any]:
    """Reports in another order on each rank."""
    values: list[tuple[str, Any]] = [("total_loss", rank + 1.0), ("entropy", 100.0), ("noreduce_time", rank + 1.0)]
    values.append(("[scalars]q", {"low": 10.0 * (rank + 1)}))
    report = dict(values if rank == 0 else reversed(values))
    learner = BaseLearner({"hook": {**OFF, "log_show_after_iter": 1}}, mode_of(lambda _: report))
    learner.train([])
    buffer = learner.log_buffer
    found = {name: float(value) for name, value in buffer["scalar"].items()}
    found["q/low"] = float(buffer["scalars"]["q"]["low"])
    return {
        "reduced": found,
        "monitor": learner.monitor,
        "hooks": [hook.name for hook in learner.hooks["after_iter"]],
        "cfg_says": learner.config.hook.log_reduce_after_iter,
    }


def differ(rank: int) -> str:
    learner = learner_of(lambda _: {"total_loss": 1.0} | ({"extra": 2.0} if rank else {}))
    learner.register_hook(LogReduceHook())
    return error_of(lambda: learner.train([]))


def report_nothing() -> Any:
    learner = learner_of(lambda _: {})
    learner.register_hook(LogReduceHook())
    learner.train([])
    return learner.log_buffer["scalar"]


def merge(rank: int) -> dict[str, Any]:
    """Two learners on each rank, that have 1 and 2 transitions of a batch on rank 0, and 2 and 3 on rank 1."""

    def forward(data: Any) -> dict[str, Any]:
        return {"total_loss": 1.0, "priority": data["reward"] * 10}

    learners = {f"learner_{i}": learner_of(forward, rank + i + 1) for i in range(2)}
    reward = torch.arange(2 * rank + 3.0) + 100 * rank
    learners["learner_1"].last_iter.update(7 + rank)
    data = {"reward": reward, "replay_unique_id": [f"{rank}-{i}" for i in range(len(reward))]}
    merged = LearnerAggregator(learners=learners).train(data)
    info = merged["priority_info"]
    merged["priority_info"] = {**info, "priority": info["priority"].tolist()}
    return merged


def fail(rank: int) -> str:
    def forward(_: Any) -> Any:
        raise ZeroDivisionError("no such thing")

    learner = learner_of(forward if rank == 1 else lambda _: {"total_loss": 1.0}, instance_name="weak")
    aggregator = LearnerAggregator(learners=[learner])
    return error_of(lambda: aggregator.train([{}]))


def write(folder: Path, rank: int) -> dict[str, Any]:
    class Writer:
        names: tuple[str, ...] = ()

        def add_scalar(self, name: str, *_: Any) -> None:
            self.names += (name,)

        add_histogram = add_scalar

    writers = [Writer(), Writer(), Writer()]
    WorkerLog(writers[2]).write_histograms({"action": torch.ones(2)}, 0, 0)
    for only_first, writer in zip((True, False), writers[:2], strict=True):
        hook = {**OFF, "log_show_after_iter": 1, "log_reduce_after_iter": False}
        cfg = {"only_monitor_rank0": only_first, "hook": hook}
        BaseLearner(cfg, mode_of(lambda _: {"total_loss": 1.0}), writer).train([])
    learner = learner_of(lambda _: {}, exp_name=str(folder / f"of_rank_{rank}"))
    return {"writes": [bool(writer.names) for writer in writers], "saves": learner.save_checkpoint().exists()}


def wait_alone(folder: Path, rank: int) -> dict[str, Any]:
    """Rank 0 trains and rank 1 does not."""
    aggregator = LearnerAggregator({"timeout_seconds": 1.0}, [learner_of(lambda _: {"total_loss": 1.0})])
    start = time.monotonic()
    if rank == 0:
        error = error_of(lambda: aggregator.train([{}]))
        return {"alone": error, "alone_seconds": time.monotonic() - start}
    while not (folder / "rank_0.json").exists() and time.monotonic() - start < 30:
        time.sleep(0.05)
    return {}


def main(folder: Path, rank: int) -> None:
    """Try everything, and write what this rank saw."""
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", store, datetime.timedelta(seconds=60), world_size=2, rank=rank)
    report = {**reduce(rank), "differing_names": differ(rank), "nothing_reported": report_nothing()}
    report |= {"merged": merge(rank), "failed": fail(rank), **write(folder, rank), **wait_alone(folder, rank)}
    file = folder / f"rank_{rank}.json"
    file.with_suffix(".tmp").write_text(json.dumps(report))
    os.replace(file.with_suffix(".tmp"), file)


if __name__ == "__main__":
    ranks = [fork.Process(target=main, args=(Path(sys.argv[1]), rank)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    sys.exit(max(abs(process.exitcode or 0) for process in ranks))
