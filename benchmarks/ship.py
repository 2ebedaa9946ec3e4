"""Trains policies for the zoo of the package, and writes them beside lightning_ding/zoo/index.json.

    python -m benchmarks.ship ppo_halfcheetah ppo_hopper    # experiments of benchmarks/proofs.py, seed 0

The policy is that at the end of the run, and its return that of 100 greedy episodes that training did not use. The run
is recorded as one of ``python -m benchmarks.learn`` as well.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import warnings
from dataclasses import asdict
from pathlib import Path

from benchmarks.compare import commit
from benchmarks.curves import short_name
from benchmarks.learn import save, train
from benchmarks.proofs import PROOFS, classes, env_kwargs, load
from lightning_ding.registry import POLICY_REGISTRY
from lightning_ding.zoo import FOLDER, INDEX, ZooPolicy, policies

LEARN = Path("docs/results/learn")


def ship(name: str, seed: int, folder: Path = FOLDER) -> ZooPolicy:
    """Train a policy, and write it and its entry.

    Args:
        name: A key of ``PROOFS``.
        seed: Seed of the run.
        folder: Folder of the zoo.
    """
    proof = PROOFS[name]
    file = folder / f"{name}.safetensors"
    run = train(proof, seed, file)
    save(name, proof.budget, "ours", run, LEARN)
    policy_class, _ = classes(load(proof.recipe))
    policy = ZooPolicy(
        name=name,
        policy=str(POLICY_REGISTRY.name_of(policy_class)),
        env_id=short_name(proof.env_id, env_kwargs(proof)),
        mean_return=round(run["last"], 3),
        episodes=proof.plan.n_test,
        env_step=run["curve"][-1][0],
        seed=seed,
        commit=commit(),
        command=f"python -m benchmarks.ship {name} --seed {seed}",
        sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
    )
    known = {**policies(folder), name: policy} if (folder / INDEX).is_file() else {name: policy}
    entries = {one: {key: value for key, value in asdict(known[one]).items() if key != "name"} for one in sorted(known)}
    (folder / INDEX).write_text(json.dumps(entries, indent=1) + "\n")
    return policy


def main() -> None:
    """Train and write each policy that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=PROOFS, metavar="NAME", help="experiments of benchmarks/proofs.py")
    parser.add_argument("--seed", type=int, default=0, help="seed of each run")
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("lightning").setLevel(logging.ERROR)
    for name in options.names:
        made = ship(name, options.seed)
        print(f"{name}: {made.mean_return:.1f} over {made.episodes} episodes, {made.file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
