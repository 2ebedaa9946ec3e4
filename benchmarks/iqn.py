"""Speed of IQN on workload W1: this project through ``Trainer.fit``, and a bare loop.

    python -m benchmarks.iqn      # writes docs/results/iqn_speed.json

Each contestant runs in a separate process with one torch thread. All run in turn, three times. Envs, network, numbers
of quantile levels, optimizer, batch size, target and buffer are the same.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks import bare_iqn, contest, dqn
from benchmarks.compare import Result
from benchmarks.workload import W1, DQNWorkload
from lightning_ding.config import deep_merge


def run_ours(w: DQNWorkload, compile: bool = False) -> Result:
    """Train through ``Trainer.fit`` without evaluation."""
    from lightning import seed_everything

    from lightning_ding.datamodules import ReplayDataModule
    from lightning_ding.policy import IQNPolicy

    seed_everything(0)
    levels = {"num_quantiles": bare_iqn.LEVELS, "num_target_quantiles": bare_iqn.LEVELS}
    sizes = {"num_quantiles": len(bare_iqn.MIDDLES), "quantile_embedding_size": bare_iqn.COSINES}
    policy = IQNPolicy(deep_merge(dqn.our_config(w, compile), {"learn": levels, "model": sizes}))
    datamodule = ReplayDataModule(w.env_id, num_envs=w.num_envs, max_env_step=w.env_steps, seed=0)
    return contest.fit(policy, datamodule)


CONTESTANTS: dict[str, Callable[[DQNWorkload], Result]] = {
    "bare loop": bare_iqn.run,
    "ours": run_ours,
    "ours, compiled": lambda w: run_ours(w, compile=True),
}


if __name__ == "__main__":
    contest.main("iqn", __doc__, CONTESTANTS, W1)
