"""Speed of R2D2 on workload W5: this project through ``Trainer.fit``, and a bare loop.

    python -m benchmarks.r2d2      # writes docs/results/r2d2_speed.json

Each contestant runs in a separate process with one torch thread. All run in turn, three times. Envs, network, stored
states, burn-in, sequences, optimizer, batch size and target are the same; sequences are drawn uniformly. The buffer of
the bare loop has room for the whole run and never overwrites anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks import bare_r2d2, contest
from benchmarks.compare import Result
from benchmarks.workload import W5, R2D2Workload


def our_config(w: R2D2Workload, compile: bool = False) -> dict[str, Any]:
    """Return the config of this project's policy."""
    core = {"type": "lstm", "hidden_size": w.core}
    learn = {"update_per_collect": w.updates_per_round, "batch_size": w.batch_size, "learning_rate": w.learning_rate}
    return {
        "compile": compile,
        "discount_factor": w.gamma,
        "nstep": w.n_step,
        "burnin_step": w.burn_in,
        "learn_unroll_len": w.unroll,
        "priority": False,
        "priority_IS_weight": False,
        "random_collect_size": w.warm_up,
        "model": {"encoder_hidden_size_list": w.hidden, "core": core, "dueling": False},
        "learn": {**learn, "target_update_freq": w.target_update_freq, "target_theta": None},
        "collect": {"n_sample": w.num_envs},
        "other": {
            "eps": {"type": "linear", "start": w.eps_start, "end": w.eps_end, "decay": w.eps_decay},
            "replay_buffer": {"type": "sequence", "replay_buffer_size": w.buffer_size},
        },
    }


def run_ours(w: R2D2Workload, compile: bool = False) -> Result:
    """Train through ``Trainer.fit`` without evaluation."""
    from lightning import seed_everything

    from lightning_ding.datamodules import ReplayDataModule
    from lightning_ding.policy import R2D2Policy

    seed_everything(0)
    datamodule = ReplayDataModule(w.env_id, num_envs=w.num_envs, max_env_step=w.env_steps, seed=0)
    return contest.fit(R2D2Policy(our_config(w, compile)), datamodule)


CONTESTANTS: dict[str, Callable[[R2D2Workload], Result]] = {
    "bare loop": bare_r2d2.run,
    "ours": run_ours,
    "ours, compiled": lambda w: run_ours(w, compile=True),
}


if __name__ == "__main__":
    contest.main("r2d2", __doc__, CONTESTANTS, W5)
