"""CQL on CartPole-v1: learns from episodes of a QR-DQN policy that was trained for 10,000 env steps only.

    python recipes/qrdqn.py --max-env-step 10000
    lightning-ding collect runs/qrdqn_cartpole/version_0/checkpoints/last.ckpt --out cartpole.npz --episodes 200
    python recipes/discrete_cql.py cartpole.npz

Evaluates the policy after 5,000 updates on 20 greedy episodes, and prints the mean return in the data too.
"""

from __future__ import annotations

import argparse

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.datamodules import OfflineDataModule
from lightning_ding.policy import DiscreteCQLPolicy

ENV_ID = "CartPole-v1"
MAX_TRAIN_ITER = 5_000
NORM_OBS, NORM_REWARD = False, False
CONFIG = {
    "nstep": 3,
    "learn": {
        "batch_size": 128,
        "target_update_freq": 100,
        "min_q_weight": 10.0,
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
    policy = DiscreteCQLPolicy(CONFIG)
    trainer = Trainer(accelerator="cpu", logger=TensorBoardLogger("runs", name="discrete_cql_cartpole"))
    trainer.fit(policy, data)

    (scores,) = trainer.test(policy, data, verbose=False)
    print(f"mean return of 20 greedy episodes: {scores['test/return_mean']:.1f}")
    print(f"mean return in the data: {data.statistics.return_mean:.1f}")


if __name__ == "__main__":
    main()
