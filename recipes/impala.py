"""IMPALA on CartPole-v1: learns to hold the pole for all 500 steps from unrolls of its last rounds.

    python recipes/impala.py            # seed 0
    python recipes/impala.py --seed 1

Ends as soon as 20 greedy episodes reach 500 steps each, and evaluates the policy at the end on 20 others.
"""

from __future__ import annotations

import argparse

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import IMPALAPolicy

ENV_ID = "CartPole-v1"
NUM_ENVS = 8
MAX_ENV_STEP = 100_000
CONFIG = {
    "discount_factor": 0.98,  # values are at most 50; with 0.99, at most 100
    "unroll_len": 16,
    "model": {"share_encoder": False, "encoder_hidden_size_list": [64, 64]},
    "learn": {
        "learning_rate": 1e-3,
        "lr_scheduler": {"type": "linear"},
        "batch_size": 32,
        "entropy_weight": 0.5,  # advantages are not normalised: with 0.01 the policy becomes deterministic
        "value_weight": 0.05,  # with 0.5 the critic's gradient takes nearly all of the norm below
        "grad_clip_norm": 0.5,
    },
    "collect": {"n_sample": 128},
    "other": {"replay_buffer": {"replay_buffer_size": 512}},
    "eval": {"evaluator": {"eval_freq": 500, "n_episode": 20, "stop_value": 500.0}},
}


def main() -> None:
    """Train, then evaluate the policy at the end on 20 greedy episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the network, the envs and the replay buffer")
    parser.add_argument("--max-env-step", type=int, default=MAX_ENV_STEP, help="maximum number of env steps")
    options = parser.parse_args()

    seed_everything(options.seed)
    datamodule = ReplayDataModule(ENV_ID, num_envs=NUM_ENVS, seed=options.seed, max_env_step=options.max_env_step)
    policy = IMPALAPolicy(CONFIG)
    trainer = Trainer(accelerator="cpu", logger=TensorBoardLogger("runs", name="impala_cartpole"))
    trainer.fit(policy, datamodule)

    best = getattr(trainer.checkpoint_callback, "best_model_path", None)
    (scores,) = trainer.test(policy, datamodule, verbose=False)
    print(f"mean return of 20 greedy episodes: {scores['test/return_mean']:.1f}")
    print(f"best checkpoint: {best}")


if __name__ == "__main__":
    main()
