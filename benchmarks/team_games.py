"""What algorithms of teams reach in small games whose best returns are known: matrix games and the two-step game.

    python -m benchmarks.team_games             # all, in about ten minutes; writes docs/results/team_games.json
    python -m benchmarks.team_games --table     # prints the table of docs/results.md
    python -m benchmarks.team_games --only qmix --games nonmonotonic --seeds 0

Each run has 4,000 env steps in eight envs. Its result is the return of a greedy game of the policy at the end; the
games have no randomness. Learners of values explore with actions that are uniformly random, so that their data have all
joint actions equally often, as in Son et al. 2019 (https://arxiv.org/abs/1905.05408).
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

from benchmarks.compare import commit, machine
from lightning_ding.config import deep_merge

FILE = Path("docs/results/team_games.json")
STEPS, NUM_ENVS = 4_000, 8
SEEDS = (0, 1, 2, 3, 4)
WHERE = "lightning_ding.envs.teams.games"
GAMES: dict[str, tuple[str, dict[str, Any]]] = {
    "nonmonotonic": (f"{WHERE}.MatrixGame", {"payoff": "nonmonotonic"}),
    "climbing": (f"{WHERE}.MatrixGame", {"payoff": "climbing"}),
    "penalty": (f"{WHERE}.MatrixGame", {"payoff": "penalty"}),
    "two-step": (f"{WHERE}.TwoStepGame", {}),
}
BEST = {"nonmonotonic": 8.0, "climbing": 11.0, "penalty": 10.0, "two-step": 8.0}
VALUES: dict[str, Any] = {
    "random_collect_size": 256,
    "learn": {"learning_rate": 2e-3, "target_theta": 0.05, "update_per_collect": 4},
    "other": {"eps": {"start": 1.0, "end": 1.0}},
}
POLICIES: dict[str, Any] = {
    "learn": {"epoch_per_collect": 4, "batch_size": 64, "learning_rate": 0.01, "entropy_weight": 0.05},
    "collect": {"n_sample": 128},
}
SLOW: dict[str, Any] = {"learn": {"learning_rate": 1e-3, "update_per_collect": 12}}
"""QTRAN learns a joint value and factors it, which takes more updates than learning one value."""
ALGORITHMS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("iql_ma", "vdn", "qmix", "wqmix", "madqn"), VALUES),
    "qtran": deep_merge(VALUES, SLOW),
    **dict.fromkeys(("ippo", "mappo", "happo"), POLICIES),
}
"""Settings of each algorithm; ``wqmix`` has its optimistic weights."""


def play(name: str, game: str, seed: int) -> dict[str, Any]:
    """Train a team, and return the return of its policy at the end, the seconds of training and the commit.

    Args:
        name: A key of ``ALGORITHMS``.
        game: A key of ``GAMES``.
        seed: Seed of the run.
    """
    from lightning import Trainer, seed_everything

    from lightning_ding.datamodules import ReplayDataModule, RolloutDataModule
    from lightning_ding.policy import create_policy

    seed_everything(seed, verbose=False)
    settings = {"type": name, "eval": {"evaluator": {"n_episode": 1}}}
    policy: Any = create_policy(deep_merge(ALGORITHMS[name], settings))
    kind: Any = RolloutDataModule if ALGORITHMS[name] is POLICIES else ReplayDataModule
    env_id, arguments = GAMES[game]
    data = kind(env_id, env_kwargs=arguments, num_envs=NUM_ENVS, seed=seed, max_env_step=STEPS)
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer(accelerator="cpu", max_epochs=-1, limit_val_batches=0, enable_checkpointing=False, **quiet)
    start = time.perf_counter()
    trainer.fit(policy, data)
    seconds = time.perf_counter() - start
    trainer.limit_val_batches = 1.0
    (scores,) = trainer.validate(policy, data, verbose=False)
    return {"seed": seed, "return": float(scores["eval/return_mean"]), "seconds": round(seconds, 1), "commit": commit()}


def table(record: dict[str, Any]) -> str:
    """Return the table: the mean return of each algorithm in each game, and that of each seed.

    Args:
        record: What the JSON file holds.
    """
    head = ["algorithm", *(f"{game} (best {best:g})" for game, best in BEST.items())]
    lines = [head, ["---"] * len(head)]
    for name, games in record["runs"].items():
        cells = [f"`{name}`"]
        for game in GAMES:
            found = [run["return"] for run in games.get(game, ())]
            cells.append(f"{statistics.fmean(found):.1f} ({', '.join(f'{one:g}' for one in found)})" if found else "")
        lines.append(cells)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main() -> None:
    """Run what is asked for, and write each result as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS), help="algorithms")
    parser.add_argument("--games", nargs="+", choices=GAMES, default=list(GAMES), help="games")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS), help="seeds")
    parser.add_argument("--out", type=Path, default=FILE, help="JSON file of the results; other runs in it are kept")
    parser.add_argument("--table", action="store_true", help="print the table of the file, and run nothing")
    options = parser.parse_args()
    record: dict[str, Any] = json.loads(options.out.read_text()) if options.out.is_file() else {"runs": {}}
    if options.table:
        print(table(record))
        return
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("lightning").setLevel(logging.ERROR)
    record |= {"command": "python -m benchmarks.team_games", "machine": machine(), "steps": STEPS}
    for name in options.only:
        for game in options.games:
            runs = [play(name, game, seed) for seed in options.seeds]
            record["runs"].setdefault(name, {})[game] = runs
            print(name, game, [run["return"] for run in runs], [run["seconds"] for run in runs], flush=True)
            options.out.write_text(json.dumps(record))


if __name__ == "__main__":
    main()
