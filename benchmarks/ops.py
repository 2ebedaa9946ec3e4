"""How much work an update and a round of training are, in counts that do not depend on the machine.

    python -m benchmarks.ops            # prints the counts, and those of docs/results/ops.json
    python -m benchmarks.ops --write    # stores them there

Counted are calls of ATen operators, tensors that they allocate, and Python functions that are entered, on the workloads
W1 (DQN), W2 (PPO), W3 (SAC) and W4 (DQN on frames), eager, with fixed seeds. An update is one minibatch; a round has
all of its updates, collecting, the replay buffer, and what Lightning does. ``tests/benchmarks/test_ops.py`` fails if a
count grows.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import logging
import platform
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks import contest, dqn, pixels, ppo, sac
from benchmarks.workload import W1, W2, W3, W4

FILE = Path(__file__).parents[1] / "docs" / "results" / "ops.json"
PACKAGES = ("gymnasium", "lightning", "numpy", "torch")
SLACK = {"python_frames": 0.01}  # share; finalizers run when the garbage collector does
Counts = dict[str, float]


@dataclasses.dataclass(frozen=True)
class Case:
    """A workload, and the rounds in which it is counted.

    Attributes:
        make: Returns policy and datamodule of a workload.
        workload: The workload, with the env steps that the rounds need.
        first: Number of the first round that is counted, from 0; the ones before it make the optimizer's state.
        rounds: Number of rounds that are counted.
    """

    make: Callable[[Any], tuple[Any, Any]]
    workload: Any
    first: int
    rounds: int


CASES = {
    "W1": Case(dqn.make_ours, dataclasses.replace(W1, env_steps=W1.warm_up + 40 * W1.num_envs), 10, 20),
    "W2": Case(ppo.make_ours, dataclasses.replace(W2, env_steps=4 * W2.rollout), 1, 1),
    "W3": Case(sac.make_ours, dataclasses.replace(W3, env_steps=W3.warm_up + 40), 10, 20),
    "W4": Case(pixels.make_ours, dataclasses.replace(W4, env_steps=W4.warm_up + 7 * W4.num_envs), 2, 4),
}


class OperatorCounter(TorchDispatchMode):
    """A context that counts operators and the tensors that they allocate."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts = {"operators": 0, "allocations": 0}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count an operator and its new tensors."""
        result = func(*args, **(kwargs or {}))
        known = {leaf.untyped_storage().data_ptr() for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        new = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        self.counts["operators"] += 1
        self.counts["allocations"] += sum(leaf.untyped_storage().data_ptr() not in known for leaf in new)
        return result


class FrameCounter:
    """A context that counts the Python functions that are entered."""

    def __init__(self) -> None:
        self.counts = {"python_frames": 0}

    def __enter__(self) -> None:
        sys.setprofile(self._note)

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: Any, event: str, argument: Any) -> None:
        self.counts["python_frames"] += event == "call"


class Window(Callback):
    """Counts whole rounds, or in them only the updates.

    Args:
        case: The rounds to count.
        counter: The counter, a context that can be entered again.
        only_updates: Whether to count only inside of ``policy.updater``.
    """

    def __init__(self, case: Case, counter: Any, only_updates: bool) -> None:
        self.case, self.counter, self.only_updates = case, counter, only_updates
        self.updates = self._begun = 0

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Begin or end with a round."""
        number, last = self._begun, self.case.first + self.case.rounds
        self._begun += 1
        if number == self.case.first:
            self._train_iter = pl_module.progress.train_iter
            if self.only_updates:
                self._count_updates(pl_module.updater)
            else:
                self.counter.__enter__()
        elif number == last:
            self.updates = pl_module.progress.train_iter - self._train_iter
            if self.only_updates:
                del pl_module.updater.minimise
            else:
                self.counter.__exit__(None, None, None)

    def _count_updates(self, updater: Any) -> None:
        original = updater.minimise

        def counted(*args: Any, **kwargs: Any) -> Any:
            with self.counter:
                return original(*args, **kwargs)

        updater.minimise = counted


def count(case: Case) -> dict[str, Counts]:
    """Return the counts of an update and of a round."""
    found: dict[str, Counts] = {}
    for unit in ("update", "round"):
        found[unit] = {}
        for counter in (OperatorCounter(), FrameCounter()):
            window = Window(case, counter, unit == "update")
            contest.fit(*case.make(case.workload), callbacks=[window])
            number = window.updates if unit == "update" else case.rounds
            found[unit] |= {name: round(total / number, 2) for name, total in counter.counts.items()}
    return found


def versions() -> dict[str, str]:
    """Return the versions on which the counts depend."""
    found = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {"python": ".".join(platform.python_version_tuple()[:2]), **found}


def grown(stored: dict[str, dict[str, Counts]], new: dict[str, dict[str, Counts]]) -> list[str]:
    """Return a line for each count that is larger than the stored one.

    Example:
        >>> grown({"W1": {"update": {"operators": 10.0}}}, {"W1": {"update": {"operators": 11.0}}})
        ['W1, update: 11.0 operators, stored are 10.0']
    """
    return [
        f"{case}, {unit}: {number} {name}, stored are {stored[case][unit][name]}"
        for case, units in new.items()
        for unit, counts in units.items()
        for name, number in counts.items()
        if number > stored[case][unit][name] * (1 + SLACK.get(name, 0.0))
    ]


def main() -> None:
    """Print the counts, or store them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"store the counts in {FILE.name}")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    new = {name: count(case) for name, case in CASES.items()}
    stored = json.loads(FILE.read_text())["counts"] if FILE.is_file() else new
    for case, units in new.items():
        for unit, counts in units.items():
            before = stored.get(case, new[case])[unit]  # a new case has no stored counts
            pairs = [f"{number:9.1f} {name} ({before[name]:.1f})" for name, number in counts.items()]
            print(f"{case} {unit:>7}: {'  '.join(pairs)}")
    if options.write:
        FILE.write_text(json.dumps({"versions": versions(), "counts": new}, indent=2) + "\n")
        print(f"written to {FILE.relative_to(FILE.parents[2])}")


if __name__ == "__main__":
    main()
