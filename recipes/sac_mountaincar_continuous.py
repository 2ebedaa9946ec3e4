"""SAC with state-dependent exploration on MountainCarContinuous-v0: swings a car up a hill with little force.

    python recipes/sac_mountaincar_continuous.py            # seed 0
    python recipes/sac_mountaincar_continuous.py --seed 1

Only a long movement reaches the hilltop, whose reward is 100. Trains for 50,000 env steps and evaluates the policy at
the end on 20 separate episodes. The settings are those of RL Baselines3 Zoo.
"""

from __future__ import annotations

import argparse

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import SACPolicy

ENV_ID = "MountainCarContinuous-v0"
NUM_ENVS = 4
MAX_ENV_STEP = 50_000
CONFIG = {
    "compile": "auto",
    "random_collect_size": 0,
    "discount_factor": 0.9999,
    "model": {
        "use_sde": True,
        "log_std_init": -3.67,
        "actor_hidden_size_list": [64, 64],
        "critic_hidden_size_list": [64, 64],
    },
    "learn": {"update_per_collect": 32, "batch_size": 512, "auto_alpha": False, "alpha": 0.1, "target_theta": 0.01},
    "collect": {"n_sample": 32, "sde_sample_freq": 8},
    "other": {"replay_buffer": {"replay_buffer_size": 50_000}},
    "eval": {"evaluator": {"eval_freq": 2_000, "n_episode": 20}},
}


def main() -> None:
    """Train, then evaluate the policy at the end on 20 greedy episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the network, the envs and the replay buffer")
    parser.add_argument("--max-env-step", type=int, default=MAX_ENV_STEP, help="maximum number of env steps")
    options = parser.parse_args()

    seed_everything(options.seed)
    datamodule = ReplayDataModule(ENV_ID, num_envs=NUM_ENVS, seed=options.seed, max_env_step=options.max_env_step)
    policy = SACPolicy(CONFIG)
    trainer = Trainer(accelerator="cpu", logger=TensorBoardLogger("runs", name="sac_mountaincar_continuous"))
    trainer.fit(policy, datamodule)

    best = getattr(trainer.checkpoint_callback, "best_model_path", None)
    (scores,) = trainer.test(policy, datamodule, verbose=False)
    print(f"mean return of 20 greedy episodes: {scores['test/return_mean']:.1f}")
    print(f"best checkpoint: {best}")


if __name__ == "__main__":
    main()
