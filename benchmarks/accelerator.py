"""Env steps per second on a GPU and on one thread of its host, for the workloads of the other benchmarks.

    python -m benchmarks.accelerator                    # every workload; needs a CUDA device
    python -m benchmarks.accelerator --only ppo pixels
    python -m benchmarks.accelerator --table            # runs/accelerator.json as a table

A run is made once before the clock starts, because a device starts and chooses its kernels in the first updates.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from benchmarks import contest, workload

RESULT = Path("runs/accelerator.json")
WORKLOADS: dict[str, tuple[Any, int]] = {
    "dqn": (workload.W1, 640),
    "ppo": (dataclasses.replace(workload.W2, env_steps=102_400), 2_048),
    "sac": (dataclasses.replace(workload.W3, env_steps=3_000), 756),
    "pixels": (dataclasses.replace(workload.W4, env_steps=3_072), 192),
}
"""Workload and env steps of the run before the clock starts."""


def speed(name: str, accelerator: str) -> float:
    """Return env steps per second."""
    whole, first = WORKLOADS[name]
    make: Callable[[Any], tuple[Any, Any]] = import_module(f"benchmarks.{name}").make_ours
    contest.fit(*make(dataclasses.replace(whole, env_steps=first)), accelerator=accelerator)
    result = contest.fit(*make(whole), accelerator=accelerator)
    return float(result["env_steps"] / result["seconds"])


def table() -> str:
    """Return the stored speeds as a Markdown table."""
    stored = json.loads(RESULT.read_text())
    rows = [f"| {name} | {row['cpu']:,.0f} | {row['gpu']:,.0f} | {row['device']} |" for name, row in stored.items()]
    return "\n".join(["| workload | one thread | GPU | device |", "|---|--:|--:|---|", *rows])


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
            speeds = {side: round(speed(name, side), 1) for side in ("cpu", "gpu")}
            stored[name] = {**speeds, "device": torch.cuda.get_device_name(), "torch": torch.__version__}
            RESULT.parent.mkdir(exist_ok=True)
            RESULT.write_text(json.dumps(stored, indent=1) + "\n")
    print(table())


if __name__ == "__main__":
    main()
