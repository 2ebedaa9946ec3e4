"""MAPPO with a memory on the switch riddle: three prisoners learn to tell when all of them have been in a room.

    python recipes/recurrent_mappo_switch_riddle.py            # seed 0
    python recipes/recurrent_mappo_switch_riddle.py --seed 1

Evaluates the policy at the end of 100,000 env steps on 200 greedy episodes. The best return is 20/27, or 0.74, the
probability that all have been in the room by the last day. Without memory it is 115/729, or 0.16.
"""

from __future__ import annotations

import argparse

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.datamodules import RolloutDataModule
from lightning_ding.policy import RecurrentMAPPOPolicy

ENV_ID = "lightning_ding.envs.teams.SwitchRiddle"
NUM_ENVS = 8
MAX_ENV_STEP = 100_000
CONFIG = {
    "learn_unroll_len": 6,
    "discount_factor": 1.0,
    "model": {"encoder_hidden_size_list": [64], "core": {"type": "gru", "hidden_size": 64}},
    "learn": {
        "epoch_per_collect": 8,
        "batch_size": 256,
        "learning_rate": 1e-3,
        "entropy_weight": 0.05,
        "lr_scheduler": {"type": "linear"},
    },
    "collect": {"n_sample": 2048},
    "eval": {"evaluator": {"eval_freq": 128, "n_episode": 200}},
}


def main() -> None:
    """Train, then evaluate the policy at the end on 200 greedy episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the network, the envs and the rollouts")
    parser.add_argument("--max-env-step", type=int, default=MAX_ENV_STEP, help="maximum number of env steps")
    options = parser.parse_args()

    seed_everything(options.seed)
    datamodule = RolloutDataModule(ENV_ID, num_envs=NUM_ENVS, seed=options.seed, max_env_step=options.max_env_step)
    policy = RecurrentMAPPOPolicy(CONFIG)
    trainer = Trainer(accelerator="cpu", logger=TensorBoardLogger("runs", name="recurrent_mappo_switch_riddle"))
    trainer.fit(policy, datamodule)

    best = getattr(trainer.checkpoint_callback, "best_model_path", None)
    (scores,) = trainer.test(policy, datamodule, verbose=False)
    print(f"mean return of 200 greedy episodes: {scores['test/return_mean']:.3f}")
    print(f"best checkpoint: {best}")


if __name__ == "__main__":
    main()
