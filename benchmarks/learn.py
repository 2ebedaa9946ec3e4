"""Learning benchmarks: curves of every recipe over five seeds, and of peers with settings from their projects.

    python -m benchmarks.learn                          # all of benchmarks/proofs.py, some hours on two cores
    python -m benchmarks.learn --only dqn_cartpole      # writes docs/results/learn/dqn_cartpole.json
    python -m benchmarks.learn --jobs 2                 # this project and Stable-Baselines3 at the same time
    python -m benchmarks.learn --keep config            # only the runs that the files lack, or have with other settings
    python -m benchmarks.learn --sides tianshou         # all experiments for which Tianshou has an example
    python -m benchmarks.curves                         # draws docs/results/learning/*.svg, and writes learning.md

Each run is a separate process with one torch thread. Evaluations are 20 greedy episodes, or 200 games, at regular env
steps, and their time is not counted. A run's result is the mean return of the evaluations in the last tenth of its env
steps. The best checkpoint is tested on 100 other greedy episodes. A run that fails does not stop the others: it is
listed at the end, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

from benchmarks import proofs, sbx_side, tianshou_side, zoo
from benchmarks.compare import commit, machine
from benchmarks.proofs import PROOFS, Proof, Run
from lightning_ding.config import deep_merge
from lightning_ding.utils.protocols import return_text

PEERS: dict[str, Any] = {"peer": zoo, "sbx": sbx_side, "tianshou": tianshou_side}
"""Modules with ``has``, ``settings`` and ``train``; ``peer`` is Stable-Baselines3."""
SIDES = ("ours", *PEERS)
ARGUMENTS = ("DEMONSTRATION_SHARE", "EVAL_ENV_KWARGS", "NORM_OBS", "NORM_REWARD", "WRAPPERS")
"""Constants of recipes that are arguments of the datamodule."""
KEEP = ("none", "config", "commit")
"""Which runs in a file are not repeated: none, those with the same settings, or those of the same commit as well.

Runs of trees with changes that no commit has, or with another number of test episodes, are always repeated."""


def train(proof: Proof, seed: int, shipped: Path | None = None) -> Run:
    """Train through ``Trainer.fit`` as the recipe does, and return the curve and the score of the best checkpoint.

    Args:
        proof: The experiment.
        seed: Seed of the run.
        shipped: Safetensors file to write the policy at the end to; it is then tested too, as ``last``.
    """
    from lightning import Callback, Trainer, seed_everything

    from benchmarks import offline
    from lightning_ding.callbacks import SelfPlay

    curve: list[tuple[int, float, float]] = []

    class Curve(Callback):
        """Record every evaluation; evaluations do not count as training time."""

        def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
            self.seconds, self.began = 0.0, time.perf_counter()

        def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
            if not trainer.sanity_checking:
                self.seconds += time.perf_counter() - self.began

        def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
            if not trainer.sanity_checking:
                score = float(trainer.callback_metrics["eval/return_mean"])
                curve.append((pl_module.progress.env_step, self.seconds, score))
                self.began = time.perf_counter()

    module = proofs.load(proof.recipe)
    policy_class, datamodule_class = proofs.classes(module)
    data = data_arguments(proof)
    config = proof.config()
    if proof.demonstrations is not None:
        data["demonstrations"] = offline.make_data(proof.demonstrations, offline.FOLDER)
    if proof.expert is not None:
        expert = str(offline.make_data(proof.expert, offline.FOLDER))
        config = deep_merge(config, {"reward_model": {"data_path": expert}})
    seed_everything(seed)
    policy = policy_class(config)
    plan = proof.plan
    datamodule, test = (
        datamodule_class(
            proof.env_id,
            **data,
            num_envs=getattr(module, "NUM_ENVS", proofs.NUM_ENVS),
            seed=seed,
            max_env_step=plan.budget,
            rounds_per_epoch=_rounds(policy, plan.eval_every),
            n_evaluator_episode=n_episode,
        )
        for n_episode in (plan.n_episode, plan.n_test)
    )
    with TemporaryDirectory() as folder:
        quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        callbacks = [Curve(), *([SelfPlay(**module.SELF_PLAY)] if hasattr(module, "SELF_PLAY") else [])]
        trainer = Trainer(accelerator="cpu", default_root_dir=folder, callbacks=callbacks, **quiet)
        trainer.fit(policy, datamodule)
        best = getattr(trainer.checkpoint_callback, "best_model_path", None)
        last: float | None = None
        if shipped is not None:
            policy.export(shipped, "safetensors")
            (scores,) = trainer.test(policy, test, verbose=False)
            last = float(scores["test/return_mean"])
        (scores,) = trainer.test(policy, test, ckpt_path=best, verbose=False)
    score = float(scores["test/return_mean"])
    run: Run = {"seed": seed, "seconds": curve[-1][1], "best": score, "n_test": plan.n_test, "curve": curve}
    if last is not None:
        run["last"] = last
    return run


def data_arguments(proof: Proof) -> dict[str, Any]:
    """Return the arguments that a proof gives the datamodule besides env, budget, seed and data sets."""
    module, env_kwargs = proofs.load(proof.recipe), proofs.env_kwargs(proof)
    found = {name.lower(): getattr(module, name) for name in ARGUMENTS if hasattr(module, name)}
    return found | ({"env_kwargs": env_kwargs} if env_kwargs else {}) | proof.data


def _rounds(policy: Any, env_steps: int) -> int:
    """Return the rounds that take so many env steps, or a few rounds if they are of whole episodes."""
    n_sample = policy.config.collect.n_sample
    return 5 if n_sample is None else max(1, round(env_steps / n_sample))


def run_one(name: str, side: str, seed: int, budget: int) -> Run:
    """Run one seed of one side of a proof in this process."""
    proof = dataclasses.replace(PROOFS[name], budget=budget)
    if side == "ours":
        return train(proof, seed)
    run: Run = PEERS[side].train(proof.peer_algorithm, proof.env_id, proof.plan, seed)
    return run


def has_peer(proof: Proof, side: str) -> bool:
    """Return whether a peer has the algorithm, and settings for the env; no peer is given arguments of the env."""
    is_other = proof.has_defaults or bool(proof.env_kwargs)
    return bool(PEERS[side].has(proof.peer_algorithm, proof.env_id)) and not is_other


def in_processes(name: str, tasks: Sequence[tuple[int, str]], budget: int, jobs: int, folder: Path) -> list[str]:
    """Run seeds of sides, ``jobs`` at a time, write each as soon as it ends, and return the runs that failed.

    Args:
        name: A key of ``PROOFS``.
        tasks: Pairs of a seed and a side.
        budget: Env steps of each run.
        jobs: Processes at a time.
        folder: Folder of the JSON files.
    """
    lock = Lock()

    def start(task: tuple[int, str]) -> str | None:
        seed, side = task
        command = [sys.executable, "-m", "benchmarks.learn", "--run", name, "--side", side, "--seeds", str(seed)]
        threads = {**os.environ, "OMP_NUM_THREADS": "1"}
        command += ["--budget", str(budget)]
        done = subprocess.run(command, capture_output=True, text=True, env=threads)
        if done.returncode:
            print(f"{name} {side}, seed {seed} failed:\n{done.stderr}", file=sys.stderr, flush=True)
            return f"{name} {side}, seed {seed}"
        run: Run = json.loads(done.stdout.strip().splitlines()[-1])
        end, best = return_text(proofs.end_return(run)), return_text(run["best"])
        print(f"{name:>18} {side}, seed {seed}: {end:>8}, best {best:>8} in {run['seconds']:6.0f} s", flush=True)
        with lock:
            save(name, budget, side, run, folder)
        return None

    with ThreadPoolExecutor(jobs) as pool:
        return [failed for failed in pool.map(start, tasks) if failed is not None]


def missing(name: str, sides: Sequence[str], seeds: Sequence[int], keep: str, folder: Path) -> list[tuple[int, str]]:
    """Return the seeds and sides that have to run.

    Args:
        name: A key of ``PROOFS``.
        sides: Sides that are asked for.
        seeds: Seeds that are asked for.
        keep: One of ``KEEP``.
        folder: Folder of the JSON files.
    """
    record, now = read(name, folder), commit()
    known = set()
    for side in sides if keep != "none" else ():
        for run in kept_runs(record, name, side):
            is_whole = run.get("n_test") == PROOFS[name].plan.n_test and not run["commit"].endswith("+")
            if is_whole and (keep == "config" or run["commit"] == now):
                known.add((run["seed"], side))
    return [(seed, side) for seed in seeds for side in sides if (seed, side) not in known]


def read(name: str, folder: Path) -> dict[str, Any]:
    """Return what the JSON file of an experiment holds; nothing if there is none."""
    file = folder / f"{name}.json"
    record: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    return record


def settings_of(name: str, side: str) -> Any:
    """Return the settings of an experiment as JSON has them."""
    proof = PROOFS[name]
    config = proof.config() if side == "ours" else PEERS[side].settings(proof.peer_algorithm, proof.env_id)
    return as_json(config)


def as_json(settings: Any) -> Any:
    """Return settings as JSON has them: lists for tuples."""
    return json.loads(json.dumps(settings))


def kept_runs(record: dict[str, Any], name: str, side: str) -> list[Any]:
    """Return the runs of a side that have the settings of today; none if any of these changed.

    Files of earlier days do not name the arguments of the datamodule.
    """
    made: dict[str, Any] = record.get(side, {})
    data = as_json(data_arguments(PROOFS[name])) if side == "ours" else None
    is_same = made.get("config") == settings_of(name, side) and made.get("data", data) == data
    return list(made["runs"]) if is_same else []


def save(name: str, budget: int, side: str, run: Run, folder: Path) -> None:
    """Write a run and its command to the file.

    Runs of other sides in the file are kept, and those of other seeds if they have the same settings.
    """
    proof, record = PROOFS[name], read(name, folder)
    record |= {"recipe": proof.recipe, "env_id": proof.env_id, "budget": budget, "bar": proof.bar}
    if env_kwargs := proofs.env_kwargs(proof):
        record["env_kwargs"] = env_kwargs
    if proof.is_ceiling:
        record["is_ceiling"] = True
    command = f"python -m benchmarks.learn --only {name} --sides {side}"
    if budget != proof.budget:
        command += f" --budget {budget}"
    how = {"command": command, "commit": commit()}
    how |= {"time": time.strftime("%Y-%m-%d %H:%M:%S"), "machine": machine()}
    by_seed = {one["seed"]: one for one in [*kept_runs(record, name, side), {**run, **how}]}
    data = {"data": as_json(data_arguments(proof))} if side == "ours" else {}
    record[side] = {"config": settings_of(name, side), **data, "runs": [by_seed[seed] for seed in sorted(by_seed)]}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(record) + "\n")


def main() -> None:
    """Run one seed and print JSON, or all that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PROOFS, default=list(PROOFS), help="run only these experiments")
    parser.add_argument("--seeds", nargs="+", type=int, help="seeds; by default those in benchmarks/proofs.py")
    parser.add_argument(
        "--sides",
        nargs="+",
        choices=SIDES,
        default=["ours", "peer"],
        help="implementations to run: this project, Stable-Baselines3 as 'peer', SBX and Tianshou; peers only where "
        "they have the algorithm and their project has settings for the env (default: ours peer)",
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--budget", type=int, help="number of env steps; by default that in benchmarks/proofs.py")
    parser.add_argument(
        "--keep", choices=KEEP, default="none", help="which runs in the files are not repeated (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, default=Path("docs/results/learn"), help="folder of the JSON files")
    parser.add_argument("--run", choices=PROOFS, help="run one seed in this process and print JSON")
    parser.add_argument("--side", choices=SIDES, default="ours", help="implementation that --run runs")
    options = parser.parse_args()
    if options.run:
        import torch

        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        logging.getLogger("lightning").setLevel(logging.ERROR)
        budget = options.budget or PROOFS[options.run].budget
        print(json.dumps(run_one(options.run, options.side, (options.seeds or (0,))[0], budget)))
        return
    for name in options.only:
        made = read(name, options.out).get("budget")
        if made not in (None, options.budget or PROOFS[name].budget):
            parser.error(f"{options.out / name}.json has runs of {made} env steps: delete it, or choose another --out")
    failed = []
    for name in options.only:
        proof = PROOFS[name]
        sides = [side for side in options.sides if side == "ours" or has_peer(proof, side)]
        budget = options.budget or proof.budget
        tasks = missing(name, sides, options.seeds or proof.seeds, options.keep, options.out)
        failed += in_processes(name, tasks, budget, options.jobs, options.out)
    if failed:
        print("failed runs:", *failed, sep="\n  ", file=sys.stderr)
        raise SystemExit(1)


if __name__ == "__main__":
    main()
