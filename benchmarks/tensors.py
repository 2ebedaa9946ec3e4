"""Speed of PPO in 1,024 tensor envs on workload W7, and in 64: this project, a bare torch loop, and a loop in JAX.

    python -m benchmarks.tensors      # writes docs/results/tensors_speed.json

Each contestant runs in a separate process with one torch thread, or with ``--threads`` of them; all run in turn, three
times. Envs, networks, rollouts, minibatches and losses are the same. The loop in JAX is one jitted function with
gymnax's CartPole, as in PureJaxRL; it needs the packages jax, optax and gymnax, and XLA takes all cores that the
process may use. Seconds of compilation are left out.

``cpu_ms_a_round`` in the JSON file is CPU time of the whole process in a round of 32 steps of all envs and 32 updates,
which other programs on the machine disturb less; those of this project leave out the first four rounds, which compile.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

from benchmarks import bare_tensor_ppo, contest, jax_tensor_ppo
from benchmarks.compare import Result
from benchmarks.ppo import make_ours
from benchmarks.workload import W7, PPOWorkload

FIRST_ROUNDS = 4


def run_ours(w: PPOWorkload, compile: bool = False, mode: Any = "tensor") -> Result:
    """Train through ``Trainer.fit``."""
    from lightning import Callback

    times: list[float] = []

    class Clock(Callback):
        """Notes the CPU time at the end of each round."""

        def on_train_batch_end(self, *args: Any) -> None:
            times.append(time.process_time())

    result = contest.fit(*make_ours(w, compile, mode), callbacks=[Clock()])
    seconds = times[-1] - times[FIRST_ROUNDS - 1]
    return result | {"cpu_ms_a_round": 1e3 * seconds / (len(times) - FIRST_ROUNDS)}


def with_64_envs(run: Callable[[PPOWorkload], Result]) -> Callable[[PPOWorkload], Result]:
    """Return the same with 64 envs and minibatches of 256."""
    return lambda w: run(dataclasses.replace(w, num_envs=64, batch_size=256))


CONTESTANTS: dict[str, Callable[[PPOWorkload], Result]] = {
    "bare loop": bare_tensor_ppo.run,
    "ours": run_ours,
    "ours, compiled": lambda w: run_ours(w, compile=True),
    "ours, sync": lambda w: run_ours(w, mode="sync"),
    "JAX": jax_tensor_ppo.run,
}
CONTESTANTS |= {f"{name}, 64": with_64_envs(run) for name, run in CONTESTANTS.items()}

if __name__ == "__main__":
    contest.main("tensors", __doc__, CONTESTANTS, W7)
