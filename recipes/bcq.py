"""BCQ on Pendulum-v1: learns from episodes of a SAC policy that was trained for 3,000 env steps only.

    python recipes/sac.py --max-env-step 3000
    lightning-ding collect runs/sac_pendulum/version_0/checkpoints/last.ckpt --out pendulum.npz --episodes 250
    python recipes/bcq.py pendulum.npz

Evaluates the policy after 5,000 updates on 20 greedy episodes, and prints the mean return in the data too.
"""

from __future__ import annotations

import argparse

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.datamodules import OfflineDataModule
from lightning_ding.policy import BCQPolicy

ENV_ID = "Pendulum-v1"
MAX_TRAIN_ITER = 5_000
NORM_OBS, NORM_REWARD = True, True
CONFIG = {
    "discount_factor": 0.98,
    "model": {"actor_head_hidden_size": 128, "critic_head_hidden_size": 128, "vae_hidden_size_list": [128, 128]},
    "learn": {
        "batch_size": 128,
        "learning_rate_actor": 0.001,
        "learning_rate_critic": 0.001,
    },
    "eval": {"evaluator": {"eval_freq": 2500, "n_episode": 20}},
}


def main() -> None:
    """Train, then evaluate the policy on 20 greedy episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="path of the data set, or id of one of Minari's")
    parser.add_argument("--seed", type=int, default=0, help="seed of the network and of the minibatches")
    parser.add_argument("--max-train-iter", type=int, default=MAX_TRAIN_ITER, help="maximum number of updates")
    options = parser.parse_args()

    seed_everything(options.seed)
    run = {"seed": options.seed, "max_train_iter": options.max_train_iter}
    data = OfflineDataModule(options.dataset, ENV_ID, norm_obs=NORM_OBS, norm_reward=NORM_REWARD, **run)
    policy = BCQPolicy(CONFIG)
    trainer = Trainer(accelerator="cpu", logger=TensorBoardLogger("runs", name="bcq_pendulum"))
    trainer.fit(policy, data)

    (scores,) = trainer.test(policy, data, verbose=False)
    print(f"mean return of 20 greedy episodes: {scores['test/return_mean']:.1f}")
    print(f"mean return in the data: {data.statistics.return_mean:.1f}")


if __name__ == "__main__":
    main()
