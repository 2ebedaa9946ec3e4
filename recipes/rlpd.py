"""RLPD on Pendulum-v1: learns from the env and from episodes of a SAC policy that was trained for 3,000 env steps only.

    python recipes/sac.py --max-env-step 3000
    lightning-ding collect runs/sac_pendulum/version_0/checkpoints/last.ckpt --out pendulum.npz --episodes 250
    python recipes/rlpd.py pendulum.npz

Trains for 4,000 env steps, half of those of recipes/redq.py, and evaluates the policy at the end on 20 other episodes.
"""

from __future__ import annotations

import argparse

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import RLPDPolicy

ENV_ID = "Pendulum-v1"
NUM_ENVS = 8
MAX_ENV_STEP = 4_000
RATES = dict.fromkeys(("learning_rate_q", "learning_rate_policy", "learning_rate_alpha"), 0.001)
CONFIG = {
    "random_collect_size": 400,
    "model": {"actor_head_hidden_size": 64, "critic_head_hidden_size": 64},
    "learn": {"update_per_collect": 16, "actor_update_freq": 2, "batch_size": 128, **RATES},
    "collect": {"n_sample": 8},
    "eval": {"evaluator": {"eval_freq": 500, "n_episode": 20}},
}


def main() -> None:
    """Train, then evaluate the policy at the end on 20 greedy episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("demonstrations", help="path of the data set, or id of one of Minari's")
    parser.add_argument("--seed", type=int, default=0, help="seed of the network, the envs and the replay buffer")
    parser.add_argument("--max-env-step", type=int, default=MAX_ENV_STEP, help="maximum number of env steps")
    options = parser.parse_args()

    seed_everything(options.seed)
    run = {"seed": options.seed, "max_env_step": options.max_env_step}
    datamodule = ReplayDataModule(ENV_ID, num_envs=NUM_ENVS, demonstrations=options.demonstrations, **run)
    policy = RLPDPolicy(CONFIG)
    trainer = Trainer(accelerator="cpu", logger=TensorBoardLogger("runs", name="rlpd_pendulum"))
    trainer.fit(policy, datamodule)

    best = getattr(trainer.checkpoint_callback, "best_model_path", None)
    (scores,) = trainer.test(policy, datamodule, verbose=False)
    print(f"mean return of 20 greedy episodes: {scores['test/return_mean']:.1f}")
    print(f"best checkpoint: {best}")


if __name__ == "__main__":
    main()
