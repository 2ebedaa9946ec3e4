"""Shared parts of the speed benchmarks of all algorithms: training through a Trainer, and the command line."""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.compare import Result, in_turn, measure, report


def fit(
    policy: Any,
    datamodule: Any,
    default_logging: bool = False,
    callbacks: Sequence[Any] = (),
    accelerator: str = "cpu",
) -> Result:
    """Train without evaluation, and return env steps, updates and seconds; the seconds exclude compilation.

    Args:
        policy: A LightningModule with a ``progress``.
        datamodule: Source of its data.
        default_logging: Whether logger and progress bar are on.
        callbacks: Further callbacks of the Trainer.
        accelerator: The Trainer's accelerator.
    """
    import torch.utils.tensorboard  # noqa: F401 - what the logger imports belongs to the start of a process
    from lightning import Trainer

    with TemporaryDirectory() as folder:
        trainer = Trainer(
            accelerator=accelerator,
            devices=1,
            default_root_dir=folder,
            limit_val_batches=0,
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=default_logging,
            logger=default_logging,
            callbacks=list(callbacks),
        )
        start = time.perf_counter()
        trainer.fit(policy, datamodule)
        seconds = time.perf_counter() - start
    progress = {"env_steps": policy.progress.env_step, "updates": policy.progress.train_iter}
    return {
        "seconds": seconds - policy.updater.compile_seconds,
        "compile_seconds": policy.updater.compile_seconds,
        **progress,
    }


def main(
    name: str,
    description: str | None,
    contestants: Mapping[str, Callable[[Any], Result]],
    workload: Any,
    baseline: str = "bare loop",
) -> None:
    """Run one contestant, or all in turn.

    Args:
        name: Name of the module in ``benchmarks``; results go to ``docs/results/NAME_speed.json``.
        description: Text of ``--help``.
        contestants: Each trains on a workload.
        workload: A dataclass with ``env_steps``.
        baseline: The contestant to whose time the others are compared.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", choices=contestants, help="run one contestant in this process and print JSON")
    parser.add_argument("--only", nargs="+", choices=contestants, default=list(contestants), help="run only these")
    parser.add_argument("--repeats", type=int, default=3, help="number of repetitions")
    parser.add_argument("--threads", type=int, default=1, help="torch threads of each contestant")
    parser.add_argument("--env-steps", type=int, default=workload.env_steps, help="length of the workload")
    parser.add_argument("--out", type=Path, default=Path(f"docs/results/{name}_speed.json"), help="JSON file")
    options = parser.parse_args()
    if options.run:
        torch.set_num_threads(options.threads)
        os.environ["OMP_NUM_THREADS"] = str(options.threads)  # chosen, so a fit keeps it also if it is torch's default
        warnings.simplefilter("ignore")
        logging.getLogger("lightning").setLevel(logging.ERROR)
        chosen = dataclasses.replace(workload, env_steps=options.env_steps)
        print(json.dumps(measure(lambda: contestants[options.run](chosen))))
    else:
        command = [f"benchmarks.{name}", "--env-steps", str(options.env_steps), "--threads", str(options.threads)]
        report(in_turn(command, options.only, options.repeats), baseline, options.out)
