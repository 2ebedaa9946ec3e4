"""PPO on MiniGrid-DoorKey-5x5-v0 (extra minigrid): learns to take a key, to open a door and to reach the goal.

    python recipes/ppo_minigrid.py            # seed 0
    python recipes/ppo_minigrid.py --seed 1

Trains for 100,000 env steps and evaluates the policy at the end on 20 greedy episodes, whose largest return is about
0.97. The settings are those of RL Baselines3 Zoo, without the text of the mission, which is always the same.
"""

from __future__ import annotations

import argparse

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.datamodules import RolloutDataModule
from lightning_ding.policy import PPOPolicy

ENV_ID = "minigrid:MiniGrid-DoorKey-5x5-v0"
WRAPPERS = ["minigrid.wrappers.ImgObsWrapper", "flatten", {"dtype": {"dtype": "float32"}}]
NORM_OBS = True
NUM_ENVS = 8
MAX_ENV_STEP = 100_000
CONFIG = {
    "model": {"encoder_hidden_size_list": [64, 64], "share_encoder": False, "activation": "tanh"},
    "learn": {"epoch_per_collect": 10, "batch_size": 64, "learning_rate": 2.5e-4},
    "collect": {"n_sample": 1024, "gae_lambda": 0.95},
    "eval": {"evaluator": {"eval_freq": 1600, "n_episode": 20}},
}


def main() -> None:
    """Train, then evaluate the policy at the end on 20 greedy episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the network, the envs and the rollouts")
    parser.add_argument("--max-env-step", type=int, default=MAX_ENV_STEP, help="maximum number of env steps")
    options = parser.parse_args()

    seed_everything(options.seed)
    kwargs = {"wrappers": WRAPPERS, "norm_obs": NORM_OBS, "max_env_step": options.max_env_step}
    datamodule = RolloutDataModule(ENV_ID, num_envs=NUM_ENVS, seed=options.seed, **kwargs)
    policy = PPOPolicy(CONFIG)
    trainer = Trainer(accelerator="cpu", logger=TensorBoardLogger("runs", name="ppo_minigrid"))
    trainer.fit(policy, datamodule)

    best = getattr(trainer.checkpoint_callback, "best_model_path", None)
    (scores,) = trainer.test(policy, datamodule, verbose=False)
    print(f"mean return of 20 greedy episodes: {scores['test/return_mean']:.2f}")
    print(f"best checkpoint: {best}")


if __name__ == "__main__":
    main()
