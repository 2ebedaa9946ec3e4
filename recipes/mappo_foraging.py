"""MAPPO on level-based foraging: two agents learn to collect two fruits, each of which takes both of them.

    pip install lbforaging
    python recipes/mappo_foraging.py            # seed 0
    python recipes/mappo_foraging.py --seed 1

Evaluates the policy at the end of 400,000 env steps on 20 greedy episodes; the best return is 1, all fruits.
"""

from __future__ import annotations

import argparse

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.datamodules import RolloutDataModule
from lightning_ding.policy import MAPPOPolicy

ENV_ID = "lbforaging:Foraging-8x8-2p-2f-coop-v3"
NUM_ENVS = 8
MAX_ENV_STEP = 400_000
CONFIG = {
    "model": {"encoder_hidden_size_list": [128, 128]},
    "learn": {
        "epoch_per_collect": 8,
        "batch_size": 512,
        "learning_rate": 1e-3,
        "entropy_weight": 0.01,
        "lr_scheduler": {"type": "linear"},
    },
    "collect": {"n_sample": 2048},
    "eval": {"evaluator": {"eval_freq": 256, "n_episode": 20}},
}


def main() -> None:
    """Train, then evaluate the policy at the end on 20 greedy episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the network, the envs and the rollouts")
    parser.add_argument("--max-env-step", type=int, default=MAX_ENV_STEP, help="maximum number of env steps")
    options = parser.parse_args()

    seed_everything(options.seed)
    datamodule = RolloutDataModule(ENV_ID, num_envs=NUM_ENVS, seed=options.seed, max_env_step=options.max_env_step)
    policy = MAPPOPolicy(CONFIG)
    trainer = Trainer(accelerator="cpu", logger=TensorBoardLogger("runs", name="mappo_foraging"))
    trainer.fit(policy, datamodule)

    best = getattr(trainer.checkpoint_callback, "best_model_path", None)
    (scores,) = trainer.test(policy, datamodule, verbose=False)
    print(f"mean return of 20 greedy episodes: {scores['test/return_mean']:.1f}")
    print(f"best checkpoint: {best}")


if __name__ == "__main__":
    main()
