"""Returns of PPO with each scale of its critic, ``learn.value_norm``, on six envs: docs/results/value_norm.json.

    python -m benchmarks.value_norm                             # the runs that the file lacks, then the table
    python -m benchmarks.value_norm --only Pendulum-v1 --seeds 0
    python -m benchmarks.value_norm --table                     # the table alone

Runs have PPO's defaults, eight envs, and the changes in ``TASKS``. They follow each other in one process with one torch
thread, all settings with the first seed before the next seed. A result is the mean return of the training episodes
that end in the last quarter of the env steps, so nothing is evaluated. Needs the extras mujoco, box2d and minigrid.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning import Callback, Trainer

from benchmarks import contest
from benchmarks.intervals import number

RESULT = Path("docs/results/value_norm.json")
SETTINGS: dict[str, bool | str] = {"false": False, "true": True, "popart": "popart", "symlog": "symlog"}
"""Values of ``learn.value_norm`` by their text."""
SEEDS = (0, 1, 2)
NUM_ENVS = 8
Results = dict[str, dict[str, dict[str, Any]]]
"""Results by env, setting and seed."""


@dataclass(frozen=True)
class Task:
    """An env, its budget, and what differs from PPO's defaults."""

    max_env_step: int
    config: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the datamodule."""


IMAGE = {"wrappers": ["minigrid.wrappers.ImgObsWrapper", "flatten", {"dtype": {"dtype": "float32"}}], "norm_obs": True}
TASKS = {
    "Pendulum-v1": Task(32_768, {"discount_factor": 0.9, "learn": {"learning_rate": 1e-3}}),
    "HalfCheetah-v5": Task(32_768, data={"norm_obs": True}),
    "Hopper-v5": Task(32_768, data={"norm_obs": True}),
    "LunarLander-v3": Task(32_768),
    "CartPole-v1": Task(16_384),
    "minigrid:MiniGrid-Empty-8x8-v0": Task(32_768, {"learn": {"entropy_weight": 0.01}}, IMAGE),
}


class LastReturns(Callback):
    """Collect the mean returns of the training episodes of each round in the last quarter of a run."""

    def __init__(self, max_env_step: int) -> None:
        self.start = 0.75 * max_env_step
        self.means: list[float] = []

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Note the newest mean return."""
        mean = trainer.callback_metrics.get("collect/return_mean")
        if mean is not None and pl_module.progress.env_step >= self.start:
            self.means.append(float(mean))


def run(env_id: str, setting: str, seed: int) -> dict[str, Any]:
    """Train, and return the ``return`` (None if an update was not finite) and the ``seconds``."""
    from lightning import seed_everything

    from lightning_ding.callbacks import MetricsLogger
    from lightning_ding.config import deep_merge
    from lightning_ding.datamodules import RolloutDataModule
    from lightning_ding.policy import PPOPolicy
    from lightning_ding.policy.base.dump import NonFiniteError

    task = TASKS[env_id]
    seed_everything(seed, verbose=False)
    arguments = {"num_envs": NUM_ENVS, "seed": seed, "max_env_step": task.max_env_step, **task.data}
    policy = PPOPolicy(deep_merge(task.config, {"learn": {"value_norm": SETTINGS[setting]}}))
    last, start = LastReturns(task.max_env_step), time.perf_counter()
    try:
        contest.fit(policy, RolloutDataModule(env_id, **arguments), callbacks=[MetricsLogger(1), last])
        mean = statistics.fmean(last.means)
    except NonFiniteError:
        mean = None
    return {"return": mean, "seconds": round(time.perf_counter() - start, 1), "env_steps": policy.progress.env_step}


def table(results: Results) -> str:
    """Return a table in Markdown: the mean over the seeds and the return of each, one column for each setting."""
    names = [name for name in SETTINGS if any(name in of_env for of_env in results.values())]
    lines = [f"| env | env steps | {' | '.join(f'`{name}`' for name in names)} |", "|---|--:|" + "--:|" * len(names)]
    for env_id, of_env in results.items():
        cells = [_cell(of_env.get(name, {})) for name in names]
        lines.append(f"| {env_id.split(':')[-1]} | {TASKS[env_id].max_env_step:,} | {' | '.join(cells)} |")
    shares = [_mean_share(results, name) for name in names]
    lines.append(f"| mean share of the best | | {' | '.join(f'{share:.2f}' for share in shares)} |")
    return "\n".join(lines)


def _cell(runs: Mapping[str, Any]) -> str:
    found = [one["return"] for one in runs.values()]
    each = ", ".join("not finite" if one is None else number(one) for one in found)
    return f"{number(statistics.fmean(found))} ({each})" if found and None not in found else each or "-"


def _mean_share(results: Results, setting: str) -> float:
    """Return where a setting is between the worst (0) and the best run (1) of an env, averaged over runs and envs."""
    shares = []
    for of_env in results.values():
        known = [one["return"] for runs in of_env.values() for one in runs.values() if one["return"] is not None]
        low, span = min(known), (max(known) - min(known)) or 1.0
        found = [low if one["return"] is None else one["return"] for one in of_env.get(setting, {}).values()]
        if found:
            shares.append((statistics.fmean(found) - low) / span)
    return statistics.fmean(shares)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing, write the file after each run, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=TASKS, default=list(TASKS), help="envs to run")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS), help="settings to run")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS), help="seeds to run")
    parser.add_argument("--out", type=Path, default=RESULT, help="JSON file of the results, which is continued")
    parser.add_argument("--table", action="store_true", help="run nothing")
    options = parser.parse_args(arguments)
    results: Results = json.loads(options.out.read_text()) if options.out.is_file() else {}
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    for name in ("lightning.pytorch", "lightning_ding"):
        logging.getLogger(name).setLevel(logging.ERROR)
    plan = [(seed, env_id, name) for seed in options.seeds for env_id in options.only for name in options.settings]
    for seed, env_id, name in [] if options.table else plan:
        runs = results.setdefault(env_id, {}).setdefault(name, {})
        if str(seed) not in runs:
            runs[str(seed)] = run(env_id, name, seed)
            options.out.write_text(json.dumps(results, indent=1) + "\n")
            print(f"{env_id}, {name}, seed {seed}: {runs[str(seed)]}", flush=True)
    print(table(results))


if __name__ == "__main__":
    main()
