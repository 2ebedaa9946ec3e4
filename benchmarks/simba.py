"""Speed of SAC with SimBa's networks on workload W10: this project through ``Trainer.fit``, and SBX.

    python -m benchmarks.simba      # writes docs/results/simba_speed.json

Each contestant runs in a separate process with one torch thread. All run in turn, three times. Env, networks, batch
size, target and updates are the same; only this project's runs normalise observations by running statistics, as the
paper does. Seconds and ``cpu_ms_per_update`` are those of ``benchmarks.crossq``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks import contest, crossq, sac, sbx_models
from benchmarks.compare import Result
from benchmarks.workload import W10, SimbaWorkload
from lightning_ding.config import deep_merge


def our_config(w: SimbaWorkload, compile: bool = False) -> dict[str, Any]:
    """Return the config of this project's policy; a network has a block for each hidden layer after the first."""
    layers = {"actor_layers": {"type": "simba"}, "critic_layers": {"type": "simba"}, "last_layer_init": None}
    actor = {"actor_head_hidden_size": w.hidden[0], "actor_head_layer_num": len(w.hidden)}
    critic = {"critic_head_hidden_size": w.critic_hidden[0], "critic_head_layer_num": len(w.critic_hidden)}
    optimizer = {"type": "adamw", "weight_decay": w.weight_decay}
    changes = {"model": {**layers, **actor, **critic}, "learn": {"optimizer": optimizer}}
    return deep_merge(sac.our_config(w, compile), changes)


def run_ours(w: SimbaWorkload, compile: bool = False) -> Result:
    """Train through ``Trainer.fit`` without evaluation."""
    from lightning import seed_everything

    from lightning_ding.policy import SACPolicy

    seed_everything(0)
    return crossq.fit(SACPolicy(our_config(w, compile)), w, norm_obs=True)


CONTESTANTS: dict[str, Callable[[SimbaWorkload], Result]] = {
    "ours": run_ours,
    "ours, compiled": lambda w: run_ours(w, compile=True),
    "SBX": sbx_models.run_simba,
}

if __name__ == "__main__":
    contest.main("simba", __doc__, CONTESTANTS, W10, baseline="SBX")
