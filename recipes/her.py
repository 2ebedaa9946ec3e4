"""DQN with hindsight experience replay: flips 15 bits until they are as wanted, among 32,768 states.

    python recipes/her.py            # seed 0
    python recipes/her.py --seed 1

A step is rewarded with 1 at the goal and with 0 elsewhere, and ends the episode there, so the mean return is the share
of episodes that reach their goal. Ends as soon as all of 50 greedy episodes do, and evaluates the policy at the end.
"""

from __future__ import annotations

import argparse

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy

ENV_ID = "lightning_ding.envs.bit_flip.BitFlipEnv"
ENV_KWARGS = {"n_bits": 15}
NUM_ENVS = 8
MAX_ENV_STEP = 100_000
CONFIG = {
    "nstep": 1,
    "discount_factor": 0.98,
    "model": {"encoder_hidden_size_list": [256], "encoder_kwargs": {"fusion_size": 256}, "dueling": False},
    "learn": {"update_per_collect": 16, "learning_rate": 1e-3, "target_theta": 0.05},
    "collect": {"n_sample": 64},
    "other": {
        "eps": {"end": 0.1, "decay": 10_000},
        "replay_buffer": {"type": "her", "her_strategy": "future", "her_replay_k": 4, "replay_buffer_size": 100_000},
    },
    "eval": {"evaluator": {"eval_freq": 1000, "n_episode": 50, "stop_value": 1.0}},
}


def main() -> None:
    """Train, then evaluate the policy at the end on 50 greedy episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the network, the envs and the replay buffer")
    parser.add_argument("--max-env-step", type=int, default=MAX_ENV_STEP, help="maximum number of env steps")
    options = parser.parse_args()

    seed_everything(options.seed)
    run = {"seed": options.seed, "max_env_step": options.max_env_step}
    datamodule = ReplayDataModule(ENV_ID, num_envs=NUM_ENVS, env_kwargs=ENV_KWARGS, **run)
    policy = DQNPolicy(CONFIG)
    trainer = Trainer(accelerator="cpu", logger=TensorBoardLogger("runs", name="her_bitflip"))
    trainer.fit(policy, datamodule)

    best = getattr(trainer.checkpoint_callback, "best_model_path", None)
    (scores,) = trainer.test(policy, datamodule, verbose=False)
    print(f"share of 50 greedy episodes that reach their goal: {scores['test/return_mean']:.2f}")
    print(f"best checkpoint: {best}")


if __name__ == "__main__":
    main()
