"""Speed of CrossQ on workload W9: this project through ``Trainer.fit``, eager and compiled, and SBX.

    python -m benchmarks.crossq      # writes docs/results/crossq_speed.json

Each contestant runs in a separate process with one torch thread. All run in turn, three times. Env, networks, batch
size and updates are the same. The seconds exclude compilation. ``cpu_ms_per_update`` is the CPU time of all threads of
the process for an update with its env step, without the first updates. Other work on the machine changes it less than
the seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from lightning import Callback

from benchmarks import contest, sac, sbx_models
from benchmarks.compare import Result
from benchmarks.workload import W9, CrossQWorkload, SACWorkload
from lightning_ding.config import deep_merge

FIRST = 60  # updates whose CPU time does not count


class CPUMeter(Callback):
    """Measures the CPU time of the updates after the first ones."""

    def __init__(self) -> None:
        self.start: tuple[float, int] | None = None

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        """Note when the first updates are done."""
        if self.start is None and pl_module.progress.train_iter >= FIRST:
            self.start = time.process_time(), pl_module.progress.train_iter

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Compute the milliseconds of an update."""
        assert self.start is not None
        used, updates = time.process_time() - self.start[0], pl_module.progress.train_iter - self.start[1]
        self.ms_per_update = 1000 * used / updates


def fit(policy: Any, w: SACWorkload, **data: Any) -> Result:
    """Train through ``Trainer.fit`` without evaluation, and measure seconds and CPU time."""
    from lightning_ding.datamodules import ReplayDataModule

    meter = CPUMeter()
    datamodule = ReplayDataModule(w.env_id, num_envs=1, max_env_step=w.env_steps, seed=0, **data)
    found = contest.fit(policy, datamodule, callbacks=[meter])
    return {**found, "cpu_ms_per_update": meter.ms_per_update}


def our_config(w: CrossQWorkload, compile: bool = False) -> dict[str, Any]:
    """Return the config of this project's policy."""
    config = sac.our_config(w, compile)
    del config["learn"]["target_theta"]
    model = {"critic_head_hidden_size": w.critic_hidden[0], "critic_head_layer_num": len(w.critic_hidden) - 1}
    return deep_merge(config, {"model": model, "learn": {"actor_update_freq": w.updates_per_actor_update}})


def run_ours(w: CrossQWorkload, compile: bool = False) -> Result:
    """Train through ``Trainer.fit`` without evaluation."""
    from lightning import seed_everything

    from lightning_ding.policy import CrossQPolicy

    seed_everything(0)
    return fit(CrossQPolicy(our_config(w, compile)), w)


CONTESTANTS: dict[str, Callable[[CrossQWorkload], Result]] = {
    "ours": run_ours,
    "ours, compiled": lambda w: run_ours(w, compile=True),
    "SBX": sbx_models.run_crossq,
}

if __name__ == "__main__":
    contest.main("crossq", __doc__, CONTESTANTS, W9, baseline="SBX")
