"""Measure what compiling updates costs and saves, for the recipe of each algorithm that collects its own data.

    python -m benchmarks.compiling      # writes docs/results/compiling.json

Each recipe makes some hundred updates in a new process with one torch thread, three times: eagerly, compiled with an
empty cache, and compiled again with the cache that this filled. The seconds of compiling are those of all losses of the
algorithm. What compiling saves is the difference in training time without them, for as many updates as the recipe
makes in its whole budget of env steps. Episodes of unknown length count as one of 500 steps.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks import contest
from benchmarks.compare import Result, provenance
from benchmarks.proofs import RECIPES, load
from lightning_ding.config import deep_merge
from lightning_ding.policy import Policy
from lightning_ding.policy.base.compile import expected_updates
from lightning_ding.registry import POLICY_REGISTRY

NEVER_STOPS: dict[str, Any] = {"eval": {"evaluator": {"stop_value": None}}}
EPISODE = 500  # steps, where a rollout is a number of episodes


def recipes() -> list[str]:
    """Return the recipes that collect their data, by name."""
    found = []
    for file in sorted(RECIPES.glob("*.py")):
        source = file.read_text()
        if "MAX_ENV_STEP" in source and "expert" not in source and file.stem in POLICY_REGISTRY:
            found.append(file.stem)
    return found


def run(name: str, mode: str, updates: int) -> Result:
    """Train as a recipe does, and return the seconds of an update, of compiling, and the recipe's number of updates.

    Args:
        name: Name of the recipe.
        mode: ``"eager"`` or ``"compiled"``.
        updates: Number of updates, about.
    """
    from lightning import seed_everything

    from lightning_ding.datamodules import ReplayDataModule, RolloutDataModule

    recipe: Any = load(name)
    (policy_class,) = (one for one in vars(recipe).values() if isinstance(one, type) and issubclass(one, Policy))
    seed_everything(0)
    policy: Any = policy_class(deep_merge(recipe.CONFIG, {"compile": mode == "compiled", **NEVER_STOPS}))
    policy.progress.budget = recipe.MAX_ENV_STEP
    whole = expected_updates(policy, 1) or recipe.MAX_ENV_STEP // (policy.config.collect.n_episode * EPISODE)
    datamodule_class = RolloutDataModule if policy.on_policy else ReplayDataModule
    limits = {"max_env_step": recipe.MAX_ENV_STEP, "max_train_iter": updates}
    result = contest.fit(policy, datamodule_class(recipe.ENV_ID, num_envs=recipe.NUM_ENVS, seed=0, **limits))
    seconds = result["seconds"] / result["updates"]
    return {"seconds_per_update": seconds, "compile_seconds": result["compile_seconds"], "updates_of_recipe": whole}


def measure(name: str, updates: int) -> dict[str, Result]:
    """Return the results of a recipe by mode: ``eager``, ``cold`` and ``warm``."""
    found = {}
    with TemporaryDirectory() as cache:
        env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "benchmarks.compiling", "--updates", str(updates), "--run", name]
        for mode in ("cold", "warm", "eager"):
            kind = "eager" if mode == "eager" else "compiled"
            done = subprocess.run([*command, kind], capture_output=True, text=True, env=env, check=False)
            if done.returncode:
                raise RuntimeError(f"{name} failed:\n{done.stderr}")
            found[mode] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def summary_of(modes: dict[str, Result]) -> Result:
    """Return the seconds of compiling and those that a whole recipe saves by it.

    Example:
        >>> eager = {"seconds_per_update": 0.002, "compile_seconds": 0.0, "updates_of_recipe": 5000}
        >>> modes = {"eager": eager, "cold": eager | {"compile_seconds": 8.0},
        ...     "warm": eager | {"seconds_per_update": 0.001, "compile_seconds": 2.0}}
        >>> summary_of(modes)["saved_cold"], summary_of(modes)["saved_warm"]
        (-3.0, 3.0)
    """
    saved = modes["eager"]["seconds_per_update"] - modes["warm"]["seconds_per_update"]
    whole = saved * modes["eager"]["updates_of_recipe"]
    cold, warm = modes["cold"]["compile_seconds"], modes["warm"]["compile_seconds"]
    return {"cold": cold, "warm": warm, "saved_cold": whole - cold, "saved_warm": whole - warm}


def main() -> None:
    """Print the table, and write it to a JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=recipes(), default=recipes(), help="recipes")
    parser.add_argument("--updates", type=int, default=600, help="number of updates of a run, about")
    parser.add_argument("--run", nargs=2, help="name and mode of one run in this process, which prints JSON")
    parser.add_argument("--out", type=Path, default=Path("docs/results/compiling.json"), help="JSON file")
    options = parser.parse_args()
    if options.run:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        logging.getLogger("lightning").setLevel(logging.ERROR)
        name, mode = options.run
        print(json.dumps(run(name, mode, options.updates)))
        return
    rows = {}
    for name in options.only:
        modes = measure(name, options.updates)
        row = rows[name] = {**modes, "summary": summary_of(modes)}
        eager, warm = (1e6 * modes[mode]["seconds_per_update"] for mode in ("eager", "warm"))
        numbers = " ".join(f"{key} {value:6.1f} s" for key, value in row["summary"].items())
        print(f"{name:>14} eager {eager:7.0f} us compiled {warm:7.0f} us {numbers}", flush=True)
        options.out.write_text(json.dumps({**provenance(), "recipes": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
