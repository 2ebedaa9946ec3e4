"""Speed of REDQ on workload W6: this project through ``Trainer.fit``, and SBX.

    python -m benchmarks.redq      # writes docs/results/redq_speed.json

Each contestant runs in a separate process with one torch thread. All run in turn, three times. Env, networks, the
number of critics, batch size, target and updates are the same. SBX has no REDQ: it runs SAC with as many critics, whose
targets take the smallest value of all of them, not of two drawn ones. The seconds exclude compilation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks import contest, sac, sbx_models
from benchmarks.compare import Result
from benchmarks.workload import W6, REDQWorkload
from lightning_ding.config import deep_merge


def our_config(w: REDQWorkload, compile: bool = False) -> dict[str, Any]:
    """Return the config of this project's policy."""
    updates = {"update_per_collect": w.updates_per_step, "actor_update_freq": w.updates_per_step}
    changes = {"model": {"ensemble_num": w.critics}, "learn": {**updates, "target_critics": w.target_critics}}
    return deep_merge(sac.our_config(w, compile), changes)


def run_ours(w: REDQWorkload, compile: bool = False) -> Result:
    """Train through ``Trainer.fit`` without evaluation."""
    from lightning import seed_everything

    from lightning_ding.datamodules import ReplayDataModule
    from lightning_ding.policy import REDQPolicy

    seed_everything(0)
    datamodule = ReplayDataModule(w.env_id, num_envs=1, max_env_step=w.env_steps, seed=0)
    return contest.fit(REDQPolicy(our_config(w, compile)), datamodule)


CONTESTANTS: dict[str, Callable[[REDQWorkload], Result]] = {
    "ours": run_ours,
    "ours, compiled": lambda w: run_ours(w, compile=True),
    "SBX": sbx_models.run_redq,
}

if __name__ == "__main__":
    contest.main("redq", __doc__, CONTESTANTS, W6, baseline="SBX")
