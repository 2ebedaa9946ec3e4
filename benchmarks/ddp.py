"""Cost of averaging gradients over two processes, with this project's optimisation step and with Lightning's stock DDP.

    python -m benchmarks.ddp      # writes docs/results/ddp.json

Each rank does the first quarter of the env steps of workload W1 (DQN) or W3 (SAC), as all updates cost the same, with
its own envs and buffer and one torch thread; the ranks communicate through gloo. Both run the same policy and losses
and differ only in the optimisation step:

    ours    this project's: a backward for the optimizer's own parameters, then one flat all-reduce of their gradients
    DDP     that of a plain module with manual optimisation under ``ddp_find_unused_parameters_true``: zero the
            gradients, ``manual_backward``, step; DDP's reducer averages during the backward, whatever the loss reached

Each also runs *apart*: the same step, with nothing averaged, so that the ranks learn each for itself. Steps are timed
from zeroing the gradients to the end of the optimizer's step, waiting for the other rank included. What averaging takes
is the time of the steps less that of the steps apart, and its share is of the time of training, without the start of
processes. Ranks apart wait for each other too, but at the ends of rounds, where env steps are added up; so the
results also list by how much the whole training is slower than apart. The contestants take turns, three times.

    ours, in parts    as ours, with a barrier before each average: what the ranks wait for each other there is listed
                      apart from what the average itself takes once both are there. The barrier is part of the wait.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, Trainer
from torch import Tensor

from benchmarks import dqn, sac
from benchmarks.compare import Result, in_turn, measure, medians_of, save
from benchmarks.workload import W1, W3
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy, Policy, SACPolicy
from lightning_ding.policy.base import update
from lightning_ding.policy.base.config import NO_CLIP, GradClip

RANKS = 2
WAYS = ("ours", "ours, apart", "ours, in parts", "DDP", "DDP, apart")
WORKLOADS: dict[str, tuple[Any, type[Policy[Any]], Any]] = {
    "W1": (dataclasses.replace(W1, env_steps=W1.env_steps // 4), DQNPolicy, dqn.our_config),
    "W3": (dataclasses.replace(W3, env_steps=W3.env_steps // 4), SACPolicy, sac.our_config),
}
UPDATE: Any = update
"""The module whose average of gradients is replaced."""
CONTESTANTS = [f"{workload} {way}" for workload in WORKLOADS for way in WAYS]


class OurSteps:
    """Times the steps of a policy's updater.

    Args:
        policy: The policy.
    """

    def __init__(self, policy: Any) -> None:
        self.seconds = 0.0
        self.policy, self._step = policy, policy.updater.step
        policy.updater.step = self.timed_step

    def timed_step(self, loss: Any, index: int = 0, clip: GradClip = NO_CLIP) -> Any:
        """Make a step, and add its seconds."""
        start = time.perf_counter()
        norm = self.step(loss, index, clip)
        self.seconds += time.perf_counter() - start
        return norm

    def step(self, loss: Any, index: int, clip: GradClip) -> Any:
        """Make a step as the updater does."""
        return self._step(loss, index, clip)


class Parts:
    """Averages gradients as the updater does, and times the wait for the other rank and the average separately."""

    def __init__(self) -> None:
        self.waiting = self.averaging = 0.0
        self._average = UPDATE.average_gradients

    def average(self, parameters: Sequence[Tensor], loss: Tensor) -> Tensor:
        """Wait for the other rank, then average."""
        start = time.perf_counter()
        dist.barrier()
        both_here = time.perf_counter()
        mean: Tensor = self._average(parameters, loss)
        self.waiting += both_here - start
        self.averaging += time.perf_counter() - both_here
        return mean


class StockSteps(OurSteps):
    """Makes and times steps as a plain module with manual optimisation does; nothing is clipped."""

    is_apart = False

    def step(self, loss: Any, index: int, clip: GradClip) -> Any:
        """Make a step as a plain module does."""
        policy = self.policy
        policy.updater.optimizers[index].zero_grad()
        strategy: Any = policy.trainer.strategy
        with strategy.block_backward_sync() if self.is_apart else nullcontext():
            policy.manual_backward(loss)
        wrapped: Any = policy.optimizers()
        (wrapped[index] if isinstance(wrapped, list) else wrapped).step()


class Stopwatch(Callback):
    """Takes the seconds of training, from when all ranks are there, and looks whether they end with one policy."""

    seconds = 0.0
    ranks_agree = False

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Begin (Lightning hook)."""
        trainer.strategy.barrier()
        self._start = time.perf_counter()

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """End (Lightning hook)."""
        self.seconds = time.perf_counter() - self._start
        own = torch.cat([parameter.detach().reshape(-1) for parameter in pl_module.parameters()])
        all_own = [torch.empty_like(own) for _ in range(RANKS)]
        dist.all_gather(all_own, own)
        self.ranks_agree = all(torch.equal(own, other) for other in all_own)


def run(contestant: str, env_steps: int | None) -> Result:
    """Train on this rank, and return seconds, env steps and updates of all ranks, and seconds of steps.

    Args:
        contestant: One of ``CONTESTANTS``.
        env_steps: Env steps of each rank; None means those of the workload.
    """
    name, _, way = contestant.partition(" ")
    workload, policy_class, config = WORKLOADS[name]
    if env_steps is not None:
        workload = dataclasses.replace(workload, env_steps=env_steps)
    policy: Any = policy_class(config(workload))
    steps = OurSteps(policy) if way.startswith("ours") else StockSteps(policy)
    if isinstance(steps, StockSteps):
        steps.is_apart = "apart" in way
    elif "apart" in way:
        UPDATE.average_gradients = leave_apart
    parts = Parts()
    if "in parts" in way:
        UPDATE.average_gradients = parts.average
    datamodule = ReplayDataModule(
        workload.env_id, num_envs=getattr(workload, "num_envs", 1), max_env_step=RANKS * workload.env_steps, seed=0
    )
    watch = Stopwatch()
    fit(policy, datamodule, watch, "ddp" if way.startswith("ours") else "ddp_find_unused_parameters_true")
    progress = {"env_steps": policy.progress.env_step, "updates": policy.progress.train_iter}
    found = {"step_seconds": steps.seconds, "ranks_agree": float(watch.ranks_agree)}
    if "in parts" in way:
        found |= {"waiting_seconds": parts.waiting, "averaging_seconds": parts.averaging}
    return {"seconds": watch.seconds, **progress, **found}


def leave_apart(parameters: Any, loss: Any) -> Any:
    """Replace the function that averages gradients and loss."""
    return loss


def fit(policy: Any, datamodule: Any, watch: Callback, strategy: str) -> None:
    """Train on two ranks without evaluation; Lightning starts the second."""
    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False}
    with TemporaryDirectory() as folder:
        Trainer(
            accelerator="cpu",
            devices=RANKS,
            strategy=strategy,
            callbacks=watch,
            default_root_dir=folder,
            limit_val_batches=0,
            enable_progress_bar=False,
            **quiet,
        ).fit(policy, datamodule)


def costs_of(medians: Mapping[str, Result]) -> dict[str, Result]:
    """Return what averaging costs: milliseconds an update, its share of the time of training, and how much slower."""
    costs = {}
    for name in medians:
        if "waiting_seconds" in medians[name]:
            row = medians[name]
            parts = {part: 1e3 * row[f"{part}_seconds"] / row["updates"] for part in ("waiting", "averaging")}
            costs[name] = {f"{part}_ms": milliseconds for part, milliseconds in parts.items()}
        if f"{name}, apart" in medians:
            row, apart = medians[name], medians[f"{name}, apart"]
            seconds = row["step_seconds"] - apart["step_seconds"]
            costs[name] = {"ms_per_update": 1e3 * seconds / row["updates"], "share": seconds / row["seconds"]}
            costs[name]["slower"] = row["seconds"] / apart["seconds"] - 1
    return costs


def main() -> None:
    """Run one contestant, or all in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", choices=CONTESTANTS, help="run one contestant in this process and print JSON")
    parser.add_argument(
        "--only", nargs="+", choices=CONTESTANTS, default=CONTESTANTS, help="run only these contestants"
    )
    parser.add_argument("--repeats", type=int, default=3, help="number of repetitions")
    parser.add_argument("--env-steps", type=int, help="env steps of each rank; by default those of the workload")
    parser.add_argument("--out", type=Path, default=Path("docs/results/ddp.json"), help="JSON file")
    options = parser.parse_args()
    if options.run:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        logging.getLogger("lightning").setLevel(logging.ERROR)
        result = measure(lambda: run(options.run, options.env_steps))
        if not dist.is_initialized() or dist.get_rank() == 0:
            print(json.dumps(result))
        return
    length = [] if options.env_steps is None else ["--env-steps", str(options.env_steps)]
    report(in_turn(["benchmarks.ddp", *length], options.only, options.repeats), options.out)


def report(results: dict[str, list[Result]], file: Path) -> None:
    """Print medians and what averaging costs, and write everything to a JSON file."""
    medians = medians_of(results)
    costs = costs_of(medians)
    head = f"{'wall s':>8} {'updates/s':>10} {'steps ms':>9} {'averaging ms':>13} {'share':>6} {'slower':>7}"
    print(f"\n{'':>14} {head}  ranks")
    for name, row in medians.items():
        cost = costs.get(name)
        averaging = " " * 28
        if cost is not None and "waiting_ms" in cost:
            averaging = f"{cost['averaging_ms']:13.3f} after waiting {cost['waiting_ms']:.3f}"
        elif cost is not None:
            averaging = f"{cost['ms_per_update']:13.3f} {cost['share']:6.1%} {cost['slower']:+7.1%}"
        agree = "agree" if row["ranks_agree"] else "differ"
        print(
            f"{name:>14} {row['seconds']:8.2f} {row['updates_per_second']:10,.0f} "
            f"{1e3 * row['step_seconds'] / row['updates']:9.3f} {averaging}  {agree}"
        )
    save(results, file, costs=costs)


if __name__ == "__main__":
    main()
