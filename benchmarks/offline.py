"""Offline learning: data sets that our own commands make, and what each algorithm learns from them.

    python -m benchmarks.offline                                        # makes the data sets and trains on them
    python -m benchmarks.offline --only_data                            # only makes the data sets
    python -m benchmarks.offline --only td3_bc iql                      # these algorithms, five seeds each
    python -m benchmarks.offline --only bc_cartpole                     # bc on episodes of an expert on CartPole-v1
    python -m benchmarks.offline --keep config                          # what the file lacks
    python -m benchmarks.offline --side tianshou --only td3_bc cql      # Tianshou's, on the same data
    python -m benchmarks.offline --table                                # docs/results/offline.json as a table

The data set of Pendulum-v1 is 50,000 transitions that a SAC policy makes, with exploration, after 3,000 of the 20,000
env steps of ``recipes/sac.py``; ``pendulum_poor``, on which ``awac_poor`` learns, is the same after 2,000, worse than
random actions. That of CartPole-v1 is 200 episodes of a QR-DQN policy after 10,000 env steps with the
settings ``SLOW_QRDQN``; that of ``dt`` is what these settings learn from in 50,000, from bad episodes to good ones. The
demonstrations of ``benchmarks/learn.py`` are 20 greedy episodes of a DQN policy after all 50,000 env steps of
``recipes/dqn.py``; those of the expert that ``gail``, ``guided_cost`` and ``red`` imitate are 10 of them. ``drex`` has
10 with each of five shares of random actions, and ``trex`` 200 of random actions alone. Every algorithm makes the
updates of its recipe, with its settings; ``bc_cartpole`` is ``bc`` with those of ``recipes/bc.py`` on the
demonstrations of 20 greedy episodes. The result is the mean return of the final policy, not of the best one, over 100
greedy episodes: with data alone one could not choose.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import proofs, tianshou_offline
from benchmarks.compare import commit, machine
from benchmarks.learn import KEEP
from lightning_ding.config import deep_merge


@dataclass(frozen=True)
class Source:
    """How a data set is made: of episodes that a trained policy plays, or of those of its training."""

    recipe: str
    """Name of a file in ``recipes``."""
    env_steps: int
    """Env steps of the training; 0 for random actions in the env of the recipe."""
    n_episode: int = 0
    """Episodes that the trained policy plays."""
    is_greedy: bool = False
    """Play without exploration, as in evaluations."""
    noise: tuple[float, ...] = ()
    """Shares of random actions, falling; ``n_episode`` episodes for each."""
    settings: dict[str, Any] | None = None
    """Config of the training; None means the recipe's."""
    buffer_size: int | None = None
    """Size of the replay buffer of the training, which is the data set; None plays episodes instead."""

    @property
    def ending(self) -> str:
        """Ending of the file."""
        return ".npz" if self.buffer_size is None else ".safetensors"

    def config(self) -> dict[str, Any]:
        """Return the config of the training, which never stops before its env steps."""
        settings = proofs.load(self.recipe).CONFIG if self.settings is None else self.settings
        config = deep_merge(settings, {"eval": {"evaluator": {"stop_value": None}}})
        if self.buffer_size is None:
            return config
        return deep_merge(config, {"other": {"replay_buffer": {"replay_buffer_size": self.buffer_size}}})


SLOW_QRDQN = {
    "nstep": 3,
    "model": {"num_quantiles": 10},
    "learn": {"update_per_collect": 16, "batch_size": 128, "target_update_freq": 10},
    "collect": {"n_sample": 64},
    "other": {"replay_buffer": {"replay_buffer_size": 20_000}},
    "eval": {"evaluator": {"eval_freq": 500, "n_episode": 20}},
}
"""Settings of QR-DQN that still play badly after 10,000 env steps, so that the data leave something to learn."""
SETS = {
    "pendulum": Source("sac", 3000, 250),
    "pendulum_poor": Source("sac", 2000, 250),
    "pendulum_training": Source("sac", 6000, buffer_size=6000),
    "cartpole": Source("qrdqn", 10_000, 200, settings=SLOW_QRDQN),
    "cartpole_training": Source("qrdqn", 50_000, settings=SLOW_QRDQN, buffer_size=60_000),
    "cartpole_best": Source("dqn", 50_000, 20, is_greedy=True),
    "cartpole_expert": Source("dqn", 50_000, 10, is_greedy=True),
    "cartpole_random": Source("dqn", 0, 200),
    "cartpole_noisy": Source("dqn", 50_000, 10, is_greedy=True, noise=(1.0, 0.75, 0.5, 0.25, 0.0)),
}
FOLDER = Path("runs/offline")
N_EVALUATION = 100  # greedy episodes
RESULT = Path("docs/results/offline.json")
ALGORITHMS = {
    **dict.fromkeys(("bc", "td3_bc", "iql", "awac", "cql", "calql", "bcq"), "pendulum"),
    "awac_poor": "pendulum_poor",
    "edac": "pendulum_training",
    "discrete_cql": "cartpole",
    "dt": "cartpole_training",
    "bc_cartpole": "cartpole_best",
}
"""The data set of each run."""
OTHER_ENVS = {"bc_cartpole": ("bc", "CartPole-v1"), "awac_poor": ("awac", "Pendulum-v1")}
"""Runs with the settings of an algorithm's recipe on another env or data set: the algorithm and the env; other runs are
named as their algorithm."""
LABELS = {"ours": "lightning_ding", "tianshou": "Tianshou, examples"}
QUIET: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}


def file_of(name: str, folder: Path = FOLDER) -> Path:
    """Return the path of a data set."""
    return folder / f"{name}{SETS[name].ending}"


def make_data(name: str, folder: Path) -> Path:
    """Train the behaviour policy, and write its episodes or those of its training, unless the file is there.

    Args:
        name: A key of ``SETS``.
        folder: Folder of the data sets.

    Returns:
        The file.
    """
    from lightning import Trainer, seed_everything

    from lightning_ding.datamodules import ReplayDataModule
    from lightning_ding.datamodules.dataset_files import load_dataset
    from lightning_ding.entry.collect import collect
    from lightning_ding.policy import create_policy

    file, source = file_of(name, folder), SETS[name]
    if file.is_file():
        return file
    seed_everything(0)
    recipe = proofs.load(source.recipe)
    if not source.env_steps:
        folder.mkdir(parents=True, exist_ok=True)
        collect(None, str(file), source.n_episode, env_id=recipe.ENV_ID, random=True)
        return file
    datamodule = ReplayDataModule(recipe.ENV_ID, num_envs=recipe.NUM_ENVS, seed=0, max_env_step=source.env_steps)
    trainer = Trainer(accelerator="cpu", default_root_dir=folder / name, limit_val_batches=0, **QUIET)
    trainer.fit(create_policy({"type": source.recipe, **source.config()}), datamodule)
    if source.buffer_size is not None:
        assert datamodule.buffer is not None
        datamodule.buffer.save_data(file)
    else:
        checkpoint = folder / name / "checkpoints" / "last.ckpt"
        collect(checkpoint, str(file), source.n_episode, source.is_greedy, noise=source.noise)
    found = load_dataset(file).statistics()
    print(f"{file}: {found.transitions} transitions, mean return {found.return_mean:.1f}", flush=True)
    return file


def recipe_of(name: str) -> tuple[str, Any, str]:
    """Return the algorithm of a run, the module of its recipe, and the env."""
    algorithm, env_id = OTHER_ENVS.get(name, (name, None))
    recipe = proofs.load(algorithm)
    return algorithm, recipe, env_id or recipe.ENV_ID


def train(name: str, file: Path, seed: int) -> dict[str, Any]:
    """Return the result of one seed of a run."""
    from lightning import Trainer, seed_everything

    from lightning_ding.datamodules import OfflineDataModule
    from lightning_ding.policy import create_policy

    algorithm, recipe, env_id = recipe_of(name)
    seed_everything(seed)
    policy = create_policy({"type": algorithm, **recipe.CONFIG})
    arguments: dict[str, Any] = {"seed": seed, "n_evaluator_episode": N_EVALUATION, "evaluator_env_num": 10}
    arguments |= {"norm_obs": recipe.NORM_OBS, "norm_reward": recipe.NORM_REWARD}
    datamodule = OfflineDataModule(str(file), env_id, max_train_iter=recipe.MAX_TRAIN_ITER, **arguments)
    trainer = Trainer(accelerator="cpu", limit_val_batches=0, enable_checkpointing=False, **QUIET)
    start = time.perf_counter()
    trainer.fit(policy, datamodule)
    seconds = time.perf_counter() - start
    (scores,) = trainer.test(policy, datamodule, verbose=False)
    found = datamodule.statistics
    data = {"transitions": found.transitions, "mean": found.return_mean, "max": found.return_max}
    result = {"seed": seed, "seconds": seconds, "return": scores["test/return_mean"], "data": data}
    return {**result, "config": settings_of(name, "ours")}


def train_peer(name: str, file: Path, seed: int) -> dict[str, Any]:
    """Return the result of one seed of Tianshou's algorithm, after as many updates."""
    from lightning_ding.datamodules.dataset_files import load_dataset

    recipe, found = proofs.load(name), load_dataset(file).statistics()
    run = tianshou_offline.train(name, file, recipe.ENV_ID, updates_of(name), N_EVALUATION, seed)
    data = {"transitions": found.transitions, "mean": found.return_mean, "max": found.return_max}
    return {**run, "side": "tianshou", "config": settings_of(name, "tianshou"), "data": data}


def settings_of(name: str, side: str) -> dict[str, Any]:
    """Return the settings of a run, with the number of updates of ours, as JSON has them."""
    ours = {**recipe_of(name)[1].CONFIG, "updates": updates_of(name)}
    config = ours if side == "ours" else tianshou_offline.SETTINGS[name]
    settings: dict[str, Any] = json.loads(json.dumps(config))
    return settings


def is_made(name: str, side: str, seed: int, keep: str, result: Path) -> bool:
    """Return whether the result file has a run that does not have to be repeated.

    Args:
        name: A key of ``ALGORITHMS``.
        side: A key of ``LABELS``.
        seed: Seed of the run.
        keep: One of ``benchmarks.learn.KEEP``.
        result: JSON file of the results.
    """
    record = json.loads(result.read_text()) if result.is_file() else {}
    runs = [run for run in record.get(name, ()) if (side_of(run), run["seed"]) == (side, seed)]
    if keep == "none" or not runs or runs[0].get("config") != settings_of(name, side):
        return False
    now = commit()
    return keep == "config" or (runs[0]["commit"] == now and not now.endswith("+"))


def updates_of(name: str) -> int:
    """Return the number of updates of a run, those of its recipe."""
    return int(recipe_of(name)[1].MAX_TRAIN_ITER)


def side_of(run: dict[str, Any]) -> str:
    """Return the implementation that made a run."""
    return str(run.get("side", "ours"))


def save(name: str, run: dict[str, Any], result: Path) -> None:
    """Write a run to the result file; runs of other algorithms, implementations and seeds in it are kept."""
    record: dict[str, Any] = json.loads(result.read_text()) if result.is_file() else {}
    how = {"command": f"python -m benchmarks.offline --only {name} --side {side_of(run)}", "commit": commit()}
    how |= {"time": time.strftime("%Y-%m-%d %H:%M:%S"), "machine": machine()}
    kept = {(side_of(one), one["seed"]): one for one in [*record.get(name, []), {**run, **how}]}
    record[name] = [kept[place] for place in sorted(kept)]
    result.write_text(json.dumps(record, indent=1) + "\n")


def table(result: Path) -> str:
    """Return the results as a table in Markdown."""
    rows = [
        "| algorithm | implementation | mean return of each seed | mean return in data | best episode in data |",
        "|---|---|---|---|---|",
    ]
    for name, runs in json.loads(result.read_text()).items():
        for side in LABELS:
            made = [run for run in runs if side_of(run) == side]
            if made:
                returns, data = ", ".join(f"{run['return']:.0f}" for run in made), made[0]["data"]
                rows.append(f"| `{name}` | {LABELS[side]} | {returns} | {data['mean']:.0f} | {data['max']:.0f} |")
    return "\n".join(rows)


def main() -> None:
    """Make the data set and train what is asked for, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=FOLDER, help="folder of the data set")
    parser.add_argument("--only_data", action="store_true", help="make the data sets, and train nothing")
    parser.add_argument("--only", nargs="+", choices=ALGORITHMS, help="runs to make; by default all")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4], help="seeds of each")
    parser.add_argument(
        "--keep", choices=KEEP, default="none", help="which runs in the file are not repeated (default: %(default)s)"
    )
    parser.add_argument("--side", choices=LABELS, default="ours", help="implementation to run (default: ours)")
    parser.add_argument("--out", type=Path, default=RESULT, help="JSON file of the results")
    parser.add_argument("--table", action="store_true", help="print the results as a table")
    options = parser.parse_args()
    if options.table:
        print(table(options.out))
        return
    trainable = list(ALGORITHMS) if options.side == "ours" else list(tianshou_offline.SETTINGS)
    wanted = options.only or trainable
    unknown = [name for name in wanted if name not in trainable]
    if unknown:
        parser.error(f"--only must be of {', '.join(tianshou_offline.SETTINGS)} with --side tianshou, got {unknown}")
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("lightning").setLevel(logging.ERROR)
    tasks = [
        (name, seed)
        for name in wanted
        for seed in options.seeds
        if options.only_data or not is_made(name, options.side, seed, options.keep, options.out)
    ]
    files = {name: make_data(name, options.data) for name in {ALGORITHMS[one] for one, _ in tasks}}
    if options.only_data:
        return
    for name, seed in tasks:
        run = (train if options.side == "ours" else train_peer)(name, files[ALGORITHMS[name]], seed)
        print(f"{name:>8} seed {seed}: {run['return']:8.1f}, data {run['data']['mean']:.1f}", flush=True)
        save(name, run, options.out)


if __name__ == "__main__":
    main()
