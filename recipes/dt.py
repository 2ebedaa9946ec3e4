r"""Decision Transformer on CartPole-v1: learns from the episodes that QR-DQN was trained on, bad and good ones.

    lightning-ding fit --config recipes/configs/qrdqn_cartpole.yaml --model.cfg.eval.evaluator.stop_value null \
        --model.cfg.other.replay_buffer.replay_buffer_size 60000
    cp runs/qrdqn_cartpole/version_0/checkpoints/last-*/rank_0/buffer.safetensors cartpole_training.safetensors
    python recipes/dt.py cartpole_training.safetensors

Evaluates the policy, which is asked for 500 steps, after 2,000 updates on 20 greedy episodes, and prints the mean
return in the data too.
"""

from __future__ import annotations

import argparse

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.datamodules import OfflineDataModule
from lightning_ding.policy import DTPolicy

ENV_ID = "CartPole-v1"
MAX_TRAIN_ITER = 2_000
NORM_OBS, NORM_REWARD = True, False
CONFIG = {
    "context_len": 10,
    "rtg_scale": 500.0,
    "max_eval_ep_len": 500,
    "model": {"embed_dim": 64},
    "learn": {
        "batch_size": 64,
        "learning_rate": 0.001,
        "lr_scheduler": {"type": "piecewise", "unit": "budget", "points": [[0.0, 0.05], [0.1, 1.0]]},
    },
    "eval": {"evaluator": {"eval_freq": 2000, "n_episode": 20}},
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
    policy = DTPolicy(CONFIG)
    trainer = Trainer(accelerator="cpu", logger=TensorBoardLogger("runs", name="dt_cartpole"))
    trainer.fit(policy, data)

    (scores,) = trainer.test(policy, data, verbose=False)
    print(f"mean return of 20 greedy episodes: {scores['test/return_mean']:.1f}")
    print(f"mean return in the data: {data.statistics.return_mean:.1f}")


if __name__ == "__main__":
    main()
