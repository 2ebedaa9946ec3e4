"""TD7 on Pendulum-v1: learns to swing the pendulum up and to hold it there.

    python recipes/td7.py            # seed 0
    python recipes/td7.py --seed 1

Trains for 8,000 env steps and evaluates the policy at the end on 20 separate episodes. The networks
are narrower than those of the paper, and the targets are copied more often.
"""

from __future__ import annotations

import argparse

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import TD7Policy

ENV_ID = "Pendulum-v1"
NUM_ENVS = 4
MAX_ENV_STEP = 8_000
CONFIG = {
    "random_collect_size": 500,
    "model": {
        **{"embedding_size": 64, "embedding_hidden_size": 64},
        **{"actor_head_hidden_size": 64, "critic_head_hidden_size": 64},
    },
    "learn": {
        **{"update_per_collect": 4, "batch_size": 128, "target_update_freq": 100},
        **{"learning_rate_actor": 0.001, "learning_rate_critic": 0.001, "learning_rate_embedding": 0.001},
    },
    "collect": {"n_sample": 4},
    "eval": {"evaluator": {"eval_freq": 500, "n_episode": 20}},
}


def main() -> None:
    """Train, then evaluate the policy at the end on 20 greedy episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the network, the envs and the replay buffer")
    parser.add_argument("--max-env-step", type=int, default=MAX_ENV_STEP, help="maximum number of env steps")
    options = parser.parse_args()

    seed_everything(options.seed)
    limits = {"num_envs": NUM_ENVS, "seed": options.seed, "max_env_step": options.max_env_step}
    datamodule = ReplayDataModule(ENV_ID, **limits)
    policy = TD7Policy(CONFIG)
    trainer = Trainer(accelerator="cpu", logger=TensorBoardLogger("runs", name="td7_pendulum"))
    trainer.fit(policy, datamodule)

    best = getattr(trainer.checkpoint_callback, "best_model_path", None)
    (scores,) = trainer.test(policy, datamodule, verbose=False)
    print(f"mean return of 20 greedy episodes: {scores['test/return_mean']:.1f}")
    print(f"best checkpoint: {best}")


if __name__ == "__main__":
    main()
