"""Speed of PPO in 1,024 tensor envs on workload W7: this project, a bare torch loop, and a loop in JAX.

    python -m benchmarks.tensors      # writes docs/results/tensors_speed.json

Each contestant runs in a separate process with one torch thread, or with ``--threads`` of them; all run in turn, three
times. Envs, networks, rollouts, minibatches and losses are the same. The loop in JAX is one jitted function with
gymnax's CartPole, as in PureJaxRL; it needs the packages jax, optax and gymnax, and XLA takes all cores that the
process may use. Seconds of compilation are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks import bare_tensor_ppo, contest, jax_tensor_ppo
from benchmarks.compare import Result
from benchmarks.ppo import make_ours
from benchmarks.workload import W7, PPOWorkload


def run_ours(w: PPOWorkload, compile: bool = False, mode: Any = "tensor") -> Result:
    """Train through ``Trainer.fit``."""
    return contest.fit(*make_ours(w, compile, mode))


CONTESTANTS: dict[str, Callable[[PPOWorkload], Result]] = {
    "bare loop": bare_tensor_ppo.run,
    "ours": run_ours,
    "ours, compiled": lambda w: run_ours(w, compile=True),
    "ours, sync": lambda w: run_ours(w, mode="sync"),
    "JAX": jax_tensor_ppo.run,
}

if __name__ == "__main__":
    contest.main("tensors", __doc__, CONTESTANTS, W7)
