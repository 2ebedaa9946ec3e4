"""PPO on HalfCheetah-v5 and other tasks of MuJoCo (extra mujoco): learns to run, hop and walk.

    python recipes/ppo_mujoco.py                          # seed 0
    python recipes/ppo_mujoco.py --env-id Hopper-v5 --seed 1

Trains for a million env steps and evaluates the policy at the end on 20 greedy episodes. The settings are those of
Tianshou for these tasks, except that Pop-Art normalises values, not rewards. docs/results/learning.md has the returns.
"""

from __future__ import annotations

import argparse

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.datamodules import RolloutDataModule
from lightning_ding.policy import PPOPolicy

ENV_ID = "HalfCheetah-v5"
NUM_ENVS = 16
MAX_ENV_STEP = 1_000_000
NORM_OBS = True
CONFIG = {
    "compile": "auto",
    "model": {"encoder_hidden_size_list": [64, 64], "share_encoder": False, "activation": "tanh"},
    "learn": {"epoch_per_collect": 10, "batch_size": 64, "learning_rate": 3e-4, "lr_scheduler": {"type": "linear"}},
    "collect": {"n_sample": 2048},
    "eval": {"evaluator": {"eval_freq": 16_000, "n_episode": 20}},
}


def main() -> None:
    """Train, then evaluate the policy at the end on 20 greedy episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env-id", default=ENV_ID, help="task of MuJoCo with continuous actions")
    parser.add_argument("--seed", type=int, default=0, help="seed of the network, the envs and the rollouts")
    parser.add_argument("--max-env-step", type=int, default=MAX_ENV_STEP, help="maximum number of env steps")
    options = parser.parse_args()

    seed_everything(options.seed)
    run = {"seed": options.seed, "max_env_step": options.max_env_step}
    datamodule = RolloutDataModule(options.env_id, num_envs=NUM_ENVS, norm_obs=NORM_OBS, **run)
    policy = PPOPolicy(CONFIG)
    trainer = Trainer(accelerator="cpu", logger=TensorBoardLogger("runs", name="ppo_mujoco"))
    trainer.fit(policy, datamodule)

    best = getattr(trainer.checkpoint_callback, "best_model_path", None)
    (scores,) = trainer.test(policy, datamodule, verbose=False)
    print(f"mean return of 20 greedy episodes: {scores['test/return_mean']:.1f}")
    print(f"best checkpoint: {best}")


if __name__ == "__main__":
    main()
