"""VDN on the two-step game: two agents learn to get 7, and with less exploration 8.

    python recipes/vdn.py            # seed 0
    python recipes/vdn.py --seed 1

Ends as soon as 20 greedy episodes reach a return of 7 each, and evaluates the policy at the end on 20 others.
"""

from __future__ import annotations

import argparse

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import VDNPolicy

ENV_ID = "lightning_ding.envs.teams.games.TwoStepGame"
NUM_ENVS = 8
MAX_ENV_STEP = 10_000
CONFIG = {
    "learn": {"learning_rate": 0.002, "target_theta": 0.05},
    "other": {"eps": {"start": 1.0, "end": 0.2, "decay": 5000}},
    "eval": {"evaluator": {"eval_freq": 100, "n_episode": 20, "stop_value": 7.0}},
}


def main() -> None:
    """Train, then evaluate the policy at the end on 20 greedy episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the network, the envs and the buffer")
    parser.add_argument("--max-env-step", type=int, default=MAX_ENV_STEP, help="maximum number of env steps")
    options = parser.parse_args()

    seed_everything(options.seed)
    datamodule = ReplayDataModule(ENV_ID, num_envs=NUM_ENVS, seed=options.seed, max_env_step=options.max_env_step)
    policy = VDNPolicy(CONFIG)
    trainer = Trainer(accelerator="cpu", logger=TensorBoardLogger("runs", name="vdn_two_step"))
    trainer.fit(policy, datamodule)

    best = getattr(trainer.checkpoint_callback, "best_model_path", None)
    (scores,) = trainer.test(policy, datamodule, verbose=False)
    print(f"mean return of 20 greedy episodes: {scores['test/return_mean']:.1f}")
    print(f"best checkpoint: {best}")


if __name__ == "__main__":
    main()
