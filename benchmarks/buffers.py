"""Speed and memory of the replay buffers, compared with cpprb and Tianshou.

    python -m benchmarks.buffers      # writes docs/results/buffers.json

Full buffers of 100,000 and of 1,000,000 CartPole-like transitions of 8 envs, with episodes of 100 steps. They get the 8
transitions of a vector step, and the 64 of a round of 8 vector steps, as a collector returns them. Then minibatches of
256 are drawn with importance weights and their priorities updated, and drawn uniformly.

``cpprb`` holds five columns and returns arrays. ``cpprb_tensors`` has the columns of this project and returns tensors
with a discount, as a loss needs them; it is the comparison of equal work. Tianshou returns its batches of arrays, and
gets the transitions of a round one vector step at a time.

Each contestant runs in a separate process with one thread. All run in turn, three times. The load of a shared machine
varies, so processor time is counted, in pieces, and the median piece counts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch

from benchmarks.compare import Result, in_turn, medians_of, save

SIZES = (100_000, 1_000_000)
STEPS = 4096  # vector steps that are repeated
ENVS = 8
ROUND = 8  # vector steps of a round
BATCH_SIZE = 256
BATCHES = 2_000
PIECES = 100  # number of parts into which pushes and batches are divided
OBS = np.random.default_rng(0).normal(size=(STEPS + 1, ENVS, 4)).astype(np.float32)
NEXT_OBS = OBS[1:].copy()
TERMINATED = (np.arange(STEPS)[:, None] + 13 * np.arange(ENVS)) % 100 == 99  # the envs end at different steps
NEXT_OBS[TERMINATED] += 1
DONE = TERMINATED.astype(np.float32)
ENV_ID = np.tile(np.arange(ENVS), ROUND)
ACTION, REWARD = np.zeros(ENVS * ROUND, dtype=np.int64), np.ones(ENVS * ROUND, dtype=np.float32)
TRUNCATED = np.zeros(ENVS * ROUND, dtype=bool)


def _part(array: Any, step: int, steps: int) -> Any:
    """Return so many vector steps as transitions in chronological order."""
    return array[step : step + steps].reshape(steps * ENVS, *array.shape[2:])


class Contestant(Protocol):
    """A prioritised and a uniform buffer."""

    def push(self, step: int, steps: int) -> None:
        """Add the transitions of vector steps to the prioritised buffer."""
        ...

    def push_uniform(self, step: int, steps: int) -> None:
        """Add the transitions of vector steps to the uniform buffer."""
        ...

    def learn(self, train_iter: int, priority: Any) -> None:
        """Draw a minibatch with importance weights and update its priorities."""
        ...

    def draw(self) -> None:
        """Draw a minibatch uniformly."""
        ...


class Ours:
    """This project."""

    def __init__(self, capacity: int) -> None:
        from lightning_ding.worker import AdvancedReplayBuffer, NaiveReplayBuffer

        self.buffer = AdvancedReplayBuffer({"replay_buffer_size": capacity}, seed=0)
        self.uniform = NaiveReplayBuffer({"replay_buffer_size": capacity}, seed=0)

    def push(self, step: int, steps: int) -> None:
        """Add the transitions of vector steps to the prioritised buffer."""
        self.buffer.push(self.transitions(step, steps))

    def push_uniform(self, step: int, steps: int) -> None:
        """Add the transitions of vector steps to the uniform buffer."""
        self.uniform.push(self.transitions(step, steps))

    def learn(self, train_iter: int, priority: Any) -> None:
        """Draw a minibatch with importance weights and update its priorities."""
        batch = self.buffer.sample(BATCH_SIZE, train_iter)
        self.buffer.update({**batch, "priority": priority})

    def draw(self) -> None:
        """Draw a minibatch uniformly."""
        self.uniform.sample(BATCH_SIZE)

    def transitions(self, step: int, steps: int) -> dict[str, Any]:
        """Return the columns of the transitions of vector steps."""
        size = steps * ENVS
        ends = {"terminated": _part(TERMINATED, step, steps), "truncated": TRUNCATED[:size], "env_id": ENV_ID[:size]}
        obs = {"obs": _part(OBS, step, steps), "next_obs": _part(NEXT_OBS, step, steps)}
        return {**obs, "action": ACTION[:size], "reward": REWARD[:size], **ends}


class Cpprb:
    """cpprb, a library in C++."""

    columns: ClassVar[dict[str, Any]] = {
        "obs": {"shape": 4},
        "act": {"dtype": np.int64},
        "rew": {},
        "next_obs": {"shape": 4},
    }
    ends: ClassVar[dict[str, Any]] = {"done": {}}

    def __init__(self, capacity: int) -> None:
        import cpprb

        columns = {**self.columns, **self.ends}
        self.buffer = cpprb.PrioritizedReplayBuffer(capacity, columns, alpha=0.6)
        self.uniform = cpprb.ReplayBuffer(capacity, columns)

    def push(self, step: int, steps: int) -> None:
        """Add the transitions of vector steps to the prioritised buffer."""
        self.buffer.add(**self.transitions(step, steps))

    def push_uniform(self, step: int, steps: int) -> None:
        """Add the transitions of vector steps to the uniform buffer."""
        self.uniform.add(**self.transitions(step, steps))

    def learn(self, train_iter: int, priority: Any) -> None:
        """Draw a minibatch with importance weights and update its priorities."""
        batch = self.buffer.sample(BATCH_SIZE, beta=0.4)
        self.buffer.update_priorities(batch["indexes"], priority)

    def draw(self) -> None:
        """Draw a minibatch uniformly."""
        self.uniform.sample(BATCH_SIZE)

    def transitions(self, step: int, steps: int) -> dict[str, Any]:
        """Return the columns of the transitions of vector steps."""
        size = steps * ENVS
        obs = {"obs": _part(OBS, step, steps), "next_obs": _part(NEXT_OBS, step, steps)}
        return {**obs, "act": ACTION[:size], "rew": REWARD[:size], **self.ends_of(step, steps)}

    def ends_of(self, step: int, steps: int) -> dict[str, Any]:
        """Return the columns that mark the ends of episodes."""
        return {"done": _part(DONE, step, steps)}


class CpprbTensors(Cpprb):
    """cpprb with the columns of this project, and with minibatches of tensors."""

    ends: ClassVar[dict[str, Any]] = {
        "terminated": {"dtype": bool},
        "truncated": {"dtype": bool},
        "env_id": {"dtype": np.int64},
    }

    def learn(self, train_iter: int, priority: Any) -> None:
        """Draw a minibatch with importance weights and update its priorities."""
        batch = self._tensors(self.buffer.sample(BATCH_SIZE, beta=0.4))
        self.buffer.update_priorities(batch["indexes"].numpy(), priority)

    def draw(self) -> None:
        """Draw a minibatch uniformly."""
        self._tensors(self.uniform.sample(BATCH_SIZE))

    def ends_of(self, step: int, steps: int) -> dict[str, Any]:
        """Return the columns that mark the ends of episodes, and the envs."""
        size = steps * ENVS
        return {
            "terminated": _part(TERMINATED, step, steps),
            "truncated": TRUNCATED[:size],
            "env_id": ENV_ID[:size],
        }

    def _tensors(self, batch: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Return a minibatch as tensors, those of one number for each transition without the axis of size 1."""
        tensors = {
            name: torch.from_numpy(array if array.shape[1:] != (1,) else array[:, 0]) for name, array in batch.items()
        }
        return {**tensors, "discount": torch.ones(BATCH_SIZE)}


class Tianshou:
    """Tianshou, whose vector buffers have a part for each env."""

    def __init__(self, capacity: int) -> None:
        from tianshou.data import Batch, PrioritizedVectorReplayBuffer, VectorReplayBuffer

        self.batch = Batch
        self.buffer = PrioritizedVectorReplayBuffer(capacity, ENVS, alpha=0.6, beta=0.4)
        self.uniform = VectorReplayBuffer(capacity, ENVS)

    def push(self, step: int, steps: int) -> None:
        """Add the transitions of vector steps to the prioritised buffer."""
        for one in range(step, step + steps):
            self.buffer.add(self._transitions(one))

    def push_uniform(self, step: int, steps: int) -> None:
        """Add the transitions of vector steps to the uniform buffer."""
        for one in range(step, step + steps):
            self.uniform.add(self._transitions(one))

    def learn(self, train_iter: int, priority: Any) -> None:
        """Draw a minibatch with importance weights and update its priorities."""
        _, indices = self.buffer.sample(BATCH_SIZE)
        self.buffer.update_weight(indices, priority)

    def draw(self) -> None:
        """Draw a minibatch uniformly."""
        self.uniform.sample(BATCH_SIZE)

    def _transitions(self, step: int) -> Any:
        ends: dict[str, Any] = {
            "terminated": TERMINATED[step],
            "truncated": TRUNCATED[:ENVS],
            "info": self.batch(),
        }
        return self.batch(obs=OBS[step], act=ACTION[:ENVS], rew=REWARD[:ENVS], obs_next=NEXT_OBS[step], **ends)


CONTESTANTS: dict[str, Callable[[int], Contestant]] = {
    "lightning_ding": Ours,
    "cpprb": Cpprb,
    "cpprb_tensors": CpprbTensors,
    "tianshou": Tianshou,
}


def run(name: str, capacity: int) -> Result:
    """Return pushes, prioritised and uniform minibatches a second."""
    contestant, rng = CONTESTANTS[name](capacity), np.random.default_rng(1)
    start = time.perf_counter()
    for number in range(-(-capacity // (ROUND * ENVS))):
        step = number * ROUND % STEPS
        contestant.push(step, ROUND)
        contestant.push_uniform(step, ROUND)
    for number in range(500):  # what is made or compiled at the first call is not timed, and priorities differ
        contestant.learn(number, rng.random(BATCH_SIZE) + 0.01)
    speeds: Result = {}
    for steps, kind in ((1, "step"), (ROUND, "round")):
        places = range(0, STEPS - ROUND, steps)
        pushes = _rate(len(places), lambda number: contestant.push(places[number], steps))  # noqa: B023 - called here
        uniform = _rate(len(places), lambda number: contestant.push_uniform(places[number], steps))  # noqa: B023
        speeds |= {f"{kind}_pushes": pushes * steps * ENVS, f"uniform_{kind}_pushes": uniform * steps * ENVS}
    speeds["samples_with_update"] = _rate(
        BATCHES, lambda number: contestant.learn(number, rng.random(BATCH_SIZE) + 0.01)
    )
    speeds["uniform_samples"] = _rate(BATCHES, lambda number: contestant.draw())
    return {"seconds": time.perf_counter() - start, **speeds, **_memory(contestant, capacity)}


def _rate(amount: int, call: Callable[[int], None]) -> float:
    """Return the calls per second of processor time in the median piece of so many calls."""
    pieces, size = [], max(1, amount // PIECES)
    for piece in range(amount // size):
        start = time.thread_time()
        for number in range(piece * size, piece * size + size):
            call(number)
        pieces.append((time.thread_time() - start) / size)
    return 1 / statistics.median(pieces)


def _memory(contestant: Contestant, capacity: int) -> Result:
    """Return the bytes of the full buffers of this project, of those of its columns, next observations included."""
    if not isinstance(contestant, Ours):
        return {}
    row = sum(array[0].nbytes for array in contestant.transitions(0, 1).values())
    ratios = {"memory_ratio": contestant.buffer.nbytes, "uniform_memory_ratio": contestant.uniform.nbytes}
    return {key: nbytes / (row * capacity) for key, nbytes in ratios.items()}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--output", type=Path, default=Path("docs/results/buffers.json"))
    parser.add_argument("--run", help="run one contestant, such as cpprb/100000, and print its result")
    arguments = parser.parse_args()
    if arguments.run is not None:
        torch.set_num_threads(1)
        name, _, size = arguments.run.partition("/")
        print(json.dumps(run(name, int(size))))
        return
    for library in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[library] = "1"
    names = [f"{name}/{size}" for size in arguments.sizes for name in CONTESTANTS]
    results = in_turn(["benchmarks.buffers"], names, arguments.repeats)
    medians = medians_of(results)
    for size in arguments.sizes:
        _show({name: medians[f"{name}/{size}"] for name in CONTESTANTS}, size)
    save(results, arguments.output)


def _show(medians: dict[str, Result], size: int) -> None:
    """Print the numbers of one size, and the ratios of this project to the others."""
    shown = [key for key in medians["cpprb"] if key != "seconds"]
    print("\n" + " ".join([f"{size:>14,}", *(f"{key:>21}" for key in shown)]))
    for name, row in medians.items():
        print(" ".join([f"{name:>14}", *(f"{row[key]:21,.0f}" for key in shown)]))
    ours = medians["lightning_ding"]
    for name in list(medians)[1:]:
        print(" ".join([f"to {name:>11}", *(f"{ours[key] / medians[name][key]:21.2f}" for key in shown)]))
    print(f"memory: {ours['memory_ratio']:.2f} of the columns, uniform {ours['uniform_memory_ratio']:.2f}")


if __name__ == "__main__":
    main()
