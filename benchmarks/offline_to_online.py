"""From a data set to an env: how far policies fall in their first steps online, and where they end.

    python -m benchmarks.offline_to_online                          # makes the data set, trains, prints a table
    python -m benchmarks.offline_to_online --only iql --seeds 0 1
    python -m benchmarks.offline_to_online --table                  # docs/results/offline_to_online.json as a table

Each policy makes the updates of its recipe on the data set ``pendulum`` of ``benchmarks/offline.py``, and then 3,000
env steps in Pendulum-v1 with one update for each, after 300 steps without updates: with minibatches of the steps that
it made (``alone``), or with half of each minibatch from the data (``mixed``, the option ``demonstrations``). Before,
and about every 300 env steps, 20 greedy episodes are played.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import time
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import offline, proofs
from benchmarks.compare import commit, machine
from lightning_ding.config import deep_merge

RESULT = Path("docs/results/offline_to_online.json")
ALGORITHMS = ("iql", "awac", "td3_bc", "cql", "calql")
WAYS = ("alone", "mixed")
ENV_STEPS, EVAL_EVERY, N_EPISODE, N_SAMPLE = 3000, 300, 20, 8
ONLINE: dict[str, Any] = {"learn": {"update_per_collect": N_SAMPLE}, "collect": {"n_sample": N_SAMPLE}}
SIDE: dict[str, Any] = {"accelerator": "cpu", **offline.QUIET}


def pretrained(name: str, file: Path, seed: int, folder: Path) -> tuple[Path, float]:
    """Return the checkpoint of a policy that was trained on a data set, and its return."""
    from lightning import Trainer, seed_everything

    from lightning_ding.datamodules import OfflineDataModule
    from lightning_ding.policy import create_policy

    recipe = proofs.load(name)
    seed_everything(seed)
    policy = create_policy({"type": name, **recipe.CONFIG})
    arguments: dict[str, Any] = {
        "seed": seed,
        "max_train_iter": recipe.MAX_TRAIN_ITER,
        "n_evaluator_episode": N_EPISODE,
    }
    data = OfflineDataModule(
        str(file), "Pendulum-v1", norm_obs=recipe.NORM_OBS, norm_reward=recipe.NORM_REWARD, **arguments
    )
    trainer = Trainer(default_root_dir=folder, limit_val_batches=0, **SIDE)
    trainer.fit(policy, data)
    trainer.save_checkpoint(folder / "offline.ckpt")
    (scores,) = trainer.test(policy, data, verbose=False)
    return folder / "offline.ckpt", float(scores["test/return_mean"])


def online(name: str, ckpt: Path, way: str, file: Path, seed: int, folder: Path) -> list[tuple[int, float]]:
    """Return the returns of a policy that continues in the env, by env step."""
    from lightning import Callback, Trainer, seed_everything

    from lightning_ding.datamodules import ReplayDataModule
    from lightning_ding.policy import get_policy_cls

    curve: list[tuple[int, float]] = []

    class Curve(Callback):
        """Record every evaluation."""

        def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
            curve.append((pl_module.progress.env_step, float(trainer.callback_metrics["eval/return_mean"])))

    seed_everything(seed)
    own = deep_merge(ONLINE, {"eval": {"evaluator": {"n_episode": N_EPISODE, "stop_value": None}}})
    policy = get_policy_cls({"type": name}).load_from_checkpoint(ckpt, cfg={**own, "random_collect_size": EVAL_EVERY})
    limits: dict[str, Any] = {"max_env_step": ENV_STEPS, "rounds_per_epoch": round(EVAL_EVERY / N_SAMPLE)}
    mixed: dict[str, Any] = {"demonstrations": str(file)} if way == "mixed" else {}
    data = ReplayDataModule("Pendulum-v1", num_envs=8, seed=seed, **limits, **mixed)
    Trainer(default_root_dir=folder, callbacks=[Curve()], **SIDE).fit(policy, data)
    return curve


def runs_of(name: str, file: Path, seed: int) -> list[dict[str, Any]]:
    """Return the results of one seed of an algorithm, one for each way."""
    found = []
    with TemporaryDirectory() as folder:
        ckpt, before = pretrained(name, file, seed, Path(folder))
        for way in WAYS:
            start = time.perf_counter()
            curve = online(name, ckpt, way, file, seed, Path(folder) / way)
            run = {"seed": seed, "way": way, "before": before, "curve": curve}
            found.append({**run, "seconds": time.perf_counter() - start})
    return found


def save(name: str, runs: list[dict[str, Any]], result: Path) -> None:
    """Write runs to the result file; those of other algorithms and seeds in it are kept."""
    record: dict[str, Any] = json.loads(result.read_text()) if result.is_file() else {}
    how = {"command": f"python -m benchmarks.offline_to_online --only {name}", "commit": commit(), "machine": machine()}
    kept = {(one["seed"], one["way"]): one for one in [*record.get(name, []), *({**run, **how} for run in runs)]}
    record[name] = [kept[place] for place in sorted(kept)]
    result.write_text(json.dumps(record) + "\n")


def table(result: Path) -> str:
    """Return the medians over seeds as a table in Markdown."""
    rows = ["| algorithm | way | seeds | after the data | lowest online | at the end |", "|---|---|--:|--:|--:|--:|"]
    for name, runs in json.loads(result.read_text()).items():
        for way in WAYS:
            made = [run for run in runs if run["way"] == way]
            columns = (
                [run["before"] for run in made],
                [min(score for _, score in run["curve"]) for run in made],
                [run["curve"][-1][1] for run in made],
            )
            medians = " | ".join(f"{statistics.median(column):,.0f}" for column in columns)
            rows.append(f"| `{name}` | {way} | {len(made)} | {medians} |")
    return "\n".join(rows)


def main() -> None:
    """Train what is asked for, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=ALGORITHMS, default=ALGORITHMS, help="algorithms (default: all)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="seeds of each")
    parser.add_argument("--data", type=Path, default=offline.FOLDER, help="folder of the data set")
    parser.add_argument("--out", type=Path, default=RESULT, help="JSON file of the results")
    parser.add_argument("--table", action="store_true", help="print the results as a table")
    options = parser.parse_args()
    if not options.table:
        import torch

        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        logging.getLogger("lightning").setLevel(logging.ERROR)
        file = offline.make_data("pendulum", options.data)
        for name in options.only:
            for seed in options.seeds:
                save(name, runs_of(name, file, seed), options.out)
    print(table(options.out))


if __name__ == "__main__":
    main()
