"""Env steps per second on a GPU and on one thread of its host, for the workloads of the other benchmarks.

    python -m benchmarks.accelerator                    # every workload; needs a CUDA device
    python -m benchmarks.accelerator --only ppo pixels
    python -m benchmarks.accelerator --table            # docs/results/accelerator.json as a table

Two workloads of PPO have envs of tensors: W7 with 1,024 of them, and the same with 16,384 and minibatches of 65,536.
They also run compiled, as CUDA graphs, and as one jitted function of JAX. A run is made once before the clock starts,
because a device starts and chooses its kernels in the first updates. Seconds of compilation are left out.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from benchmarks import contest, workload

RESULT = Path("docs/results/accelerator.json")
MANY = dataclasses.replace(workload.W7, num_envs=16_384, batch_size=65_536, env_steps=3_145_728)
WORKLOADS: dict[str, tuple[Any, int]] = {
    "dqn": (workload.W1, 640),
    "ppo": (dataclasses.replace(workload.W2, env_steps=102_400), 2_048),
    "sac": (dataclasses.replace(workload.W3, env_steps=3_000), 756),
    "pixels": (dataclasses.replace(workload.W4, env_steps=3_072), 192),
    "tensors": (workload.W7, 4 * workload.W7.rollout),
    "tensors_16384": (MANY, 2 * MANY.rollout),
}
"""Workload and env steps of the run before the clock starts."""
TENSORS = ("tensors", "tensors_16384")
SIDES: dict[str, dict[str, Any]] = {
    "cpu": {},
    "gpu": {"accelerator": "gpu"},
    "gpu_compiled": {"accelerator": "gpu", "compile": True},
    "gpu_graphs": {"accelerator": "gpu", "compile": "cuda_graphs"},
}
"""Accelerator and compilation of each column; JAX has another one."""


def speed(name: str, accelerator: str = "cpu", compile: Any = False) -> float:
    """Return env steps per second."""
    whole, first = WORKLOADS[name]
    is_tensor = name in TENSORS
    make: Callable[..., tuple[Any, Any]] = import_module(f"benchmarks.{'ppo' if is_tensor else name}").make_ours
    chosen = {"compile": compile, "mode": "tensor"} if is_tensor else {}
    contest.fit(*make(dataclasses.replace(whole, env_steps=first), **chosen), accelerator=accelerator)
    result = contest.fit(*make(whole, **chosen), accelerator=accelerator)
    return float(result["env_steps"] / result["seconds"])


def jax_speed(name: str) -> float:
    """Return env steps per second of one jitted function of JAX on its default device."""
    from benchmarks import jax_tensor_ppo

    result = jax_tensor_ppo.run(WORKLOADS[name][0])
    return float(result["env_steps"] / result["seconds"])


def table() -> str:
    """Return the stored speeds as a Markdown table."""
    stored = json.loads(RESULT.read_text())
    columns = [*SIDES, "gpu_jax"]
    rows = []
    for name, row in stored.items():
        speeds = [f"{row[side]:,.0f}" if side in row else "-" for side in columns]
        rows.append(f"| {name} | {' | '.join(speeds)} | {row['device']} |")
    head = "| workload | one thread | GPU | compiled | CUDA graphs | JAX | device |"
    return "\n".join([head, "|---|--:|--:|--:|--:|--:|---|", *rows])


def measured(name: str) -> dict[str, Any]:
    """Return the env steps per second of a workload by side, the device, and the version of torch."""
    is_tensor = name in TENSORS
    row: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    sides = {side: chosen for side, chosen in SIDES.items() if is_tensor or "compile" not in chosen}
    row |= {side: round(speed(name, **chosen), 1) for side, chosen in sides.items()}
    return row | ({"gpu_jax": round(jax_speed(name), 1)} if is_tensor and find_spec("gymnax") else {})


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the workloads, and store them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args(arguments)
    if not options.table:
        torch.set_num_threads(1)
        stored = json.loads(RESULT.read_text()) if RESULT.is_file() else {}
        for name in options.only:
            stored[name] = measured(name)
            RESULT.parent.mkdir(parents=True, exist_ok=True)
            RESULT.write_text(json.dumps(stored, indent=1) + "\n")
    print(table())


if __name__ == "__main__":
    main()
