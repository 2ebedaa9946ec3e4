"""DQN with random network distillation on MountainCar-v0, whose goal is found by exploring what is new.

    python recipes/rnd.py            # seed 0
    python recipes/rnd.py --seed 1

Every step costs 1 and an episode ends after 200 steps, so a policy that never reaches the goal has a return of -200.
Ends as soon as the mean return of 20 greedy episodes is -110, and evaluates the policy at the end on 20 others.
"""

from __future__ import annotations

import argparse

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy

ENV_ID = "MountainCar-v0"
NUM_ENVS = 8
MAX_ENV_STEP = 150_000
NORM_OBS = True  # the velocity is a hundred times as small as the position
CONFIG = {
    "nstep": 1,
    "reward_model": {"type": "rnd", "learning_rate": 1e-4, "intrinsic_reward_weight": 10.0},
    "learn": {"update_per_collect": 16, "learning_rate": 1e-3, "target_theta": 0.01},
    "collect": {"n_sample": 64},
    "other": {"eps": {"end": 0.05, "decay": 10_000}, "replay_buffer": {"replay_buffer_size": 150_000}},
    "eval": {"evaluator": {"eval_freq": 1500, "n_episode": 20, "stop_value": -110.0}},
}


def main() -> None:
    """Train, then evaluate the policy at the end on 20 greedy episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the networks, the envs and the replay buffer")
    parser.add_argument("--max-env-step", type=int, default=MAX_ENV_STEP, help="maximum number of env steps")
    options = parser.parse_args()

    seed_everything(options.seed)
    run = {"seed": options.seed, "max_env_step": options.max_env_step}
    datamodule = ReplayDataModule(ENV_ID, num_envs=NUM_ENVS, norm_obs=NORM_OBS, **run)
    policy = DQNPolicy(CONFIG)
    trainer = Trainer(accelerator="cpu", logger=TensorBoardLogger("runs", name="rnd_mountaincar"))
    trainer.fit(policy, datamodule)

    best = getattr(trainer.checkpoint_callback, "best_model_path", None)
    (scores,) = trainer.test(policy, datamodule, verbose=False)
    print(f"mean return of 20 greedy episodes: {scores['test/return_mean']:.1f}")
    print(f"best checkpoint: {best}")


if __name__ == "__main__":
    main()
