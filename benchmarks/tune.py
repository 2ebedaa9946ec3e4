"""Whether a search finds settings of DQN on CartPole-v1 that are no worse than the recipe's, with the same budget.

    python -m benchmarks.tune                    # writes docs/results/tune.json, and exits with 1 if they are worse
    python -m benchmarks.tune --trials 5 --seeds 2 --max-env-step 3000 --out runs/tune.json

The search starts from recipes/configs/dqn_cartpole.yaml with 10,000 env steps for each trial, in all search spaces that
DQN declares. Its winner and the recipe are then trained with seeds that the search has not used. A run's result is the
mean return of its last evaluation, of 20 greedy episodes. The winner counts as worse if its mean over the seeds is
lower than the recipe's by more than the standard error of the difference. One process with one thread.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import yaml

from benchmarks.compare import provenance
from lightning_ding.tune import tune
from lightning_ding.tune.config import Candidate, derived_seed
from lightning_ding.tune.trial_run import RunMaker, TrialReporter, run_trial

RECIPE = Path(__file__).parents[1] / "recipes" / "configs" / "dqn_cartpole.yaml"
OUT = Path("docs/results/tune.json")
TRIALS, MAX_ENV_STEP, SEEDS = 20, 10_000, 5
JUDGING_SEEDS = 2
"""Number from which the seeds of the comparison are derived; the search derives its own from 0 and 1."""


@dataclass(frozen=True)
class Verdict:
    """The returns of the recipe and of the winner of a search, each with the same seeds."""

    recipe: Candidate
    winner: Candidate

    @property
    def difference(self) -> float:
        """Mean return of the winner over that of the recipe."""
        return self.winner.mean - self.recipe.mean

    @property
    def standard_error(self) -> float:
        """Standard error of the difference; 0 with one seed."""
        errors = [one.standard_error for one in (self.recipe, self.winner)]
        return 0.0 if any(map(math.isnan, errors)) else math.hypot(*errors)

    @property
    def is_worse(self) -> bool:
        """Whether the winner is worse by more than the standard error."""
        return self.difference < -self.standard_error


def settings_of(max_env_step: int) -> dict[str, Any]:
    """Return the recipe's settings with another number of env steps, and without a logger."""
    settings: dict[str, Any] = yaml.safe_load(RECIPE.read_text())
    settings["data"]["max_env_step"] = max_env_step
    settings["trainer"]["logger"] = False
    return settings


def judge(settings: Mapping[str, Any], values: Mapping[str, Any], seeds: Sequence[int], folder: Path) -> Verdict:
    """Train the recipe and the winner with the same seeds. Without changed values they are equal, and train once.

    Args:
        settings: The recipe's settings.
        values: Values of the winner that differ from them, by dotted name.
        seeds: Seeds of the runs.
        folder: Folder of the runs.
    """
    maker = RunMaker(settings)

    def returns(name: str, values: Mapping[str, Any]) -> list[float]:
        return [
            run_trial(maker, maker.trial_settings(values, seed, folder / f"{name}_{seed}"), "last", TrialReporter())
            for seed in seeds
        ]

    recipe = Candidate("recipe", {}, returns("recipe", {}))
    return Verdict(recipe, Candidate("winner", values, returns("winner", values) if values else recipe.returns))


def main(arguments: Sequence[str] | None = None) -> int:
    """Search, compare, and write the result; return 1 if the winner is worse than the recipe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=TRIALS, help="trials of the search")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="seeds of the comparison")
    parser.add_argument("--max-env-step", type=int, default=MAX_ENV_STEP, help="env steps of each run")
    parser.add_argument("--out", type=Path, default=OUT, help="JSON file of the result")
    options = parser.parse_args(arguments)
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    torch.set_num_threads(1)
    settings = settings_of(options.max_env_step)
    began = time.monotonic()
    with TemporaryDirectory() as folder:
        found = tune(settings, Path(folder) / "study", trials=options.trials, candidates=2, candidate_seeds=2)
        print(found.summary)
        searched = time.monotonic() - began
        seeds = [derived_seed(0, JUDGING_SEEDS, number) for number in range(options.seeds)]
        verdict = judge(settings, found.best.values, seeds, Path(folder) / "judge")
    seconds = {"search": round(searched, 1), "comparison": round(time.monotonic() - began - searched, 1)}
    for one in (verdict.recipe, verdict.winner):
        print(f"{one.name:>8}: mean return {one.mean:6.1f}, {[round(value, 1) for value in one.returns]}")
    print(f"difference {verdict.difference:+.1f} with a standard error of {verdict.standard_error:.1f}; {seconds}")
    result = {"winner": dict(verdict.winner.values), "seeds": seeds, "seconds": seconds}
    result["returns"] = {one.name: list(one.returns) for one in (verdict.recipe, verdict.winner)}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({**provenance(), **result}, indent=2) + "\n")
    return int(verdict.is_worse)


if __name__ == "__main__":
    raise SystemExit(main())
