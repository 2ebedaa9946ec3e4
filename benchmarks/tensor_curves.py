"""Learning curves of PPO on CartPole with 64 envs: tensor envs, eager and compiled, beside envs of arrays.

    python -m benchmarks.tensor_curves      # writes docs/results/tensor_curves.json

Networks, options and seeds are the same; initial states and random numbers are not. A row is the mean return of the
episodes that ended in a tenth of the run: interquartile mean and 95 % interval over seeds. The last column says
whether both intervals of tensor envs overlap that of arrays.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.intervals import text
from benchmarks.ppo import make_ours
from benchmarks.workload import W7
from lightning_ding.entry.seed_statistics import Array, interval

SMALL = dataclasses.replace(W7, num_envs=64, num_steps=32, batch_size=256, env_steps=102_400)
SIDES: dict[str, dict[str, Any]] = {
    "arrays": {"mode": "sync"},
    "tensors": {"mode": "tensor"},
    "tensors, compiled": {"mode": "tensor", "compile": True},
}
POINTS = 10


def curve(seed: int, **kwargs: Any) -> Array:
    """Return the mean return of the episodes that ended in each tenth of a run."""
    from lightning import Callback, Trainer

    returns: list[float] = []

    class Notes(Callback):
        """Notes the mean return of each round."""

        def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
            returns.append(float(trainer.callback_metrics.get("collect/return_mean", np.nan)))

    policy, datamodule = make_ours(SMALL, seed=seed, **kwargs)
    trainer = Trainer(
        accelerator="cpu",
        callbacks=[Notes()],
        log_every_n_steps=1,
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    trainer.fit(policy, datamodule)
    return np.array([np.nanmean(part) for part in np.array_split(np.array(returns), POINTS)])


def overlap(one: Any, other: Any) -> Any:
    """Return at which points the intervals of two sides overlap."""
    (low, high), (other_low, other_high) = interval(one), interval(other)
    return (low <= other_high) & (other_low <= high)


def table(curves: Mapping[str, Array]) -> str:
    """Return the rows of a table; ``curves`` has an array (seeds, points) for each side."""
    first, *others = curves
    agree = np.all([overlap(curves[first], curves[name]) for name in others], axis=0)
    rows = [f"| env steps | {' | '.join(curves)} | intervals overlap |", "|--:" * (len(curves) + 1) + "|---|"]
    for point in range(POINTS):
        cells = [text(found[:, point]) for found in curves.values()]
        end = (point + 1) * SMALL.env_steps // POINTS
        rows.append(f"| {end:,} | {' | '.join(cells)} | {'yes' if agree[point] else 'no'} |")
    return "\n".join(rows)


def main() -> None:
    """Train all sides with all seeds, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds")
    parser.add_argument("--out", type=Path, default=Path("docs/results/tensor_curves.json"), help="JSON file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    curves = {name: np.array([curve(seed, **side) for seed in range(options.seeds)]) for name, side in SIDES.items()}
    options.out.write_text(json.dumps({name: found.round(2).tolist() for name, found in curves.items()}, indent=1))
    print(table(curves))


if __name__ == "__main__":
    main()
